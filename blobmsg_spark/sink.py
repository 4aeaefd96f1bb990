"""The writing side of `format("blobmsg")`: `df.write` and `df.writeStream`.

Spark's view of it: what tasks do stands in `sink_task`, what makes it visible in `sink_commit`.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from blobmsg.errors import BlobmsgError, ConfigError
from blobmsg_spark.by_value import reduce_state_by_value
from blobmsg_spark.sink_commit import SinkTransaction, commit_micro_batch
from blobmsg_spark.sink_message import SinkMessage
from blobmsg_spark.sink_schema import check_columns
from blobmsg_spark.sink_task import write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from blobmsg_spark.sink_options import SinkOptions

__all__ = ["BatchSink", "StreamSink"]

logger = logging.getLogger("blobmsg.spark")

_QUERY_ID: Final = "sql.streaming.queryId"


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame, all of it or nothing.

    Args:
        options: Of the sink.
        schema: Of the DataFrame.
        overwrite: What Spark says of the mode.

    Raises:
        ConfigError: The columns are no records, or topics are to be overwritten.

    Threads: one. Travels to executors, and back to where it commits.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                'topics can only be appended to: use mode("append"), and delete the topic or its '
                "records yourself"
            )
        check_columns(schema, options.topic)
        self._options = options
        self._name = f"{options.id_prefix}-batch-{uuid.uuid4()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_state_by_value(self)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task; runs on an executor."""
        return write_rows(self._options, None, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make visible what all tasks have stored."""
        _commit(self._options, self._name, _checked(messages), None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what is stored and not notified goes with its expiry hour."""


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query, each once.

    Args:
        options: Of the sink.
        schema: Of the DataFrame.

    Raises:
        ConfigError: The columns are no records.

    Threads: one. Travels to executors; where it commits Spark makes another one.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_state_by_value(self)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task; runs on an executor."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise AssertionError("a task of a stream does not know its query")
        return write_rows(self._options, query_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make visible what all tasks have stored, unless this micro-batch is already."""
        found = _checked(messages)
        query_ids = {message.query_id for message in found}
        if len(query_ids) > 1:
            raise AssertionError(f"tasks of one micro-batch have several queries: {query_ids}")
        for query_id in query_ids:
            _commit(self._options, f"{self._options.id_prefix}-{query_id}", found, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what is stored and not notified goes with its expiry hour."""


def _checked(messages: Sequence[WriterCommitMessage | None]) -> list[SinkMessage]:
    """The messages of all tasks; Spark commits only when there is one of each."""
    found = [message for message in messages if isinstance(message, SinkMessage)]
    if len(found) != len(messages):
        raise AssertionError(f"{len(messages) - len(found)} of {len(messages)} tasks say nothing")
    return found


def _commit(
    options: SinkOptions, name: str, messages: Sequence[SinkMessage], batch_id: int | None
) -> None:
    notifications = [found for message in messages for found in message.notifications]
    if not notifications:
        return
    commit_by = [message.commit_by_ms for message in messages if message.commit_by_ms is not None]
    if time.time() * 1000 > min(commit_by, default=float("inf")):
        raise BlobmsgError(
            "the job took so long that its objects would expire before their records: nothing of "
            "it is visible. Write less at once, or raise retention.ms of the topic",
            code=KafkaError._TIMED_OUT,
        )
    _, kafka_conf = options.settings()
    records = sum(found.records for found in notifications)
    is_new = (
        SinkTransaction(kafka_conf, name).commit(notifications, None)
        if batch_id is None
        else commit_micro_batch(kafka_conf, name, notifications, batch_id)
    )
    if is_new:
        logger.info("%s: %d records in %d notifications", name, records, len(notifications))
