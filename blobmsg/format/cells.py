"""The keys or the values of a decoded segment, each made when it is asked for.

In C (`native/cells.c`) nothing is made per record beforehand; the twin in Python has a list of
places.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from blobmsg.native import native

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["Cells"]

# From a bitmap as text, least significant bit last, to a byte per record: 1 for null.
_TO_NULLS: Final = bytes.maketrans(b"01", b"\1\0")

if TYPE_CHECKING or native is None:

    class Cells:
        """A column of bytes or null as Arrow lays it out; called with an index, it gives the cell.

        Args:
            data: Holds the column; kept.
            records: How many.
            offsets_place: Where in `data` its `records` + 1 offsets (i32) begin.
            cells_place: Where the bytes begin, to which the offsets are relative.
            cells_bytes: How many bytes.
            validity_place: Where the bitmap begins; -1: no cell is null.

        Raises:
            ValueError: The offsets do not ascend from 0 to `cells_bytes`.

        Threads: any.
        """

        __slots__ = ("_data", "_nulls", "_places", "_records")

        def __init__(
            self,
            data: bytes | mmap,
            records: int,
            offsets_place: int,
            cells_place: int,
            cells_bytes: int,
            validity_place: int,
            /,
        ) -> None:
            relative = struct.unpack_from(f"<{records + 1}i", data, offsets_place)
            places = [cells_place + offset for offset in relative]
            # Sorting what is sorted already is one pass of comparisons, four times as fast as any
            # other way to compare neighbours without numpy.
            if relative[0] != 0 or relative[-1] != cells_bytes or places != sorted(places):
                raise ValueError("offsets of a column do not ascend from 0 to its length")
            self._data = data
            self._records = records
            self._places = places
            self._nulls = b""
            if validity_place >= 0:
                bitmap = data[validity_place : validity_place + (records + 7) // 8]
                bits = int.from_bytes(bitmap, "little") & ((1 << records) - 1)
                self._nulls = format(bits, f"0{records}b").encode().translate(_TO_NULLS)[::-1]

        def __call__(self, index: int, /) -> bytes | None:
            """One cell; a copy.

            Raises:
                IndexError: There is no such record.
            """
            if not 0 <= index < self._records:
                raise IndexError("there is no such record")
            if self._nulls and self._nulls[index]:
                return None
            return self._data[self._places[index] : self._places[index + 1]]

else:
    Cells = native.Cells
