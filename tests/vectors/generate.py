"""Writes the vectors of the current format version, once.

    python -m tests.vectors.generate

Vectors are a promise: data written years ago must decode to the same values. So a file that is
there is never written again. New cases go into a new file; a changed format is a new version
and gets a folder of its own.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import msgpack

from blobmsg.format import (
    RETENTION_CLASSES,
    ByteRange,
    Codec,
    Notification,
    ObjectKey,
    Part,
    decode_batch_object_index,
    encode_batch_object,
    encode_commit_metadata,
    encode_notification,
    encode_object_segment,
    encode_segment,
    expiry_hour,
    index_range,
    retention_class,
)
from tests.vectors.notation import (
    Json,
    entry_json,
    key_json,
    notification_json,
    to_columns,
)

FOLDER = Path(__file__).parent / "v1"
INLINE_HEX_BYTES = 4096

PRODUCER = bytes(range(16))
MEMBER = bytes(range(240, 256))
HOUR_MS = 3_600_000


def record(
    key: str | None = None,
    value: Json = None,
    timestamp_ms: int = 0,
    headers: list[list[str | None]] | None = None,
) -> Json:
    return {"key": key, "value": value, "timestamp_ms": timestamp_ms, "headers": headers}


def bytes_json(data: bytes) -> Json:
    """Short bytes as hex, long ones by their length and digests."""
    if len(data) <= INLINE_HEX_BYTES:
        return {"hex": data.hex()}
    digest = hashlib.sha256(data).hexdigest()
    return {"length": len(data), "crc32": zlib.crc32(data), "sha256": digest}


SMALL = [
    record("6b31", "76616c75652031", 1_795_230_000_000),
    record("6b32", "76616c75652032", 1_795_230_000_001),
    record("6b31", "76616c75652033", 1_795_230_000_002),
]
MIXED = [
    record("6b31", "76616c7565", 1_795_230_000_000, [["trace", "01"], ["trace", None]]),
    record(None, "", -1),
    record("", None, 0, [["größe-大小", ""], ["", "ff"]]),
]

SEGMENTS: list[tuple[str, list[Json], int]] = [
    ("three records with key and value", SMALL, 1),
    ("one record of 0 bytes: key and value null", [record()], 1),
    ("one record of 0 bytes: key and value empty", [record("", "")], 1),
    ("all keys null", [record(None, "61"), record(None, "6262"), record(None, "")], 1),
    ("all values null", [record("61"), record("6262"), record("")], 1),
    ("null, empty and full keys", [record(None, "31"), record("", "32"), record("61", "33")], 1),
    ("null, empty and full values", [record("31"), record("32", ""), record("33", "61")], 1),
    (
        "nulls beyond one byte of validity",
        [
            record(None if i % 3 == 0 else f"{i:02x}", None if i % 5 == 0 else "76")
            for i in range(19)
        ],
        1,
    ),
    (
        "headers: repeated names, null, empty and non-ASCII",
        [
            record("6b", "76", 5, [["a", "31"], ["b", None], ["a", ""], ["größe-大小", "ff00"]]),
            record("6b", "76", 5),
            record("6b", "76", 5, [["", "00"]]),
        ],
        1,
    ),
    (
        "timestamps: 0, negative, smallest, largest, not ascending",
        [
            record(None, "61", timestamp_ms)
            for timestamp_ms in (0, -1, -(1 << 63), (1 << 63) - 1, 1_795_230_000_000, 1)
        ],
        1,
    ),
    ("keys that are no text", [record("00ff80fe", "c328"), record("0a0d00", "00")], 1),
    ("everything at once", MIXED, 1),
    ("one record of 64 MiB", [record("6b", {"fill": "62", "count": 64 << 20}, 7)], 1),
    ("2^20 - 1 records", [record(None, "78", 3)], (1 << 20) - 1),
    ("2^20 - 1 records of 0 bytes", [record()], (1 << 20) - 1),
]


def segment_cases() -> list[Json]:
    cases = [
        {
            "name": name,
            "canonical": True,
            "records": records,
            "repeat": repeat,
            "bytes": bytes_json(encode_segment(to_columns(records, repeat))),
        }
        for name, records, repeat in SEGMENTS
    ]
    plain = encode_segment(to_columns(MIXED))
    cases.append(
        {
            "name": "unknown optional fields in the extension map are ignored",
            "canonical": False,
            "records": MIXED,
            "repeat": 1,
            "bytes": bytes_json(with_extension(plain, {"later": [1, {"deep": b"x"}], "z": None})),
        }
    )
    return cases


def with_extension(segment: bytes, fields: dict[str, Any]) -> bytes:
    extension = msgpack.packb(fields)
    head = segment[:24] + struct.pack("<I", len(extension)) + segment[28:]
    return bytes(head + extension + bytes(-len(extension) % 8))


def batch_object_cases() -> list[Json]:
    def segment(
        topic: str, partition: int, zone: str, codec: str = "none", records: Json = SMALL
    ) -> Json:
        return {
            "topic": topic,
            "partition": partition,
            "destination_zone": zone,
            "codec": codec,
            "producer_id": PRODUCER.hex(),
            "records": records,
        }

    compressible = [record("6b", {"fill": "6162", "count": 200}, i) for i in range(4)]
    return [
        batch_object_case("one segment", [segment("orders", 0, "")]),
        batch_object_case(
            "ordered by zone, topic, partition, and as given within one",
            [
                segment("orders", 2, "az2"),
                segment("orders", 10, "az1"),
                segment("events", 3, "az1", records=MIXED),
                segment("orders", 9, "az1"),
                segment("orders", 9, "az1", records=MIXED),
                segment("orders", 1, ""),
            ],
        ),
        batch_object_case(
            "topic and zone names that are not ASCII", [segment("Aufträge-注文", 0, "zöne")]
        ),
        batch_object_case(
            "lz4, zstd and none side by side",
            [
                segment("orders", 0, "", "lz4", compressible),
                segment("orders", 1, "", "zstd", compressible),
                segment("orders", 2, "", "none", compressible),
            ],
        ),
        optional_fields_object([segment("orders", 0, "az1")]),
    ]


def encoded_object(segments: list[Json]) -> bytes:
    data, _ = encode_batch_object(
        [
            encode_object_segment(
                to_columns(said["records"]),
                Codec[said["codec"].upper()],
                topic=said["topic"],
                partition=said["partition"],
                destination_zone=said["destination_zone"],
                producer_id=bytes.fromhex(said["producer_id"]),
            )
            for said in segments
        ]
    )
    return data


def batch_object_case(name: str, segments: list[Json]) -> Json:
    data = encoded_object(segments)
    return {
        "name": name,
        # Two versions of a compressor may write different bytes for the same input.
        "canonical": all(said["codec"] == "none" for said in segments),
        "segments": segments,
        "entries": [entry_json(entry) for entry in decode_batch_object_index(data, len(data))],
        "bytes": bytes_json(data),
    }


def with_index(data: bytes, index: bytes) -> bytes:
    """The object with another index, its trailer right."""
    start = index_range(data, len(data)).start
    trailer = struct.pack("<QII", start, len(index), zlib.crc32(index)) + data[-8:]
    return data[:start] + index + trailer


def index_of(data: bytes) -> dict[str, Any]:
    place = index_range(data, len(data))
    fields: dict[str, Any] = msgpack.unpackb(data[place.start : place.end])
    return fields


def optional_fields_object(segments: list[Json]) -> Json:
    data = encoded_object(segments)
    [entry] = index_of(data)["e"]
    index = msgpack.packb({"later": [1], "e": [[*entry, {"later": {"deep": 1}}]]})
    changed = with_index(data, index)
    return {
        "name": "unknown optional fields of index and entry are ignored",
        "canonical": False,
        "segments": segments,
        "entries": [entry_json(e) for e in decode_batch_object_index(changed, len(changed))],
        "bytes": bytes_json(changed),
    }


def part(**changes: Any) -> Part:
    facts: dict[str, Any] = {
        "byte_range": ByteRange(11_184_808, 1_398_128),
        "records": 1365,
        "codec": Codec.NONE,
        "uncompressed_bytes": 1_398_128,
        "checksum": 0xDEADBEEF,
        "first_timestamp_ms": 1_795_230_000_000,
        "last_timestamp_ms": 1_795_230_000_999,
        "producer_id": PRODUCER,
    }
    return Part(**facts | changes)


def key(writer: bytes = PRODUCER) -> str:
    return ObjectKey("shared", "a", "2026112103", "use1-az1", writer.hex(), 123456).encode()


def notifications() -> dict[str, Notification]:
    inline = encode_segment(to_columns(SMALL))
    inline_part = part(
        byte_range=ByteRange(0, len(inline)),
        records=3,
        uncompressed_bytes=len(inline),
        checksum=zlib.crc32(inline),
        last_timestamp_ms=1_795_230_000_002,
    )
    second = ByteRange(len(inline), len(inline))
    most = 32 + 8 * ((1 << 20) - 1)
    return {
        "one part, written by the producer": Notification((part(),), 70_000, PRODUCER, key()),
        "one part, written through a zone member": Notification(
            (part(codec=Codec.ZSTD, uncompressed_bytes=5_398_128),), 0, PRODUCER, key(MEMBER)
        ),
        "several parts of several producers": Notification(
            (
                part(),
                part(codec=Codec.LZ4, uncompressed_bytes=2_000_000, producer_id=MEMBER),
                part(first_timestamp_ms=-(1 << 63), last_timestamp_ms=(1 << 63) - 1),
            ),
            (1 << 63) - 1,
            PRODUCER,
            key(),
        ),
        "a store by name": Notification((part(),), 1, PRODUCER, key(), store="archive2"),
        "inline": Notification((inline_part,), 5, PRODUCER, None, inline=inline),
        "inline with two parts": Notification(
            (inline_part, Part(second, *part_facts(inline_part))), 6, PRODUCER, None,
            inline=inline * 2,
        ),
        "as many records as fit": Notification(
            (
                part(
                    byte_range=ByteRange(8, most), records=(1 << 20) - 1, uncompressed_bytes=most
                ),
            ),
            2,
            PRODUCER,
            key(),
        ),
    }  # fmt: skip


def part_facts(like: Part) -> tuple[Any, ...]:
    return (
        like.records, like.codec, like.uncompressed_bytes, like.checksum,
        like.first_timestamp_ms, like.last_timestamp_ms, like.producer_id,
    )  # fmt: skip


def notification_value(fields: dict[str, Any]) -> bytes:
    return b"\xb1BMN\x01" + bytes(msgpack.packb(fields))


def notification_cases() -> list[Json]:
    cases = [
        {
            "name": name,
            "canonical": True,
            "notification": notification_json(notification),
            "bytes": bytes_json(encode_notification(notification)),
        }
        for name, notification in notifications().items()
    ]
    simple = next(iter(notifications().values()))
    fields: dict[str, Any] = msgpack.unpackb(encode_notification(simple)[5:])
    reordered = {
        "p": [[*fields["p"][0], {"later": 1}]],
        "later": [{"deep": b"x"}],
        "n": fields["n"],
        "k": fields["k"],
    }
    cases.append(
        {
            "name": "unknown optional fields are ignored, the order of fields is free",
            "canonical": False,
            "notification": notification_json(simple),
            "bytes": bytes_json(notification_value(reordered)),
        }
    )
    return cases


def object_key_cases() -> list[Json]:
    texts = [
        key(),
        "shared/0/forever/none/" + "0" * 32 + "-0",
        "Team.A_1-x/f/9999123123/rack-1/" + "f" * 32 + "-999999999999999999",
        "t/9/1970010100/1/" + PRODUCER.hex() + "-1",
    ]
    return [{"text": text, "key": key_json(ObjectKey.decode(text))} for text in texts]


def expiry_cases() -> list[Json]:
    now = 1_795_225_980_000  # 2026-11-21 01:53:00 UTC
    day = 24 * HOUR_MS
    asked = [
        (HOUR_MS, 7 * day, 0),
        (HOUR_MS, 7 * 60_000, 0),
        (HOUR_MS, 7 * 60_000 + 1, 0),
        (2 * day, day, now + day),
        (30 * day, 7 * day, 0),
        (366 * day, 7 * day, 0),
        (-1, 7 * day, 0),
        (HOUR_MS, 0, 1 << 62),
    ]
    return [
        {
            "now_timestamp_ms": now,
            "largest_record_timestamp_ms": largest,
            "retention_ms": retention_ms,
            "segment_ms": segment_ms,
            "retention_class": retention_class(retention_ms).name,
            "expiry_hour": expiry_hour(now, largest, retention_class(retention_ms), segment_ms),
        }
        for retention_ms, segment_ms, largest in asked
    ]


def commit_metadata_cases() -> list[Json]:
    asked: list[tuple[int | None, str | None, dict[str, str]]] = [
        (None, None, {}),
        (None, "theirs", {}),
        (1, None, {}),
        ((1 << 20) - 1, None, {}),
        (7, "", {}),
        (7, "theirs; with = and , größe", {}),
        (7, "theirs", {"later": "x=y", "more": ""}),
        (None, "theirs", {"later": "x"}),
        (None, "blobmsg1:5", {}),
    ]
    return [
        {
            "text": encode_commit_metadata(remaining, user, fields),
            "remaining_records": remaining,
            "user": user,
            "fields": fields,
        }
        for remaining, user, fields in asked
    ]


def refused_cases() -> list[Json]:
    """Bytes that every reader must refuse, and the name that the error must tell."""
    cases: list[Json] = []

    def refuse(what: str, name: str, data: bytes, error: str, names: str = "", **more: Any) -> None:
        said = {"format": what, "name": name, "error": error, "names": names, "hex": data.hex()}
        cases.append(said | more)

    segment = encode_segment(to_columns(SMALL))
    for name, data, error, names in [
        ("version 2", segment[:4] + b"\2" + segment[5:], "unsupported", "2"),
        ("unknown flag", segment[:5] + b"\x15" + segment[6:], "unsupported", "flags"),
        ("critical field", with_extension(segment, {"!cipher": "aes"}), "unsupported", "!cipher"),
        ("wrong magic", b"PK\3\4" + segment[4:], "damaged", ""),
        ("cut", segment[:-8], "damaged", ""),
        ("longer than it states", segment + bytes(8), "damaged", ""),
        ("offsets that descend", segment[:60] + b"\x09" + segment[61:], "damaged", ""),
        ("no records", bytes(segment[:8]) + bytes(24), "damaged", ""),
    ]:
        refuse("segment", name, data, error, names, records=3)
    refuse("segment", "another count than promised", segment, "damaged", records=4)

    data = encoded_object(
        [{"topic": "orders", "partition": 0, "destination_zone": "", "codec": "none",
          "producer_id": PRODUCER.hex(), "records": SMALL}]
    )  # fmt: skip
    rows = index_of(data)["e"]
    critical = msgpack.packb({"!sealed": 1, "e": rows})
    inside = msgpack.packb({"e": [[*rows[0], {"!sealed": 1}]]})
    twice = msgpack.packb({"e": rows * 2})
    for name, changed, error, names in [
        ("version 2", data[:-8] + b"\2" + data[-7:], "unsupported", "2"),
        ("critical field in the index", with_index(data, critical), "unsupported", "!sealed"),
        ("critical field in an entry", with_index(data, inside), "unsupported", "!sealed"),
        ("overlapping segments", with_index(data, twice), "damaged", ""),
        ("checksum of the index", data[:-12] + bytes(4) + data[-8:], "damaged", ""),
        ("cut", data[:-1], "damaged", ""),
    ]:
        refuse("batch_object", name, changed, error, names)

    simple = encode_notification(next(iter(notifications().values())))
    fields: dict[str, Any] = msgpack.unpackb(simple[5:])
    elements = fields["p"][0]

    def with_part(place: int, value: Any) -> bytes:
        changed = [*elements[:place], value, *elements[place + 1 :]]
        return notification_value(fields | {"p": [changed]})

    for name, changed, error, names in [
        ("version 2", simple[:4] + b"\2" + simple[5:], "unsupported", "2"),
        ("critical field", notification_value({"!enc": 1} | fields), "unsupported", "!enc"),
        (
            "critical field in a part",
            notification_value(fields | {"p": [[*elements, {"!enc": 1}]]}),
            "unsupported",
            "!enc",
        ),
        ("unknown codec", with_part(3, 9), "unsupported", "9"),
        ("path traversal", notification_value(fields | {"k": "../" + key()}), "damaged", ""),
        (
            "reserved isolation",
            notification_value(fields | {"k": key().replace("shared", "history")}),
            "damaged",
            "",
        ),
        ("no records", with_part(2, 0), "damaged", ""),
        ("more records than bytes", with_part(2, 1_000_000), "damaged", ""),
        ("a length of 4 TiB", with_part(1, 1 << 42), "damaged", ""),
        ("two lengths without a codec", with_part(4, 2_000_000), "damaged", ""),
        ("no parts", notification_value(fields | {"p": []}), "damaged", ""),
        ("key and inline data", notification_value(fields | {"d": b"x"}), "damaged", ""),
        ("a field twice", simple[:5] + b"\x84" + simple[6:] + b"\xa1n\x01", "damaged", ""),
        ("an array that claims 2^32 - 1", b"\xb1BMN\1\x81\xa1p\xdd\xff\xff\xff\xff", "damaged", ""),
        ("bytes after the end", simple + b"\xc0", "damaged", ""),
    ]:
        refuse("notification", name, changed, error, names)
    return cases


def refused_texts() -> list[Json]:
    good = key()
    keys = ["", "/" + good, good + "/", "../" + good, good.replace("/a/", "/g/"),
            good.replace("2026112103", "2026133103"), good.replace("shared", "history"),
            good.replace("shared", ".."), good.replace("-123456", "-0123456"), good + "\n",
            good.upper()]  # fmt: skip
    metadata = ["blobmsg1:", "blobmsg1:05", "blobmsg1:1048576", "blobmsg1:5,", "blobmsg1:5 ",
                "blobmsg:5", "theirs"]  # fmt: skip
    return [
        *({"format": "object_key", "text": text} for text in keys),
        *({"format": "commit_metadata", "text": text} for text in metadata),
    ]


def documents() -> dict[str, Json]:
    """The vectors by file name."""
    classes = [
        {"name": c.name, "duration_ms": None if c.is_forever else c.duration_ms}
        for c in RETENTION_CLASSES
    ]
    return {
        "segments.json": {"cases": segment_cases()},
        "batch_objects.json": {"cases": batch_object_cases()},
        "notifications.json": {"cases": notification_cases()},
        "object_keys.json": {
            "cases": object_key_cases(),
            "retention_classes": classes,
            "expiry_hours": expiry_cases(),
        },
        "commit_metadata.json": {"cases": commit_metadata_cases()},
        "refused.json": {"cases": refused_cases(), "texts": refused_texts()},
    }


def write(folder: Path) -> None:
    """Write all files, or none if any is there already.

    Raises:
        FileExistsError: A file of a vector is there.
    """
    written = documents()
    for name in written:
        if (folder / name).exists():
            raise FileExistsError(
                f"{folder / name} exists: vectors are never rewritten; put new cases in a new file"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in written.items():
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        write(FOLDER)
    except FileExistsError as error:
        sys.exit(str(error))
