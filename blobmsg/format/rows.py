"""Records of one partition, row after row as they come, read column by column.

The class in C (`native/rows.c`) copies a record's bytes into columns when it joins and holds no
object of it; the twin in Python is a list of the objects themselves. Decides nothing about
segments: `segment.py` lays them out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from blobmsg.native import native

if TYPE_CHECKING:
    from blobmsg.format.headers import Headers

__all__ = ["NARROW", "WIDE", "Rows", "drop_unused", "keep_free", "trim_heap"]

# Cells of a row.
NARROW: Final = 3  # key, value, timestamp
WIDE: Final = 5  # headers and delivery callback as well

if TYPE_CHECKING or native is None:

    class Rows(list[Any]):
        """Rows of key, value and timestamp; of wide ones also headers and delivery callback.

        A record joins by `extend` with one row as a tuple: bytes or None, bytes or None, wall time
        in ms since 1970 UTC (it may be negative), headers or None, anything. In CPython nothing can
        come between, neither another thread nor a signal handler.

        Args:
            width: `NARROW` or `WIDE`.

        Threads: who adds says; any once nobody does.
        """

        __slots__ = ("width",)

        def __init__(self, width: int) -> None:
            super().__init__()
            self.width: int = width

        @property
        def record_count(self) -> int:
            """How many records there are."""
            return len(self) // self.width

        def record(self, index: int) -> tuple[bytes | None, bytes | None, int, Headers | None]:
            """The key, value, timestamp and headers of one record.

            Raises:
                IndexError: There is no such record.
            """
            if not 0 <= index < self.record_count:
                raise IndexError("there is no such record")
            place = index * self.width
            key, value, timestamp_ms, *more = self[place : place + self.width]
            return key, value, timestamp_ms, more[0] if more else None

        @property
        def keys(self) -> list[bytes | None]:
            """Of each record its key."""
            return self[0 :: self.width]

        @property
        def values(self) -> list[bytes | None]:
            """Of each record its value."""
            return self[1 :: self.width]

        @property
        def timestamps_ms(self) -> list[int]:
            """Of each record its wall time in ms."""
            return self[2 :: self.width]

        @property
        def first_timestamp_ms(self) -> int:
            """The least wall time in ms; 0 without records."""
            return min(self.timestamps_ms, default=0)

        @property
        def last_timestamp_ms(self) -> int:
            """The largest wall time in ms; 0 without records."""
            return max(self.timestamps_ms, default=0)

        @property
        def headers(self) -> list[Headers | None] | None:
            """Of each record its headers; None when none has any."""
            if self.width == NARROW:
                return None
            headers: list[Headers | None] = self[3 :: self.width]
            return None if headers.count(None) == len(headers) else headers

        @property
        def callbacks(self) -> list[Any]:
            """Of each record its delivery callback; empty for narrow ones."""
            return self[4 :: self.width] if self.width == WIDE else []

    def keep_free(_size_bytes: int) -> None:
        """Keep memory of rows that are gone for the next ones, up to so much of it.

        One limit for the process, and only ever raised.
        """

    def drop_unused() -> int:
        """Give back what was kept and not needed since the last call; how many bytes."""
        return 0

    def trim_heap() -> None:
        """Give back what the allocator keeps."""

else:
    Rows, keep_free, drop_unused = native.Rows, native.keep_free, native.drop_unused
    trim_heap = native.trim_heap
