"""What went wrong, from journals and the final read of the log alone; pure.

The classes, each a violation of what blobmsg promises:

lost        a record was reported delivered and is not in the log; or it is in the log and no member
            of the group got it, though all had time to; or a copy of it is missing.
duplicated  a record is in the log twice (an idempotent producer writes it once, whatever it has to
            repeat); or one assignment of a partition got it twice; or two committed copies of it
            are there.
reordered   records of one producer and partition are in the log in another order than they were
            produced in; or copies in another order than their originals.
aborted     a reader of committed records sees one of a transaction that was aborted, or whose
            commit nobody has asked for.
torn        of a transaction some records are there and some are not.
corrupt     a record's bytes are not those that were produced, in the log or as a client got them.
phantom     a record is there that nobody produced; or a client got one that is not in the log.
unreported  a producer was closed and a record has had no delivery report.
misreported a record was reported twice, or out of order, or with an offset where it is not.
skipped     an assignment began behind every position that was committed, or left out a record.
rewound     an assignment began before a position whose commit was confirmed earlier.
late        a call took more than a second longer than it may.
memory      a client has taken more memory than its limits, what it took to construct, and 50 MiB.
crashed     a child ended by itself.
stuck       something that must happen did not, within minutes. (The conductor's finding.)

What at-least-once allows is none of these: a record produced by a process that was killed before
its report may be there or not; one that was reported failed may be there or not (its answer may
have been lost); a group gets records again whose commit was not confirmed before the partition
moved.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos.runs import Intervals, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.chaos.history import GroupHistory, Log, Session, TransactionHistory, WriterHistory

# Offsets of ours: see DESIGN.md. The checker knows this much of them and no more.
_SHIFT = 20


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be.

    Attributes:
        kind: One of the classes above.
        text: Where, and which records.
    """

    kind: str
    text: str


class PartitionOrder:
    """The records of one partition as a row of places from 0: the log's order.

    Args:
        runs: Of the log.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._starts: list[int] = []  # the place of each run's first record
        self._offsets = [run.offset for run in runs]
        self._of_instance: dict[str, list[tuple[int, int, int]]] = {}
        self.count = 0
        for run in runs:
            self._starts.append(self.count)
            found = self._of_instance.setdefault(run.instance, [])
            found.append((run.first, run.last, self.count))
            self.count += run.size
        for found in self._of_instance.values():
            found.sort()

    def place_of_position(self, position: int) -> int:
        """The place of the first record whose offset is not before this position."""
        at = bisect.bisect_right(self._offsets, position) - 1
        if at < 0:
            return 0
        inside = min(position - self._offsets[at], self._runs[at].size)
        return self._starts[at] + inside

    def place_of_offset(self, run: Run) -> int | None:
        """The place of a run's first record by its offset; None if the log has not that record."""
        at = bisect.bisect_right(self._offsets, run.offset) - 1
        if at < 0:
            return None
        there, inside = self._runs[at], run.offset - self._offsets[at]
        is_it = (
            inside < there.size
            and there.instance == run.instance
            and there.first + inside == run.first
        )
        return self._starts[at] + inside if is_it else None

    def places_of_numbers(self, run: Run) -> Iterator[tuple[int, int] | None]:
        """Where a run's records are, by their numbers, piece by piece; None for a missing piece."""
        found = self._of_instance.get(run.instance, [])
        number = run.first
        at = max(0, bisect.bisect_right(found, (number, run.last + 1, 0)) - 1)
        while number <= run.last:
            while at < len(found) and found[at][1] < number:
                at += 1
            if at == len(found) or found[at][0] > run.last:
                yield None
                return
            first, last, place = found[at]
            if first > number:
                yield None
                number = first
            end = min(last, run.last)
            yield place + number - first, place + end - first
            number = end + 1


def check_log(topic: str, writers: Iterable[WriterHistory], log: Log) -> list[Violation]:
    """What producers were told against what is there."""
    found = [Violation("corrupt", f"{topic}: {place}") for place in log.corrupt]
    found += _check_raw(topic, log)
    by_name = {writer.instance: writer for writer in writers}
    there: dict[tuple[str, int], Intervals] = {}
    for partition, runs in log.runs.items():
        for run in runs:
            place = f"{topic} [{partition}] {_named(run)}"
            seen = there.setdefault((run.instance, partition), Intervals())
            writer = by_name.get(run.instance)
            asked = Intervals() if writer is None else writer.asked.get(partition, Intervals())
            if asked.missing(run.first, run.last):
                found.append(Violation("phantom", f"{place}: nobody produced it"))
            found += _check_order(place, run.first, run.last, seen)
            seen.add(run.first, run.last)
    for writer in by_name.values():
        found += _check_reports(topic, writer, there, log)
    return found


def _check_order(place: str, first: int, last: int, seen: Intervals) -> list[Violation]:
    """A piece that comes behind those seen; within a piece the order is right."""
    again = seen.within(first, last)
    if again:
        return [Violation("duplicated", f"{place}: {again} once more")]
    highest = max((high for _, high in seen), default=-1)
    if first <= highest:
        return [Violation("reordered", f"{place}: behind {highest}")]
    return []


def _check_reports(
    topic: str, writer: WriterHistory, there: dict[tuple[str, int], Intervals], log: Log
) -> list[Violation]:
    found: list[Violation] = []
    reported: dict[int, Intervals] = {}
    orders = {partition: PartitionOrder(runs) for partition, runs in log.runs.items()}
    for partition, first, last, code, last_offset in writer.reports:
        place = f"{topic} [{partition}] {writer.instance} {first}-{last}"
        seen = reported.setdefault(partition, Intervals())
        highest = max((high for _, high in seen), default=-1)
        if first <= highest:
            found.append(Violation("misreported", f"{place}: twice or late, behind {highest}"))
        seen.add(first, last)
        if code:
            continue
        present = there.get((writer.instance, partition), Intervals())
        missing = present.missing(first, last)
        if missing:
            found.append(Violation("lost", f"{place}: reported delivered and not there: {missing}"))
        elif not _is_at(orders[partition], writer.instance, last, last_offset):
            found.append(
                Violation("misreported", f"{place}: {last} is not at offset {last_offset}")
            )
    if writer.is_closed:
        for partition, asked in writer.asked.items():
            silent = asked.minus(reported.get(partition, Intervals()))
            if silent:
                place = f"{topic} [{partition}] {writer.instance}"
                found.append(Violation("unreported", f"{place}: {silent}"))
    return found


def _is_at(order: PartitionOrder, instance: str, number: int, offset: int) -> bool:
    return order.place_of_offset(Run("", instance, number, number, offset)) is not None


def _check_raw(topic: str, log: Log) -> list[Violation]:
    """Our consumer must read exactly what a stock one finds the notifications to promise."""
    found: list[Violation] = []
    for partition, promised in log.raw.items():
        read: Counter[int] = Counter()
        for run in log.runs.get(partition, []):
            at, left = run.offset, run.size
            while left:  # a run may go on in the next plain record
                in_this = min(left, ((at >> _SHIFT) + 1 << _SHIFT) - at)
                read[at >> _SHIFT] += in_this
                at, left = at + in_this, left - in_this
        for kafka_offset in sorted(promised.keys() | read.keys()):
            there, got = promised.get(kafka_offset, 0), read[kafka_offset]
            if there != got:
                kind = "lost" if got < there else "phantom"
                place = f"{topic} [{partition}] at Kafka's {kafka_offset}"
                found.append(Violation(kind, f"{place}: {got} records read, {there} promised"))
    return found


def check_group(topic: str, group: GroupHistory, log: Log) -> list[Violation]:
    """What the members of a group got against the log."""
    found = [Violation("corrupt", f"{topic}: {place}") for place in group.corrupt]
    orders = {partition: PartitionOrder(runs) for partition, runs in log.runs.items()}
    received: dict[int, Intervals] = {partition: Intervals() for partition in orders}
    for session in group.sessions:
        if session.runs:
            order = orders.get(session.partition, PartitionOrder([]))
            got = received.setdefault(session.partition, Intervals())
            found += _check_session(topic, session, order, got)
            found += _check_start(topic, session, order, group)
    for partition, order in orders.items():
        missing = received[partition].missing(0, order.count - 1)
        if missing:
            place = f"{topic} [{partition}]"
            found.append(Violation("lost", f"{place}: no member got the records at {missing}"))
    return found


def _check_session(
    topic: str, session: Session, order: PartitionOrder, got: Intervals
) -> list[Violation]:
    found: list[Violation] = []
    expected: int | None = None
    for run in session.runs:
        where = f"{topic} [{session.partition}] {session.reader} got {_named(run)}"
        for first, last in _pieces_by_offset(run, order):
            if first < 0:
                found.append(Violation("phantom", f"{where}: not in the log"))
                continue
            if expected is not None and first > expected:
                found.append(Violation("skipped", f"{where}: {first - expected} before it missing"))
            if expected is not None and first < expected:
                found.append(Violation("duplicated", f"{where}: a second time in one assignment"))
            expected = last + 1
            got.add(first, last)
    return found


def _pieces_by_offset(run: Run, order: PartitionOrder) -> Iterator[tuple[int, int]]:
    """Places of a run that a client got; (-1, -1) where the log has another record."""
    begin = order.place_of_offset(run)
    end = order.place_of_offset(run._replace(first=run.last, offset=run.offset + run.size - 1))
    # Offsets and numbers rise by one in both: first and last right means all are.
    if begin is None or end is None or end - begin != run.size - 1:
        yield -1, -1
    else:
        yield begin, end


def _check_start(
    topic: str, session: Session, order: PartitionOrder, group: GroupHistory
) -> list[Violation]:
    start = order.place_of_offset(session.runs[0])
    if start is None:
        return []  # a phantom, and told as such
    of_partition = [c for c in group.commits if c.partition == session.partition]
    confirmed = [
        order.place_of_position(c.position)
        for c in of_partition
        if c.is_confirmed and c.at < session.assigned_at
    ]
    asked = [order.place_of_position(c.position) for c in of_partition if c.at < session.first_at]
    where = f"{topic} [{session.partition}] {session.reader} began at {start}"
    if start < max(confirmed, default=0):
        return [Violation("rewound", f"{where}, {max(confirmed)} had been committed")]
    if start > max(asked, default=0):
        return [Violation("skipped", f"{where}, only {max(asked, default=0)} was ever committed")]
    return []


def check_copies(
    topic: str, transactions: Iterable[TransactionHistory], originals: Log, copies: Log
) -> list[Violation]:
    """Copies, as a reader of committed records sees them, against the originals.

    Args:
        topic: Of the copies.
        transactions: Of all transformers.
        originals: The log that was copied, wholly.
        copies: Read with `isolation.level=read_committed`.
    """
    found = [Violation("corrupt", f"{topic}: {place}") for place in copies.corrupt]
    found += _check_raw(topic, copies)
    for partition in sorted(originals.runs.keys() | copies.runs.keys()):
        order = PartitionOrder(originals.runs.get(partition, []))
        found += _check_copied(topic, partition, order, copies.runs.get(partition, []))
    found += _check_transactions(topic, transactions, copies)
    return found


def _check_copied(
    topic: str, partition: int, order: PartitionOrder, copies: Sequence[Run]
) -> list[Violation]:
    found: list[Violation] = []
    seen = Intervals()
    for run in copies:
        place = f"{topic} [{partition}] {_named(run)}"
        for piece in order.places_of_numbers(run):
            if piece is None:
                found.append(Violation("phantom", f"{place}: there is no such original"))
                continue
            found += _check_order(place, *piece, seen)
            seen.add(*piece)
    missing = seen.missing(0, order.count - 1)
    if missing:
        found.append(Violation("lost", f"{topic} [{partition}]: no copies of those at {missing}"))
    return found


def _check_transactions(
    topic: str, transactions: Iterable[TransactionHistory], copies: Log
) -> list[Violation]:
    found: list[Violation] = []
    visible: Counter[str] = Counter()
    for runs in copies.runs.values():
        for run in runs:
            visible[run.transaction] += run.size
    known = {transaction.name: transaction for transaction in transactions}
    for name, count in visible.items():
        transaction = known.get(name)
        if transaction is None:
            found.append(Violation("phantom", f"{topic}: {count} records of no transaction {name}"))
        elif transaction.outcome in ("begun", "aborted"):
            text = f"{topic}: {count} records of {name}, which was {transaction.outcome}"
            found.append(Violation("aborted", text))
        elif count != transaction.count:
            text = f"{topic}: {count} of {transaction.count} records of {name}"
            found.append(Violation("torn", text))
    for transaction in known.values():
        if transaction.outcome == "committed" and not visible[transaction.name]:
            text = f"{topic}: none of the {transaction.count} records of {transaction.name}"
            found.append(Violation("lost", f"{text}, which was committed"))
    return found


def _named(run: Run) -> str:
    numbers = str(run.first) if run.first == run.last else f"{run.first}-{run.last}"
    of = "" if run.transaction in ("", "-") else f" of {run.transaction}"
    return f"{run.instance} {numbers}{of} at offset {run.offset}"
