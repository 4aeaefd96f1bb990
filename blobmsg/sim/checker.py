"""The rules of DESIGN.md that only the end of a run can tell.

Looks at what applications saw (`history`) and at what is in the log (`truth`); knows nothing of the
cores.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from blobmsg.sim.world import Violation

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from blobmsg.sim.history import History, Reading, Sent
    from blobmsg.sim.truth import Fact

__all__ = [
    "check_cost",
    "check_deadlines",
    "check_log",
    "check_readings",
    "check_reports",
    "check_sequences",
    "check_transactions",
    "check_transformed",
]

_Place = tuple[str, int]

# DESIGN.md's own figures: what requests cost, what a byte written to Kafka crosses, and what a
# notification does, wire and replicas together.
_PUT_USD: Final = 5e-6
_GET_USD: Final = 4e-7
_CROSSING_USD_PER_BYTE: Final = 0.02 / (1 << 30)
_CROSSINGS: Final = 2 + 2 / 3
_NOTIFICATION_BYTES: Final = 900
_ROUNDING: Final = 1.01


def check_reports(history: History) -> None:
    """Every record of a process that lived has one report; good ones once all is well again.

    Raises:
        Violation: One has none, or one of these has failed.
    """
    for sent in history.sent.values():
        if sent.is_probe and sent.error is not None:
            raise Violation(f"{sent.key!r} failed ({sent.error}) though all was well again")
        if not sent.reports and sent.source not in history.dead:
            raise Violation(f"{sent.key!r} was never reported")


def check_log(history: History, facts: Mapping[_Place, Sequence[Fact]]) -> None:
    """What is in the log was sent, once, in order; what was acknowledged is in it.

    Raises:
        Violation: It is not so.
    """
    where: dict[bytes, tuple[_Place, Fact]] = {}
    for place, found in facts.items():
        last: dict[str, Sent] = {}
        for fact in found:
            sent = history.sent.get(fact.key or b"")
            if sent is None:
                raise Violation(f"{fact.key!r} at {fact.offset} of {place} was never taken")
            if sent.key in where:
                raise Violation(f"{sent.key!r} is in the log twice: {where[sent.key]} and {fact}")
            if sent.value != fact.value or sent.timestamp_ms != fact.timestamp_ms:
                raise Violation(f"{sent.key!r} is in the log otherwise than it was sent")
            before = last.get(sent.source)
            if before is not None and before.number > sent.number:
                raise Violation(f"{sent.key!r} lies behind {before.key!r} in {place}")
            last[sent.source] = sent
            where[sent.key] = (place, fact)
    for sent in history.sent.values():
        if not sent.reports or sent.error is not None:
            continue
        if sent.key not in where:
            raise Violation(f"{sent.key!r} was acknowledged and is not in the log")
        place, fact = where[sent.key]
        if place != (sent.topic, sent.partition):
            raise Violation(f"{sent.key!r} was acknowledged in {sent.partition} and is in {place}")
        if sent.offset is not None and sent.offset != fact.offset:
            raise Violation(f"{sent.key!r} was acknowledged at {sent.offset} and is at {fact}")


def check_sequences(
    place: _Place, sequences: Mapping[bytes, Sequence[int]], may_have_gaps: Container[bytes]
) -> None:
    """A producer's sequences ascend, by one where nothing has failed.

    Args:
        place: The partition.
        sequences: Of its notifications, by producer id.
        may_have_gaps: Producers of which something has failed.

    Raises:
        Violation: They don't.
    """
    for producer_id, found in sequences.items():
        for before, sequence in pairwise([-1, *found]):
            has_gap = sequence > before + 1 and producer_id not in may_have_gaps
            if sequence <= before or has_gap:
                raise Violation(f"sequence {sequence} of {place} comes behind {before}")


def check_transactions(history: History, facts: Mapping[_Place, Sequence[Fact]]) -> None:
    """A committed transaction is there as a whole, of an aborted one nothing.

    Raises:
        Violation: One is torn.
    """
    states = {fact.key: fact.state for found in facts.values() for fact in found}
    of: dict[str, list[str]] = {}
    for sent in history.sent.values():
        if sent.transaction is not None:
            of.setdefault(sent.transaction.name, []).append(states.get(sent.key, "nowhere"))
    for transaction in history.transactions:
        found = of.get(transaction.name, [])
        committed = found.count("committed")
        outcome = transaction.outcome
        if outcome == "committed" and committed != len(found):
            raise Violation(f"{transaction.name} was committed, {found} is of it")
        if outcome in ("aborted", "open") and committed:
            raise Violation(f"{transaction.name} is {outcome}, and {committed} records committed")
        if outcome == "unknown" and committed not in (0, len(found)):
            raise Violation(f"{transaction.name} is torn: {found}")


def check_transformed(copies: Sequence[bytes | None], records: Mapping[bytes | None, bool]) -> None:
    """Each record has one committed copy.

    Args:
        copies: Which record each is of.
        records: All that are committed, and whether a copy is wanted: else there may be one.

    Raises:
        Violation: One has none, or two, or is none of these.
    """
    counts = Counter(copies)
    for key, count in counts.items():
        if key not in records:
            raise Violation(f"there is a copy of {key!r}, which is not committed")
        if count > 1:
            raise Violation(f"{key!r} was copied {count} times")
    for key, is_wanted in records.items():
        if is_wanted and key not in counts:
            raise Violation(f"{key!r} was not copied")


def check_readings(
    readings: Iterable[Reading],
    facts: Mapping[_Place, Sequence[Fact]],
    *,
    may_miss: frozenset[str] = frozenset(),
    log_starts: Mapping[_Place, int],
) -> None:
    """Every reading has the records of its partition from its start on, without a gap.

    Args:
        readings: What consumers saw.
        facts: What a reader of their isolation gets, by partition.
        may_miss: Objects that were missing while consumers skip.
        log_starts: What retention has deleted lies before these Kafka offsets.

    Raises:
        Violation: A gap, a repeat, or a record that is not for them.
    """
    index_of = {
        place: {fact.offset: index for index, fact in enumerate(found)}
        for place, found in facts.items()
    }
    for reading in readings:
        found, indices = facts[reading.place], index_of[reading.place]
        next_index: int | None = None
        if reading.start is not None:
            start = reading.start
            next_index = next((i for i, fact in enumerate(found) if fact.offset >= start), None)
        for offset, key in reading.records:
            index = indices.get(offset)
            if index is None or found[index].key != key:
                raise Violation(
                    f"{reading.consumer} got {key!r} at {offset} of {reading.place}: none for it"
                )
            passed = found[len(found) if next_index is None else next_index : index]
            lost = [
                fact
                for fact in passed
                if fact.object_key not in may_miss
                and fact.kafka_offset >= log_starts.get(reading.place, 0)
            ]
            if lost:
                raise Violation(
                    f"{reading.consumer} has skipped {lost[0].key!r} at {lost[0].offset} of "
                    f"{reading.place}, before {key!r}"
                )
            if next_index is None or index < next_index:
                raise Violation(f"{reading.consumer} got {key!r} of {reading.place} again")
            next_index = index + 1


def check_deadlines(
    sent: Iterable[Sent], reported_ms: Mapping[bytes, int], timeout_ms: int, slack_ms: int
) -> None:
    """No report of these records comes later than `message.timeout.ms`.

    Raises:
        Violation: One does.
    """
    for record in sent:
        told_ms = reported_ms.get(record.key)
        took_ms = 0 if told_ms is None else told_ms - record.accepted_ms
        if timeout_ms and took_ms > timeout_ms + slack_ms:
            name = "nothing" if record.error is None else KafkaError.name(record.error)
            raise Violation(f"{record.key!r} was reported ({name}) after {took_ms} ms")


def check_cost(key: str, segment_bytes: Sequence[int]) -> None:
    """An object that was chosen for its cost costs no more than its segments in Kafka (rule 11).

    Args:
        key: Its name.
        segment_bytes: Of its segments, as stored; each is notified and read by itself.

    Raises:
        Violation: It costs more.
    """
    count = len(segment_bytes)
    notified_usd = _NOTIFICATION_BYTES * _CROSSING_USD_PER_BYTE
    store_usd = _PUT_USD + count * (_GET_USD + notified_usd)
    kafka_usd = sum(segment_bytes) * _CROSSINGS * _CROSSING_USD_PER_BYTE
    if store_usd > kafka_usd * _ROUNDING:
        raise Violation(
            f"{key} costs {store_usd:.2e} USD, its {count} segments in Kafka {kafka_usd:.2e}"
        )
