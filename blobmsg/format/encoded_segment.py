"""Segments that are encoded and compressed, and wait for their place: in an object or inline.

Decides whether compressing gains anything; never knows where a segment will lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blobmsg.format.checksum import crc32
from blobmsg.format.codec import Codec, compress
from blobmsg.format.part import Part
from blobmsg.format.ranges import ByteRange
from blobmsg.format.segment import GatheredSegment, gather_segments, gather_value, segment_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobmsg.format.rows import Rows
    from blobmsg.format.segment import Columns

__all__ = [
    "EncodedSegment",
    "compress_gathered",
    "encode_object_segment",
    "encode_object_segments",
    "encode_object_value",
]


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A segment that waits for its place in an object.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        destination_zone: The AZ where it is going to be read; "" when none.
        pieces: Joined, they are the bytes to store.
        length_bytes: The length of all pieces.
        checksum: Their CRC-32.
        records: How many records it has.
        codec: How it is compressed.
        uncompressed_bytes: Its length before compression.
        first_timestamp_ms: The earliest of its records, ms since 1970 UTC.
        last_timestamp_ms: The latest of its records.
        producer_id: 16 bytes, of the producer that made it.

    Threads: any.
    """

    topic: str
    partition: int
    destination_zone: str
    pieces: Sequence[bytes | memoryview]
    length_bytes: int
    checksum: int
    records: int
    codec: Codec
    uncompressed_bytes: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    producer_id: bytes

    def inline(self) -> tuple[Part, bytes]:
        """What a notification says of it, and its bytes, when it travels in the notification."""
        data = b"".join(self.pieces)
        part = Part(
            byte_range=ByteRange(0, len(data)),
            records=self.records,
            codec=self.codec,
            uncompressed_bytes=self.uncompressed_bytes,
            checksum=self.checksum,
            first_timestamp_ms=self.first_timestamp_ms,
            last_timestamp_ms=self.last_timestamp_ms,
            producer_id=self.producer_id,
        )
        return part, data


def encode_object_segment(
    columns: Columns | Rows,
    codec: Codec,
    *,
    topic: str,
    partition: int,
    destination_zone: str,
    producer_id: bytes,
) -> EncodedSegment:
    """Encode and compress records, ready for an object or for an inline notification.

    Args:
        columns: The records.
        codec: How to compress; `Codec.NONE` is used instead where compressing gains nothing.
        topic: Their topic.
        partition: Their partition.
        destination_zone: The AZ where they are going to be read; "" when none.
        producer_id: 16 bytes.

    Returns:
        The segment.

    Raises:
        FormatError: The columns can't be encoded.
        UnsupportedFormatError: The codec's package is not installed.

    Threads: any.
    """
    gathered = gather_segments([columns]) if codec is Codec.NONE else []
    if gathered:
        found, uncompressed_bytes = gathered[0], gathered[0].length_bytes
    else:
        chunks, uncompressed_bytes = segment_chunks(columns)
        stored = b"".join(chunks)
        compressed = _compressed(stored, codec)
        if compressed is None:
            found, codec = GatheredSegment([stored], len(stored), crc32(stored)), Codec.NONE
        else:
            found = compressed
    place = (topic, partition, destination_zone)
    return _encoded(found, columns, codec, uncompressed_bytes, place, producer_id)


def encode_object_value(
    value: memoryview,
    codec: Codec,
    *,
    timestamp_ms: int,
    topic: str,
    partition: int,
    destination_zone: str,
    producer_id: bytes,
) -> EncodedSegment:
    """Encode and compress one record without a key, of a large value that is not copied.

    Args:
        value: Of single bytes; kept, unless compressing gains something.
        codec: See `encode_object_segment`; likewise the others.
        timestamp_ms: Of the record, ms since 1970 UTC.
        topic: Its topic.
        partition: Its partition.
        destination_zone: The AZ where it is going to be read; "" when none.
        producer_id: 16 bytes.

    Raises:
        FormatError: Over `MAX_SEGMENT_BYTES`.
        UnsupportedFormatError: The codec's package is not installed.

    Threads: any.
    """
    return compress_gathered(
        gather_value(value, timestamp_ms),
        codec,
        records=1,
        first_timestamp_ms=timestamp_ms,
        last_timestamp_ms=timestamp_ms,
        topic=topic,
        partition=partition,
        destination_zone=destination_zone,
        producer_id=producer_id,
    )


def compress_gathered(
    found: GatheredSegment,
    codec: Codec,
    *,
    records: int,
    first_timestamp_ms: int,
    last_timestamp_ms: int,
    topic: str,
    partition: int,
    destination_zone: str,
    producer_id: bytes,
) -> EncodedSegment:
    """Compress a segment that is in pieces, which are kept unless compressing gains something.

    Args:
        found: The segment.
        codec: See `encode_object_segment`; likewise the others.
        records: How many it has.
        first_timestamp_ms: The least of them.
        last_timestamp_ms: The largest of them.
        topic: Its topic.
        partition: Its partition.
        destination_zone: The AZ where it is going to be read; "" when none.
        producer_id: 16 bytes.

    Raises:
        UnsupportedFormatError: The codec's package is not installed.

    Threads: any.
    """
    uncompressed_bytes = found.length_bytes
    if codec is not Codec.NONE:
        compressed = _compressed(b"".join(found.pieces), codec)
        if compressed is None:
            codec = Codec.NONE
        else:
            found = compressed
    return EncodedSegment(
        topic,
        partition,
        destination_zone,
        found.pieces,
        found.length_bytes,
        found.checksum,
        records,
        codec,
        uncompressed_bytes,
        first_timestamp_ms,
        last_timestamp_ms,
        producer_id,
    )


def encode_object_segments(
    segments: Sequence[tuple[Rows, str, int]],
    codec: Codec,
    *,
    destination_zone: str,
    producer_id: bytes,
) -> list[EncodedSegment]:
    """Encode and compress the segments of an object; in C, if built, all in one go.

    Args:
        segments: Of each its records, topic and partition.
        codec: See `encode_object_segment`.
        destination_zone: Likewise.
        producer_id: Likewise.

    Raises:
        FormatError: As there.
        UnsupportedFormatError: As there.

    Threads: any.
    """
    gathered = gather_segments(rows for rows, _, _ in segments) if codec is Codec.NONE else []
    encoded = [
        _encoded(
            one,
            rows,
            Codec.NONE,
            one.length_bytes,
            (topic, partition, destination_zone),
            producer_id,
        )
        for one, (rows, topic, partition) in zip(gathered, segments, strict=False)
    ]
    for rows, topic, partition in segments[len(encoded) :]:
        segment = encode_object_segment(
            rows,
            codec,
            topic=topic,
            partition=partition,
            destination_zone=destination_zone,
            producer_id=producer_id,
        )
        encoded.append(segment)
    return encoded


def _compressed(data: bytes, codec: Codec) -> GatheredSegment | None:
    """A segment's bytes compressed; None where that gains nothing."""
    if codec is Codec.NONE:
        return None
    compressed = compress(codec, data)
    if len(compressed) >= len(data):
        return None
    return GatheredSegment([compressed], len(compressed), crc32(compressed))


def _encoded(
    found: GatheredSegment,
    columns: Columns | Rows,
    codec: Codec,
    uncompressed_bytes: int,
    place: tuple[str, int, str],
    producer_id: bytes,
) -> EncodedSegment:
    return EncodedSegment(
        *place,
        found.pieces,
        found.length_bytes,
        found.checksum,
        columns.record_count,
        codec,
        uncompressed_bytes,
        columns.first_timestamp_ms,
        columns.last_timestamp_ms,
        producer_id,
    )
