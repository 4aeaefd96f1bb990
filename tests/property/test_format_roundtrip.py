"""Whatever is encoded comes back, read by us, by Arrow, and by a second reader of the page."""

from __future__ import annotations

import string
import zlib
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from blobmsg.format import (
    ByteRange,
    Codec,
    Columns,
    FormatError,
    Limits,
    Notification,
    ObjectKey,
    Part,
    coalesce,
    compress,
    decode_batch_object_index,
    decode_commit_metadata,
    decode_notification,
    decode_segment,
    decompress,
    encode_batch_object,
    encode_commit_metadata,
    encode_notification,
    encode_object_segment,
    encode_segment,
    expiry_hour,
    retention_class,
    segment_layout,
)
from tests.helpers.format_reference import Record, read_index, read_notification, read_segment
from tests.helpers.format_strategies import (
    INT64,
    byte_ranges,
    ids,
    names,
    notifications,
    object_keys,
    record_lists,
    to_columns,
)


def decoded_records(data: bytes, records: int, start: int = 0, length: int | None = None) -> Any:
    segment = decode_segment(data, start=start, length=length, records=records)
    return [
        Record(segment.key(i), segment.value(i), segment.timestamp_ms(i), segment.headers(i))
        for i in range(segment.records)
    ]


@given(record_lists())
def test_segments_come_back_and_the_reference_agrees(records: list[Record]) -> None:
    data = encode_segment(to_columns(records))

    assert decoded_records(data, len(records)) == records
    assert read_segment(data) == records


@given(record_lists(), st.binary(max_size=20), st.binary(max_size=20))
def test_place_in_a_larger_buffer_makes_no_difference(
    records: list[Record], before: bytes, after: bytes
) -> None:
    data = encode_segment(to_columns(records))

    found = decoded_records(before + data + after, len(records), len(before), len(data))

    assert found == records


@given(record_lists())
def test_arrow_reads_the_same_columns_without_a_copy(records: list[Record]) -> None:
    data = encode_segment(to_columns(records))
    count = len(records)
    layout = segment_layout(data, 0, len(data), count)
    whole = pa.py_buffer(data)

    def column(validity: int, offsets: int, cells: int, size: int) -> list[bytes | None]:
        if offsets == cells:  # no bytes of offsets: the column is absent
            return [None] * count
        bits = whole.slice(validity, (count + 7) // 8) if validity != offsets else None
        buffers = [bits, whole.slice(offsets, 4 * (count + 1)), whole.slice(cells, size)]
        array = pa.Array.from_buffers(pa.binary(), count, buffers)
        array.validate(full=True)
        assert array.buffers()[1].address == whole.address + offsets
        found: list[bytes | None] = array.to_pylist()
        return found

    keys = column(layout.key_validity, layout.key_offsets, layout.key_data, layout.key_bytes)
    values = column(
        layout.value_validity, layout.value_offsets, layout.value_data, layout.value_bytes
    )
    times = pa.Array.from_buffers(pa.int64(), count, [None, whole.slice(layout.timestamps)])

    assert keys == [record.key for record in records]
    assert values == [record.value for record in records]
    assert times.to_pylist() == [record.timestamp_ms for record in records]


@given(
    st.lists(
        st.tuples(names, st.integers(0, 99), st.sampled_from(["", "az1", "az2"]),
                  st.sampled_from(Codec), ids, record_lists(max_size=5)),
        min_size=1,
        max_size=8,
    )
)  # fmt: skip
@settings(deadline=None)
def test_batch_objects_come_back(given_segments: list[Any]) -> None:
    segments = [
        encode_object_segment(
            to_columns(records),
            codec,
            topic=topic,
            partition=partition,
            destination_zone=zone,
            producer_id=producer,
        )
        for topic, partition, zone, codec, producer, records in given_segments
    ]

    data, entries = encode_batch_object(segments)

    in_order = decode_batch_object_index(data, len(data))
    assert sorted(entries, key=lambda entry: entry.byte_range) == in_order
    assert [row[:3] for row in read_index(data)] == [
        [entry.topic, entry.partition, entry.destination_zone] for entry in in_order
    ]
    places = [(e.destination_zone, e.topic, e.partition) for e in in_order]
    assert places == sorted(places)
    for entry, (topic, partition, zone, _, producer, records) in zip(
        entries, given_segments, strict=True
    ):
        assert (entry.topic, entry.partition, entry.destination_zone) == (topic, partition, zone)
        assert entry.producer_id == producer
        stored = data[entry.byte_range.start : entry.byte_range.end]
        assert zlib.crc32(stored) == entry.checksum
        raw = decompress(entry.codec, stored, entry.uncompressed_bytes)
        assert decoded_records(raw, entry.records) == records
        times = [record.timestamp_ms for record in records]
        assert (entry.first_timestamp_ms, entry.last_timestamp_ms) == (min(times), max(times))


@given(notifications())
def test_notifications_come_back(notification: Notification) -> None:
    value = encode_notification(notification)

    assert decode_notification(value, Limits(1 << 31, 1 << 31, 100)) == notification
    fields = read_notification(value)
    assert fields["n"] == notification.sequence
    assert len(fields["p"]) == len(notification.parts)


@given(ids, INT64)
def test_part_with_any_numbers_takes_under_150_bytes(writer: bytes, first_ms: int) -> None:
    # Everything at its longest but isolation and zone, which are the user's to choose.
    key = ObjectKey("shared", "f", "2026112103", "use1-az1", writer.hex(), 10**9)
    first_ms = min(first_ms, (1 << 63) - 70_000)
    part = Part(
        ByteRange(1 << 32, 1 << 28),
        (1 << 20) - 1,
        Codec.ZSTD,
        1 << 28,
        (1 << 32) - 1,
        first_ms,
        first_ms + 60_000,
        writer,
    )

    assert len(encode_notification(Notification((part,), 1 << 31, writer, key.encode()))) < 150


@given(object_keys)
def test_object_keys_come_back(key: ObjectKey) -> None:
    assert ObjectKey.decode(key.encode()) == key


@given(st.text(max_size=100))
def test_text_that_is_no_key_is_refused_or_is_the_key_itself(text: str) -> None:
    try:
        key = ObjectKey.decode(text)
    except FormatError:
        return
    assert key.encode() == text


@given(
    st.none() | st.integers(1, (1 << 20) - 1),
    st.none() | st.text(max_size=200),
    st.dictionaries(
        st.text(string.ascii_lowercase, min_size=1, max_size=8),
        st.text(string.ascii_letters + "=-+/ ", max_size=20),
        max_size=4,
    ),
)
def test_commit_metadata_comes_back(
    remaining: int | None, user: str | None, fields: dict[str, str]
) -> None:
    text = encode_commit_metadata(remaining, user, fields)

    assert decode_commit_metadata(text) == (remaining, user, fields)


@given(st.text(max_size=60))
def test_users_metadata_is_given_back_whatever_it_is(user: str) -> None:
    assert decode_commit_metadata(encode_commit_metadata(None, user)) == (None, user, {})


@given(st.sampled_from(Codec), st.binary(min_size=1, max_size=3000))
def test_codecs_give_back_what_they_got(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@given(st.lists(byte_ranges, max_size=12), st.integers(0, 200), st.integers(1, 800))
def test_coalesced_ranges_cover_all_and_no_more_than_allowed(
    ranges: list[ByteRange], max_gap: int, max_length: int
) -> None:
    merged = coalesce(ranges, max_gap, max_length)

    assert merged == sorted(merged)
    for wanted in ranges:
        assert any(outer.contains(wanted) for outer in merged)
    for outer in merged:
        inside = [wanted for wanted in ranges if outer.contains(wanted)]
        assert outer.length <= max_length or outer in inside
        covered = {place for wanted in inside for place in range(wanted.start, wanted.end)}
        assert outer.start in covered
        assert outer.end - 1 in covered
        holes = [place for place in range(outer.start, outer.end) if place not in covered]
        runs = "".join("." if p in set(holes) else "x" for p in range(outer.start, outer.end))
        assert all(len(run) <= max_gap for run in runs.split("x"))


@given(
    st.integers(0, 4 * 10**12),
    INT64,
    st.integers(-1, 10**11),
    st.integers(0, 10**10),
)
def test_expiry_is_never_too_early_nor_an_hour_late(
    now_ms: int, largest_ms: int, retention_ms: int, segment_ms: int
) -> None:
    retention = retention_class(retention_ms)
    hour = expiry_hour(now_ms, largest_ms, retention, segment_ms)
    key = ObjectKey("shared", "0", hour, "none", "0" * 32, 0)
    expiry_ms = key.expiry_ms()

    if retention.is_forever:
        assert expiry_ms is None
    if expiry_ms is None:
        assert retention.is_forever or largest_ms > 253_000_000_000_000
        return
    least = max(now_ms, largest_ms) + retention.duration_ms + 3_600_000
    assert expiry_ms >= least + min(segment_ms, retention.duration_ms)
    assert expiry_ms < least + min(segment_ms, retention.duration_ms) + 3_600_000


@given(record_lists(max_size=4))
def test_columns_are_not_changed_by_encoding(records: list[Record]) -> None:
    columns = to_columns(records)
    before = Columns(
        list(columns.keys),
        list(columns.values),
        list(columns.timestamps_ms),
        columns.headers and list(columns.headers),
    )

    encode_segment(columns)

    assert columns == before
