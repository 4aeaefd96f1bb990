"""Consecutive records of one partition into Parquet files, as they come.

Decides where a file and a row group end, and how columns are encoded; never which records there
are. Holds the records of one row group and the bytes of one file: the store takes objects whole. A
file ends with the row group that takes it past its size, so files differ by that much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blobmsg.format.checksum import crc32
from blobmsg_spark.history_keys import file_key, file_name
from blobmsg_spark.history_manifest import HistoryFile
from blobmsg_spark.source_schema import arrow_schema

if TYPE_CHECKING:
    from blobmsg_spark.history_store import HistoryPlace

__all__ = ["COMPRESSIONS", "HistoryWriter", "WritePlan"]

COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
# Of records in memory. What readers take at once; larger ones gain them little.
_ROW_GROUP_BYTES: Final = 64 << 20
_SCHEMA: Final = arrow_schema(include_headers=True)
# Few different ones; a dictionary of the others is given up after a page or two, in vain.
_DICTIONARY: Final = [
    "key", "topic", "partition", "timestampType", "headers.list.element.key",
]  # fmt: skip
# They ascend, or nearly: a byte or two of eight remain.
_DELTAS: Final = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
# What readers skip row groups by.
_STATISTICS: Final = ["key", "topic", "partition", "offset", "timestamp", "timestampType"]
_OFFSET: Final = _SCHEMA.get_field_index("offset")
_TIMESTAMP: Final = _SCHEMA.get_field_index("timestamp")


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How one run writes; travels to executors.

    Attributes:
        place: Where.
        run: 32 hex digits, of no other run.
        file_bytes: A file ends when it has so many.
        compression: One of `COMPRESSIONS`.
    """

    place: HistoryPlace
    run: str
    file_bytes: int
    compression: str

    @property
    def row_group_bytes(self) -> int:
        """A row group ends when its records have so many bytes in memory."""
        return min(_ROW_GROUP_BYTES, self.file_bytes)


class _Pieces:
    """A file that keeps what is written to it, without ever copying it together. Threads: one."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0
        self.checksum = 0
        self.closed = False

    def write(self, data: Any) -> int:
        piece = bytes(data)  # Arrow's memory is not ours to keep
        self.pieces.append(piece)
        self.checksum = crc32(piece, self.checksum)
        self.size_bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """All is there."""

    def close(self) -> None:
        self.closed = True


class HistoryWriter:
    """Writes records of one partition.

    Args:
        plan: Of the run.
        topic: Of the records.
        partition: Of the records.
        attempt: A number that no other task of the run has.

    Threads: one.
    """

    def __init__(self, plan: WritePlan, topic: str, partition: int, attempt: int) -> None:
        self._plan = plan
        self._topic = topic
        self._partition = partition
        self._attempt = attempt
        self._opened = plan.place.open()
        self._end_offset = 0
        self._batches: list[pa.RecordBatch] = []  # of the row group
        self._batches_bytes = 0
        self._begin_file()

    def _begin_file(self) -> None:
        self._sink = _Pieces()
        self._parquet: Any = None
        self._records = 0
        self._first_offset = 0
        self._timestamps_ms: list[int] = []

    def add(self, records: pa.RecordBatch) -> HistoryFile | None:
        """Take records behind those before; the file that is finished by them, if one is.

        Raises:
            BlobmsgError: The store refuses or does not answer.
        """
        if not records.num_rows:
            return None
        first_offset: int = records.column(_OFFSET)[0].as_py()
        if first_offset < self._end_offset:
            raise AssertionError(
                f"{self._topic} [{self._partition}]: offset {first_offset} comes after "
                f"{self._end_offset - 1}"
            )
        if not self._records:
            self._first_offset = first_offset
        self._records += records.num_rows
        self._end_offset = records.column(_OFFSET)[-1].as_py() + 1
        self._batches.append(records)
        self._batches_bytes += records.nbytes
        if self._batches_bytes < self._plan.row_group_bytes:
            return None
        self._end_row_group()
        return self._end_file() if self._sink.size_bytes >= self._plan.file_bytes else None

    def finish(self) -> HistoryFile | None:
        """The file with what is left, if something is."""
        if not self._records:
            return None
        if self._batches:
            self._end_row_group()
        return self._end_file()

    def _end_row_group(self) -> None:
        table = pa.Table.from_batches(self._batches, _SCHEMA)
        self._batches, self._batches_bytes = [], 0
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                _SCHEMA,
                version="2.6",
                compression=self._plan.compression,
                use_dictionary=_DICTIONARY,
                column_encoding=_DELTAS,
                write_statistics=_STATISTICS,
                write_page_checksum=True,
                sorting_columns=[pq.SortingColumn(_OFFSET)],
            )
        self._parquet.write_table(table, row_group_size=table.num_rows)
        found = pc.min_max(table.column(_TIMESTAMP).cast(pa.int64())).as_py()
        self._timestamps_ms += [found["min"] // 1000, found["max"] // 1000]

    def _end_file(self) -> HistoryFile:
        self._parquet.close()
        sink = self._sink
        name = file_name(
            self._partition, self._first_offset, self._end_offset, self._plan.run, self._attempt
        )
        self._opened.put(file_key(self._topic, name), sink.pieces, sink.checksum)
        written = HistoryFile(
            name=name,
            partition=self._partition,
            first_offset=self._first_offset,
            end_offset=self._end_offset,
            records=self._records,
            size_bytes=sink.size_bytes,
            crc32=sink.checksum,
            min_timestamp_ms=min(self._timestamps_ms),
            max_timestamp_ms=max(self._timestamps_ms),
        )
        self._begin_file()
        return written
