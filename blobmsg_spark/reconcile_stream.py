"""`reconcile_stream`: topics into their histories as they come, by a streaming query.

Spark's checkpoint says what a micro-batch reads, the history says what is written already: a
micro-batch that is run again writes nothing twice, and neither does a query whose checkpoint was
lost, nor one beside a job. Offsets decide, not batch numbers. What only a checkpoint could know,
that nothing lies between the history's end and a query's first records, is looked up.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError

from blobmsg.core.offsets import to_virtual
from blobmsg.errors import BlobmsgError
from blobmsg_spark.boundaries import resolve_boundary, times_of
from blobmsg_spark.by_value import by_value
from blobmsg_spark.histories import Histories
from blobmsg_spark.offset_ranges import OffsetRange, encode_offsets
from blobmsg_spark.range_task import read_range
from blobmsg_spark.reconcile_job import DEFAULT_FILE_BYTES, plan_reconcile
from blobmsg_spark.reconcile_task import REPORT_SCHEMA, StreamTask, read_report
from blobmsg_spark.source import register_source
from blobmsg_spark.topic_log import TopicLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from blobmsg_spark.history_manifest import HistoryFile
    from blobmsg_spark.offset_ranges import Key, Offsets
    from blobmsg_spark.reconcile_job import ReconcilePlan

__all__ = ["reconcile_stream"]

_EARLIEST: Final = -2


def reconcile_stream(
    spark: SparkSession,
    options: Mapping[str, Any],
    *,
    checkpoint: str,
    to: str | None = None,
    file_bytes: int = DEFAULT_FILE_BYTES,
    compression: str = "zstd",
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start a query that writes topics to their histories; each micro-batch is one manifest.

    A new query begins where the histories end; partitions without one begin at `startingOffsets`,
    `earliest` by default.

    Args:
        spark: The session.
        options: Of `spark.readStream.format("blobmsg")`, as for `reconcile`;
            `maxBytesPerTrigger` bounds a micro-batch.
        checkpoint: Where Spark keeps the query's offsets: one place for each query.
        to: As for `reconcile`.
        file_bytes: As for `reconcile`. Micro-batches make smaller files: choose a trigger that
            leaves time for enough to come.
        compression: As for `reconcile`.
        trigger: Of `DataStreamWriter.trigger`: `{"processingTime": "5 minutes"}`,
            `{"availableNow": True}`. None: as soon as something comes.

    Returns:
        The query, running. What fails in it is its `exception()`.

    Raises:
        ConfigError: An option is wrong.
        ValueError: `file_bytes` or `compression` is.
        BlobmsgError: Kafka or the store refuses, or a topic is not there or was made anew.

    Threads: any.
    """
    # Streams begin at the end unless told otherwise, histories at the beginning.
    begins = {"startingoffsets": "earliest"}
    plan = plan_reconcile(
        {**begins, **{key.lower(): value for key, value in options.items()}},
        is_streaming=True,
        to=to,
        file_bytes=file_bytes,
        compression=compression,
    )
    register_source(spark)
    frame = spark.readStream.format("blobmsg").options(**_begin_at_ends(plan)).load()
    writer = frame.writeStream.option("checkpointLocation", checkpoint)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(_MicroBatches(plan)).start()


def _begin_at_ends(plan: ReconcilePlan) -> dict[str, str]:
    """The options, so that a new query begins where the histories end."""
    options = plan.options
    with closing(TopicLog(options)) as log:
        keys = log.partitions(options.subscription, must_exist=True)
        ends = Histories(plan.writing.place).look(log, keys)
        if not ends:
            return dict(plan.given)
        found = log.at_times(times_of(options.starting, keys))
        starts = resolve_boundary(
            options.starting,
            log.bounds_of_all(keys),
            found,
            options=options,
            checks_offsets=log.checks_offsets,
        )
    if options.starting.kind == "earliest":  # what Kafka deletes meanwhile is not lost to a new one
        starts = dict.fromkeys(starts, _EARLIEST)
    offsets = encode_offsets({**starts, **ends})
    given = {key: text for key, text in plan.given.items() if not key.startswith("starting")}
    # These are no user's. Its rule of thumb could take a small one for Kafka's own.
    return {
        **given,
        "startingOffsets": json.dumps(offsets),
        "blobmsg.offset.check": "false",
    }


class _MicroBatches:
    """Writes each micro-batch and commits it.

    Args:
        plan: What the user asked for.

    Threads: Spark's, one at a time.
    """

    def __init__(self, plan: ReconcilePlan) -> None:
        self._plan = plan
        self._histories: Histories | None = None
        self._joined: set[Key] = set()  # nothing lies between the history and what is read now

    def __reduce__(self) -> tuple[Any, ...]:  # Spark Connect calls it elsewhere
        return (_MicroBatches, (self._plan,))

    def __call__(self, frame: DataFrame, _number: int) -> None:
        """Write a micro-batch.

        Raises:
            BlobmsgError: See `reconcile`; the checkpoint is ahead of the history.
        """
        plan = self._plan
        if self._histories is None:
            self._histories = Histories(plan.writing.place)
        histories = self._histories
        with closing(TopicLog(plan.options)) as log:
            keys = log.partitions(plan.options.subscription, must_exist=False)
            ends = histories.look(log, keys)
            begins = {**self._begins(log, keys - ends.keys()), **ends}
        task = StreamTask(ends, plan.writing)
        files = read_report(frame.mapInArrow(by_value(task), REPORT_SCHEMA).toArrow())
        new_ends: dict[Key, int] = {}
        for topic, found in files.items():
            if histories.last_run(topic) != plan.writing.run:
                self._joined -= {(topic, file.partition) for file in found}
            self._check_joined(topic, found, begins)
            new_ends |= {(topic, file.partition): file.end_offset for file in found}
        histories.commit(plan.writing.run, files, new_ends)

    def _begins(self, log: TopicLog, keys: set[Key]) -> Offsets:
        """Where partitions without a history begin, as far as anybody can know.

        A time, or the end of the log, was another place when the query was new.
        """
        starting = self._plan.options.starting
        if starting.kind == "offsets":
            return {key: place for key, place in starting.places.items() if place >= 0}
        if starting.kind != "earliest" or not keys:
            return {}
        return {key: to_virtual(bound.low) for key, bound in log.bounds(keys).items()}

    def _check_joined(self, topic: str, files: list[HistoryFile], begins: Offsets) -> None:
        """Refuse a micro-batch that leaves records out: its checkpoint is of another history.

        Once for each partition: what a running query reads has no gaps. Markers of transactions
        and aborted records are none, so it takes a look at what lies between.
        """
        for file in files:
            key = (topic, file.partition)
            begin = begins.get(key)
            if begin is None or begin >= file.first_offset or key in self._joined:
                self._joined.add(key)
                continue
            between = OffsetRange(*key, begin, file.first_offset)
            if any(batch.num_rows for batch in read_range(self._plan.options, between)):
                raise BlobmsgError(
                    f"{between}: these records are not in the history, and the query's checkpoint "
                    "is past them: it wrote to another place, or its history was deleted. Run "
                    "reconcile(), which writes what is missing, and start the query again; or give "
                    "it a new checkpointLocation",
                    code=KafkaError._CONFLICT,
                    topic=topic,
                    partition=file.partition,
                )
            self._joined.add(key)
