"""Cuts a segment that is too long for a notification into shorter ones.

Decides where; slow beside the record path, for it looks at each record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from blobmsg.core.segments import SealedSegment, headers_bytes
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD, ENCODED_BYTES_PER_RECORD
from blobmsg.format.codec import decompress
from blobmsg.format.rows import WIDE, Rows
from blobmsg.format.segment import SEGMENT_HEADER_BYTES, decode_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobmsg.format.encoded_segment import EncodedSegment

__all__ = ["cut_segment"]

# Bits that say which keys and values are null, padding of the columns, and what msgpack adds to a
# record's headers and to each of them; never less than it is.
_MORE_BYTES_PER_RECORD: Final = 8
_MORE_BYTES_PER_HEADER: Final = 12
_PADDING_BYTES: Final = 64


def cut_segment(
    segment: SealedSegment, contents: Rows | EncodedSegment, max_bytes: int
) -> list[SealedSegment]:
    """Its records in segments of their own.

    Args:
        segment: Not notified.
        contents: What it has; encoded only if its records have no callbacks.
        max_bytes: How long one may be, encoded, before it is compressed. Only one that has a single
            record is longer.

    Returns:
        The pieces in order: at least one record each, with the same callbacks and deadline.

    Threads: any.
    """
    rows = contents if isinstance(contents, Rows) else _decoded(contents)
    return [
        _piece(segment, part, payload_bytes) for part, payload_bytes in _cut_rows(rows, max_bytes)
    ]


def _cut_rows(rows: Rows, max_bytes: int) -> Iterator[tuple[Rows, int]]:
    """Rows that fit, and what their keys, values and headers have together, in bytes."""
    callbacks = rows.callbacks
    part, part_bytes, length_bytes = Rows(rows.width), 0, 0
    for index in range(rows.record_count):
        key, value, timestamp_ms, headers = rows.record(index)
        payload_bytes = len(key or b"") + len(value or b"") + headers_bytes(headers)
        more_bytes = payload_bytes + ENCODED_BYTES_PER_RECORD + _MORE_BYTES_PER_RECORD
        for name, _ in headers or ():
            more_bytes += _MORE_BYTES_PER_HEADER + len(name.encode()) - len(name)
        if part.record_count and length_bytes + more_bytes > max_bytes:
            yield part, part_bytes
            part, part_bytes, length_bytes = Rows(rows.width), 0, 0
        if not part.record_count:
            length_bytes = SEGMENT_HEADER_BYTES + _PADDING_BYTES
        row: tuple[Any, ...] = (key, value, timestamp_ms)
        part.extend((*row, headers, callbacks[index]) if rows.width == WIDE else row)
        part_bytes += payload_bytes
        length_bytes += more_bytes
    yield part, part_bytes


def _piece(segment: SealedSegment, rows: Rows, payload_bytes: int) -> SealedSegment:
    return SealedSegment(
        topic=segment.topic,
        partition=segment.partition,
        rows=rows,
        callback=segment.callback,
        charged_bytes=payload_bytes + CHARGE_BYTES_PER_RECORD * rows.record_count,
        opened_ms=segment.opened_ms,
        deadline_ms=segment.deadline_ms,
        inline_max_bytes=segment.inline_max_bytes,
    )


def _decoded(encoded: EncodedSegment) -> Rows:
    """Its records, without callbacks."""
    stored = b"".join(encoded.pieces)
    raw = decompress(encoded.codec, stored, encoded.uncompressed_bytes)
    found = decode_segment(raw, records=encoded.records)
    rows = Rows(WIDE)
    for index in range(found.records):
        headers = found.headers(index)
        rows.extend(
            (found.key(index), found.value(index), found.timestamps_ms[index], headers, None)
        )
    return rows
