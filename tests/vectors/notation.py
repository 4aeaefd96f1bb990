"""The notation of the vectors: how JSON says bytes and records (see README.md)."""

from __future__ import annotations

from typing import Any

from blobmsg.format import (
    ByteRange,
    Codec,
    Columns,
    IndexEntry,
    Notification,
    ObjectKey,
    Part,
    Segment,
)

Json = Any


def to_bytes(said: Json) -> bytes:
    if isinstance(said, dict):
        return bytes.fromhex(said["fill"]) * int(said["count"])
    return bytes.fromhex(said)


def to_bytes_or_none(said: Json) -> bytes | None:
    return None if said is None else to_bytes(said)


def to_columns(records: list[Json], repeat: int = 1) -> Columns:
    columns = Columns(
        [to_bytes_or_none(record["key"]) for record in records] * repeat,
        [to_bytes_or_none(record["value"]) for record in records] * repeat,
        [record["timestamp_ms"] for record in records] * repeat,
    )
    if any(record["headers"] for record in records):
        columns.headers = [
            None
            if record["headers"] is None
            else [(name, to_bytes_or_none(value)) for name, value in record["headers"]]
            for record in records
        ] * repeat
    return columns


def columns_of(segment: Segment) -> Columns:
    """What a decoded segment holds, in the shape of `to_columns`."""
    everyone = range(segment.records)
    headers = [segment.headers(i) for i in everyone]
    return Columns(
        [segment.key(i) for i in everyone],
        [segment.value(i) for i in everyone],
        [segment.timestamp_ms(i) for i in everyone],
        headers if any(headers) else None,
    )


def part_json(part: Part | IndexEntry) -> Json:
    return {
        "start": part.byte_range.start,
        "length": part.byte_range.length,
        "records": part.records,
        "codec": part.codec.name.lower(),
        "uncompressed_bytes": part.uncompressed_bytes,
        "checksum": part.checksum,
        "first_timestamp_ms": part.first_timestamp_ms,
        "last_timestamp_ms": part.last_timestamp_ms,
        "producer_id": part.producer_id.hex(),
    }


def entry_json(entry: IndexEntry) -> Json:
    place = {
        "topic": entry.topic,
        "partition": entry.partition,
        "destination_zone": entry.destination_zone,
    }
    return place | part_json(entry)


def to_part(said: Json) -> Part:
    return Part(
        ByteRange(said["start"], said["length"]),
        said["records"],
        Codec[said["codec"].upper()],
        said["uncompressed_bytes"],
        said["checksum"],
        said["first_timestamp_ms"],
        said["last_timestamp_ms"],
        bytes.fromhex(said["producer_id"]),
    )


def notification_json(notification: Notification) -> Json:
    return {
        "store": notification.store,
        "key": notification.key,
        "sequence": notification.sequence,
        "producer_id": notification.producer_id.hex(),
        "inline": None if notification.inline is None else notification.inline.hex(),
        "parts": [part_json(part) for part in notification.parts],
    }


def to_notification(said: Json) -> Notification:
    return Notification(
        tuple(to_part(part) for part in said["parts"]),
        said["sequence"],
        bytes.fromhex(said["producer_id"]),
        said["key"],
        said["store"],
        to_bytes_or_none(said["inline"]),
    )


def key_json(key: ObjectKey) -> Json:
    return {
        "isolation": key.isolation,
        "shard": key.shard,
        "expiry_hour": key.expiry_hour,
        "zone": key.zone,
        "writer_id": key.writer_id,
        "number": key.number,
        "expiry_ms": key.expiry_ms(),
    }
