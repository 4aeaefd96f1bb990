"""Batch objects: layout, order, index and trailer, and what a reader of the end refuses."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from blobmsg.format import (
    TRAILER_BYTES,
    ByteRange,
    Codec,
    Columns,
    EncodedSegment,
    FormatError,
    IndexEntry,
    UnsupportedFormatError,
    batch_object,
    decode_batch_object_index,
    decode_segment,
    decompress,
    encode_batch_object,
    encode_object_segment,
    index_range,
)
from blobmsg.format.batch_object import lay_out_object
from blobmsg.format.encoded_segment import encode_object_segments
from blobmsg.format.rows import NARROW, Rows
from tests.helpers.format_reference import read_index, read_segment

PRODUCER = bytes(range(16))


def segment_of(
    partition: int = 0,
    zone: str = "",
    codec: Codec = Codec.NONE,
    topic: str = "orders",
    value: bytes = b"value " * 20,
) -> EncodedSegment:
    columns = Columns([b"k", None, b""], [value, b"", None], [30, 10, 20])
    return encode_object_segment(
        columns,
        codec,
        topic=topic,
        partition=partition,
        destination_zone=zone,
        producer_id=PRODUCER,
    )


def sealed(segments: bytes, index: bytes) -> bytes:
    """An object with the given index, its trailer right."""
    trailer = struct.pack("<QIIB3s4s", len(segments), len(index), zlib.crc32(index), 1, b"\0\0\0",
                          b"BMOE")  # fmt: skip
    return segments + index + trailer


def test_segments_lie_by_zone_topic_and_partition_and_entries_as_given() -> None:
    places = [("az2", "b", 0), ("az1", "b", 1), ("az1", "a", 7), ("", "z", 3), ("az1", "b", 0)]
    segments = [segment_of(partition, zone, topic=topic) for zone, topic, partition in places]

    data, entries = encode_batch_object(segments)

    assert [(e.destination_zone, e.topic, e.partition) for e in entries] == places
    by_place = sorted(entries, key=lambda entry: entry.byte_range)
    assert [(e.destination_zone, e.topic, e.partition) for e in by_place] == sorted(places)
    assert decode_batch_object_index(data, len(data)) == by_place


def rows_of(partition: int, records: int) -> Rows:
    rows = Rows(NARROW)
    for number in range(records):
        rows.extend((b"%d" % partition, b"value " * 20, number))
    return rows


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("records", [3, 40_000])
def test_encoding_all_is_encoding_each(records: int, codec: Codec) -> None:
    contents = [(rows_of(n, records), "orders", n) for n in range(4)]
    one_by_one = [
        encode_object_segment(
            rows,
            codec,
            topic=topic,
            partition=partition,
            destination_zone="az1",
            producer_id=PRODUCER,
        )
        for rows, topic, partition in contents
    ]

    segments = encode_object_segments(contents, codec, destination_zone="az1", producer_id=PRODUCER)

    assert encode_batch_object(segments) == encode_batch_object(one_by_one)


def test_rows_that_are_no_segment_are_refused_by_name() -> None:
    with pytest.raises(FormatError, match="1 to 1048575 records, not 0"):
        encode_object_segments(
            [(rows_of(0, 3), "orders", 0), (rows_of(1, 0), "orders", 1)],
            Codec.NONE,
            destination_zone="",
            producer_id=PRODUCER,
        )


@pytest.mark.parametrize("value_bytes", [0, 50, 40_000])  # read again, or combined
def test_an_object_says_its_length_and_checksum(value_bytes: int) -> None:
    noise = random.Random(2).randbytes(value_bytes)
    laid_out = lay_out_object([segment_of(n, value=noise) for n in range(3)])

    data = b"".join(laid_out.pieces)
    assert laid_out.length_bytes == len(data)
    assert laid_out.crc32 == zlib.crc32(data)
    assert all(map(len, laid_out.pieces))


def test_a_damaged_segment_changes_the_checksum_that_the_store_will_compare() -> None:
    segment = segment_of(value=bytes(40_000))
    damaged = bytearray(b"".join(segment.pieces))
    damaged[20_000] ^= 1

    laid_out = lay_out_object([replace(segment, pieces=[bytes(damaged)])])

    assert laid_out.crc32 != zlib.crc32(b"".join(laid_out.pieces))


def test_segments_of_one_partition_keep_their_order() -> None:
    segments = [segment_of(value=bytes((i,)) * 50) for i in range(5)]

    _, entries = encode_batch_object(segments)

    assert entries == sorted(entries, key=lambda entry: entry.byte_range)


@pytest.mark.parametrize("codec", Codec)
def test_every_segment_stands_alone(codec: Codec) -> None:
    data, entries = encode_batch_object([segment_of(i, codec=codec) for i in range(3)])

    for entry in entries:
        stored = data[entry.byte_range.start : entry.byte_range.end]
        assert entry.byte_range.start % 8 == 0
        assert zlib.crc32(stored) == entry.checksum
        raw = decompress(entry.codec, stored, entry.uncompressed_bytes)
        assert decode_segment(raw, records=entry.records).value(0) == b"value " * 20
        assert entry.codec is codec
        assert (entry.first_timestamp_ms, entry.last_timestamp_ms) == (10, 30)


def test_reference_reads_the_object() -> None:
    data, entries = encode_batch_object([segment_of(1, "az2"), segment_of(0, "az1", Codec.ZSTD)])

    rows = read_index(data)

    assert [row[:3] for row in rows] == [["orders", 0, "az1"], ["orders", 1, "az2"]]
    assert rows[0][6] == 2
    start, length = rows[1][3:5]
    assert [record.key for record in read_segment(data[start : start + length])] == [
        b"k",
        None,
        b"",
    ]
    assert rows[1][3:] == [
        start,
        length,
        3,
        0,
        length,
        entries[0].checksum,
        10,
        20,
        PRODUCER,
    ]


def test_segment_that_does_not_shrink_stays_uncompressed() -> None:
    noise = random.Random(1).randbytes(10_000)
    segment = encode_object_segment(
        Columns([None], [noise], [0]),
        Codec.LZ4,
        topic="t",
        partition=0,
        destination_zone="",
        producer_id=PRODUCER,
    )

    assert segment.codec is Codec.NONE
    assert segment.length_bytes == segment.uncompressed_bytes


def test_entry_says_what_its_notification_says() -> None:
    _, [entry] = encode_batch_object([segment_of()])

    assert entry.part.byte_range == entry.byte_range
    assert entry.part.checksum == entry.checksum
    assert entry.part.records == 3


def test_topic_names_need_not_be_ascii() -> None:
    data, [entry] = encode_batch_object([segment_of(topic="Aufträge-注文")])

    assert decode_batch_object_index(data, len(data)) == [entry]


def test_index_can_be_read_from_the_end_of_the_object_alone() -> None:
    data, entries = encode_batch_object([segment_of(i) for i in range(4)])
    place = index_range(data[-TRAILER_BYTES:], len(data))

    assert decode_batch_object_index(data[place.start :], len(data)) == entries
    assert decode_batch_object_index(data[place.start - 5 :], len(data)) == entries
    with pytest.raises(FormatError, match="at hand"):
        decode_batch_object_index(data[place.start + 1 :], len(data))


def test_no_segment_is_refused() -> None:
    with pytest.raises(FormatError, match="at least one"):
        encode_batch_object([])


def test_segment_of_another_length_than_it_says_is_refused() -> None:
    with pytest.raises(FormatError, match="as long as"):
        encode_batch_object([replace(segment_of(), length_bytes=64)])


def test_index_over_its_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = encode_batch_object([segment_of()])
    monkeypatch.setattr(batch_object, "MAX_INDEX_BYTES", 20)

    with pytest.raises(FormatError, match="at most 20"):
        encode_batch_object([segment_of()])
    with pytest.raises(FormatError, match="at most 20"):
        index_range(data, len(data))


@pytest.mark.parametrize("version", [0, 2])
def test_unknown_version_is_refused(version: int) -> None:
    data, _ = encode_batch_object([segment_of()])
    skewed = data[:-8] + bytes((version,)) + data[-7:]

    with pytest.raises(UnsupportedFormatError, match=f"version {version}"):
        decode_batch_object_index(skewed, len(skewed))


def test_unknown_optional_fields_are_ignored_and_critical_ones_refused() -> None:
    data, entries = encode_batch_object([segment_of()])
    segments = data[: index_range(data, len(data)).start]
    rows = read_index(data)

    def decode(**fields: Any) -> list[IndexEntry]:
        changed = sealed(segments, msgpack.packb({"e": rows} | fields))
        return decode_batch_object_index(changed, len(changed))

    assert decode(zz=[{"a": 1}]) == entries
    assert decode(e=[[*rows[0], {"zz": 1}]]) == entries
    with pytest.raises(UnsupportedFormatError, match="'!enc'"):
        decode(**{"!enc": 1})
    with pytest.raises(UnsupportedFormatError, match="'!enc'"):
        decode(e=[[*rows[0], {"!enc": 1}]])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, ""),
        (0, "t" * 256),
        (0, 5),
        (1, -1),
        (1, 1 << 31),
        (2, "z" * 64),
        (3, 0),
        (3, 1 << 40),
        (4, 1 << 30),
        (11, None),
        (11, b"short"),
    ],
)
def test_damaged_entries_are_refused(place: int, value: object) -> None:
    data, _ = encode_batch_object([segment_of()])
    segments = data[: index_range(data, len(data)).start]
    row = read_index(data)[0]
    changed = sealed(segments, msgpack.packb({"e": [[*row[:place], value, *row[place + 1 :]]]}))

    with pytest.raises(FormatError):
        decode_batch_object_index(changed, len(changed))


def test_overlapping_segments_are_refused() -> None:
    data, _ = encode_batch_object([segment_of()])
    segments = data[: index_range(data, len(data)).start]
    row = read_index(data)[0]
    changed = sealed(segments, msgpack.packb({"e": [row, row]}))

    with pytest.raises(FormatError, match="overlaps"):
        decode_batch_object_index(changed, len(changed))


@pytest.mark.parametrize(
    "index", [b"\x80", b"\x81\xa1e\x90", b"\x81\xa1e\xdd\xff\xff\xff\xff", b"x"]
)
def test_damaged_index_is_refused(index: bytes) -> None:
    data = sealed(b"BMOB\1\0\0\0", index)

    with pytest.raises(FormatError):
        decode_batch_object_index(data, len(data))


@pytest.mark.parametrize(
    ("end", "replacement"),
    [
        (-1, b""),  # cut
        (-24, struct.pack("<Q", 1 << 60)),
        (-24, struct.pack("<Q", 7)),
        (-16, struct.pack("<I", 0xFFFFFFFF)),
        (-16, struct.pack("<I", 0)),
        (-12, struct.pack("<I", 1)),
        (-7, b"\1"),
        (-4, b"PK\5\6"),
    ],
)
def test_damaged_end_is_refused(end: int, replacement: bytes) -> None:
    data, _ = encode_batch_object([segment_of()])
    rest = data[end:][len(replacement) :] if replacement else b""
    damaged = data[:end] + replacement + rest

    with pytest.raises(FormatError):
        decode_batch_object_index(damaged, len(damaged))


@pytest.mark.parametrize("length", [0, TRAILER_BYTES - 1, TRAILER_BYTES])
def test_object_without_room_for_an_index_is_refused(length: int) -> None:
    data, _ = encode_batch_object([segment_of()])

    with pytest.raises(FormatError):
        decode_batch_object_index(data[len(data) - length :], length)


def test_tail_longer_than_the_object_is_refused() -> None:
    data, _ = encode_batch_object([segment_of()])

    with pytest.raises(FormatError):
        decode_batch_object_index(data, len(data) - 1)


def test_entry_checks_itself() -> None:
    _, [entry] = encode_batch_object([segment_of()])

    for changes in (
        {"topic": ""},
        {"topic": "t" * 256},
        {"partition": -1},
        {"byte_range": ByteRange(8, 1)},
    ):
        with pytest.raises(FormatError):
            replace(entry, **changes)
