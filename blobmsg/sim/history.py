"""What applications saw, and the rules that can be checked as it happens.

Knows nothing of the cores. A rule that is broken raises `Violation` when it shows; what only the
end can tell is in `checker`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blobmsg.sim.world import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.sim.world import World

__all__ = ["History", "Reading", "Sent", "SimTransaction", "committed_position"]

_Place = tuple[str, int]
#: The default of DESIGN.md, Offsets; written again, for the rules must not lean on the code.
_BITS = 20


@dataclass(slots=True, eq=False)
class SimTransaction:
    """A transaction as its application knows it.

    Attributes:
        name: For texts.
        outcome: `open`, `committed`, `aborted`, or `unknown` when nobody was told.
    """

    name: str
    outcome: str = "open"


@dataclass(slots=True, eq=False)
class Sent:
    """A record that a producer has taken.

    Attributes:
        source: The producer's incarnation.
        number: Counts that producer's records.
        topic: Where to.
        partition: Where to; -1: its key decides.
        key: Unique in the simulation.
        value: What was sent.
        headers: What was sent.
        timestamp_ms: What was sent.
        accepted_ms: When `produce` returned.
        transaction: The one that it is of.
        is_probe: It was produced when all was well again.
        reports: How often its outcome was told.
        error: The outcome; None: delivered, once it is reported.
        offset: The virtual offset that was reported.
    """

    source: str
    number: int
    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int
    accepted_ms: int
    transaction: SimTransaction | None = None
    is_probe: bool = False
    reports: int = 0
    error: Any = None
    offset: int | None = None


@dataclass(slots=True, eq=False)
class Reading:
    """One partition as one consumer reads it, from an assignment or a seek on.

    Attributes:
        group: The group.
        consumer: The consumer's incarnation.
        place: The partition.
        start: The virtual offset at which it must begin; None: that of `started_at`.
        records: Virtual offset and key of what was handed out.
        reached: The position that was stored before a seek; a seek does not take it back.
    """

    group: str
    consumer: str
    place: _Place
    start: int | None
    records: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    reached: int = -1

    @property
    def position(self) -> int | None:
        """The position behind the last record; the start before the first one."""
        return self.records[-1][0] + 1 if self.records else self.start


class History:
    """All that the applications saw.

    Args:
        world: Its world.

    Attributes:
        sent: By key.
        readings: In the order in which they began.
        transactions: Those that were begun.
        dead: Producers that were killed.
        may_pass: Whether a consumer may have passed over all of a partition between two positions.
        told: The position at which a consumer was told that a partition begins; None: it was not.
        may_fail: Whether there is something wrong with what lies at a virtual offset.
        is_forged: Whether nobody of the system wrote what lies at a Kafka offset.
        unreported_bytes: Keys and values that each producer has taken and not reported.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.sent: dict[bytes, Sent] = {}
        self.transactions: list[SimTransaction] = []
        self.readings: list[Reading] = []
        self._current: dict[tuple[str, _Place], Reading] = {}  # by consumer
        self._last_report: dict[tuple[str, _Place], int] = {}
        self.dead: set[str] = set()
        self.unreported_bytes: dict[str, int] = {}
        self.may_pass: Callable[[_Place, int, int], bool] = lambda _place, _first, _end: False
        self.told: Callable[[str, _Place], int | None] = lambda _consumer, _place: None
        self.may_fail: Callable[[_Place, int], bool] = lambda _place, _offset: False
        self.is_forged: Callable[[_Place, int], bool] = lambda _place, _offset: False

    # --- producers ----------------------------------------------------------------------------

    def accepted(self, sent: Sent) -> None:
        """A producer has taken a record."""
        self.sent[sent.key] = sent
        held_bytes = self.unreported_bytes.get(sent.source, 0)
        self.unreported_bytes[sent.source] = held_bytes + _size_of(sent)

    def reported(self, sent: Sent, error: Any, message: Any) -> None:
        """A delivery report.

        Raises:
            Violation: A second one, one of a dead process, or one out of order.
        """
        sent.reports += 1
        if sent.reports > 1:
            raise Violation(f"{sent.key!r} is reported {sent.reports} times")
        if sent.source in self.dead:
            raise Violation(f"{sent.key!r} is reported by {sent.source}, which was killed")
        self.unreported_bytes[sent.source] -= _size_of(sent)
        sent.error = error
        partition = message.partition()
        if partition is None:
            return
        if sent.partition not in (-1, partition):
            raise Violation(f"{sent.key!r} was sent to {sent.partition} and is in {partition}")
        sent.partition = partition
        if error is None:
            sent.offset = message.offset()
        place = (sent.source, (sent.topic, partition))
        last = self._last_report.get(place, -1)
        if sent.number <= last:
            raise Violation(f"{sent.key!r} is reported behind number {last} of its partition")
        self._last_report[place] = sent.number

    # --- consumers ----------------------------------------------------------------------------

    def began(self, group: str, consumer: str, place: _Place, start: int | None) -> Reading:
        """A consumer begins a partition, by an assignment or a seek."""
        before = self._current.get((consumer, place))
        reading = Reading(group, consumer, place, start)
        if start is not None and before is not None:
            reading.reached = max(before.reached, before.position or -1)
        self.readings.append(reading)
        self._current[consumer, place] = reading
        self._world.note("begin", consumer, *place, start)
        return reading

    def ended(self, consumer: str, place: _Place) -> None:
        """The partition is not the consumer's any more, or goes on elsewhere."""
        self._current.pop((consumer, place), None)

    def reading(self, consumer: str, place: _Place) -> Reading | None:
        """What a consumer reads of a partition now."""
        return self._current.get((consumer, place))

    def of_consumer(self, consumer: str) -> list[Reading]:
        """All that a consumer reads now."""
        return [reading for (name, _), reading in self._current.items() if name == consumer]

    def position_of(self, reading: Reading) -> int | None:
        """The position behind what was handed out; None: nobody knows where it begins."""
        position = reading.position
        return self.told(reading.consumer, reading.place) if position is None else position

    def delivered(self, consumer: str, message: Any) -> None:
        """A record was handed out.

        Args:
            consumer: To whom.
            message: The record.

        Raises:
            Violation: It is not what was sent, comes twice or out of order, or the partition is
                not the consumer's.
        """
        place = (message.topic(), message.partition())
        reading = self._current.get((consumer, place))
        key, offset = message.key(), message.offset()
        if reading is None:
            raise Violation(f"{consumer} got {key!r} of {place}, which it does not own")
        sent = self.sent.get(key)
        if sent is None:
            raise Violation(f"{consumer} got {key!r} at {offset}, which nobody has sent")
        headers = message.headers() or None
        if (
            message.value() != sent.value
            or headers != (sent.headers or None)
            or message.timestamp()[1] != sent.timestamp_ms
            or sent.topic != place[0]
            or sent.partition not in (-1, place[1])
        ):
            raise Violation(f"{consumer} got {key!r} otherwise than it was sent")
        if reading.start is None:
            reading.start = self.told(consumer, place)
        before = reading.position
        if before is not None and offset < before:
            raise Violation(f"{consumer} got {key!r} at {offset} of {place} behind {before}")
        reading.records.append((offset, key))
        self._world.note("got", consumer, *place, offset)

    def told_of_failure(self, consumer: str, place: _Place, offset: int, error: Any) -> None:
        """A consumer was told that a record can't be had (rule 9).

        Raises:
            Violation: The partition is not the consumer's, the record is not the next one, or
                nothing is wrong with it.
        """
        reading = self._current.get((consumer, place))
        what = f"{consumer} is told of {error.name()} at {offset} of {place}"
        if reading is None:
            raise Violation(f"{what}, which it does not own")
        if not self.may_fail(place, offset):
            raise Violation(f"{what}: nothing is wrong there ({error.str()})")
        start = self.position_of(reading)
        if start is not None and not (start <= offset and self.may_pass(place, start, offset)):
            raise Violation(f"{what}, and the next one is at {start}")

    def checked_commit(
        self, group: str, member: str, place: _Place, offset: int, metadata: str
    ) -> None:
        """A position was committed.

        Raises:
            Violation: It lies behind what the application has, or is none.
        """
        position = committed_position(offset, metadata)
        if position is None:
            raise Violation(f"{group} committed {metadata!r} at {offset} of {place}")
        consumer = member.rpartition("-")[0]
        reading = self._current.get((consumer, place))
        if reading is None:
            raise Violation(f"{member} committed {position} of {place}, which it does not own")
        start = self.position_of(reading)
        best = max(reading.reached, -1 if start is None else start)
        if position > best and not self.may_pass(place, max(0, best), position):
            raise Violation(f"{member} committed {position} of {place}, it has got {best}")


def _size_of(sent: Sent) -> int:
    return len(sent.key) + len(sent.value or b"")


def committed_position(offset: int, metadata: str) -> int | None:
    """The virtual position of what Kafka keeps; None for metadata that says nonsense.

    By docs/format.md, not by the code that writes it.
    """
    if not metadata.startswith("blobmsg1:"):
        return offset << _BITS
    text = metadata[len("blobmsg1:") :].split(";")[0].split(",")[0]
    if not text.isdigit() or not 0 < int(text) < 1 << _BITS:
        return None
    return ((offset + 1) << _BITS) - int(text)
