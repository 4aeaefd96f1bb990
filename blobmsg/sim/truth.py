"""What is in the log, read from the log itself and the store: the checker's own reader.

Uses the formats, none of the cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from blobmsg.fetcher import decode_stored
from blobmsg.format.notification import Limits, decode_notification, is_notification
from blobmsg.sim.world import Violation

if TYPE_CHECKING:
    from blobmsg.format.notification import Notification
    from blobmsg.sim.partition_log import PartitionLog, SentMessage
    from blobmsg.sim.virtual_broker import VirtualBroker
    from blobmsg.sim.virtual_store import VirtualStore

__all__ = ["Fact", "Truth"]

_Place = tuple[str, int]
_BITS = 20


class Fact(NamedTuple):
    """One record of the log.

    Attributes:
        offset: Its virtual offset, by DESIGN.md's formula.
        kafka_offset: Of its notification.
        key: Which record it is.
        value: What it says.
        timestamp_ms: When.
        state: `plain`, `committed`, `aborted` or `open`.
        object_key: Of its object; None: it came through Kafka.
    """

    offset: int
    kafka_offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    state: str
    object_key: str | None


class Truth:
    """The facts of all partitions, read as far as the log goes.

    Args:
        broker: Has the log.
        store: Has the objects.
    """

    def __init__(self, broker: VirtualBroker, store: VirtualStore) -> None:
        self._broker = broker
        self._store = store
        self._decoded: dict[tuple[_Place, int], list[tuple[bytes | None, bytes | None, int]]] = {}
        self._keys: dict[tuple[_Place, int], str | None] = {}
        self._notifications: dict[bytes, Notification] = {}  # by what says it
        self._facts: dict[_Place, tuple[object, list[Fact]]] = {}  # and as of when
        self._forged: set[bytes | None] = set()  # what they say

    def add_forgery(self, message: SentMessage) -> None:
        """A message that stands for no record, wherever it will lie."""
        self._forged.add(message.value)

    def is_forged(self, place: _Place, offset: int) -> bool:
        """Whether nobody of the system wrote what lies at this Kafka offset."""
        message = self._broker.log(place).records[offset].message
        return message is not None and message.value in self._forged

    def places(self) -> list[_Place]:
        """All partitions."""
        return [
            (topic, partition)
            for topic, logs in self._broker.topics.items()
            for partition in range(len(logs))
        ]

    def facts(self, place: _Place) -> list[Fact]:
        """All records of a partition, whatever became of their transactions."""
        log = self._broker.log(place)
        as_of = log.end, len(log.aborted), tuple(log.open_since.items())
        known = self._facts.get(place)
        if known is not None and known[0] == as_of:
            return known[1]
        found: list[Fact] = []
        for record in log.records:
            if record.message is None or record.message.value in self._forged:
                continue
            records = self._records(place, record.offset, record.message)
            state = _state(log, record.offset)
            first = ((record.offset + 1) << _BITS) - len(records)
            object_key = self._keys[place, record.offset]
            found += [
                Fact(first + i, record.offset, key, value, timestamp_ms, state, object_key)
                for i, (key, value, timestamp_ms) in enumerate(records)
            ]
        self._facts[place] = as_of, found
        return found

    def readable(self, place: _Place, *, is_committed: bool) -> list[Fact]:
        """Those that a reader gets."""
        if not is_committed:
            return self.facts(place)
        return [fact for fact in self.facts(place) if fact.state in ("plain", "committed")]

    def object_key_of(self, message: SentMessage) -> str | None:
        """The object that a message needs; None: it is no notification of one."""
        notification = self._notification_of(message)
        return None if notification is None else notification.key

    def notifications_of_objects(self) -> list[Notification]:
        """Those that were seen so far."""
        return [n for n in self._notifications.values() if n.key is not None]

    def sequences(self, place: _Place) -> dict[bytes, list[int]]:
        """The sequences of a partition's notifications in the order of the log, by producer."""
        found: dict[bytes, list[int]] = {}
        for record in self._broker.log(place).records:
            if record.message is None:
                continue
            notification = self._notification_of(record.message)
            if notification is not None:
                found.setdefault(notification.producer_id, []).append(notification.sequence)
        return found

    def _notification_of(self, message: SentMessage) -> Notification | None:
        headers, value = message.headers, message.value
        if headers is None or value is None or not is_notification(headers, value):
            return None
        if value in self._forged:
            return None
        known = self._notifications.get(value)
        if known is None:
            known = self._notifications[value] = decode_notification(value, Limits())
        return known

    def _records(
        self, place: _Place, offset: int, message: SentMessage
    ) -> list[tuple[bytes | None, bytes | None, int]]:
        known = self._decoded.get((place, offset))
        if known is not None:
            return known
        records: list[tuple[bytes | None, bytes | None, int]] = []
        notification = self._notification_of(message)
        if notification is None:
            records.append((message.key, message.value, message.timestamp_ms))
            self._keys[place, offset] = None
        else:
            self._keys[place, offset] = notification.key
            data = notification.inline
            if notification.key is not None:
                data = self._store.objects.get(notification.key)
            for part in notification.parts:
                if data is None:
                    raise Violation(f"the object of {place} at {offset} is not there")
                segment = decode_stored(part, data, part.byte_range.start)
                records += [
                    (
                        segment.keys(i) if segment.keys else None,
                        segment.values(i) if segment.values else None,
                        segment.timestamps_ms[i],
                    )
                    for i in range(segment.records)
                ]
        self._decoded[place, offset] = records
        return records


def _state(log: PartitionLog, offset: int) -> str:
    record = log.records[offset]
    if not record.is_transactional:
        return "plain"
    if log.is_aborted(record):
        return "aborted"
    since = log.open_since.get(record.producer[0])
    return "open" if since is not None and offset >= since else "committed"
