"""The segment: its bytes, its columns in Arrow's hands, and what its decoder refuses."""

from __future__ import annotations

import struct
import tracemalloc
from array import array

import msgpack
import pyarrow as pa
import pytest

from blobmsg.format import (
    MAX_SEGMENT_RECORDS,
    Columns,
    FormatError,
    Segment,
    UnsupportedFormatError,
    decode_segment,
    encode_segment,
    segment,
    segment_chunks,
    segment_layout,
)
from tests.helpers.format_reference import Record, read_segment


def columns_of(records: list[Record]) -> Columns:
    columns = Columns(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp_ms for record in records],
    )
    if any(record.headers for record in records):
        columns.headers = [record.headers for record in records]
    return columns


def records_of(decoded: Segment) -> list[Record]:
    return [
        Record(decoded.key(i), decoded.value(i), decoded.timestamp_ms(i), decoded.headers(i))
        for i in range(decoded.records)
    ]


def with_bytes(data: bytes, place: int, replacement: bytes) -> bytes:
    return data[:place] + replacement + data[place + len(replacement) :]


def with_extension(data: bytes, extension: bytes) -> bytes:
    head = with_bytes(data, 24, struct.pack("<I", len(extension)))
    return head + extension + bytes(-len(extension) % 8)


MIXED = [
    Record(b"k1", b"value one", 0, None),
    Record(None, b"", -1, [("trace", b"\x01"), ("trace", None), ("", b"")]),
    Record(b"", None, 1 << 62, None),
    Record(b"k4", b"v", -(1 << 63), [("größe", b"\xff")]),
]


def test_bytes_of_a_small_segment_are_as_specified() -> None:
    columns = Columns([b"a", None, b""], [None] * 3, [1, -1, 2])

    data = encode_segment(columns)

    assert data == bytes.fromhex(
        "424d5347" "01" "03" "0000"  # magic, version, flags: keys with nulls, no values
        "03000000" "01000000" "00000000" "00000000" "00000000" "00000000"  # n K V H X 0
        "0100000000000000" "ffffffffffffffff" "0200000000000000"  # timestamps
        "0500000000000000"  # validity: records 0 and 2
        "00000000" "01000000" "01000000" "01000000"  # offsets
        "6100000000000000"  # key data
    )  # fmt: skip


def test_mixed_records_come_back_and_the_reference_reads_the_same() -> None:
    data = encode_segment(columns_of(MIXED))

    assert read_segment(data) == MIXED
    assert records_of(decode_segment(data, records=4)) == MIXED


def test_segment_inside_a_larger_buffer_is_decoded_in_place() -> None:
    data = encode_segment(columns_of(MIXED))

    decoded = decode_segment(b"x" * 13 + data + b"y" * 7, start=13, length=len(data), records=4)

    assert records_of(decoded) == MIXED


def test_chunks_hold_the_values_themselves_and_only_bytes() -> None:
    value = bytes(1000)
    columns = Columns([b"k", b"l"], [value, value], [1, 2])

    chunks, length = segment_chunks(columns)

    assert any(chunk is value for chunk in chunks)
    assert {type(chunk) for chunk in chunks} == {bytes}
    assert length == len(b"".join(chunks))
    assert length % 8 == 0


def test_columns_that_are_all_null_take_no_bytes() -> None:
    data = encode_segment(Columns([None] * 100, [None] * 100, [7] * 100))

    assert len(data) == 32 + 8 * 100
    decoded = decode_segment(data, records=100)
    assert decoded.keys is None
    assert decoded.values is None
    assert decoded.key(99) is None
    assert decoded.value(99) is None


def test_null_and_empty_differ() -> None:
    data = encode_segment(Columns([b"", None], [None, b""], [0, 0]))

    decoded = decode_segment(data, records=2)

    assert (decoded.key(0), decoded.key(1)) == (b"", None)
    assert (decoded.value(0), decoded.value(1)) == (None, b"")


def test_empty_headers_become_none_and_leave_no_column() -> None:
    columns = Columns([None], [b"v"], [0], [[]])

    assert encode_segment(columns) == encode_segment(Columns([None], [b"v"], [0]))


@pytest.mark.parametrize("records", [1, 7, 8, 9, 63, 64, 65])
def test_validity_bitmap_is_least_significant_bit_first(records: int) -> None:
    keys = [None if i % 3 == 1 else b"%d" % i for i in range(records)]
    columns = Columns([*keys], [b"v"] * records, [0] * records)

    decoded = decode_segment(encode_segment(columns), records=records)

    assert [decoded.key(i) for i in range(records)] == keys


def test_validity_bits_after_the_last_record_are_ignored() -> None:
    data = encode_segment(Columns([b"a", None, b"c"], [None] * 3, [0] * 3))

    decoded = decode_segment(with_bytes(data, 32 + 24, b"\xfd"), records=3)

    assert [decoded.key(i) for i in range(3)] == [b"a", None, b"c"]


def test_most_records_fit() -> None:
    count = MAX_SEGMENT_RECORDS
    columns = Columns([None] * count, [b"x"] * count, [5] * count)

    decoded = decode_segment(encode_segment(columns), records=count)

    assert decoded.records == (1 << 20) - 1
    assert decoded.value(count - 1) == b"x"


def test_record_of_64_mib_fits() -> None:
    value = bytes(range(256)) * (1 << 18)

    decoded = decode_segment(encode_segment(Columns([b"k"], [value], [0])), records=1)

    assert len(value) == 64 << 20
    assert decoded.value(0) == value


@pytest.mark.parametrize("count", [0, MAX_SEGMENT_RECORDS + 1])
def test_no_record_and_one_too_many_are_refused(count: int) -> None:
    with pytest.raises(FormatError, match="records"):
        encode_segment(Columns([None] * count, [None] * count, [0] * count))


@pytest.mark.parametrize(
    "columns",
    [
        Columns([], [b""], [0]),
        Columns([b""], [], [0]),
        Columns([b""], [b""], [0], []),
        Columns([b""], [b""], [1 << 63]),
        Columns([b""], [b""], [0], [[("n", "text")]]),  # type: ignore[list-item]
        Columns([b""], [b""], [0], [[("\udc80", b"")]]),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: Columns) -> None:
    with pytest.raises(FormatError):
        encode_segment(columns)


def test_segment_over_its_largest_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = Columns([b"k" * 50], [b"v" * 100], [0])
    for limit in (99, 200):
        monkeypatch.setattr(segment, "MAX_SEGMENT_BYTES", limit)
        with pytest.raises(FormatError, match=f"at most {limit} bytes"):
            encode_segment(columns)


def test_arrow_wraps_the_columns_without_a_copy() -> None:
    data = encode_segment(columns_of(MIXED))
    layout = segment_layout(data, 0, len(data), 4)
    whole = pa.py_buffer(data)

    def buffer(start: int, size: int) -> pa.Buffer:
        assert start % 8 == 0
        return whole.slice(start, size)

    def column(validity: int, offsets: int, cells: int, size: int) -> pa.Array:
        buffers = [buffer(validity, 1), buffer(offsets, 20), buffer(cells, size)]
        return pa.Array.from_buffers(pa.binary(), 4, buffers)

    keys = column(layout.key_validity, layout.key_offsets, layout.key_data, layout.key_bytes)
    values = column(
        layout.value_validity, layout.value_offsets, layout.value_data, layout.value_bytes
    )
    timestamps = pa.Array.from_buffers(pa.int64(), 4, [None, buffer(layout.timestamps, 32)])
    batch = pa.record_batch([keys, values, timestamps], names=["key", "value", "timestamp"])

    batch.validate(full=True)
    assert keys.to_pylist() == [record.key for record in MIXED]
    assert values.to_pylist() == [record.value for record in MIXED]
    assert timestamps.to_pylist() == [record.timestamp_ms for record in MIXED]
    assert values.buffers()[2].address == whole.address + layout.value_data
    assert timestamps.buffers()[1].address == whole.address + layout.timestamps


@pytest.mark.parametrize("version", [0, 2, 255])
def test_unknown_version_is_refused_by_number(version: int) -> None:
    data = with_bytes(encode_segment(columns_of(MIXED)), 4, bytes((version,)))

    with pytest.raises(UnsupportedFormatError, match=f"version {version} "):
        decode_segment(data, records=4)


@pytest.mark.parametrize(("place", "size"), [(5, 1), (6, 2), (28, 4)])
def test_unknown_flags_are_refused_not_guessed(place: int, size: int) -> None:
    data = encode_segment(columns_of(MIXED))
    flags = int.from_bytes(data[place : place + size], "little") | 1 << (8 * size - 1)

    with pytest.raises(UnsupportedFormatError, match="flags"):
        decode_segment(with_bytes(data, place, flags.to_bytes(size, "little")), records=4)


def test_unknown_optional_extension_is_ignored() -> None:
    plain = encode_segment(columns_of(MIXED))
    data = with_extension(plain, msgpack.packb({"later": [1, {"deep": b"x"}], "z": None}))

    assert records_of(decode_segment(data, records=4)) == MIXED


def test_unknown_critical_extension_is_refused_by_name() -> None:
    plain = encode_segment(columns_of(MIXED))
    data = with_extension(plain, msgpack.packb({"ok": 1, "!cipher": "aes"}))

    with pytest.raises(UnsupportedFormatError, match="'!cipher'"):
        decode_segment(data, records=4)


def test_bytes_after_the_extension_map_are_refused() -> None:
    data = with_extension(encode_segment(columns_of(MIXED)), b"\x80\xc0")

    with pytest.raises(FormatError, match="after the end"):
        decode_segment(data, records=4)


@pytest.mark.parametrize(
    ("place", "replacement", "reason"),
    [
        (0, b"PK\3\4", "not a segment"),
        (8, struct.pack("<I", 5), "5 records, 4 were promised"),
        (8, struct.pack("<I", 0xFFFFFFFF), "records"),
        (12, struct.pack("<I", 0xFFFFFFFF), "states"),
        (16, struct.pack("<I", 1 << 30), "states"),
        (20, struct.pack("<I", 1 << 30), "states"),
        (24, struct.pack("<I", 1 << 30), "states"),
    ],
)
def test_header_that_claims_too_much_is_refused(
    place: int, replacement: bytes, reason: str
) -> None:
    data = with_bytes(encode_segment(columns_of(MIXED)), place, replacement)

    with pytest.raises(FormatError, match=reason):
        decode_segment(data, records=4)


def test_count_that_the_notification_did_not_promise_is_refused() -> None:
    data = encode_segment(columns_of(MIXED))

    for promised in (3, 5, 0):
        with pytest.raises(FormatError, match="promised"):
            decode_segment(data, records=promised)


@pytest.mark.parametrize("flags", [0b0010, 0b1000, 0b0000])
def test_data_for_an_absent_column_is_refused(flags: int) -> None:
    # n = 1; K = 0, but with a validity bitmap, or V = 8 without offsets.
    value_bytes = 8 if flags == 0 else 0
    header = struct.pack("<4sBBHIIIIII", b"BMSG", 1, flags, 0, 1, 0, value_bytes, 0, 0, 0)

    with pytest.raises(FormatError, match="absent"):
        decode_segment(header + bytes(16), records=1)


@pytest.mark.parametrize(
    "offsets", [(1, 2, 4), (0, 3, 2), (0, 5, 4), (0, -1, 4), (0, 2, 3), (-2, 2, 4)]
)
def test_offsets_that_do_not_ascend_to_the_length_are_refused(
    offsets: tuple[int, int, int],
) -> None:
    data = encode_segment(Columns([None] * 2, [b"ab", b"cd"], [0, 0]))
    bad = with_bytes(data, 32 + 16, struct.pack("<3i", *offsets))

    with pytest.raises(FormatError, match="ascend"):
        decode_segment(bad, records=2)


@pytest.mark.parametrize(
    ("start", "length"), [(-1, 40), (0, 31), (1, None), (0, 10_000), (500, 40)]
)
def test_segment_outside_its_buffer_is_refused(start: int, length: int | None) -> None:
    data = encode_segment(Columns([None], [None], [0]))

    with pytest.raises(FormatError):
        decode_segment(data, start=start, length=length, records=1)


def test_headers_column_over_the_limit_is_refused() -> None:
    columns = Columns([None], [None], [0], [[("name", b"x" * 100)]])
    data = encode_segment(columns)

    assert decode_segment(data, records=1, max_headers_bytes=120).headers(0) is not None
    with pytest.raises(FormatError, match="headers column"):
        decode_segment(data, records=1, max_headers_bytes=100)


def test_damaged_headers_are_found_at_the_first_look_or_on_demand() -> None:
    columns = Columns([b"k"], [b"v"], [0], [[("name", b"x")]])
    data = encode_segment(columns)
    damaged = data.replace(b"\xa4name", b"\xa4n\xff\xffe")

    decoded = decode_segment(damaged, records=1)

    assert decoded.value(0) == b"v"
    with pytest.raises(FormatError, match="headers"):
        decoded.headers(0)
    with pytest.raises(FormatError, match="headers"):
        decoded.check_headers()


def test_headers_are_decoded_once() -> None:
    columns = Columns([None], [None], [0], [[("name", b"x")]])
    decoded = decode_segment(encode_segment(columns), records=1)

    first = decoded.headers(0)

    assert decoded.headers(0) is first


def test_refusing_takes_no_memory_for_what_is_claimed() -> None:
    header = struct.pack(
        "<4sBBHIIIIII", b"BMSG", 1, 5, 0, MAX_SEGMENT_RECORDS, 1 << 30, 1 << 30, 0, 0, 0
    )
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decode_segment(header, records=MAX_SEGMENT_RECORDS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_big_endian_hosts_swap_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    # Offsets go through struct with "<" and need nothing; timestamps are copied as they are.
    monkeypatch.setattr(segment, "_BIG_ENDIAN", True)
    swapped = array("q", [1, -2])
    swapped.byteswap()
    data = encode_segment(Columns([None] * 2, [None] * 2, swapped.tolist()))

    assert decode_segment(data, records=2).timestamps_ms.tolist() == [1, -2]
