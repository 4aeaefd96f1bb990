"""What Spark's sink wrote, as a consumer reads it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from blobmsg import BlobConsumer
from tests.helpers.records import partition, read_to_end

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_OLDEST_S: Final = 1_700_000_000

__all__ = ["lines_to_topic", "read_topic", "write_files"]


def read_topic(group_conf: Mapping[str, Any], topic: str, partitions: int = 1) -> list[Any]:
    """All messages that there are now, in order within each partition."""
    with BlobConsumer(dict(group_conf)) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(partitions)])
        return read_to_end(consumer, partitions, batch=500).messages


def write_files(folder: Path, count: int, first: int = 0) -> None:
    """Text files of ten lines each, one micro-batch of `lines_to_topic` each."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        lines = (f"{number}-{line}\n" for line in range(10))
        written = folder / f".{number}"  # renamed, so that Spark never sees half of one
        written.write_text("".join(lines))
        os.utime(written, (_OLDEST_S + number, _OLDEST_S + number))  # Spark takes the oldest first
        written.rename(folder / f"{number:03}.txt")


def lines_to_topic(
    spark: SparkSession, folder: Path, options: Mapping[str, str]
) -> DataStreamWriter:
    """A query that has been told everything but to start; each file is a micro-batch."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder / "in"))
    return (
        lines.writeStream.format("blobmsg")
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
