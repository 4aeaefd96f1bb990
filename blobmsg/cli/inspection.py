"""What can be said of a batch object or a notification, as plain facts for JSON and for people.

Reads every segment and checks it: checksum, codec, layout. Facts are dicts of JSON values;
`findings` in them lists what is wrong. Never prints and never raises for damaged bytes.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from blobmsg.fetcher import decode_stored
from blobmsg.format import (
    HEADER_NAME,
    TRAILER_BYTES,
    ByteRange,
    FormatError,
    Limits,
    Segment,
    decode_batch_object_index,
    decode_notification,
    index_range,
)
from blobmsg.format.segment import MAX_SEGMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.cli.source import Source
    from blobmsg.format import ObjectKey, Part

Facts = dict[str, Any]

# Whoever inspects wants to see it, however large.
_LIMITS = Limits(MAX_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
_PREVIEW_BYTES = 60


def inspect_object(source: Source, now_timestamp_ms: int, preview_records: int) -> Facts:
    """Return what an object is, with every segment checked.

    Args:
        source: Where it is.
        now_timestamp_ms: Wall time, for whether it has expired.
        preview_records: Of each segment.
    """
    size_bytes = source.size()
    facts: Facts = {
        "kind": "batch object",
        "place": source.place,
        "size_bytes": size_bytes,
        "key": describe_key(source.key, now_timestamp_ms),
        "segments": [],
        "findings": [],
    }
    try:
        index = _read_index(source, size_bytes)
        entries = decode_batch_object_index(index, size_bytes)
    except FormatError as error:
        facts["findings"].append(str(error))
        return facts
    facts["index_bytes"] = len(index) - TRAILER_BYTES
    for number, entry in enumerate(entries):
        described = {
            "topic": entry.topic,
            "partition": entry.partition,
            "destination_zone": entry.destination_zone,
            **_describe_part(entry.part, source.read, preview_records),
        }
        facts["segments"].append(described)
        if described["problem"]:
            facts["findings"].append(
                f"segment {number} ({entry.topic} [{entry.partition}]): {described['problem']}"
            )
    return facts


def inspect_notification(
    value: bytes,
    now_timestamp_ms: int,
    preview_records: int,
    open_object: Callable[[str, str], Source] | None = None,
) -> Facts:
    """Return what a notification says; its segments are checked where they can be read.

    Args:
        value: The Kafka record's value.
        now_timestamp_ms: Wall time, for whether its object has expired.
        preview_records: Of each segment.
        open_object: Gives the object of a store name and a key; None: objects are not read.
    """
    facts: Facts = {"kind": "notification", "size_bytes": len(value), "findings": []}
    try:
        notification = decode_notification(value, _LIMITS)
    except FormatError as error:
        facts["findings"].append(str(error))
        return facts
    read: Callable[[ByteRange], bytes] | None = None
    inline = notification.inline
    if inline is not None:
        read = _slicer(inline)
    elif notification.key is not None:
        from blobmsg.format import ObjectKey

        facts["key"] = describe_key(ObjectKey.decode(notification.key), now_timestamp_ms)
        if open_object is not None:
            read = open_object(notification.store, notification.key).read
    facts.update(
        {
            "object": notification.key,
            "store": notification.store,
            "inline_bytes": None if inline is None else len(inline),
            "sequence": notification.sequence,
            "producer_id": notification.producer_id.hex(),
            "records": notification.records,
            "parts": [_describe_part(part, read, preview_records) for part in notification.parts],
        }
    )
    facts["findings"] = [
        f"part {number}: {part['problem']}"
        for number, part in enumerate(facts["parts"])
        if part["problem"]
    ]
    return facts


def inspect_plain_record(
    value: bytes | None, headers: list[tuple[str, bytes | None]] | None
) -> Facts:
    """Return what a Kafka record is that is no notification."""
    return {
        "kind": "plain record",
        "size_bytes": len(value or b""),
        "value": preview(value),
        "headers": [[name, preview(content)] for name, content in headers or []],
        "note": f"no header {HEADER_NAME!r} or no magic: consumers hand it out as it is",
        "findings": [],
    }


def describe_key(key: ObjectKey | None, now_timestamp_ms: int) -> Facts | None:
    """Return what a key says; None for a name that is not of the grammar."""
    if key is None:
        return None
    expiry_ms = key.expiry_ms()
    return {
        "text": key.encode(),
        "isolation": key.isolation,
        "shard": key.shard,
        "zone": key.zone,
        "writer_id": key.writer_id,
        "number": key.number,
        "expires": "never" if expiry_ms is None else time_text(expiry_ms),
        "has_expired": expiry_ms is not None and expiry_ms <= now_timestamp_ms,
    }


def preview(content: bytes | None) -> str | None:
    """Return the beginning of a key or value as text; bytes that are no text as in Python."""
    if content is None:
        return None
    head = content[:_PREVIEW_BYTES]
    try:
        text = head.decode()
    except UnicodeDecodeError:
        text = repr(head)[2:-1]
    return text + ("…" if len(content) > len(head) else "")


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp as ISO 8601 in UTC; the number itself where no calendar has it."""
    try:
        instant = datetime.fromtimestamp(timestamp_ms / 1000, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _slicer(data: bytes) -> Callable[[ByteRange], bytes]:
    return lambda place: data[place.start : place.end]


def _read_index(source: Source, size_bytes: int) -> bytes:
    """Return the index and the trailer."""
    tail_bytes = min(TRAILER_BYTES, size_bytes)
    if not tail_bytes:
        raise FormatError("not a batch object: it is empty")
    trailer = source.read(ByteRange(size_bytes - tail_bytes, tail_bytes))
    place = index_range(trailer, size_bytes)
    return source.read(ByteRange(place.start, size_bytes - place.start))


def _describe_part(
    part: Part, read: Callable[[ByteRange], bytes] | None, preview_records: int
) -> Facts:
    facts: Facts = {
        "start": part.byte_range.start,
        "stored_bytes": part.byte_range.length,
        "records": part.records,
        "codec": part.codec.name.lower(),
        "uncompressed_bytes": part.uncompressed_bytes,
        "checksum": f"{part.checksum:08x}",
        "first_timestamp": time_text(part.first_timestamp_ms),
        "last_timestamp": time_text(part.last_timestamp_ms),
        "producer_id": part.producer_id.hex(),
        "is_checked": read is not None,
        "problem": None,
    }
    if read is None:
        return facts
    try:
        segment = decode_stored(part, read(part.byte_range))
    except FormatError as error:
        facts["problem"] = str(error)
        return facts
    if preview_records:
        facts["preview"] = [
            _describe_record(segment, index)
            for index in range(min(preview_records, segment.records))
        ]
    return facts


def _describe_record(segment: Segment, index: int) -> Facts:
    value = segment.value(index)
    return {
        "record_index": index,
        "timestamp": time_text(segment.timestamp_ms(index)),
        "key": preview(segment.key(index)),
        "value": preview(value),
        "value_bytes": None if value is None else len(value),
        "headers": [[name, preview(content)] for name, content in segment.headers(index) or []],
    }
