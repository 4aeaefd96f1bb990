"""A segment: consecutive records of one partition in columns, laid out as Arrow lays them out.

Decides nothing about batches; never makes an object per record, and copies a value exactly
once each way. All integers are little-endian; every buffer starts at a multiple of 8 from the
segment's start and is padded with zero bytes to the next one.

| offset | size | type | meaning |
|---|---|---|---|
| 0 | 4 | bytes | magic `BMSG` |
| 4 | 1 | u8 | version, 1 |
| 5 | 1 | u8 | flags: 1 keys present, 2 keys have nulls, 4 values present, 8 values have nulls |
| 6 | 2 | u16 | 0 |
| 8 | 4 | u32 | n: records, 1 … 2^20 - 1 |
| 12 | 4 | u32 | K: bytes of key data |
| 16 | 4 | u32 | V: bytes of value data |
| 20 | 4 | u32 | H: bytes of the headers column; 0: no record has headers |
| 24 | 4 | u32 | X: bytes of the extension map; 0: none |
| 28 | 4 | u32 | 0 |
| 32 | 8·n | i64[] | timestamps in ms since 1970 UTC |
| … | ⌈n/8⌉ | bits | flag 2: validity of keys, least significant bit first, 1 = not null |
| … | 4·(n+1) | i32[] | flag 1: offsets of keys, from 0, ascending to K |
| … | K | bytes | flag 1: key data |
| … | ⌈n/8⌉ | bits | flag 8: validity of values |
| … | 4·(n+1) | i32[] | flag 4: offsets of values, ascending to V |
| … | V | bytes | flag 4: value data |
| … | H | msgpack | headers column (`headers.py`) |
| … | X | msgpack | extension map, under the extension rule (`fields.py`) |

A column that is null in every record is absent: its flag is 0 and it takes no bytes.

Measured by `bench/format.py` on one core of an Intel Xeon VM (x86-64, Python 3.11), 16,384
records with 8-byte keys and 1 KiB values: encoding 0.11 µs per record plus the copy of the
values, decoding 0.06 µs per record, 0.03 without keys.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass, field
from itertools import accumulate, repeat, takewhile
from operator import is_not
from typing import TYPE_CHECKING, NamedTuple

from blobmsg.format.cells import Cells
from blobmsg.format.checksum import crc32_of
from blobmsg.format.codec import MAX_BLOCK_BYTES
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.fields import FieldReader
from blobmsg.format.headers import Header, Headers, decode_headers, encode_headers
from blobmsg.format.rows import Rows
from blobmsg.native import native

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from mmap import mmap

__all__ = [
    "MAX_SEGMENT_BYTES",
    "MAX_SEGMENT_RECORDS",
    "MIN_RECORD_BYTES",
    "SEGMENT_HEADER_BYTES",
    "Columns",
    "GatheredSegment",
    "Header",
    "Headers",
    "LaidOutColumn",
    "Segment",
    "SegmentLayout",
    "decode_segment",
    "encode_segment",
    "gather_columns",
    "gather_segments",
    "gather_value",
    "segment_chunks",
    "segment_layout",
]

SEGMENT_MAGIC = b"BMSG"
SEGMENT_VERSION = 1

# A virtual offset has 20 bits for the place inside a notification, and 0 means "all of it".
MAX_SEGMENT_RECORDS = (1 << 20) - 1
# Also below the int32 offsets of Arrow's binary columns.
MAX_SEGMENT_BYTES = MAX_BLOCK_BYTES
# A record whose key and value are null in a segment where all are: its timestamp remains.
MIN_RECORD_BYTES = 8

KEYS, KEY_NULLS, VALUES, VALUE_NULLS = 1, 2, 4, 8
_KNOWN_FLAGS = KEYS | KEY_NULLS | VALUES | VALUE_NULLS

_HEADER = struct.Struct("<4sBBHIIIIII")
SEGMENT_HEADER_BYTES = _HEADER.size

_PADDING = tuple(bytes(-length % 8) for length in range(8))
# Shorter cells of a column are joined: a chunk costs 0.1 us, the copy of 256 bytes a tenth of it.
_JOINED_BELOW_BYTES = 256
_BIG_ENDIAN = sys.byteorder == "big"
# From the flags 0 and 1 to a bitmap as text.
_TO_TEXT = bytes.maketrans(b"\0\1", b"01")


@dataclass(slots=True)
class Columns:
    """Records in columns: lists of equal length that are only appended to.

    Attributes:
        keys: Key or None per record.
        values: Value or None per record.
        timestamps_ms: Wall time in ms since 1970 UTC, may be negative.
        headers: None until any record has headers, then one entry per record.

    Threads: one at a time.
    """

    keys: list[bytes | None] = field(default_factory=list["bytes | None"])
    values: list[bytes | None] = field(default_factory=list["bytes | None"])
    timestamps_ms: list[int] = field(default_factory=list[int])
    headers: list[Headers | None] | None = None

    @property
    def record_count(self) -> int:
        """How many records there are."""
        return len(self.timestamps_ms)

    @property
    def first_timestamp_ms(self) -> int:
        """The least wall time in ms."""
        return min(self.timestamps_ms)

    @property
    def last_timestamp_ms(self) -> int:
        """The largest wall time in ms."""
        return max(self.timestamps_ms)


def encode_segment(columns: Columns | Rows) -> bytes:
    """Encode records as one segment.

    Args:
        columns: At least one record, at most `MAX_SEGMENT_RECORDS`.

    Returns:
        The segment, uncompressed.

    Raises:
        FormatError: No or too many records, columns of different lengths, a value of a wrong
            type, a timestamp outside 64 bits, over `MAX_SEGMENT_BYTES`.

    Threads: As `segment_chunks`.
    """
    chunks, _ = segment_chunks(columns)
    return b"".join(chunks)


class GatheredSegment(NamedTuple):
    """A segment in pieces, its length in bytes, and its CRC-32."""

    pieces: Sequence[bytes | memoryview]
    length_bytes: int
    checksum: int


def gather_segments(segments: Iterable[Columns | Rows]) -> list[GatheredSegment]:
    """Encode records as segments, in C, without copying the bulk of their values.

    Args:
        segments: Of each its records, as in `encode_segment`.

    Returns:
        The first ones of them. For none, when that is not built, or there is something wrong about
        the first one, which `segment_chunks` says. Pieces live as long as somebody has them.

    Threads: As `segment_chunks`. The GIL is released once for all of them, and once more for each
        where zlib-ng's function is not to be had.
    """
    if native is None:
        return []
    fitting = takewhile(
        lambda rows: isinstance(rows, Rows) and rows.record_count <= MAX_SEGMENT_RECORDS, segments
    )
    contents = tuple(map(_rows_and_headers, fitting))  # type: ignore[arg-type]
    gathered = native.gather_rows(contents, MAX_SEGMENT_BYTES)
    return [
        GatheredSegment(pieces, length, crc32_of(pieces) if checksum is None else checksum)
        for pieces, length, checksum in gathered
    ]


def gather_value(value: bytes | memoryview, timestamp_ms: int) -> GatheredSegment:
    """Encode one record without a key, of a large value that is not copied.

    Args:
        value: Of single bytes; kept.
        timestamp_ms: Wall time in ms since 1970 UTC.

    Raises:
        FormatError: Over `MAX_SEGMENT_BYTES`, or a timestamp outside 64 bits.

    Threads: any.
    """
    layout = _layout(VALUES, 1, 0, len(value), 0, 0)
    if layout.length > MAX_SEGMENT_BYTES:
        raise _too_long()
    header = _HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, VALUES, 0, 1, 0, len(value), 0, 0, 0)
    try:
        head = header + struct.pack("<qii", timestamp_ms, 0, len(value))
    except struct.error as error:
        raise FormatError(f"a timestamp is no 64-bit integer: {error}") from error
    pieces = (head, value, _PADDING[len(value) % 8])
    return GatheredSegment(pieces, layout.length, crc32_of(pieces))


class LaidOutColumn(NamedTuple):
    """Keys or values as a segment has them, in buffers of single bytes.

    Attributes:
        validity: Arrow's bitmap, bits behind the last record 0; None: no cell is null.
        offsets: i32[n + 1], little-endian, from 0 on, ascending; a null cell has no bytes.
        data: What the offsets are of.
    """

    validity: bytes | memoryview | None
    offsets: bytes | memoryview
    data: bytes | memoryview


def gather_columns(
    timestamps: bytes | memoryview,
    keys: LaidOutColumn | None,
    values: LaidOutColumn | None,
    headers: bytes,
) -> GatheredSegment:
    """Encode records whose columns are laid out already, without copying them.

    Args:
        timestamps: i64[n], little-endian, ms since 1970 UTC; single bytes.
        keys: None when all are null, else some is not; kept, as the others.
        values: Likewise.
        headers: As `encode_headers` makes them; empty when no record has any.

    Raises:
        FormatError: No or too many records, columns of different lengths, or over
            `MAX_SEGMENT_BYTES`.

    Threads: any.
    """
    records, odd = divmod(len(timestamps), 8)
    _check_record_count(records)
    flags = 0
    buffers: list[bytes | memoryview] = [timestamps]
    for column, present, nulls in ((keys, KEYS, KEY_NULLS), (values, VALUES, VALUE_NULLS)):
        if column is None:
            continue
        flags |= present
        if column.validity is not None:
            flags |= nulls
            buffers.append(column.validity)
        buffers += (column.offsets, column.data)
    buffers.append(headers)
    key_bytes, value_bytes = (
        0 if column is None else len(column.data) for column in (keys, values)
    )
    layout = _layout(flags, records, key_bytes, value_bytes, len(headers), 0)
    if layout.length > MAX_SEGMENT_BYTES:
        raise _too_long()
    sizes = (records, key_bytes, value_bytes, len(headers), 0, 0)
    pieces: list[bytes | memoryview] = [
        _HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, flags, 0, *sizes)
    ]
    for buffer in buffers:
        pieces += (buffer, _PADDING[len(buffer) % 8])
    pieces = [piece for piece in pieces if len(piece)]
    if odd or sum(map(len, pieces)) != layout.length:
        raise FormatError("keys, values and timestamps differ in length")
    return GatheredSegment(pieces, layout.length, crc32_of(pieces))


def _rows_and_headers(rows: Rows) -> tuple[Rows, bytes]:
    headers = rows.headers
    return rows, b"" if headers is None else encode_headers(headers)


def _check_record_count(records: int) -> None:
    if not 1 <= records <= MAX_SEGMENT_RECORDS:
        raise FormatError(f"a segment has 1 to {MAX_SEGMENT_RECORDS} records, not {records}")


def _too_long() -> FormatError:
    return FormatError(f"a segment has at most {MAX_SEGMENT_BYTES} bytes")


def segment_chunks(columns: Columns | Rows) -> tuple[list[bytes], int]:
    """Encode records as chunks to be joined, without copying keys and values unless they are short.

    Args:
        columns: As in `encode_segment`.

    Returns:
        The chunks, whose concatenation is the segment, and its length in bytes, which is a
        multiple of 8. All chunks are exactly `bytes`: only then does `bytes.join` release the
        GIL for large results.

    Raises:
        FormatError: As in `encode_segment`.

    Threads: any; the columns must not change meanwhile, and rows not any more. C copies rows, into
        one chunk, without the GIL.
    """
    if native is not None and isinstance(columns, Rows):
        _check_record_count(columns.record_count)
        segment: bytes | None = native.encode_rows(_rows_and_headers(columns), MAX_SEGMENT_BYTES)
        if segment is None:
            raise _too_long()
        return [segment], len(segment)
    keys, values, timestamps_ms = columns.keys, columns.values, columns.timestamps_ms
    records = len(timestamps_ms)
    _check_record_count(records)
    if len(keys) != records or len(values) != records:
        raise FormatError("keys, values and timestamps differ in length")
    all_headers = columns.headers
    if all_headers is not None and len(all_headers) != records:
        raise FormatError("headers and timestamps differ in length")
    try:
        timestamps = struct.pack(f"<{records}q", *timestamps_ms)
    except struct.error as error:
        raise FormatError(f"a timestamp is no 64-bit integer: {error}") from error
    key_flags, key_bytes, key_chunks = _binary_chunks(keys)
    value_flags, value_bytes, value_chunks = _binary_chunks(values)
    headers = b"" if all_headers is None else encode_headers(all_headers)
    flags = key_flags | value_flags << 2
    layout = _layout(flags, records, key_bytes, value_bytes, len(headers), 0)
    if layout.length > MAX_SEGMENT_BYTES:
        raise _too_long()
    sizes = (records, key_bytes, value_bytes, len(headers), 0, 0)
    header = _HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, flags, 0, *sizes)
    chunks = [header, timestamps, *key_chunks, *value_chunks, headers, _PADDING[len(headers) % 8]]
    return chunks, layout.length


def _binary_chunks(column: list[bytes | None]) -> tuple[int, int, list[bytes]]:
    """The flags (as for keys), data length and padded chunks of one column."""
    records = len(column)
    if column[0] is None and column.count(None) == records:
        return 0, 0, []
    chunks: list[bytes] = []
    flags = KEYS
    data: list[bytes]
    try:
        # The usual column without nulls never pays for looking for one: len(None) raises.
        offsets = list(accumulate(map(len, column), initial=0))  # type: ignore[arg-type]
        data = column  # type: ignore[assignment]
    except TypeError:
        flags |= KEY_NULLS
        chunks += _padded(_validity(column))
        offsets = list(accumulate((len(cell or b"") for cell in column), initial=0))
        data = list(filter(None, column))
    if offsets[-1] > MAX_SEGMENT_BYTES:
        raise FormatError(f"a column has at most {MAX_SEGMENT_BYTES} bytes, not {offsets[-1]}")
    # struct.pack took 5 ns per offset where array("i", …) took 13, and cares for byte order.
    chunks += _padded(struct.pack(f"<{records + 1}i", *offsets))
    if offsets[-1] < _JOINED_BELOW_BYTES * records:
        chunks.append(b"".join(data))
    else:
        chunks += data
    chunks.append(_PADDING[offsets[-1] % 8])
    return flags, offsets[-1], chunks


def _padded(buffer: bytes) -> tuple[bytes, bytes]:
    return buffer, _PADDING[len(buffer) % 8]


def _validity(column: list[bytes | None]) -> bytes:
    """Arrow's bitmap: bit i, least significant first, is 1 when cell i is not null."""
    flags = bytes(map(is_not, column, repeat(None)))
    # int() of a base-2 text is linear and runs in C; the last record is the highest bit.
    bits = int(flags[::-1].translate(_TO_TEXT), 2)
    return bits.to_bytes((len(column) + 7) // 8, "little")


class SegmentLayout(NamedTuple):
    """Where the buffers of a segment begin, in bytes from the segment's start.

    A buffer of an absent column has no bytes. With these an Arrow reader wraps the buffers
    without a copy; it must validate the offsets itself (`decode_segment` does).
    """

    flags: int
    records: int
    key_bytes: int
    value_bytes: int
    headers_bytes: int
    extension_bytes: int
    timestamps: int
    key_validity: int
    key_offsets: int
    key_data: int
    value_validity: int
    value_offsets: int
    value_data: int
    headers: int
    extension: int
    length: int


def _layout(
    flags: int,
    records: int,
    key_bytes: int,
    value_bytes: int,
    headers_bytes: int,
    extension_bytes: int,
) -> SegmentLayout:
    bitmap, offsets = (records + 7) // 8, 4 * (records + 1)
    sizes = (
        8 * records,
        bitmap if flags & KEY_NULLS else 0,
        offsets if flags & KEYS else 0,
        key_bytes,
        bitmap if flags & VALUE_NULLS else 0,
        offsets if flags & VALUES else 0,
        value_bytes,
        headers_bytes,
        extension_bytes,
    )
    starts = accumulate(((size + 7) & ~7 for size in sizes), initial=SEGMENT_HEADER_BYTES)
    lengths = (key_bytes, value_bytes, headers_bytes, extension_bytes)
    return SegmentLayout(flags, records, *lengths, *starts)


def segment_layout(data: bytes | mmap, start: int, length: int, records: int) -> SegmentLayout:
    """Read and check a segment's header; nothing is allocated for what it claims.

    Args:
        data: Bytes that hold the segment.
        start: Where it begins in `data`.
        length: How long it is.
        records: How many records the notification promises.

    Returns:
        Where the buffers are; all of them lie inside the segment and fill it exactly.

    Raises:
        FormatError: Damaged, or not what the notification promises.
        UnsupportedFormatError: Of a version, or with a flag, that this version does not know.

    Threads: any.
    """
    if start < 0 or length < SEGMENT_HEADER_BYTES or start + length > len(data):
        raise FormatError(f"no segment of {length} bytes at {start} in {len(data)} bytes")
    magic, version, flags, zero, *sizes, zero_too = _HEADER.unpack_from(data, start)
    if magic != SEGMENT_MAGIC:
        raise FormatError(f"not a segment: begins with {magic!r}, not {SEGMENT_MAGIC!r}")
    if version != SEGMENT_VERSION:
        raise UnsupportedFormatError(f"segment version {version} is unknown: upgrade")
    if flags & ~_KNOWN_FLAGS or zero or zero_too:
        raise UnsupportedFormatError(
            f"segment flags {flags:#04x}, {zero:#06x}, {zero_too:#010x} are unknown: upgrade"
        )
    layout = _layout(flags, *sizes)
    if layout.records != records or not 1 <= records <= MAX_SEGMENT_RECORDS:
        raise FormatError(f"segment has {layout.records} records, {records} were promised")
    if layout.length != length:
        raise FormatError(f"segment states {layout.length} bytes, has {length}")
    for present, nulls, data_bytes in (
        (flags & KEYS, flags & KEY_NULLS, layout.key_bytes),
        (flags & VALUES, flags & VALUE_NULLS, layout.value_bytes),
    ):
        if not present and (nulls or data_bytes):
            raise FormatError("segment has data for an absent column")
    return layout


@dataclass(slots=True)
class Segment:
    """A decoded segment: the raw bytes and where each record's key and value lie in them.

    A hot loop uses these fields; the methods are the same in words.

    Attributes:
        data: The buffer that was decoded; the segment may be a part of it. Its slices are `bytes`.
        records: How many records.
        timestamps_ms: Per record, ms since 1970 UTC.
        keys: Called with a record's index, gives its key; None when all keys are null.
        values: As `keys`.

    Threads: any, except `headers`: one at a time.
    """

    data: bytes | mmap
    records: int
    timestamps_ms: array[int]
    keys: Cells | None
    values: Cells | None
    _headers_place: slice | None = field(repr=False)
    _headers: list[Headers | None] | None = field(default=None, repr=False)

    def key(self, record_index: int) -> bytes | None:
        """The record's key; a copy."""
        return None if self.keys is None else self.keys(record_index)

    def value(self, record_index: int) -> bytes | None:
        """The record's value; a copy."""
        return None if self.values is None else self.values(record_index)

    def timestamp_ms(self, record_index: int) -> int:
        """The record's timestamp in ms since 1970 UTC."""
        return self.timestamps_ms[record_index]

    def headers(self, record_index: int) -> Headers | None:
        """The record's headers, or None; the column is decoded at the first call.

        Raises:
            FormatError: The column is damaged, although the checksum was right: the writer is
                broken or hostile. Call `check_headers` first where that must not come late.
        """
        if self._headers_place is None:
            return None
        if self._headers is None:
            self.check_headers()
            return self.headers(record_index)
        return self._headers[record_index]

    def check_headers(self) -> None:
        """Decode the headers column now.

        Raises:
            FormatError: It is damaged.
        """
        if self._headers_place is not None and self._headers is None:
            self._headers = decode_headers(self.data[self._headers_place], self.records)


def decode_segment(
    data: bytes | mmap,
    *,
    start: int = 0,
    length: int | None = None,
    records: int,
    max_headers_bytes: int = MAX_SEGMENT_BYTES,
) -> Segment:
    """Decode a segment in place.

    Args:
        data: Bytes that hold the segment, uncompressed: it alone, or several fetched at once.
        start: Where it begins in `data`.
        length: How long it is; by default all the rest.
        records: How many records the notification promises.
        max_headers_bytes: A longer headers column is refused: its Python objects may take 50
            times its bytes.

    Returns:
        The segment. It keeps `data` alive.

    Raises:
        FormatError: Damaged, or not what the notification promises; found before memory is
            taken for what the segment claims.
        UnsupportedFormatError: Of a version, or with a flag or a critical field, that this
            version does not know.

    Threads: any.
    """
    layout = segment_layout(data, start, len(data) - start if length is None else length, records)
    if layout.headers_bytes > max_headers_bytes:
        raise FormatError(f"headers column has {layout.headers_bytes} > {max_headers_bytes} bytes")
    flags = layout.flags
    if layout.extension_bytes:
        _check_extension(data, start + layout.extension, layout.extension_bytes)
    timestamps = array("q")
    timestamps.frombytes(
        memoryview(data)[start + layout.timestamps : start + layout.timestamps + 8 * records]
    )
    if _BIG_ENDIAN:
        timestamps.byteswap()
    keys = values = None
    try:
        if flags & KEYS:
            keys = Cells(
                data,
                records,
                start + layout.key_offsets,
                start + layout.key_data,
                layout.key_bytes,
                start + layout.key_validity if flags & KEY_NULLS else -1,
            )
        if flags & VALUES:
            values = Cells(
                data,
                records,
                start + layout.value_offsets,
                start + layout.value_data,
                layout.value_bytes,
                start + layout.value_validity if flags & VALUE_NULLS else -1,
            )
    except ValueError as error:
        raise FormatError(str(error)) from error
    headers_place = None
    if layout.headers_bytes:
        headers_start = start + layout.headers
        headers_place = slice(headers_start, headers_start + layout.headers_bytes)
    return Segment(data, records, timestamps, keys, values, headers_place)


def _check_extension(data: bytes | mmap, place: int, length: int) -> None:
    reader = FieldReader(data[place : place + length], "segment")
    reader.extensions()
    reader.end()
