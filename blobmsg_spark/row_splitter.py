"""Sorts rows by their partition until an object is full.

Decides which rows share a segment and when an object is full; pure, knows no store and no Spark.
Rows of one partition keep their order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["Dealer", "RowSplitter", "cut_rows"]

# Per row: its partition, its place in the sort, and what sorting takes.
_ROW_BYTES: Final = 20
# Arrow's strings and binaries have 32-bit offsets, which hold for all rows of an object together.
_MOST_BYTES: Final = (1 << 31) - 1
# numpy sorts 16-bit integers by radix, in a fifth of the time of wider ones.
_MOST_NARROW: Final = 1 << 16


class RowSplitter:
    """Rows that wait for their object.

    Args:
        partitions: How many there are.
        batch_bytes: An object is full when its rows take so much in memory.
        segment_bytes: The rows of a segment take at most so much in memory, unless it is one row.

    Threads: one at a time.
    """

    def __init__(self, partitions: int, batch_bytes: int, segment_bytes: int) -> None:
        self._id_type = np.uint16 if partitions <= _MOST_NARROW else np.int32
        self._batch_bytes = batch_bytes
        self._segment_bytes = segment_bytes
        self._batches: list[pa.RecordBatch] = []
        self._ids: list[npt.NDArray[np.integer]] = []
        self._waiting_bytes = 0

    def add(self, rows: pa.RecordBatch, ids: npt.NDArray[np.integer]) -> None:
        """Take rows.

        Args:
            rows: They are kept, not copied.
            ids: The partition of each, of rows' length.
        """
        if len(ids) != rows.num_rows:
            raise AssertionError(f"{rows.num_rows} rows have {len(ids)} partitions")
        if rows.num_rows:
            self._batches.append(rows)
            self._ids.append(ids.astype(self._id_type))
            self._waiting_bytes += rows.nbytes + _ROW_BYTES * rows.num_rows

    def would_overflow(self, rows: pa.RecordBatch) -> bool:
        """Whether rows must wait for the next object."""
        return bool(self._batches) and self._waiting_bytes + rows.nbytes > _MOST_BYTES

    @property
    def is_full(self) -> bool:
        """Whether what waits makes an object."""
        return self._waiting_bytes >= self._batch_bytes

    def seal(self) -> list[tuple[int, pa.RecordBatch]]:
        """What waits, as partition and rows of one segment each, partition after partition."""
        if not self._batches:
            return []
        ids = np.concatenate(self._ids)
        order = np.argsort(ids, kind="stable")
        rows = pa.concat_batches(self._batches)
        self._batches, self._ids, self._waiting_bytes = [], [], 0
        rows = rows.take(pa.array(order))
        ids = ids[order]
        changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        bounds = [0, *changes.tolist(), len(ids)]
        return [
            (int(ids[start]), piece)
            for start, end in pairwise(bounds)
            for piece in cut_rows(rows.slice(start, end - start), self._segment_bytes)
        ]


def cut_rows(rows: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows in pieces, in order, each of at most so much memory unless it is one row."""
    if rows.num_rows <= 1 or rows.nbytes <= max_bytes:
        yield rows
        return
    half = rows.num_rows // 2
    yield from cut_rows(rows.slice(0, half), max_bytes)
    yield from cut_rows(rows.slice(half), max_bytes)


class Dealer:
    """Gives rows to partitions in turn.

    Args:
        partitions: How many there are.
        first: The partition of the first row.

    Threads: one at a time.
    """

    def __init__(self, partitions: int, first: int) -> None:
        self._partitions = partitions
        self._next = first % partitions

    def deal(self, rows: int) -> npt.NDArray[np.integer]:
        """The partitions of the next rows."""
        ids = np.arange(self._next, self._next + rows, dtype=np.int64) % self._partitions
        self._next = (self._next + rows) % self._partitions
        return ids
