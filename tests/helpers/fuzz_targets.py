"""The decoders as a fuzzer sees them: bytes in, a value or None (refused) out.

Anything but `FormatError` passes through and is a finding.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blobmsg.format import (
    Codec,
    Columns,
    FormatError,
    Limits,
    ObjectKey,
    compress,
    crc32,
    decode_batch_object_index,
    decode_commit_metadata,
    decode_notification,
    decode_segment,
    decompress,
    encode_segment,
)
from blobmsg.format.headers import decode_headers, encode_headers

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

VECTORS = Path(__file__).parent.parent / "vectors" / "v1"
LIMITS = Limits(max_parts=16)
UNCOMPRESSED_BYTES = 1000


@dataclass(frozen=True)
class Decoder:
    name: str
    read: Callable[[bytes], Any]
    accepts_prefixes: bool = False

    def decode(self, data: bytes) -> Any:
        try:
            return self.read(data)
        except FormatError:
            return None


def _read_segment(data: bytes) -> Any:
    # The count comes from the notification; taking it from the bytes lets mutations go deeper.
    segment = decode_segment(data, records=int.from_bytes(data[8:12], "little"))
    for i in range(min(segment.records, 50)):
        for cell in (segment.key(i), segment.value(i)):
            if cell is not None and not (type(cell) is bytes and len(cell) <= len(data)):
                raise AssertionError(f"no cell of this segment: {cell!r}")
    segment.check_headers()
    return segment


def _read_index(data: bytes) -> Any:
    # As an object whose checksum is right, which no mutation of a whole object has.
    start = 1 << 32
    length = start + len(data) + 24
    trailer = struct.pack("<QIIB3s4s", start, len(data), crc32(data), 1, bytes(3), b"BMOE")
    return decode_batch_object_index(data + trailer, length)


def _read_text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(data.decode("utf-8", "surrogateescape"))


def _decompress(codec: Codec) -> Callable[[bytes], Any]:
    return lambda data: decompress(codec, data, UNCOMPRESSED_BYTES)


DECODERS = [
    Decoder("segment", _read_segment),
    Decoder("headers", lambda data: decode_headers(data, 3)),
    Decoder("batch_object", lambda data: decode_batch_object_index(data, len(data))),
    Decoder("index", _read_index),
    Decoder("notification", lambda data: decode_notification(data, LIMITS)),
    Decoder("object_key", _read_text(ObjectKey.decode), accepts_prefixes=True),
    Decoder("commit_metadata", _read_text(decode_commit_metadata), accepts_prefixes=True),
    *(Decoder(codec.name.lower(), _decompress(codec)) for codec in Codec),
]


def seeds() -> dict[str, list[bytes]]:
    """Valid bytes for every decoder: the vectors, and a few of their parts."""

    def cases(name: str) -> list[Any]:
        found: list[Any] = json.loads((VECTORS / name).read_text(encoding="utf-8"))["cases"]
        return found

    def short(name: str) -> list[bytes]:
        said = [case["bytes"].get("hex") for case in cases(name)]
        return [bytes.fromhex(text) for text in said if text is not None]

    text = encode_segment(Columns([None] * 10, [b"%050d" % i for i in range(10)], [0] * 10))
    raw = text[:UNCOMPRESSED_BYTES].ljust(UNCOMPRESSED_BYTES, b"x")
    objects = short("batch_objects.json")
    return {
        "segment": short("segments.json"),
        "headers": [
            encode_headers([None, [("a", b"1"), ("a", None)], [("größe", b"")]]),
            encode_headers([[("n", b"v")] * 20, None, None]),
        ],
        "batch_object": objects,
        "index": [data[int.from_bytes(data[-24:-16], "little") : -24] for data in objects],
        "notification": short("notifications.json"),
        "object_key": [case["text"].encode() for case in cases("object_keys.json")],
        "commit_metadata": [
            case["text"].encode() for case in cases("commit_metadata.json") if case["text"]
        ],
        **{codec.name.lower(): [compress(codec, raw)] for codec in Codec},
    }


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One change of the kind that damage or an attacker makes."""
    changed = bytearray(data or b"\0")
    place = chance.randrange(len(changed))
    end = min(len(changed), place + chance.choice((1, 2, 4, 8, 30)))
    kind = chance.randrange(7)
    if kind == 0:
        changed[place] ^= 1 << chance.randrange(8)
    elif kind == 1:
        changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDC, 0xDD, 0xDF, 0xFF))
    elif kind == 2:
        changed[place:end] = (
            bytes(end - place) if chance.random() < 0.5 else b"\xff" * (end - place)
        )
    elif kind == 3:
        del changed[place:end]
    elif kind == 4:
        changed[place:place] = changed[place:end] * chance.choice((1, 1, 2, 20))
    elif kind == 5:
        changed[place:place] = chance.randbytes(end - place)
    else:
        other = chance.randrange(len(changed))
        changed[place:end] = changed[other : other + end - place]
    return bytes(changed)
