"""Notifications: which Kafka records are one, their bytes, and what a reader refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from blobmsg.format import (
    HEADER_NAME,
    HEADER_VALUE,
    ByteRange,
    Codec,
    FormatError,
    Limits,
    Notification,
    ObjectKey,
    Part,
    UnsupportedFormatError,
    decode_notification,
    encode_notification,
    is_notification,
)
from tests.helpers.format_reference import read_notification

PRODUCER = bytes(range(16))
OTHER = bytes(range(16, 32))
KEY = ObjectKey("shared", "a", "2026112103", "use1-az1", PRODUCER.hex(), 123456).encode()
PART = Part(
    byte_range=ByteRange(11_184_808, 1_398_128),
    records=1365,
    codec=Codec.ZSTD,
    uncompressed_bytes=5_398_128,
    checksum=0xDEADBEEF,
    first_timestamp_ms=1_795_230_000_000,
    last_timestamp_ms=1_795_230_000_999,
    producer_id=PRODUCER,
)
SIMPLE = Notification((PART,), 70_000, PRODUCER, KEY)
INLINE = Notification(
    (
        replace(PART, byte_range=ByteRange(0, 40), codec=Codec.NONE, records=1,
                uncompressed_bytes=40),
    ),
    0,
    PRODUCER,
    None,
    inline=bytes(40),
)  # fmt: skip
HEADERS = [(HEADER_NAME, HEADER_VALUE)]
LIMITS = Limits()


def value_of(fields: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return b"\xb1BMN\x01" + packed


def changed(**changes: object) -> bytes:
    """The simple notification with some fields replaced, or left out when None."""
    fields = read_notification(encode_notification(SIMPLE)) | changes
    return value_of({name: value for name, value in fields.items() if value is not None})


def changed_part(place: int, value: object) -> bytes:
    elements = read_notification(encode_notification(SIMPLE))["p"][0]
    return changed(p=[[*elements[:place], value, *elements[place + 1 :]]])


def test_one_part_with_a_typical_key_takes_under_150_bytes() -> None:
    assert len(encode_notification(SIMPLE)) < 150


def test_part_through_a_zone_member_takes_under_150_bytes_too() -> None:
    # The member is the writer in the key, so the producer's id must be told.
    member = ObjectKey("shared", "a", "2026112103", "use1-az1", OTHER.hex(), 123456).encode()

    assert len(encode_notification(replace(SIMPLE, key=member))) < 150


def test_fields_are_as_specified() -> None:
    assert read_notification(encode_notification(SIMPLE)) == {
        "k": KEY,
        "n": 70_000,
        "p": [
            [11_184_808, 1_398_128, 1365, 2, 5_398_128, 0xDEADBEEF, 1_795_230_000_000, 999, None]
        ],
    }


@pytest.mark.parametrize(
    "notification",
    [
        SIMPLE,
        INLINE,
        replace(SIMPLE, store="archive2"),
        replace(SIMPLE, producer_id=OTHER),
        replace(SIMPLE, parts=(PART, replace(PART, producer_id=OTHER), PART)),
        replace(SIMPLE, sequence=(1 << 63) - 1),
        replace(
            SIMPLE,
            parts=(replace(PART, first_timestamp_ms=-(1 << 63), last_timestamp_ms=(1 << 63) - 1),),
        ),
    ],
)
def test_notifications_come_back(notification: Notification) -> None:
    assert decode_notification(encode_notification(notification), LIMITS) == notification


def test_producer_id_may_come_after_the_parts() -> None:
    fields = read_notification(encode_notification(SIMPLE))
    value = value_of({"p": fields["p"], "n": 1, "k": KEY, "i": OTHER})

    assert decode_notification(value, LIMITS).parts[0].producer_id == OTHER


def test_sums_run_over_all_parts() -> None:
    late = replace(PART, last_timestamp_ms=PART.last_timestamp_ms + 5, records=10)
    notification = replace(SIMPLE, parts=(late, PART))

    assert notification.records == 1375
    assert notification.last_timestamp_ms == PART.last_timestamp_ms + 5


def test_header_and_magic_together_make_a_notification() -> None:
    value = encode_notification(SIMPLE)

    assert is_notification(HEADERS, value)
    assert is_notification([("trace", None), (HEADER_NAME, b"2")], value)
    assert not is_notification(None, value)
    assert not is_notification([("trace", b"")], value)
    assert not is_notification(HEADERS, None)
    assert not is_notification(HEADERS, b"")
    assert not is_notification(HEADERS, b"an ordinary record")
    assert not is_notification([("Blobmsg", b"1")], value)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_unknown_version_is_recognised_and_refused_by_number(version: int) -> None:
    value = b"\xb1BMN" + bytes((version,)) + b"\xff\xff"

    assert is_notification(HEADERS, value)
    with pytest.raises(UnsupportedFormatError, match=f"version {version} "):
        decode_notification(value, LIMITS)


def test_unknown_optional_fields_are_ignored() -> None:
    elements = read_notification(encode_notification(SIMPLE))["p"][0]

    assert decode_notification(changed(zz={"x": [1]}), LIMITS) == SIMPLE
    assert decode_notification(changed(p=[[*elements, {"zz": 1}]]), LIMITS) == SIMPLE


def test_unknown_critical_fields_are_refused_by_name() -> None:
    elements = read_notification(encode_notification(SIMPLE))["p"][0]

    with pytest.raises(UnsupportedFormatError, match="'!enc'"):
        decode_notification(changed(**{"!enc": 1}), LIMITS)
    with pytest.raises(UnsupportedFormatError, match="'!enc'"):
        decode_notification(changed(p=[[*elements, {"!enc": 1}]]), LIMITS)


def test_unknown_codec_is_refused_by_number() -> None:
    with pytest.raises(UnsupportedFormatError, match="codec 3 "):
        decode_notification(changed_part(3, 3), LIMITS)


@pytest.mark.parametrize(
    "key",
    [
        "../" + KEY,
        "/" + KEY,
        KEY + "/x",
        KEY + "\n",
        KEY.replace("shared", ".."),
        KEY.replace("shared", "history"),
        KEY.replace("2026112103", "2026133103"),
        "s3://bucket/" + KEY,
        "",
        "x" * 1000,
    ],
)
def test_key_outside_the_grammar_is_refused(key: str) -> None:
    with pytest.raises(FormatError):
        decode_notification(changed(k=key), LIMITS)
    # also where the key is not needed to learn the producer's id
    with pytest.raises(FormatError):
        decode_notification(changed(k=key, i=OTHER), LIMITS)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, -1, "start"),
        (0, 5 << 40, "byte range"),
        (1, 0, "length"),
        (1, LIMITS.max_segment_bytes + 1, "length"),
        (2, 0, "records"),
        (2, 1 << 20, "records"),
        (4, 32 + 8 * 1365 - 1, "records take"),
        (4, LIMITS.max_uncompressed_bytes + 1, "uncompressed"),
        (5, 1 << 32, "checksum"),
        (6, 1 << 63, "first timestamp"),
        (7, -1, "span"),
        (7, (1 << 63) - 1, "span of time"),
        (8, b"short", "producer id"),
        (8, "text", "producer id"),
        (2, None, "records"),
    ],
)
def test_part_over_a_limit_is_refused(place: int, value: object, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        decode_notification(changed_part(place, value), LIMITS)


def test_limits_are_the_readers_own() -> None:
    value = encode_notification(SIMPLE)
    exact = Limits(PART.byte_range.length, PART.uncompressed_bytes, 1)

    assert decode_notification(value, exact) == SIMPLE
    for smaller in (
        replace(exact, max_segment_bytes=exact.max_segment_bytes - 1),
        replace(exact, max_uncompressed_bytes=exact.max_uncompressed_bytes - 1),
        replace(exact, max_parts=0),
    ):
        with pytest.raises(FormatError):
            decode_notification(value, smaller)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xb1BMN",
        b"ordinary",
        b"\xb1BMN\x01",
        changed(k=None),
        changed(n=None),
        changed(p=None),
        changed(p=[]),
        changed(p=[[1]]),
        changed(p=[[0] * 11]),
        changed(s="Bucket!"),
        changed(s="a" * 33),
        changed(i=b"short"),
        changed(n=-1),
        changed(n=1 << 63),
        changed(d=b"also inline"),
        changed(k=None, i=PRODUCER),
        changed(k=None, i=PRODUCER, d=b"shorter than its part"),
        encode_notification(SIMPLE) + b"\xc0",
        encode_notification(SIMPLE)[:-1],
    ],
)
def test_damaged_notifications_are_refused(value: bytes) -> None:
    with pytest.raises(FormatError):
        decode_notification(value, LIMITS)


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ()},
        {"parts": (replace(PART, records=1 << 19, uncompressed_bytes=1 << 23),) * 2},
        {"sequence": -1},
        {"producer_id": b""},
        {"store": "Ä"},
        {"key": None},
        {"inline": b"x"},
    ],
)
def test_contradicting_values_are_refused_when_built(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        replace(SIMPLE, **changes)


def test_inline_notification_names_no_store() -> None:
    with pytest.raises(FormatError, match="names a store"):
        replace(INLINE, store="archive")


@pytest.mark.parametrize(
    "changes",
    [
        {"records": 0},
        {"codec": Codec.NONE},
        {"checksum": -1},
        {"first_timestamp_ms": PART.last_timestamp_ms + 1},
        {"producer_id": b"short"},
        {"uncompressed_bytes": 1 << 40},
    ],
)
def test_contradicting_part_is_refused_when_built(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        replace(PART, **changes)
