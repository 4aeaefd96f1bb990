"""Rows in C: they read as the records that joined, and become the segment that Python writes."""

from __future__ import annotations

import gc
import sys
import weakref
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobmsg.format import Columns, FormatError, encode_segment, segment_chunks
from blobmsg.format import segment as segment_module
from blobmsg.format.checksum import CRC32_ADDRESSES
from blobmsg.format.rows import NARROW, WIDE, Rows, drop_unused, keep_free
from blobmsg.format.segment import MAX_SEGMENT_RECORDS, gather_segments
from blobmsg.native import native
from tests.helpers.format_reference import Record
from tests.helpers.format_strategies import record_lists, to_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

pytestmark = pytest.mark.skipif(native is None, reason="no compiler built blobmsg.native here")

# What a chunk of a column has at most, and what a piece of its own has at least.
CHUNK_BYTES = 256 << 10
LEAST_PIECE_BYTES = 64 << 10


def to_rows(records: Iterable[Record], width: int = NARROW) -> Rows:
    rows = Rows(width)
    for number, record in enumerate(records):
        more = (record.headers, number) if width == WIDE else ()
        rows.extend((record.key, record.value, record.timestamp_ms, *more))
    return rows


def written_by_python(records: Sequence[Record], width: int = NARROW) -> bytes:
    columns = to_columns(list(records))
    if width == NARROW:
        columns.headers = None
    return b"".join(segment_chunks(columns)[0])


def of_sizes(sizes: Iterable[int]) -> list[Record]:
    """Records whose keys and values have these sizes, each value unlike the others."""
    records: list[Record] = []
    for number, size in enumerate(sizes):
        value = (b"%d." % number * (size // 2 + 1))[:size]
        records.append(Record(b"%d" % number, value, number, None))
    return records


@given(record_lists(), st.sampled_from([NARROW, WIDE]))
@settings(deadline=None)
def test_rows_read_as_the_records_that_joined(records: list[Record], width: int) -> None:
    rows = to_rows(records, width)

    headers = [record.headers if width == WIDE else None for record in records]
    assert rows.record_count == len(records)
    assert [rows.record(index) for index in range(len(records))] == [
        (record.key, record.value, record.timestamp_ms, own)
        for record, own in zip(records, headers, strict=True)
    ]
    assert rows.keys == [record.key for record in records]
    assert rows.values == [record.value for record in records]
    times = [record.timestamp_ms for record in records]
    assert rows.timestamps_ms == times
    assert (rows.first_timestamp_ms, rows.last_timestamp_ms) == (min(times), max(times))
    assert rows.headers == (None if headers.count(None) == len(headers) else headers)
    assert rows.callbacks == (list(range(len(records))) if width == WIDE else [])


@given(st.lists(record_lists(), min_size=1, max_size=4), st.sampled_from([NARROW, WIDE]))
@settings(deadline=None)
def test_c_and_python_write_the_same_bytes(segments: list[list[Record]], width: int) -> None:
    expected = [written_by_python(records, width) for records in segments]

    assert [encode_segment(to_rows(records, width)) for records in segments] == expected
    gathered = gather_segments(to_rows(records, width) for records in segments)
    assert [b"".join(one.pieces) for one in gathered] == expected
    assert [one.length_bytes for one in gathered] == list(map(len, expected))
    assert [one.checksum for one in gathered] == list(map(zlib.crc32, expected))


@pytest.mark.parametrize(
    "sizes",
    [
        [1024] * 3000,
        [100] * 20_000,
        [0] * 40_000,
        [1, LEAST_PIECE_BYTES - 1, 3] * 9,
        [CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 3, 0, 7],
        [20 << 20],
        [5 << 20, 1, 2, 3],
    ],
    ids=lambda sizes: f"{len(sizes)} from {sizes[0]}",
)
@pytest.mark.parametrize("null_every", [0, 7])
def test_long_columns_are_written_piece_by_piece(sizes: list[int], null_every: int) -> None:
    records = of_sizes(sizes)
    if null_every:
        records = [
            replace(record, key=None, value=None) if number % null_every == 6 else record
            for number, record in enumerate(records)
        ]
    expected = written_by_python(records)

    rows = to_rows(records)
    [gathered] = gather_segments([rows])

    assert rows.values == [record.value for record in records]
    assert b"".join(gathered.pieces) == expected
    assert gathered.checksum == zlib.crc32(expected)
    assert encode_segment(rows) == expected
    # Pieces hold all of their rows: they are most of the segment, or nothing is left in place.
    in_place = sum(len(piece) for piece in gathered.pieces if isinstance(piece, memoryview))
    assert in_place == 0 or in_place >= len(expected) * 3 // 4
    payload = sum(len(record.value or b"") for record in records)
    if payload > max(1 << 20, len(expected) * 9 // 10):
        assert in_place > payload - 4 * LEAST_PIECE_BYTES


def test_without_zlib_ng_the_checksum_is_the_same() -> None:
    records = of_sizes([1000] * 300)
    assert native is not None

    native.use_crc32(0, 0)
    try:
        assert native.gather_rows(((to_rows(records), b""),), 1 << 20)[0][2] is None
        [gathered] = gather_segments([to_rows(records)])
    finally:
        native.use_crc32(*CRC32_ADDRESSES)

    assert gathered.checksum == zlib.crc32(written_by_python(records))


def test_the_segments_before_a_wrong_one_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    good, empty = of_sizes([5]), Rows(NARROW)
    many = to_rows(of_sizes([0] * 3))
    monkeypatch.setattr(segment_module, "MAX_SEGMENT_RECORDS", 2)

    for wrong in (empty, many, Columns([b"k"], [b"v"], [1])):
        assert len(gather_segments([to_rows(good), wrong, to_rows(good)])) == 1
    for refused in (empty, many):
        with pytest.raises(FormatError, match="1 to 2 records"):
            encode_segment(refused)
    assert MAX_SEGMENT_RECORDS == (1 << 20) - 1


def test_a_segment_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "MAX_SEGMENT_BYTES", 200)

    assert len(gather_segments([to_rows(of_sizes([100]))])) == 1
    for size in (201, 160):
        assert gather_segments([to_rows(of_sizes([size]))]) == []
        with pytest.raises(FormatError, match="at most 200 bytes"):
            encode_segment(to_rows(of_sizes([size])))


def test_no_record_joins_what_is_a_segment_already() -> None:
    rows = to_rows(of_sizes([5]))
    encode_segment(rows)

    with pytest.raises(RuntimeError, match="already"):
        rows.extend((b"k", b"v", 1))
    assert rows.record_count == 1


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ((b"k", b"v"), TypeError),
        ([b"k", b"v", 1], TypeError),
        ((b"k", b"v", 1, None, None), TypeError),
        (("k", b"v", 1), TypeError),
        ((b"k", bytearray(b"v"), 1), TypeError),
        ((b"k", b"v", 1.0), TypeError),
        ((b"k", b"v", None), TypeError),
        ((b"k", b"v", 1 << 63), OverflowError),
    ],
    ids=str,
)
def test_what_is_no_row_is_refused_and_nothing_joins(row: Any, error: type[Exception]) -> None:
    rows = to_rows(of_sizes([5]))

    with pytest.raises(error):
        rows.extend(row)
    assert (rows.record_count, rows.keys, rows.values) == (1, [b"0"], [b"0.0.0"])
    assert encode_segment(rows) == written_by_python(of_sizes([5]))


@pytest.mark.parametrize("index", [-1, 2, 1 << 40])
def test_places_outside_of_the_rows_are_index_errors(index: int) -> None:
    with pytest.raises(IndexError):
        to_rows(of_sizes([1, 2])).record(index)


def test_widths_are_three_or_five() -> None:
    with pytest.raises(ValueError, match="3 or 5"):
        Rows(4)


def test_pieces_live_as_long_as_somebody_has_them() -> None:
    records = of_sizes([1000] * 1000)
    expected = written_by_python(records)
    [gathered] = gather_segments([to_rows(records)])

    pieces = gathered.pieces
    del gathered
    others = [to_rows(of_sizes([1000] * 1000)) for _ in range(5)]  # would take freed memory
    assert b"".join(pieces) == expected
    assert len(others) == 5
    assert any(isinstance(piece, memoryview) for piece in pieces)
    assert all(piece.readonly for piece in pieces if isinstance(piece, memoryview))


def test_memory_is_used_again_and_given_back_when_it_was_not_needed() -> None:
    gc.collect()  # what earlier tests have left is not to come free meanwhile
    keep_free(64 << 20)
    drop_unused()
    rows: Rows | None = to_rows(of_sizes([1000] * 20_000))
    del rows
    gc.collect()

    drop_unused()  # begins an interval in which nothing is needed
    dropped = drop_unused()

    assert 15 << 20 < dropped < 30 << 20
    assert drop_unused() == 0


def test_objects_are_held_by_wide_rows_alone_and_only_headers_and_callbacks() -> None:
    key, value, headers, callback = bytes([7] * 9), bytes([8] * 99), [("h", b"v")], object()
    held = [key, value, headers, callback]
    before = [sys.getrefcount(each) for each in held]

    rows = Rows(WIDE)
    for _ in range(10):
        rows.extend((key, value, 1, headers, callback))
    during = [sys.getrefcount(each) for each in held]
    assert [now - was for now, was in zip(during, before, strict=True)] == [0, 0, 10, 10]
    rows.record(3), rows.headers, rows.callbacks, rows.keys
    gather_segments([rows])
    del rows
    gc.collect()

    assert [sys.getrefcount(each) for each in held] == before


def test_a_cycle_through_a_callback_is_collected() -> None:
    class Listener:
        rows: Rows

    listener = Listener()
    listener.rows = Rows(WIDE)
    listener.rows.extend((b"k", b"v", 1, None, listener))
    freed: list[int] = []
    listener_id = id(listener)
    weakref.finalize(listener, freed.append, listener_id)
    del listener
    gc.collect()

    assert freed == [listener_id]
