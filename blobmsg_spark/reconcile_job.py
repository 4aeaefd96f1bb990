"""`reconcile`: what is new in some topics, written to their histories by one Spark job.

The driver plans ranges of offsets from where each history ends, tasks read them and write Parquet
files, and one manifest per topic, committed when all files of all topics are there, makes them
visible. Until then nothing is, so a run that fails anywhere leaves no more than files that nobody
sees.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blobmsg_spark.batch_source import plan_batch
from blobmsg_spark.by_value import by_value
from blobmsg_spark.histories import Histories
from blobmsg_spark.history_store import history_place
from blobmsg_spark.history_writer import COMPRESSIONS, WritePlan
from blobmsg_spark.reconcile_task import REPORT_SCHEMA, RangesTask, read_report
from blobmsg_spark.source_options import parse_source_options
from blobmsg_spark.topic_log import TopicLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from blobmsg_spark.histories import Addition
    from blobmsg_spark.source_options import SourceOptions

__all__ = ["DEFAULT_FILE_BYTES", "ReconcilePlan", "plan_reconcile", "reconcile"]

#: A task holds as many; readers take files of this size in parallel, and a request costs nothing
#: beside it.
DEFAULT_FILE_BYTES: Final = 128 << 20
# One PUT has `blobmsg.request.timeout.ms` to send it.
_MOST_FILE_BYTES: Final = 1 << 30


def reconcile(
    spark: SparkSession,
    options: Mapping[str, Any],
    *,
    to: str | None = None,
    file_bytes: int = DEFAULT_FILE_BYTES,
    compression: str = "zstd",
) -> list[Addition]:
    """Write what is new in some topics to their histories, as sorted Parquet.

    Each partition goes on where its history ends; one that has none begins at `startingOffsets`,
    `earliest` by default. Records of blob, inline and plain producers alike, with the columns of
    the source, `headers` always. Run it again after any failure.

    Args:
        spark: The session; classic or Connect.
        options: Of `spark.read.format("blobmsg")`: `kafka.bootstrap.servers`, `subscribe`,
            `blobmsg.store.url` … `minPartitions` makes more tasks than there are partitions,
            `endingOffsets` ends before the end.
        to: The store of the histories, which lie below `history/` there; None:
            `blobmsg.store.url`.
        file_bytes: A file ends when it has so many; a task holds it in memory until then.
        compression: `zstd`, `snappy`, `gzip`, `lz4` or `none`.

    Returns:
        What was added, topic by topic; topics without anything new are not there.

    Raises:
        ConfigError: An option is wrong.
        ValueError: `file_bytes` or `compression` is.
        BlobmsgError: Kafka or the store refuses, a topic is not there or was made anew, records
            are lost, or another run has committed meanwhile.
        PySparkException: A task failed, with the task's error as its text.

    Threads: any.
    """
    plan = plan_reconcile(
        options, is_streaming=False, to=to, file_bytes=file_bytes, compression=compression
    )
    with closing(TopicLog(plan.options)) as log:
        keys = log.partitions(plan.options.subscription, must_exist=True)
        histories = Histories(plan.writing.place)
        begun = histories.look(log, keys)
        ranges = plan_batch(log, plan.options, keys, begun)
    if not ranges:
        return []
    ends: dict[tuple[str, int], int] = {}
    for found in ranges:
        ends[found.key] = max(ends.get(found.key, 0), found.end)
    task = RangesTask(plan.options, tuple(ranges), plan.writing)
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    reports = numbers.mapInArrow(by_value(task), REPORT_SCHEMA).toArrow()
    return histories.commit(plan.writing.run, read_report(reports), ends)


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """What a user asked for, checked.

    Attributes:
        options: Of the source.
        given: The same, as the user gave them, for Spark.
        writing: How to write.
    """

    options: SourceOptions
    given: Mapping[str, str]
    writing: WritePlan


def plan_reconcile(
    options: Mapping[str, Any],
    *,
    is_streaming: bool,
    to: str | None,
    file_bytes: int,
    compression: str,
) -> ReconcilePlan:
    """Check what a user asked for.

    Args:
        options: As for `reconcile`.
        is_streaming: Whether they are of a stream.
        to: As for `reconcile`.
        file_bytes: As for `reconcile`.
        compression: As for `reconcile`.

    Raises:
        ConfigError: An option is wrong.
        ValueError: `file_bytes` or `compression` is.
    """
    if not 1 <= file_bytes <= _MOST_FILE_BYTES:
        raise ValueError(f"file_bytes is {file_bytes}: expected 1 to {_MOST_FILE_BYTES}")
    if compression not in COMPRESSIONS:
        raise ValueError(
            f"compression is {compression!r}: expected one of {', '.join(COMPRESSIONS)}"
        )
    # All files of a history have the same columns.
    given = {
        **{key: str(value) for key, value in options.items() if key.lower() != "includeheaders"},
        "includeHeaders": "true",
    }
    parsed = parse_source_options(given, is_streaming=is_streaming)
    place = history_place(parsed.conf, to)
    return ReconcilePlan(parsed, given, WritePlan(place, uuid.uuid4().hex, file_bytes, compression))
