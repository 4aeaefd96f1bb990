"""A task without Kafka and store: plain records and inline segments of several parts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from blobmsg.config import parse_settings
from blobmsg.errors import ConfigError, CorruptSegment
from blobmsg.fetcher import FetchResult, decode_part
from blobmsg.format.checksum import crc32
from blobmsg.format.codec import Codec
from blobmsg.format.notification import (
    HEADER_NAME,
    HEADER_VALUE,
    Notification,
    encode_notification,
)
from blobmsg.format.object_key import ObjectKey
from blobmsg.format.part import Part
from blobmsg.format.ranges import ByteRange
from blobmsg.format.segment import Columns, encode_segment
from blobmsg.offsets import to_virtual
from blobmsg_spark.offset_ranges import OffsetRange
from blobmsg_spark.plain_arrow import PlainRecords
from blobmsg_spark.range_reader import RangeReader
from blobmsg_spark.read_session import ReadSession
from tests.helpers.consuming import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import KafkaError

    from blobmsg.core.debatcher import FetchSection

ID = bytes(16)


class Message:
    def __init__(self, offset: int, value: bytes | None, headers: Any = None) -> None:
        self._offset, self._value, self._headers = offset, value, headers

    def error(self) -> KafkaError | None:
        return None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 5000

    def leader_epoch(self) -> None:
        return None


class Consumer:
    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = list(messages)

    def assign(self, partitions: Any) -> None:
        self._messages = [m for m in self._messages if m.offset() >= partitions[0].offset]

    def incremental_unassign(self, partitions: Any) -> None:
        pass

    def poll(self, _timeout: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def consume(self, count: int, _timeout: float) -> list[Message]:
        taken, self._messages = self._messages[:count], self._messages[count:]
        return taken


class NoFetcher:
    def take_results(self) -> list[Any]:
        return []


class LateFetcher(NoFetcher):
    """What the first GET does not find is there at the second."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._results: list[FetchResult] = []
        self.fetches = 0

    def submit(self, section: FetchSection) -> None:
        self.fetches += 1
        outcomes: list[Any] = [ABSENT] * len(section.parts)
        if self.fetches > 1:
            outcomes = [decode_part(*item, self._data, 0) for item in section.parts]
        self._results.append(FetchResult(section, outcomes))

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def take_results(self) -> list[FetchResult]:
        results, self._results = self._results, []
        return results


def _inline(offset: int, *parts: Sequence[bytes], damage: bool = False) -> Message:
    """An inline notification with these values in its parts."""
    data, described = b"", []
    for values in parts:
        count = len(values)
        segment = encode_segment(Columns([None] * count, list(values), [7] * count))
        place = ByteRange(len(data), len(segment))
        checksum = crc32(segment) ^ damage
        described.append(Part(place, count, Codec.NONE, len(segment), checksum, 7, 7, ID))
        data += segment
    notification = Notification(tuple(described), 0, ID, None, "", data)
    return Message(offset, encode_notification(notification), [(HEADER_NAME, HEADER_VALUE)])


def _read(
    messages: Sequence[Message],
    start: int,
    end: int,
    conf: Mapping[str, str] | None = None,
    fetcher: NoFetcher | None = None,
) -> list[tuple[int, bytes | None]]:
    settings, _ = parse_settings({"blobmsg.store.url": "memory://x", **(conf or {})}, {})
    fetching = cast("Any", fetcher or NoFetcher())
    session = ReadSession(settings, Consumer(messages), cast("Any", None), fetching)
    reader = RangeReader(
        OffsetRange("t", 0, start, end),
        session,
        fail_on_data_loss=True,
        include_headers=False,
        poll_timeout_ms=1000,
    )
    return [
        (row["offset"], row["value"]) for batch in reader.batches() for row in batch.to_pylist()
    ]


LOG = (
    Message(3, b"p3"),
    _inline(4, [b"a", b"b"], [b"c", b"d", b"e"]),
    Message(6, None),
    Message(7, b"p7"),
)
ALL = [
    (to_virtual(4) - 1, b"p3"),
    *[(to_virtual(5) - 5 + index, value) for index, value in enumerate((b"a", b"b"))],
    *[(to_virtual(5) - 3 + index, value) for index, value in enumerate((b"c", b"d", b"e"))],
    (to_virtual(7) - 1, None),
    (to_virtual(8) - 1, b"p7"),
]


def test_plain_and_inline_records_come_in_order() -> None:
    assert _read(LOG, to_virtual(3), to_virtual(8)) == ALL


def test_every_place_may_be_a_start_and_an_end() -> None:
    offsets = [offset for offset, _ in ALL]
    for first in range(len(ALL)):
        for last in range(first + 1, len(ALL)):
            assert _read(LOG, offsets[first], offsets[last]) == ALL[first:last]


def test_damage_names_partition_and_place_and_is_skipped_only_on_demand() -> None:
    log = [Message(3, b"p3"), _inline(4, [b"a"], damage=True), Message(5, b"p5")]

    with pytest.raises(CorruptSegment, match=r"t \[0\].* at Kafka offset 4: .*checksum") as caught:
        _read(log, to_virtual(3), to_virtual(6))
    assert caught.value.kafka_offset == 4
    skipping = {"blobmsg.on.missing": "skip"}
    values = [value for _, value in _read(log, to_virtual(3), to_virtual(6), skipping)]
    assert values == [b"p3", b"p5"]


def test_an_object_that_comes_late_is_waited_for_and_not_skipped() -> None:
    segment = encode_segment(Columns([None, None], [b"a", b"b"], [7, 7]))
    place = ByteRange(0, len(segment))
    part = Part(place, 2, Codec.NONE, len(segment), crc32(segment), 7, 7, ID)
    key = ObjectKey("shared", "0", "2099010203", "az1", "ab" * 16, 0).encode()
    told = encode_notification(Notification((part,), 0, ID, key, "", None))
    log = [Message(0, told, [(HEADER_NAME, HEADER_VALUE)])]
    late = LateFetcher(segment)

    found = _read(log, 0, to_virtual(1), {"blobmsg.on.missing": "skip"}, late)

    assert [value for _, value in found] == [b"a", b"b"]
    assert late.fetches == 2


def test_a_damaged_notification_is_never_a_record() -> None:
    broken = Message(3, b"\xb1BMN\x01garbage", [(HEADER_NAME, HEADER_VALUE)])

    with pytest.raises(CorruptSegment, match=r"damaged notification in t \[0\]"):
        _read([broken], to_virtual(3), to_virtual(4))


def test_a_place_that_no_notification_has_is_a_kafka_offset() -> None:
    with pytest.raises(ConfigError, match="to_virtual"):
        _read(LOG, to_virtual(4) + 4, to_virtual(8))


def test_an_end_that_no_notification_has_is_a_kafka_offset() -> None:
    for log in ((_inline(0, [b"a", b"b"]),), (Message(0, b"p0"),)):
        with pytest.raises(ConfigError, match=r"place 3: .*to_virtual"):
            _read(log, 0, 3)
        assert _read(log, 0, 3, {"blobmsg.offset.check": "false"}) == []


def test_only_a_timestamp_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    early = Message(3, b"p3")
    monkeypatch.setattr(early, "timestamp", lambda: (1, 1 << 62))

    with pytest.raises(CorruptSegment, match=r"t \[0\].*a timestamp is outside"):
        _read([early], to_virtual(3), to_virtual(4))

    def break_(_: object) -> None:
        raise pa.ArrowInvalid("something else")

    monkeypatch.setattr(PlainRecords, "take", break_)
    with pytest.raises(pa.ArrowInvalid, match="something else"):
        _read(LOG, to_virtual(3), to_virtual(8))
