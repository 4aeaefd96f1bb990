"""A batch object: segments of many partitions and topics, then an index, then a trailer.

Decides the order of segments and what the index says of them; never knows the object's name.
All integers outside msgpack are little-endian.

| offset | size | type | meaning |
|---|---|---|---|
| 0 | 4 | bytes | magic `BMOB` |
| 4 | 1 | u8 | version, 1 |
| 5 | 3 | bytes | 0 |
| 8 | … | segments | each at a multiple of 8, the gaps zero; by destination zone, topic, partition |
| I | L | msgpack | index, a map under the extension rule (`fields.py`), at a multiple of 8 |
| I + L | 8 | u64 | I |
| I + L + 8 | 4 | u32 | L |
| I + L + 12 | 4 | u32 | CRC-32 of the index |
| I + L + 16 | 1 | u8 | version, 1 |
| I + L + 17 | 3 | bytes | 0 |
| I + L + 20 | 4 | bytes | magic `BMOE`; the end of the object |

The index has one field, `e`: an array with an array for each segment, in the order of the
object: topic (str), partition (uint), destination zone (str, empty: none), then the elements
of a part (`part.py`), whose producer id is never nil.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from blobmsg.format.checksum import crc32
from blobmsg.format.codec import Codec, compress
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.fields import FieldReader, pack
from blobmsg.format.part import (
    PART_ELEMENTS,
    Limits,
    Part,
    check_part,
    part_elements,
    part_of,
    read_part_elements,
)
from blobmsg.format.ranges import ByteRange
from blobmsg.format.segment import (
    MAX_SEGMENT_BYTES,
    pack_segment,
    segment_chunks,
    write_segments,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blobmsg.format.segment import Columns, Rows

__all__ = [
    "MAX_INDEX_BYTES",
    "TRAILER_BYTES",
    "BatchObjectWriter",
    "EncodedSegment",
    "IndexEntry",
    "decode_batch_object_index",
    "encode_batch_object",
    "encode_object_segment",
    "index_range",
    "object_bytes_bound",
    "write_batch_object",
]

OBJECT_MAGIC, TRAILER_MAGIC = b"BMOB", b"BMOE"
OBJECT_VERSION = 1
_OBJECT_HEADER = OBJECT_MAGIC + bytes((OBJECT_VERSION, 0, 0, 0))
_TRAILER = struct.Struct("<QIIB3s4s")
TRAILER_BYTES = _TRAILER.size

# About 150,000 segments; far beyond what makes sense in one object.
MAX_INDEX_BYTES = 16 << 20
MAX_TOPIC_BYTES = 255  # Kafka's limit is 249 characters of ASCII
MAX_ZONE_BYTES = 63
_ENTRY_ELEMENTS = 3 + PART_ELEMENTS
# An entry without its names, every number at its longest; and the map around the entries.
_ENTRY_BOUND = 100
_INDEX_BOUND = 16
# The same with every number at its shortest.
_LEAST_ENTRY_BYTES = 29
_KNOWN_FIELDS = frozenset("e")
_NO_LIMITS = Limits(MAX_SEGMENT_BYTES, MAX_SEGMENT_BYTES)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One segment of a batch object, as its index names it.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        destination_zone: The AZ where it is going to be read; "" when none.
        byte_range: Where it lies in the object.
        records: How many records it has.
        codec: How it is compressed.
        uncompressed_bytes: Its length after decompression.
        checksum: CRC-32 of the stored bytes.
        first_timestamp_ms: The earliest of its records, ms since 1970 UTC.
        last_timestamp_ms: The latest of its records.
        producer_id: 16 bytes, of the producer that made it.

    Raises:
        FormatError: The values contradict each other or a limit of the format.

    Threads: any.
    """

    topic: str
    partition: int
    destination_zone: str
    byte_range: ByteRange
    records: int
    codec: Codec
    uncompressed_bytes: int
    checksum: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    producer_id: bytes

    def __post_init__(self) -> None:
        for name, text, max_bytes in (
            ("topic", self.topic, MAX_TOPIC_BYTES),
            ("zone", self.destination_zone, MAX_ZONE_BYTES),
        ):
            if len(text.encode("utf-8", "surrogatepass")) > max_bytes:
                raise FormatError(f"{name} {text!r} is over {max_bytes} bytes")
        if not self.topic or not 0 <= self.partition < 1 << 31:
            raise FormatError(f"no partition: {self.topic!r} {self.partition}")
        check_part(self)

    @property
    def part(self) -> Part:
        """What a notification says of this segment."""
        return Part(
            self.byte_range,
            self.records,
            self.codec,
            self.uncompressed_bytes,
            self.checksum,
            self.first_timestamp_ms,
            self.last_timestamp_ms,
            self.producer_id,
        )


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A segment that waits for its place in an object.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        destination_zone: The AZ where it is going to be read; "" when none.
        chunks: Joined, they are the bytes to store. All are exactly `bytes`.
        length_bytes: The length of all chunks.
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
    chunks: Sequence[bytes]
    length_bytes: int
    records: int
    codec: Codec
    uncompressed_bytes: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    producer_id: bytes


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
    packed = pack_segment(columns)
    if packed is not None:
        segment, first_ms, last_ms = packed
        chunks, uncompressed_bytes = [segment], len(segment)
    else:
        chunks, uncompressed_bytes = segment_chunks(columns)
        # They come nearly sorted, and sorting what is takes a third of min() and max().
        timestamps_ms = sorted(columns.timestamps_ms)
        first_ms, last_ms = timestamps_ms[0], timestamps_ms[-1]
    length_bytes = uncompressed_bytes
    if codec is not Codec.NONE:
        raw = b"".join(chunks)
        compressed = compress(codec, raw)
        if len(compressed) < len(raw):
            chunks, length_bytes = [compressed], len(compressed)
        else:
            chunks, codec = [raw], Codec.NONE
    return EncodedSegment(
        topic,
        partition,
        destination_zone,
        chunks,
        length_bytes,
        len(columns),
        codec,
        uncompressed_bytes,
        first_ms,
        last_ms,
        producer_id,
    )


def encode_batch_object(segments: Sequence[EncodedSegment]) -> tuple[bytes, list[IndexEntry]]:
    """Lay out segments as one object.

    Args:
        segments: As in `write_batch_object`.

    Returns:
        The object, and an entry for each segment in the order of the arguments.

    Raises:
        FormatError: As in `write_batch_object`.

    Threads: any.
    """
    sizes = ((s.length_bytes, s.topic, s.destination_zone) for s in segments)
    stream = io.BytesIO(bytes(object_bytes_bound(sizes)))
    length_bytes, entries = write_batch_object(segments, stream)
    stream.truncate(length_bytes)
    return stream.getvalue(), entries


def object_bytes_bound(segments: Iterable[tuple[int, str, str]]) -> int:
    """A length in bytes that the object of these segments does not exceed.

    Args:
        segments: Of each its length in bytes at most, its topic and its zone.
    """
    return (
        len(_OBJECT_HEADER)
        + sum(
            length_bytes + 7 + _ENTRY_BOUND + 4 * (len(topic) + len(zone))
            for length_bytes, topic, zone in segments
        )
        + _INDEX_BOUND
        + TRAILER_BYTES
    )


def write_batch_object(
    segments: Sequence[EncodedSegment], stream: io.BytesIO
) -> tuple[int, list[IndexEntry]]:
    """Lay out segments as one object, in a stream from its beginning.

    Args:
        segments: At least one. Those of one zone, topic and partition keep their order.
        stream: As in `BatchObjectWriter`.

    Returns:
        The object's length in bytes, and an entry for each segment in the order of the arguments.

    Raises:
        FormatError: No segment, or one that breaks a limit of the format.

    Threads: any, one at a time for a stream.
    """
    writer = BatchObjectWriter(stream)
    places = list(map(_place_in_object, segments))
    order = sorted(range(len(segments)), key=places.__getitem__)
    entries = {number: writer.add(segments[number]) for number in order}
    return writer.finish(), [entries[number] for number in range(len(segments))]


class BatchObjectWriter:
    """Writes an object's segments one after the other, so that none need wait encoded.

    Args:
        stream: Where to, from its beginning; what it holds behind the object stays as it was. When
            it is at least `object_bytes_bound` long, nothing is reallocated.

    Threads: one at a time.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream
        self._entries: list[IndexEntry] = []
        stream.seek(0)
        stream.write(_OBJECT_HEADER)

    def add(self, segment: EncodedSegment) -> IndexEntry:
        """Write a segment; by zone, then topic, then partition, as the format wants them.

        Raises:
            FormatError: It breaks a limit of the format, or comes before one that it belongs
                behind.
        """
        stream, place = self._stream, self._stream.tell()
        # At 1 KiB per chunk this takes a quarter of the CPU of joining into fresh memory, and so
        # holds the GIL for less time than the join needed it (bench/format.py).
        stream.writelines(segment.chunks)
        if stream.tell() != place + segment.length_bytes:
            raise FormatError("a segment's chunks are not as long as it says")
        byte_range = ByteRange(place, segment.length_bytes)
        with stream.getbuffer()[place : byte_range.end] as written:
            checksum = crc32(written)  # while it is in the processor's cache
        return self._enter(_entry(segment, byte_range, checksum))

    def encode(
        self,
        segments: Sequence[tuple[Columns | Rows, str, int]],
        codec: Codec,
        *,
        destination_zone: str,
        producer_id: bytes,
    ) -> list[IndexEntry]:
        """Encode records and write them as the next segments.

        Args:
            segments: Of each its records, topic and partition; in the order of `add`.
            codec: See `encode_object_segment`.
            destination_zone: Likewise.
            producer_id: Likewise.

        Raises:
            FormatError: As there, and as `add`.
            UnsupportedFormatError: As there.
        """
        entries: list[IndexEntry] = []
        while len(entries) < len(segments):
            written: list[IndexEntry] = []
            if codec is Codec.NONE:
                written = self._encode_in_c(segments, len(entries), destination_zone, producer_id)
            if not written:
                columns, topic, partition = segments[len(entries)]
                segment = encode_object_segment(
                    columns,
                    codec,
                    topic=topic,
                    partition=partition,
                    destination_zone=destination_zone,
                    producer_id=producer_id,
                )
                written = [self.add(segment)]
            entries += written
        return entries

    def _encode_in_c(
        self,
        segments: Sequence[tuple[Columns | Rows, str, int]],
        first: int,
        destination_zone: str,
        producer_id: bytes,
    ) -> list[IndexEntry]:
        """Write segments from the first one on, as many as C writes in one go."""
        stream, place = self._stream, self._stream.tell()
        with stream.getbuffer() as target:
            rest = (columns for columns, _, _ in islice(segments, first, None))
            written = write_segments(rest, target, place)
        entries: list[IndexEntry] = []
        for number, found in enumerate(written, first):
            columns, topic, partition = segments[number]
            byte_range = ByteRange(place, found.length_bytes)
            place = byte_range.end
            stream.seek(place)
            entry = IndexEntry(
                topic,
                partition,
                destination_zone,
                byte_range,
                len(columns),
                Codec.NONE,
                found.length_bytes,
                found.checksum,
                found.first_timestamp_ms,
                found.last_timestamp_ms,
                producer_id,
            )
            entries.append(self._enter(entry))
        return entries

    def _enter(self, entry: IndexEntry) -> IndexEntry:
        """Note a segment that was just written, and align what comes next."""
        if self._entries and _place_in_object(entry) < _place_in_object(self._entries[-1]):
            raise FormatError("an object's segments are sorted by zone, topic and partition")
        self._entries.append(entry)
        self._stream.write(bytes(-entry.byte_range.length % 8))
        return entry

    def finish(self) -> int:
        """Write the index; the object's length in bytes.

        Raises:
            FormatError: No segment.
        """
        if not self._entries:
            raise FormatError("a batch object has at least one segment")
        stream, place = self._stream, self._stream.tell()
        index = _encode_index(self._entries)
        stream.write(index)
        stream.write(
            _TRAILER.pack(place, len(index), crc32(index), OBJECT_VERSION, bytes(3), TRAILER_MAGIC)
        )
        return stream.tell()


def index_range(trailer: bytes, object_length: int) -> ByteRange:
    """Where the index of an object lies.

    Args:
        trailer: The last `TRAILER_BYTES` of the object, or more of its end.
        object_length: The length of the object in bytes.

    Returns:
        The index's range; it is inside the object and ends where the trailer begins.

    Raises:
        FormatError: Not a batch object, or damaged, or its index is over `MAX_INDEX_BYTES`.
        UnsupportedFormatError: Of a version that this version does not know.

    Threads: any.
    """
    if len(trailer) < TRAILER_BYTES or object_length < len(trailer):
        raise FormatError(f"not a batch object: {object_length} bytes, {len(trailer)} at hand")
    start, length, _, version, zero, magic = _TRAILER.unpack_from(
        trailer, len(trailer) - TRAILER_BYTES
    )
    if magic != TRAILER_MAGIC:
        raise FormatError(f"not a batch object: ends with {magic!r}, not {TRAILER_MAGIC!r}")
    if version != OBJECT_VERSION or any(zero):
        raise UnsupportedFormatError(
            f"batch object version {version}, {zero.hex()} is unknown: upgrade"
        )
    if length > MAX_INDEX_BYTES:
        raise FormatError(f"the index has {length} bytes, at most {MAX_INDEX_BYTES}")
    if start < len(_OBJECT_HEADER) or start + length + TRAILER_BYTES != object_length:
        raise FormatError(f"the index of {length} bytes at {start} does not fit {object_length}")
    return ByteRange(start, length)


def decode_batch_object_index(tail: bytes, object_length: int) -> list[IndexEntry]:
    """Read the index of an object from its end.

    Args:
        tail: The last bytes of the object, at least from `index_range(...).start` on.
        object_length: The length of the object in bytes.

    Returns:
        The segments in the order of the object; they lie inside it and don't overlap.

    Raises:
        FormatError: Damaged, or `tail` is too short.
        UnsupportedFormatError: Of a version, or with a codec or critical field, that this
            version does not know.

    Threads: any.
    """
    place = index_range(tail, object_length)
    tail_start = object_length - len(tail)
    if place.start < tail_start:
        raise FormatError(f"the index begins at {place.start}, the bytes at hand at {tail_start}")
    index = tail[place.start - tail_start : place.end - tail_start]
    stated = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)[2]
    if crc32(index) != stated:
        raise FormatError("the index does not match its checksum")
    reader = FieldReader(index, "index")
    entries = None
    for _ in reader.fields(_KNOWN_FIELDS):
        # An entry takes more than 16 bytes, so this count is bounded by the index's length.
        count = reader.array("segments", 1, len(index) // _LEAST_ENTRY_BYTES)
        entries = [_read_entry(reader) for _ in range(count)]
    reader.end()
    if entries is None:
        raise FormatError("index: field e is missing")
    end = len(_OBJECT_HEADER)
    for entry in entries:
        if entry.byte_range.start < end or entry.byte_range.end > place.start:
            raise FormatError(f"index: {entry.byte_range} overlaps or lies outside the segments")
        end = entry.byte_range.end
    return entries


def _place_in_object(segment: EncodedSegment | IndexEntry) -> tuple[str, str, int]:
    return segment.destination_zone, segment.topic, segment.partition


def _entry(segment: EncodedSegment, byte_range: ByteRange, checksum: int) -> IndexEntry:
    return IndexEntry(
        segment.topic,
        segment.partition,
        segment.destination_zone,
        byte_range,
        segment.records,
        segment.codec,
        segment.uncompressed_bytes,
        checksum,
        segment.first_timestamp_ms,
        segment.last_timestamp_ms,
        segment.producer_id,
    )


def _encode_index(entries: list[IndexEntry]) -> bytes:
    encoded = pack(
        {
            "e": [
                [
                    entry.topic,
                    entry.partition,
                    entry.destination_zone,
                    *part_elements(entry, None),
                ]
                for entry in entries
            ]
        }
    )
    if len(encoded) > MAX_INDEX_BYTES:
        raise FormatError(f"the index has {len(encoded)} bytes, at most {MAX_INDEX_BYTES}")
    return encoded


def _read_entry(reader: FieldReader) -> IndexEntry:
    elements = reader.array("segment", _ENTRY_ELEMENTS, _ENTRY_ELEMENTS + 1)
    topic = reader.text("topic", MAX_TOPIC_BYTES)
    partition = reader.integer("partition", 0, (1 << 31) - 1)
    destination_zone = reader.text("destination zone", MAX_ZONE_BYTES)
    part = part_of(read_part_elements(reader, elements - 3, _NO_LIMITS), None)
    return IndexEntry(
        topic,
        partition,
        destination_zone,
        part.byte_range,
        part.records,
        part.codec,
        part.uncompressed_bytes,
        part.checksum,
        part.first_timestamp_ms,
        part.last_timestamp_ms,
        part.producer_id,
    )
