"""Byte ranges and how neighbours merge."""

from __future__ import annotations

import pytest

from blobmsg.format import ByteRange, FormatError, coalesce
from blobmsg.format.ranges import MAX_OBJECT_BYTES


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, 0), (5, -1), (MAX_OBJECT_BYTES, 1)])
def test_impossible_ranges_are_refused(start: int, length: int) -> None:
    with pytest.raises(FormatError):
        ByteRange(start, length)


def test_range_knows_its_end_and_what_it_contains() -> None:
    outer = ByteRange(10, 20)

    assert outer.end == 30
    assert outer.contains(ByteRange(10, 20))
    assert outer.contains(ByteRange(29, 1))
    assert not outer.contains(ByteRange(29, 2))
    assert not outer.contains(ByteRange(9, 2))


def test_slice_cuts_the_range_out_of_fetched_bytes() -> None:
    fetched = bytes(range(10, 30))

    assert fetched[ByteRange(12, 3).slice_of(ByteRange(10, 20))] == bytes((12, 13, 14))
    with pytest.raises(FormatError, match="not inside"):
        ByteRange(9, 3).slice_of(ByteRange(10, 20))


def test_neighbours_merge_up_to_the_gap() -> None:
    ranges = [ByteRange(100, 10), ByteRange(0, 10), ByteRange(15, 10)]

    assert coalesce(ranges, 5, 1000) == [ByteRange(0, 25), ByteRange(100, 10)]
    assert coalesce(ranges, 4, 1000) == sorted(ranges)


def test_merged_ranges_stay_within_the_length() -> None:
    ranges = [ByteRange(0, 10), ByteRange(10, 10), ByteRange(20, 10)]

    assert coalesce(ranges, 0, 20) == [ByteRange(0, 20), ByteRange(20, 10)]


def test_longer_range_stays_as_it_is() -> None:
    assert coalesce([ByteRange(0, 100), ByteRange(100, 1)], 0, 50) == [
        ByteRange(0, 100),
        ByteRange(100, 1),
    ]


def test_same_and_contained_ranges_are_fetched_once() -> None:
    assert coalesce([ByteRange(0, 9), ByteRange(2, 3), ByteRange(0, 9)], 0, 1) == [ByteRange(0, 9)]


def test_nothing_wanted_is_nothing_fetched() -> None:
    assert coalesce([], 10, 10) == []
