from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobmsg.offsets import to_virtual
from blobmsg_spark.offset_ranges import (
    LogBounds,
    OffsetRange,
    decode_offsets,
    encode_offsets,
    looks_like_kafka_offset,
    readable_ranges,
    split_ranges,
)


def _range(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, to_virtual(start), to_virtual(end))


def test_offsets_are_written_in_one_order_whatever_order_they_came_in() -> None:
    offsets = {("b", 10): 1, ("b", 9): 2, ("a", 0): 3}

    encoded = encode_offsets(offsets)

    assert json.dumps(encoded) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    assert decode_offsets(json.loads(json.dumps(encoded))) == offsets


@pytest.mark.parametrize("text", ['{"t": 5}', '{"t": {"0": -1}}', '{"t": {"x": 1}}'])
def test_offsets_in_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="offsets look like"):
        decode_offsets(json.loads(text))


def test_a_range_that_ends_inside_a_notification_reads_that_notification() -> None:
    inside = OffsetRange("t", 0, to_virtual(5), to_virtual(7) - 3)

    assert (inside.kafka_start, inside.kafka_stop) == (5, 7)
    assert (_range(5, 7).kafka_start, _range(5, 7).kafka_stop) == (5, 7)


def test_a_range_does_not_end_before_it_starts() -> None:
    with pytest.raises(ValueError, match="no range"):
        _range(3, 2)


def test_raw_offsets_between_kafkas_own_are_recognised() -> None:
    assert looks_like_kafka_offset(15, LogBounds(10, 20))
    assert not looks_like_kafka_offset(to_virtual(15), LogBounds(10, 20))
    assert not looks_like_kafka_offset(0, LogBounds(0, 20))


def test_what_kafka_lost_is_told_and_left_out() -> None:
    wanted = [_range(2, 8, 0), _range(2, 8, 1), _range(2, 8, 2), _range(2, 8, 3)]
    bounds = {
        ("t", 0): LogBounds(0, 8),
        ("t", 1): LogBounds(5, 8),
        ("t", 2): LogBounds(0, 6),
    }

    ranges, losses = readable_ranges(wanted, bounds)

    assert ranges == [_range(2, 8, 0), _range(5, 8, 1), _range(2, 6, 2)]
    assert set(losses) == {("t", 1), ("t", 2), ("t", 3)}
    assert f"deleted what lies before {to_virtual(5)}" in losses["t", 1]
    assert f"the log ends at {to_virtual(6)}" in losses["t", 2]
    assert "gone" in losses["t", 3]


def test_an_empty_range_behind_the_deleted_is_no_loss() -> None:
    assert readable_ranges([_range(3, 3)], {("t", 0): LogBounds(5, 9)}) == ([], {})


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(0, 60),
)
def test_pieces_cover_the_ranges_once_and_are_as_many_as_can_be(
    spans: list[tuple[int, int]], at_least: int
) -> None:
    ranges = [_range(start, start + length, number) for number, (start, length) in enumerate(spans)]

    pieces = split_ranges(ranges, at_least)

    for whole in ranges:
        own = [piece for piece in pieces if piece.key == whole.key]
        assert own[0].start == whole.start
        assert own[-1].end == whole.end
        assert all(one.end == two.start for one, two in pairwise(own))
        assert all(piece.start < piece.end for piece in own)
    possible = sum(length for _, length in spans)
    assert len(pieces) == max(len(ranges), min(at_least, possible))


def test_the_longest_range_is_cut_most() -> None:
    pieces = split_ranges([_range(0, 90, 0), _range(0, 30, 1)], 4)

    assert pieces == [_range(0, 30, 0), _range(30, 60, 0), _range(60, 90, 0), _range(0, 30, 1)]


def test_borders_inside_of_notifications_stay() -> None:
    whole = OffsetRange("t", 0, to_virtual(3) - 5, to_virtual(4) - 2)

    one, two = split_ranges([whole], 7)

    assert (one.start, two.end) == (whole.start, whole.end)
    assert one.end == two.start == to_virtual(3)
