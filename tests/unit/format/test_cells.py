"""A decoded column: its cells, and what is refused before anything is read."""

from __future__ import annotations

import mmap
import struct
import sys
from typing import Any

import pytest

from blobmsg.format.cells import Cells

TEXTS = [b"", b"one", b"", b"three", b"4" * 40]


def column(
    cells: list[bytes], *, before: int = 0, validity: int | None = None
) -> tuple[bytes, int, int, int, int, int]:
    """A column behind some bytes, and the arguments that find it."""
    ends = [sum(map(len, cells[:end])) for end in range(len(cells) + 1)]
    offsets = struct.pack(f"<{len(ends)}i", *ends)
    joined = b"".join(cells)
    bitmap = b"" if validity is None else validity.to_bytes(2, "little")
    data = b"\xaa" * before + offsets + joined + bitmap
    place = before + len(offsets)
    return (
        data, len(cells), before, place, len(joined),
        -1 if validity is None else place + len(joined),
    )  # fmt: skip


@pytest.mark.parametrize("before", [0, 1, 8])  # a column may lie at any address
def test_each_cell_is_given_by_its_index(before: int) -> None:
    cells = Cells(*column(TEXTS, before=before))

    assert [cells(index) for index in range(5)] == TEXTS


def test_a_bit_that_is_not_set_means_null() -> None:
    cells = Cells(*column(TEXTS, validity=0b11010))

    assert [cells(index) for index in range(5)] == [None, b"one", None, b"three", b"4" * 40]


@pytest.mark.parametrize("index", [-1, 5, 1 << 40])
def test_places_outside_of_the_column_are_index_errors(index: int) -> None:
    with pytest.raises(IndexError):
        Cells(*column(TEXTS))(index)


@pytest.mark.parametrize(
    "offsets", [(1, 1, 4), (0, 5, 4), (0, 2, 3), (0, 2, 5), (0, -1, 4), (0, 1 << 30, 4)]
)
def test_offsets_that_do_not_ascend_to_the_length_are_refused(offsets: tuple[int, ...]) -> None:
    data = struct.pack("<3i", *offsets) + b"data"

    with pytest.raises(ValueError, match="do not ascend"):
        Cells(data, 2, 0, 12, 4, -1)


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        (b"", (1, 0, 0, 0, -1)),
        (bytes(12), (2, 4, 12, 0, -1)),
        (bytes(12), (1 << 60, 0, 12, 0, -1)),
    ],
)
def test_a_column_outside_of_its_data_is_refused(data: bytes, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, struct.error, OverflowError, MemoryError)):
        Cells(data, *arguments)


def test_memory_of_any_kind_is_read_in_place_and_held() -> None:
    data, *places = column(TEXTS)
    with mmap.mmap(-1, len(data)) as memory:
        memory[:] = data
        before = sys.getrefcount(memory)
        cells: Cells | None = Cells(memory, *places)
        assert cells is not None
        assert cells(3) == b"three"
        assert sys.getrefcount(memory) == before + 1
        del cells
        assert sys.getrefcount(memory) == before
