"""The segment that C writes is the one that Python writes, byte for byte."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobmsg.format import Columns, FormatError, encode_segment, segment_chunks
from blobmsg.format.segment import NARROW, WIDE, Rows, WrittenSegment, pack_segment, write_segments
from blobmsg.native import native
from tests.helpers.format_strategies import record_lists, to_columns

if TYPE_CHECKING:
    from tests.helpers.format_reference import Record

pytestmark = pytest.mark.skipif(native is None, reason="no compiler built blobmsg.native here")


def to_rows(records: list[Record], width: int) -> Rows:
    cells: list[Any] = []
    for record in records:
        more = (record.headers, object()) if width == WIDE else ()
        cells += (record.key, record.value, record.timestamp_ms, *more)
    return Rows(cells, width)


@given(record_lists(), st.sampled_from([NARROW, WIDE]))
@settings(deadline=None)
def test_c_and_python_write_the_same_bytes(records: list[Record], width: int) -> None:
    columns = to_columns(records)
    if width == NARROW:
        columns.headers = None
    rows = to_rows(records, width)
    chunks, _ = segment_chunks(columns)
    expected = b"".join(chunks)
    times = sorted(columns.timestamps_ms)

    assert pack_segment(columns) == (expected, times[0], times[-1])
    assert pack_segment(rows) == (expected, times[0], times[-1])


@given(
    st.lists(record_lists(), min_size=1, max_size=4),
    st.sampled_from([NARROW, WIDE]),
    st.integers(0, 20),
    st.booleans(),
)
@settings(deadline=None)
def test_c_writes_segments_one_behind_the_other(
    segments: list[list[Record]], width: int, place: int, has_crc32: bool
) -> None:
    rows = [to_rows(records, width) for records in segments]
    expected: list[bytes] = []
    said: list[WrittenSegment] = []
    for one in rows:
        data = b"".join(segment_chunks(one)[0])
        times = sorted(one.timestamps_ms)
        expected.append(data)
        said.append(WrittenSegment(len(data), times[0], times[-1], zlib.crc32(data)))
    expected_bytes = b"".join(expected)

    target = bytearray(b"\xaa" * (place + len(expected_bytes) + 9))
    with memoryview(target) as view, pytest.MonkeyPatch.context() as monkeypatch:
        if not has_crc32:
            monkeypatch.setattr("blobmsg.format.segment.CRC32_ADDRESS", 0)
        assert write_segments(rows, view, place) == said
    end = place + len(expected_bytes)
    assert target[place:end] == expected_bytes
    assert target[:place] == b"\xaa" * place
    assert target[end:] == b"\xaa" * 9


def test_the_segments_before_a_wrong_one_are_written() -> None:
    good, wrong = Columns([b"k"], [b"v"], [1]), Columns(["k"], [b"v"], [1])  # type: ignore[list-item]
    data = encode_segment(good)
    target = bytearray(3 * len(data))

    with memoryview(target) as view:
        assert [found.length_bytes for found in write_segments([good, wrong, good], view, 0)] == [
            len(data)
        ]
    assert target == data + bytes(2 * len(data))


def test_segments_go_as_far_as_there_is_room() -> None:
    one = Columns([b"k"], [bytes(100)], [1])
    data = encode_segment(one)
    room = len(data) * 3 // 2
    target = bytearray(b"\xaa" * (2 * len(data)))

    with memoryview(target) as view, view[:room] as limited:
        assert len(write_segments([one, one], limited, 0)) == 1
    assert target == data + b"\xaa" * len(data)


def test_segments_with_very_many_records_take_several_calls() -> None:
    many = Columns([None] * 40_000, [None] * 40_000, [0] * 40_000)
    target = bytearray(3 * len(encode_segment(many)))

    with memoryview(target) as view:
        assert len(write_segments([many] * 3, view, 0)) == 2


@pytest.mark.parametrize(
    "columns",
    [
        Columns(["text"], [b"v"], [1]),  # type: ignore[list-item]
        Columns([b"k"], [b"v"], [1 << 63]),
        Columns([b"k"], [b"v"], [None]),  # type: ignore[list-item]
        Columns([b"k", b"l"], [b"v"], [1]),
        Columns([b"k"], [b"v"], [1, 2]),
        Columns([], [], []),
        Columns([b"k"], [b"v"], [1], [None, None]),
    ],
    ids=str,
)
def test_what_is_wrong_is_left_to_python(columns: Columns) -> None:
    target = bytearray(200)

    assert pack_segment(columns) is None
    with memoryview(target) as view:
        assert write_segments([columns], view, 0) == []
    assert target == bytes(200)
    with pytest.raises((FormatError, TypeError)):
        encode_segment(columns)


def test_a_segment_over_the_limit_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobmsg.format.segment.MAX_SEGMENT_BYTES", 200)

    assert pack_segment(Columns([None], [bytes(100)], [1])) is not None
    for value in (bytes(201), bytes(160)):
        assert pack_segment(Columns([None], [value], [1])) is None


@pytest.mark.parametrize("place", [-1, 1, 200, 1 << 62])
def test_what_does_not_fit_writes_nothing(place: int) -> None:
    columns = Columns([b"k"], [bytes(100)], [1])
    length_bytes = len(encode_segment(columns))
    target = bytearray(b"\xaa" * length_bytes)

    with memoryview(target) as view:
        assert write_segments([columns], view, place) == []
    assert target == b"\xaa" * length_bytes


@pytest.mark.parametrize(
    ("start", "step", "records"), [(-1, 1, 1), (0, 0, 1), (0, 1, 3), (1, 2, 2)]
)
def test_places_outside_of_a_list_are_not_read(start: int, step: int, records: int) -> None:
    assert native is not None
    cells: list[Any] = [b"a", b"b"]
    numbers = [1, 2, 3, 4, 5, 6]

    for lists in (
        (cells, start, numbers, 0, numbers, 0),
        (numbers, 0, cells, start, numbers, 0),
        (numbers, 0, numbers, 0, cells, start),
    ):
        assert native.encode_segment(records, step, *lists, b"", 1000) is None


def test_read_only_memory_is_refused() -> None:
    columns = Columns([b"k"], [b"v"], [1])

    with pytest.raises((TypeError, BufferError)):
        write_segments([columns], memoryview(bytes(200)), 0)
