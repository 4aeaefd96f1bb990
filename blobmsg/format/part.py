"""A part: where one segment lies, and what a reader must know before fetching it.

Decides what a reader refuses before it fetches or allocates anything. Notifications and the
index of a batch object share this layout. On the wire a part is the elements of a msgpack
array, in this order:

| # | type | meaning |
|---|---|---|
| 0 | uint | first byte in the object, or in the inline data |
| 1 | uint | length in bytes, as stored |
| 2 | uint | records, 1 … 2^20 - 1 |
| 3 | uint | codec: 0 none, 1 lz4, 2 zstd |
| 4 | uint | length in bytes, uncompressed |
| 5 | uint | CRC-32 of the stored bytes |
| 6 | int | earliest timestamp of its records, ms |
| 7 | uint | latest timestamp minus earliest, ms |
| 8 | bin(16), nil | id of its producer; nil: the default of the place where the part stands |
| 9 | map | extensions, under the extension rule; may be missing |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from blobmsg.format.codec import Codec
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.fields import INT64_MAX, INT64_MIN
from blobmsg.format.ranges import MAX_OBJECT_BYTES, ByteRange
from blobmsg.format.segment import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_RECORDS,
    MIN_RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobmsg.format.fields import FieldReader

__all__ = [
    "PART_ELEMENTS",
    "PRODUCER_ID_BYTES",
    "Limits",
    "Part",
    "PartLike",
    "check_part",
    "part_elements",
    "part_of",
    "read_part_elements",
]

PRODUCER_ID_BYTES = 16
PART_ELEMENTS = 9
_CODECS = frozenset(Codec)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader is willing to fetch and to hold.

    Attributes:
        max_segment_bytes: Longest segment as stored. The default is four records of the
            default `blobmsg.record.max.bytes`.
        max_uncompressed_bytes: Longest segment after decompression.
        max_parts: Most parts of one notification.

    Threads: any.
    """

    max_segment_bytes: int = 256 << 20
    max_uncompressed_bytes: int = 256 << 20
    max_parts: int = 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One segment, as a notification names it.

    Attributes:
        byte_range: Where it lies in the object, or in the inline data.
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

    byte_range: ByteRange
    records: int
    codec: Codec
    uncompressed_bytes: int
    checksum: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    producer_id: bytes

    def __post_init__(self) -> None:
        check_part(self)


class PartLike(Protocol):
    """What parts and index entries have in common."""

    @property
    def byte_range(self) -> ByteRange: ...  # noqa: D102
    @property
    def records(self) -> int: ...  # noqa: D102
    @property
    def codec(self) -> Codec: ...  # noqa: D102
    @property
    def uncompressed_bytes(self) -> int: ...  # noqa: D102
    @property
    def checksum(self) -> int: ...  # noqa: D102
    @property
    def first_timestamp_ms(self) -> int: ...  # noqa: D102
    @property
    def last_timestamp_ms(self) -> int: ...  # noqa: D102
    @property
    def producer_id(self) -> bytes: ...  # noqa: D102


def check_part(part: PartLike) -> None:
    """Check that a part's values fit each other and the limits of the format.

    Raises:
        FormatError: They don't.

    Threads: any.
    """
    if not 1 <= part.records <= MAX_SEGMENT_RECORDS:
        raise FormatError(f"a part has 1 to {MAX_SEGMENT_RECORDS} records, not {part.records}")
    least_bytes = SEGMENT_HEADER_BYTES + MIN_RECORD_BYTES * part.records
    if not least_bytes <= part.uncompressed_bytes <= MAX_SEGMENT_BYTES:
        raise FormatError(
            f"{part.records} records take {least_bytes} to {MAX_SEGMENT_BYTES} bytes,"
            f" not {part.uncompressed_bytes}"
        )
    if part.codec is Codec.NONE and part.byte_range.length != part.uncompressed_bytes:
        raise FormatError("an uncompressed part has two different lengths")
    if not 0 <= part.checksum < 1 << 32:
        raise FormatError(f"no CRC-32: {part.checksum}")
    if not INT64_MIN <= part.first_timestamp_ms <= part.last_timestamp_ms <= INT64_MAX:
        raise FormatError(f"no span of time: {part.first_timestamp_ms} to {part.last_timestamp_ms}")
    if len(part.producer_id) != PRODUCER_ID_BYTES:
        raise FormatError(f"a producer id has {PRODUCER_ID_BYTES} bytes")


def part_elements(part: PartLike, default_producer_id: bytes | None) -> list[int | bytes | None]:
    """The elements of a part's array, in order.

    Args:
        part: The part or index entry.
        default_producer_id: The id that need not be repeated; None: there is none.

    Returns:
        `PART_ELEMENTS` values for msgpack.

    Threads: any.
    """
    return [
        part.byte_range.start,
        part.byte_range.length,
        part.records,
        part.codec.value,
        part.uncompressed_bytes,
        part.checksum,
        part.first_timestamp_ms,
        part.last_timestamp_ms - part.first_timestamp_ms,
        None if part.producer_id == default_producer_id else part.producer_id,
    ]


def read_part_elements(
    reader: FieldReader, elements: int, limits: Limits
) -> list[int | bytes | None]:
    """Read a part's elements; the array was entered by the caller.

    Args:
        reader: Stands at the part's first element.
        elements: How many are left in the array: `PART_ELEMENTS`, and one for extensions.
        limits: What the reader is willing to fetch and to hold.

    Returns:
        The elements, each within its range; for `part_of`.

    Raises:
        FormatError: Damaged or over a limit.
        UnsupportedFormatError: A codec or critical field that this version does not know.

    Threads: any.
    """
    read: list[int | bytes | None] = [
        reader.integer("start", 0, MAX_OBJECT_BYTES),
        reader.integer("length", 1, limits.max_segment_bytes),
        reader.integer("records", 1, MAX_SEGMENT_RECORDS),
        reader.integer("codec"),
        reader.integer("uncompressed bytes", 1, limits.max_uncompressed_bytes),
        reader.integer("checksum", 0, (1 << 32) - 1),
        reader.integer("first timestamp", INT64_MIN, INT64_MAX),
        reader.integer("timestamp span", 0, INT64_MAX - INT64_MIN),
        reader.binary_or_nil("producer id", PRODUCER_ID_BYTES),
    ]
    if elements > PART_ELEMENTS:
        reader.extensions()
    # After the extensions: a critical one may be the better reason to refuse.
    if read[3] not in _CODECS:
        raise UnsupportedFormatError(f"{reader.what}: codec {read[3]!r} is unknown: upgrade")
    return read


def part_of(elements: Sequence[Any], default_producer_id: bytes | None) -> Part:
    """Build a part from its elements.

    Args:
        elements: As `read_part_elements` returns them.
        default_producer_id: What nil stands for; None: nil is refused.

    Raises:
        FormatError: The values contradict each other.

    Threads: any.
    """
    start, length, records, codec, uncompressed_bytes, checksum, first_ms, span_ms, own_id = (
        elements
    )
    producer_id = own_id or default_producer_id
    if producer_id is None:
        raise FormatError("a part without a producer id")
    return Part(
        ByteRange(start, length),
        records,
        Codec(codec),
        uncompressed_bytes,
        checksum,
        first_ms,
        first_ms + span_ms,
        producer_id,
    )
