"""What runs in Python workers of Spark when a history is written.

Both tasks write files and tell the driver of them, a row each; what a failed attempt wrote is told
to nobody, so it never counts. `RangesTask` reads its records itself, so that they never pass
through Spark; `StreamTask` gets those of a micro-batch from Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from blobmsg_spark.history_manifest import HistoryFile
from blobmsg_spark.history_writer import HistoryWriter, WritePlan
from blobmsg_spark.range_task import read_range
from blobmsg_spark.source_schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blobmsg_spark.offset_ranges import OffsetRange, Offsets
    from blobmsg_spark.source_options import SourceOptions

__all__ = ["REPORT_SCHEMA", "RangesTask", "StreamTask", "read_report"]

#: Of the rows that tasks give, for Spark.
REPORT_SCHEMA: Final = "topic string, file string"
_RECORDS: Final = arrow_schema(include_headers=True)
_ARROW_SCHEMA: Final = pa.schema([("topic", pa.string()), ("file", pa.string())])


def _report(topic: str, files: Iterable[HistoryFile | None]) -> Iterator[pa.RecordBatch]:
    for file in files:
        if file is not None:
            yield pa.RecordBatch.from_pydict(
                {"topic": [topic], "file": [json.dumps(file.encode())]}, _ARROW_SCHEMA
            )


def read_report(rows: pa.Table) -> dict[str, list[HistoryFile]]:
    """The files of each topic, in order, out of the rows of all tasks."""
    files: dict[str, list[HistoryFile]] = {}
    for row in rows.to_pylist():
        files.setdefault(row["topic"], []).append(HistoryFile.decode(json.loads(row["file"])))
    for found in files.values():
        found.sort(key=lambda file: (file.partition, file.first_offset))
    return files


def _attempt() -> int:
    """A number that no other attempt of a task has in this Spark."""
    context = TaskContext.get()
    if context is None:
        raise AssertionError("a task of Spark runs outside of it")
    return context.taskAttemptId()


@dataclass(frozen=True, slots=True)
class RangesTask:
    """Writes the ranges whose numbers it gets.

    Attributes:
        options: Of the source.
        ranges: All of the job.
        plan: How to write.
    """

    options: SourceOptions
    ranges: tuple[OffsetRange, ...]
    plan: WritePlan

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The files, a row each."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                wanted = self.ranges[number]
                yield from _report(wanted.topic, self._write(wanted))

    def _write(self, wanted: OffsetRange) -> Iterator[HistoryFile | None]:
        writer = HistoryWriter(self.plan, wanted.topic, wanted.partition, _attempt())
        for records in read_range(self.options, wanted):
            yield writer.add(records)
        yield writer.finish()


@dataclass(frozen=True, slots=True)
class StreamTask:
    """Writes the records of one task of a micro-batch, which are of one range.

    Attributes:
        ends: Where the histories end: what lies before is written already.
        plan: How to write.
    """

    ends: Offsets
    plan: WritePlan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The files, a row each."""
        writer: HistoryWriter | None = None
        topic, partition = "", -1
        for records in batches:
            if not records.num_rows:
                continue
            if writer is None:
                topic, partition = records["topic"][0].as_py(), records["partition"][0].as_py()
                writer = HistoryWriter(self.plan, topic, partition, _attempt())
            here = (records["topic"][0].as_py(), records["partition"][0].as_py())
            if here != (topic, partition):
                raise AssertionError(f"a task has records of {topic} [{partition}] and {here}")
            new = pc.greater_equal(records["offset"], self.ends.get((topic, partition), 0))
            # Spark gives timestamps in its session's zone, and large columns if it is told to.
            yield from _report(topic, [writer.add(records.filter(new).cast(_RECORDS))])
        if writer is not None:
            yield from _report(topic, [writer.finish()])
