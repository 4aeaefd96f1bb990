"""Object keys, retention classes and expiry hours."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from blobmsg.format import (
    RETENTION_CLASSES,
    FormatError,
    ObjectKey,
    expiry_hour,
    retention_class,
)
from blobmsg.format.object_key import MAX_OBJECT_KEY_BYTES

HOUR = 3_600_000
DAY = 24 * HOUR
TEXT = "shared/a/2026112103/use1-az1/000102030405060708090a0b0c0d0e0f-42"
KEY = ObjectKey("shared", "a", "2026112103", "use1-az1", bytes(range(16)).hex(), 42)
NOW = int(datetime(2026, 11, 21, 1, 53, tzinfo=timezone.utc).timestamp() * 1000)


def test_key_is_written_and_read() -> None:
    assert KEY.encode() == TEXT
    assert ObjectKey.decode(TEXT) == KEY
    assert KEY.writer_bytes == bytes(range(16))


def test_longest_key_fits_the_limit() -> None:
    longest = ObjectKey("i" * 63, "f", "9999123123", "Z" * 63, "f" * 32, 10**18 - 1)

    assert len(longest.encode()) == MAX_OBJECT_KEY_BYTES
    assert ObjectKey.decode(longest.encode()) == longest


@pytest.mark.parametrize(
    "changes",
    [
        {"isolation": ""},
        {"isolation": "."},
        {"isolation": ".."},
        {"isolation": "a/b"},
        {"isolation": "größe"},
        {"isolation": "i" * 64},
        {"isolation": "history"},
        {"isolation": "a b"},
        {"shard": "g"},
        {"shard": "A"},
        {"shard": "aa"},
        {"shard": ""},
        {"expiry_hour": "20261121"},
        {"expiry_hour": "2026112124"},
        {"expiry_hour": "2026023003"},
        {"expiry_hour": "0000010100"},
        {"expiry_hour": "٢٠٢٦١١٢١٠٣"},
        {"expiry_hour": "never"},
        {"zone": ""},
        {"zone": "-az1"},
        {"zone": "dc/rack"},
        {"writer_id": "0" * 31},
        {"writer_id": "A" * 32},
        {"number": -1},
        {"number": 10**18},
    ],
)
def test_elements_outside_the_grammar_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        replace(KEY, **changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/" + TEXT,
        TEXT + "/",
        TEXT + "\n",
        TEXT.replace("-42", "-042"),
        TEXT.replace("-42", "-"),
        TEXT.replace("/", "//"),
        TEXT.replace("/", "\\"),
        "../" + TEXT,
        TEXT + "x" * 10_000,
    ],
)
def test_text_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        ObjectKey.decode(text)


def test_expiry_is_the_start_of_the_hour() -> None:
    assert KEY.expiry_ms() == NOW + 67 * 60_000
    assert replace(KEY, expiry_hour="1970010101").expiry_ms() == HOUR
    assert replace(KEY, expiry_hour="forever").expiry_ms() is None


@pytest.mark.parametrize(
    ("retention_ms", "name"),
    [
        (0, "1h"),
        (HOUR, "1h"),
        (HOUR + 1, "6h"),
        (6 * HOUR, "6h"),
        (DAY, "1d"),
        (2 * DAY, "7d"),
        (7 * DAY, "7d"),
        (30 * DAY, "30d"),
        (365 * DAY, "1y"),
        (365 * DAY + 1, "forever"),
        (1 << 63, "forever"),
        (-1, "forever"),
    ],
)
def test_class_is_the_smallest_that_keeps_long_enough(retention_ms: int, name: str) -> None:
    assert retention_class(retention_ms).name == name


def test_retention_that_kafka_refuses_is_refused() -> None:
    with pytest.raises(FormatError):
        retention_class(-2)


def test_classes_are_ordered_by_duration() -> None:
    assert list(RETENTION_CLASSES) == sorted(RETENTION_CLASSES)


@pytest.mark.parametrize(
    ("retention_ms", "segment_ms", "largest", "expected"),
    [
        # 01:53 + 1 h + min(7 d, 1 h) + 1 h = 04:53, rounded up
        (HOUR, 7 * DAY, 0, "2026112105"),
        # 01:53 + 1 h + 7 min + 1 h = 04:00 exactly: not rounded
        (HOUR, 7 * 60_000, 0, "2026112104"),
        (HOUR, 7 * 60_000 + 1, 0, "2026112105"),
        # records from the future live on from there
        (HOUR, 0, NOW + DAY, "2026112204"),
        (7 * DAY, 7 * DAY, 0, "2026120503"),
        (-1, 7 * DAY, 0, "forever"),
        # beyond what four digits of a year can say
        (HOUR, 0, 1 << 62, "forever"),
    ],
)
def test_expiry_hour_adds_class_segment_and_an_hour(
    retention_ms: int, segment_ms: int, largest: int, expected: str
) -> None:
    hour = expiry_hour(NOW, largest, retention_class(retention_ms), segment_ms)

    assert hour == expected


def test_last_hour_of_the_calendar_is_still_an_hour() -> None:
    last = int(datetime(9999, 12, 31, 23, tzinfo=timezone.utc).timestamp() * 1000)

    assert expiry_hour(last - 2 * HOUR, 0, RETENTION_CLASSES[0], 0) == "9999123123"
    assert expiry_hour(last - 2 * HOUR + 1, 0, RETENTION_CLASSES[0], 0) == "forever"


def test_expiry_hour_is_never_before_the_retention() -> None:
    for minute in range(0, 180, 7):
        now = NOW + minute * 60_000
        key = replace(KEY, expiry_hour=expiry_hour(now, 0, RETENTION_CLASSES[1], DAY))
        expiry = key.expiry_ms()
        assert expiry is not None
        least = timedelta(hours=6 + 6 + 1) // timedelta(milliseconds=1)
        assert now + least <= expiry < now + least + HOUR
