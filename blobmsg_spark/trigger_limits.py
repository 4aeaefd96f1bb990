"""How far a micro-batch goes under `maxOffsetsPerTrigger` and `maxBytesPerTrigger`.

Decides each partition's end from what is known of the Kafka records before it, and of which
partitions more must be known. Never reads Kafka: whoever does adds to a `Backlog`.

A limit is shared out by what lies ready, in Kafka's offsets, so that all partitions get to their
end together; what one leaves of its share goes to the others. With both limits each take charges
both. Records are limited exactly, within a notification as well. Bytes, uncompressed, are limited
by whole Kafka records.

Two rules keep a query going: one Kafka record is always let in, whatever its size; and partitions
that got nothing come first the next time, the one that waits longest whatever the size of its next
Kafka record. So each of n partitions gets something at least every n micro-batches.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from blobmsg.core.offsets import (
    records_to_skip,
    to_kafka,
    to_virtual,
    virtual_offset_of_first,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from blobmsg_spark.offset_ranges import Key

__all__ = ["Allotment", "Backlog", "KafkaRecordSize", "allot"]

# Kafka records of one micro-batch that are looked at, all partitions together: 24 bytes each on the
# driver. Only plain records get there; a micro-batch ends early then, as it may.
_MOST_KNOWN: Final = 1 << 20
# With both limits the driver reads no further at once than the record limit can reach, but so far:
# where Kafka's offsets are of aborted records, single steps would take for ever.
_LEAST_STEP: Final = 1000
_NO_LIMIT: Final = 1 << 62


class KafkaRecordSize(NamedTuple):
    """What stands behind one Kafka record: a notification, or a record itself."""

    kafka_offset: int
    records: int
    size_bytes: int


class Backlog:
    """What is known of a partition's Kafka records, from some place on without gaps.

    Kept in columns: an object per Kafka record is six times as large.

    Args:
        kafka_offset: Nothing before it will be asked for.

    Attributes:
        known_until: Kafka offset before which everything is known.
        waited: How many micro-batches in a row took nothing although something was ready.

    Threads: one.
    """

    __slots__ = (
        "_kafka_offsets",
        "_known_from",
        "_records",
        "_size_bytes",
        "known_until",
        "waited",
    )

    def __init__(self, kafka_offset: int) -> None:
        self._known_from = kafka_offset
        self._kafka_offsets = array("q")
        self._records = array("q")
        self._size_bytes = array("q")
        self.known_until = kafka_offset
        self.waited = 0

    def add(self, size: KafkaRecordSize) -> None:
        """The next Kafka record."""
        if size.kafka_offset < self.known_until:
            raise AssertionError(f"Kafka offset {size.kafka_offset} came twice")
        self._kafka_offsets.append(size.kafka_offset)
        self._records.append(size.records)
        self._size_bytes.append(size.size_bytes)
        self.known_until = size.kafka_offset + 1

    def nothing_until(self, kafka_offset: int) -> None:
        """No further record lies before this Kafka offset."""
        self.known_until = max(self.known_until, kafka_offset)

    def forget_before(self, kafka_offset: int) -> None:
        """Nobody will ask for what lies before."""
        self._known_from = max(self._known_from, kafka_offset)
        forgotten = bisect_left(self._kafka_offsets, kafka_offset)
        for column in (self._kafka_offsets, self._records, self._size_bytes):
            del column[:forgotten]

    def covers(self, kafka_offset: int) -> bool:
        """Whether what is known reaches from this Kafka offset on."""
        return self._known_from <= kafka_offset <= self.known_until

    def sizes(self, start: int, kafka_stop: int) -> Iterator[_Left]:
        """What lies from a virtual offset on, up to a Kafka offset."""
        for place in range(
            bisect_left(self._kafka_offsets, to_kafka(start)),
            bisect_left(self._kafka_offsets, kafka_stop),
        ):
            size = KafkaRecordSize(
                self._kafka_offsets[place], self._records[place], self._size_bytes[place]
            )
            skipped = records_to_skip(start, size.kafka_offset, size.records)
            left = size.records - skipped
            if left:
                yield _Left(size, skipped, left, _part(size.size_bytes, left, size.records))


def _part(size_bytes: int, records: int, of_records: int) -> int:
    """Bytes of some of the records behind a Kafka record, rounded up."""
    return -(-size_bytes * records // of_records)


class _Left(NamedTuple):
    """What is left to read of a Kafka record."""

    size: KafkaRecordSize
    skipped: int
    records: int
    size_bytes: int

    def place_behind(self, records: int) -> int:
        """The virtual offset behind the first so many records that are left."""
        if records == self.records:
            return to_virtual(self.size.kafka_offset + 1)
        first = virtual_offset_of_first(self.size.kafka_offset, self.size.records)
        return first + self.skipped + records

    def without(self, records: int) -> _Left:
        """What is left behind the first so many records that are left."""
        rest = self.records - records
        size_bytes = _part(self.size.size_bytes, rest, self.size.records)
        return _Left(self.size, self.skipped + records, rest, size_bytes)


@dataclass(slots=True)
class _Budget:
    """What may still be taken; a limit that there is not is large."""

    records: int
    size_bytes: int

    @property
    def is_spent(self) -> bool:
        return self.records <= 0 or self.size_bytes <= 0

    def charge(self, records: int, size_bytes: int) -> None:
        """Take off; what is let in whatever its size leaves nothing."""
        self.records = max(0, self.records - records)
        self.size_bytes = max(0, self.size_bytes - size_bytes)

    def take_back(self, share: _Budget) -> None:
        """What a partition has left of its share."""
        self.records += share.records
        self.size_bytes += share.size_bytes


@dataclass(frozen=True, slots=True)
class Allotment:
    """Where a micro-batch ends.

    Attributes:
        ends: Virtual offsets.
        unknown: Partitions that would get more if more were known of them, and how much: bytes if
            bytes are limited, else records. The ends are not final while there are any.
        read_until: Of those, the Kafka offsets up to which it is worth to look.
    """

    ends: Mapping[Key, int]
    unknown: Mapping[Key, int]
    read_until: Mapping[Key, int]


class _Taking:
    """One partition while a limit is shared out.

    Attributes:
        end: Virtual offset behind what was taken.
        upcoming: What comes next, as far as it is known.
        waited: See `Backlog`.
    """

    __slots__ = ("_is_known", "_kafka_stop", "_known_until", "_rest", "end", "upcoming", "waited")

    def __init__(self, backlog: Backlog, start: int, kafka_stop: int) -> None:
        self._rest = backlog.sizes(start, kafka_stop)
        self.upcoming = next(self._rest, None)
        self.end = start
        self.waited = backlog.waited
        self._kafka_stop = kafka_stop
        self._known_until = backlog.known_until
        self._is_known = backlog.known_until >= kafka_stop

    def take(self, budget: _Budget, *, whatever_its_size: bool = False) -> bool:
        """Take what comes next, as far as the budget goes; whether anything was taken."""
        upcoming = self.upcoming
        if upcoming is None or budget.is_spent:
            return False
        records = min(upcoming.records, budget.records)
        size_bytes = _part(upcoming.size_bytes, records, upcoming.records)
        if size_bytes > budget.size_bytes and not whatever_its_size:
            return False
        budget.charge(records, size_bytes)
        self.end = upcoming.place_behind(records)
        if records == upcoming.records:
            self.upcoming = next(self._rest, None)
        else:
            self.upcoming = upcoming.without(records)
        return True

    @property
    def lacks_knowledge(self) -> bool:
        """Whether more must be known to say what comes next."""
        return self.upcoming is None and not self._is_known

    def read_until(self, need: _Budget) -> int:
        """Where one can stop to look for so much."""
        if need.records >= _NO_LIMIT or need.size_bytes >= _NO_LIMIT:
            return self._kafka_stop  # whoever looks counts what it finds
        return min(self._kafka_stop, self._known_until + max(need.records, _LEAST_STEP))

    def final_end(self) -> int:
        """Behind markers of transactions, too, once all records before them are taken."""
        is_complete = self._is_known and self.upcoming is None
        return max(self.end, to_virtual(self._kafka_stop)) if is_complete else self.end


def allot(
    backlogs: Mapping[Key, Backlog],
    starts: Mapping[Key, int],
    kafka_stops: Mapping[Key, int],
    *,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> Allotment:
    """Share the limits out.

    Args:
        backlogs: Of the same partitions as the others. Where the ends are final, each keeps
            whether its partition was served, for the next micro-batch.
        starts: Virtual offsets.
        kafka_stops: Behind the last Kafka offsets that may be read.
        max_records: At least 1; None for no limit.
        max_bytes: The same.
    """
    lengths = {key: max(0, stop - to_kafka(starts[key])) for key, stop in kafka_stops.items()}
    total = sum(lengths.values())
    takings: dict[Key, _Taking] = {}
    for key in sorted(lengths, key=lambda key: (-backlogs[key].waited, -lengths[key], key)):
        if lengths[key]:
            looked_at = min(lengths[key], max(1, _MOST_KNOWN * lengths[key] // total))
            kafka_stop = to_kafka(starts[key]) + looked_at
            takings[key] = _Taking(backlogs[key], starts[key], kafka_stop)
    left = _Budget(
        _NO_LIMIT if max_records is None else max_records,
        _NO_LIMIT if max_bytes is None else max_bytes,
    )
    needs = _take_all(takings, lengths, left)
    if needs:
        return Allotment(
            starts,
            {
                key: need.records if max_bytes is None else need.size_bytes
                for key, need in needs.items()
            },
            {key: takings[key].read_until(need) for key, need in needs.items()},
        )
    ends = {**starts, **{key: taking.final_end() for key, taking in takings.items()}}
    for key in takings:
        backlogs[key].waited = 0 if ends[key] > starts[key] else backlogs[key].waited + 1
    return Allotment(ends, {}, {})


def _take_all(
    takings: Mapping[Key, _Taking], lengths: Mapping[Key, int], left: _Budget
) -> dict[Key, _Budget]:
    """Let all take; what must be known of some before that can be said."""
    untouched = True
    for key, taking in takings.items():
        if taking.waited and not left.is_spent:
            if taking.lacks_knowledge:
                return {key: _Budget(1, 1)}
            if taking.take(left, whatever_its_size=untouched):
                untouched = False
    shares = _shares(takings, lengths, left)
    for key, taking in takings.items():
        while taking.take(shares[key]):
            untouched = False
    needs = {
        key: shares[key]
        for key, taking in takings.items()
        if taking.lacks_knowledge and not shares[key].is_spent
    }
    if needs:
        return needs
    # What one partition leaves goes to those that still have something, longest waiting first.
    for share in shares.values():
        left.take_back(share)
    took = True
    while took:
        took = False
        for taking in takings.values():
            took |= taking.take(left)
        untouched &= not took
    if not left.is_spent:
        needs = {key: left for key, taking in takings.items() if taking.lacks_knowledge}
    if untouched and not needs:
        for taking in takings.values():
            if taking.take(left, whatever_its_size=True):
                break
    return needs


def _shares(
    takings: Mapping[Key, _Taking], lengths: Mapping[Key, int], left: _Budget
) -> dict[Key, _Budget]:
    """Share out what is left, rounded up: the last ones may find less."""
    total = sum(lengths.values())
    whole = _Budget(left.records, left.size_bytes)
    shares = {}
    for key in takings:
        share = _Budget(
            min(left.records, _part(whole.records, lengths[key], total)),
            min(left.size_bytes, _part(whole.size_bytes, lengths[key], total)),
        )
        left.charge(share.records, share.size_bytes)
        shares[key] = share
    return shares
