"""The units that travel through the consumer's cores: flows, entries, runs, failures.

Values and counters only. Who changes them: `Run.index` the shell, as it takes records; everything
else the debatcher, and what an entry holds in memory its prefetch.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from blobmsg.core.offsets import (
    VirtualOffset,
    to_kafka,
    to_virtual,
    virtual_offset_of_first,
)

if TYPE_CHECKING:
    from blobmsg.format.notification import Notification

__all__ = [
    "Entry",
    "EntryState",
    "Failure",
    "FailureKind",
    "Flow",
    "FlowKey",
    "RecordSource",
    "Run",
]

FlowKey: TypeAlias = tuple[str, int]  # topic, partition


class RecordSource(Protocol):
    """Decoded records of one part, as the shell made them."""

    records: int
    first_record_index: int  # of its first record in its notification


class FailureKind(enum.Enum):
    """What a failure calls for."""

    TRANSIENT = "transient"  # the store is away: wait, nothing is wrong with the record
    ABSENT = "absent"  # not there, before its time; missing when it does not come (replication)
    MISSING = "missing"  # lost before its time, or damaged: `blobmsg.on.missing`
    EXPIRED = "expired"  # gone after its expiry hour: `auto.offset.reset`
    REFUSED = "refused"  # needs a person: permissions, versions, a position nobody issued


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an entry's records can't be had.

    Args:
        kind: What it calls for.
        error: What the shell shows the user.
    """

    kind: FailureKind
    error: Any


class EntryState(enum.Enum):
    """See the debatcher's text."""

    WAITING = "waiting"
    FETCHING = "fetching"
    READY = "ready"
    FAILED = "failed"
    SKIPPED = "skipped"


class Run:
    """Consecutive records that can be handed out: `source[index:end]`.

    The shell takes records by moving `index`; a revoked or sought flow ends its runs by setting
    `end` to `index`.
    """

    __slots__ = ("end", "entry", "first", "index", "source")

    def __init__(self, entry: Entry, source: RecordSource, index: int, end: int) -> None:
        self.entry = entry
        self.source: Any = source  # the shell knows its class
        self.first = index
        self.index = index
        self.end = end

    def position(self) -> VirtualOffset:
        """The virtual offset of the next record."""
        entry = self.entry
        first = virtual_offset_of_first(entry.kafka_offset, entry.record_count)
        return VirtualOffset(first + self.source.first_record_index + self.index)


class Entry:
    """One Kafka record of a flow: a notification, a plain record; or an event, or the end."""

    __slots__ = (
        "attempts",
        "context",
        "event",
        "failure",
        "flow",
        "generation",
        "held_bytes",
        "is_end",
        "is_reported",
        "kafka_offset",
        "next_part",
        "notification",
        "parts_in_flight",
        "record_count",
        "retry_at_ms",
        "size_bytes",
        "sources",
        "state",
        "times_absent",
    )

    def __init__(
        self, flow: Flow, kafka_offset: int, notification: Notification | None, record_count: int
    ) -> None:
        self.flow = flow
        self.generation = flow.generation
        self.kafka_offset = kafka_offset
        self.notification = notification  # None: nothing is to be fetched
        self.record_count = record_count
        self.state = EntryState.WAITING
        self.sources: list[Any] = []  # one per part, once fetched
        self.parts_in_flight = 0
        self.next_part = 0
        self.size_bytes = 0  # in memory, once it is there
        self.held_bytes = 0  # what is charged for it now
        self.context: Any = None  # the shell's: what its sources need beyond the bytes
        self.event: Any = None  # an end-of-partition or error message, instead of records
        self.is_end = False  # of the partition: no record is there yet
        self.failure: Failure | None = None
        self.is_reported = True
        self.attempts = 0
        self.times_absent = 0
        self.retry_at_ms = 0

    @property
    def is_current(self) -> bool:
        """Whether it still belongs to the flow's present assignment and position."""
        return self.generation == self.flow.generation

    def first_offset(self) -> VirtualOffset:
        """The virtual offset of its first record that is not handed out yet.

        A seek or commit there brings all of it: a notification that can't be read, whose records
        nobody can count, begins at the start of its Kafka offset.
        """
        first = to_virtual(self.kafka_offset)
        if self.record_count:
            first = virtual_offset_of_first(self.kafka_offset, self.record_count)
        needed = self.flow.needed_position
        if needed is not None and to_kafka(needed) == self.kafka_offset:
            return VirtualOffset(max(first, needed))
        return first


class Flow:
    """One assigned partition: its queue and position."""

    __slots__ = (
        "entries",
        "generation",
        "is_paused_by_us",
        "is_paused_by_user",
        "key",
        "needed_position",
        "next_offset",
        "payload_bytes",
        "payload_entries",
        "position_before_seek",
        "run",
        "settled_position",
        "waiting",
    )

    def __init__(self, key: FlowKey, position: int | None) -> None:
        self.key = key
        self.generation = 0
        self.entries: deque[Entry] = deque()
        self.waiting: deque[Entry] = deque()  # those that wait for a fetch; moved by `prefetch`
        self.run: Run | None = None
        # Of plain and inline entries in the queue: they came through Kafka and can't be put back.
        self.payload_bytes = 0
        self.payload_entries = 0
        # Where reading goes on at; None until a committed or reset position is known.
        self.needed_position: int | None = position
        # Where Kafka's client reads on in its log; None until that is known.
        self.next_offset: int | None = None if position is None else to_kafka(position)
        # After the last record of finished runs; None before the first since assign or seek.
        self.settled_position: VirtualOffset | None = None
        self.position_before_seek: VirtualOffset | None = None
        self.is_paused_by_user = False
        self.is_paused_by_us = False

    def position(self) -> VirtualOffset | None:
        """The virtual offset after the last record handed out.

        None before the first one since the assignment or a seek, as in stock (OFFSET_INVALID).
        """
        run = self.run
        if run is None or run.index == run.first:
            return self.settled_position
        return run.position()

    def stored_position(self) -> VirtualOffset | None:
        """What automatic storing has stored: unlike `position`, a seek does not take it back."""
        position = self.position()
        return self.position_before_seek if position is None else position
