"""A second reader of the formats, written from `docs/format.md` alone, as the tests' oracle.

Slow and plain on purpose: it shares no line with `blobmsg.format`, so a mistake would have to
be made twice. It trusts its input; refusing bad bytes is tested on the real decoders.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import msgpack


@dataclass
class Record:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]] | None


def padded(size: int) -> int:
    return (size + 7) // 8 * 8


def read_segment(data: bytes) -> list[Record]:
    assert data[:4] == b"BMSG"
    assert data[4] == 1
    flags = data[5]
    n, key_bytes, value_bytes, headers_bytes, extension_bytes = struct.unpack("<5I", data[8:28])
    place = 32
    timestamps = struct.unpack(f"<{n}q", data[place : place + 8 * n])
    place += 8 * n
    columns: list[list[bytes | None]] = []
    for present, nulls, size in ((1, 2, key_bytes), (4, 8, value_bytes)):
        valid = [True] * n
        if flags & nulls:
            bitmap = data[place:]
            valid = [bool(bitmap[i // 8] >> (i % 8) & 1) for i in range(n)]
            place += padded((n + 7) // 8)
        if not flags & present:
            columns.append([None] * n)
            continue
        offsets = struct.unpack(f"<{n + 1}i", data[place : place + 4 * (n + 1)])
        place += padded(4 * (n + 1))
        column = data[place : place + size]
        place += padded(size)
        columns.append(
            [column[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(n)]
        )
    headers: list[list[tuple[str, bytes | None]] | None] = [None] * n
    if headers_bytes:
        flat: list[Any] = msgpack.unpackb(data[place : place + headers_bytes])
        for i in range(n):
            count, flat = flat[0], flat[1:]
            if count:
                headers[i] = [(flat[2 * j], flat[2 * j + 1]) for j in range(count)]
            flat = flat[2 * count :]
        assert not flat
    place += padded(headers_bytes) + padded(extension_bytes)
    assert place == len(data)
    return [
        Record(*cells) for cells in zip(columns[0], columns[1], timestamps, headers, strict=True)
    ]


def read_index(data: bytes) -> list[list[Any]]:
    """The entries of a batch object: topic, partition, zone, then the elements of a part."""
    assert data[:8] == b"BMOB\1\0\0\0"
    start, length, checksum, version = struct.unpack("<QIIB", data[-24:-7])
    assert version == 1
    assert data[-7:] == b"\0\0\0BMOE"
    index = data[start : start + length]
    assert start + length + 24 == len(data)
    assert zlib.crc32(index) == checksum
    entries: list[list[Any]] = msgpack.unpackb(index)["e"]
    return entries


def read_notification(value: bytes) -> dict[str, Any]:
    assert value[:5] == b"\xb1BMN\1"
    fields: dict[str, Any] = msgpack.unpackb(value[5:])
    return fields
