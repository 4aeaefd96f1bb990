"""What a consumer fetches, when, and in which order it hands records out.

Decides: which notifications to fetch next within the memory limit, which ranges share a GET, what
a failed fetch leads to, when a partition's reading ahead pauses, which records come next. Never:
how bytes are fetched, what a user's callback does. Told of everything by the shell
(`blobmsg.consumer`); results of fetches that belong to an older assignment are dropped.

A `Flow` is one assigned partition: a queue of `Entry`s in Kafka's order, the head of which is
handed out. States of an entry: WAITING (a notification, not fetched) -> FETCHING -> READY (records
can be handed out), FAILED (reported unless it will pass by itself; WAITING again after a back-off)
or SKIPPED (passed over); plain and inline records are READY at once. Moved by `plan`, `fetched`,
`tick`.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from blobmsg.core.offsets import (
    VirtualOffset,
    records_to_skip,
    remaining_records,
    to_kafka,
    to_virtual,
    virtual_offset_of_first,
)
from blobmsg.format.codec import Codec
from blobmsg.format.ranges import ByteRange, coalesce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobmsg.format.notification import Notification, Part

__all__ = [
    "Debatcher",
    "Entry",
    "EntryState",
    "Failure",
    "FailureKind",
    "FetchSection",
    "Flow",
    "FlowKey",
    "Run",
]

FlowKey: TypeAlias = tuple[str, int]  # topic, partition
_ObjectName: TypeAlias = tuple[str, str]  # store name, key

# Ranges of one object closer than this share a GET: 256 KiB is about 3 ms at 100 MB/s, less than a
# request's own latency, and a GET is what costs money.
_COALESCE_GAP_BYTES: Final = 256 * 1024
# Notifications read ahead per partition before Kafka is told to pause it. 2,000 are about 1 MB.
_PAUSE_AT_ENTRIES: Final = 2000
_RESUME_AT_ENTRIES: Final = 500
# Plain and inline payload read ahead per partition before it is paused.
_PAUSE_AT_BYTES: Final = 16 * 1024 * 1024
_RETRY_FIRST_MS: Final = 500
_RETRY_MAX_MS: Final = 30_000


class RecordSource(Protocol):
    """Decoded records of one part, as the shell made them."""

    records: int
    first_record_index: int  # of its first record in its notification


class FailureKind(enum.Enum):
    """What a failure calls for."""

    TRANSIENT = "transient"  # the store is away: wait, nothing is wrong with the record
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
    """See the module's text."""

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

    def __init__(self, entry: Entry, source: Any, index: int, end: int) -> None:
        self.entry = entry
        self.source = source
        self.first = index
        self.index = index
        self.end = end

    def position(self) -> VirtualOffset:
        """The virtual offset of the next record."""
        entry = self.entry
        first = virtual_offset_of_first(entry.kafka_offset, entry.record_count)
        return VirtualOffset(first + self.source.first_record_index + self.index)


class Entry:
    """One Kafka record of a flow: a notification, a plain record, or an event."""

    __slots__ = (
        "attempts",
        "charged_bytes",
        "context",
        "event",
        "failure",
        "flow",
        "generation",
        "is_reported",
        "kafka_offset",
        "missing_parts",
        "next_part",
        "notification",
        "record_count",
        "retry_at_ms",
        "sources",
        "state",
    )

    def __init__(
        self, flow: Flow, kafka_offset: int, notification: Notification | None, record_count: int
    ) -> None:
        self.flow = flow
        self.generation = flow.generation
        self.kafka_offset = kafka_offset
        self.notification = notification
        self.record_count = record_count
        self.state = EntryState.WAITING
        self.sources: list[Any] = []  # one per part, once fetched
        self.missing_parts = 0
        self.next_part = 0
        self.charged_bytes = 0
        self.context: Any = None  # the shell's: what its sources need beyond the bytes
        self.event: Any = None  # an end-of-partition or error message, instead of records
        self.failure: Failure | None = None
        self.is_reported = True
        self.attempts = 0
        self.retry_at_ms = 0

    @property
    def is_current(self) -> bool:
        """Whether it still belongs to the flow's present assignment and position."""
        return self.generation == self.flow.generation


class Flow:
    """One assigned partition: its queue and position."""

    __slots__ = (
        "entries",
        "generation",
        "is_paused_by_us",
        "is_paused_by_user",
        "key",
        "needed_position",
        "payload_bytes",
        "run",
        "settled_position",
    )

    def __init__(self, key: FlowKey, position: int | None) -> None:
        self.key = key
        self.generation = 0
        self.entries: deque[Entry] = deque()
        self.run: Run | None = None
        self.payload_bytes = 0  # of plain and inline entries in the queue
        # Where reading goes on at; None until a committed or reset position is known.
        self.needed_position: int | None = position
        # After the last record handed out, None before the first (stock: OFFSET_INVALID).
        self.settled_position: VirtualOffset | None = None
        self.is_paused_by_user = False
        self.is_paused_by_us = False

    def position(self) -> VirtualOffset | None:
        """The virtual offset after the last record handed out; None before the first."""
        run = self.run
        if run is None or run.index == run.first:
            return self.settled_position
        return run.position()


@dataclass(frozen=True, slots=True, eq=False)
class FetchSection:
    """One GET: a section of one object and the parts that lie in it.

    Args:
        store: The notification's store name; "" for the default.
        key: The object's key below the store's prefix.
        section: The bytes to get.
        parts: Entry, index of the part in its notification, the part.
    """

    store: str
    key: str
    section: ByteRange
    parts: tuple[tuple[Entry, int, Part], ...]


class Debatcher:
    """The consumer's flows and fetches. Threads: under the consumer's lock.

    Args:
        prefetch_max_bytes: Limit of decoded and in-flight bytes; one entry is always admitted.
        fetch_slots: Most GETs at once.
        max_section_bytes: Largest GET made by merging neighbours.
        skips_missing: `blobmsg.on.missing` is `skip`.
        skips_expired: `auto.offset.reset` lets reading go on behind what Kafka should have deleted.
    """

    def __init__(
        self,
        *,
        prefetch_max_bytes: int,
        fetch_slots: int,
        max_section_bytes: int,
        skips_missing: bool,
        skips_expired: bool,
    ) -> None:
        self._skipped_kinds = {
            kind
            for kind, skips in (
                (FailureKind.MISSING, skips_missing),
                (FailureKind.EXPIRED, skips_expired),
            )
            if skips
        }
        self.skipped_records: dict[FailureKind, int] = {}  # by kind, for statistics
        self._prefetch_max_bytes = prefetch_max_bytes
        self._fetch_slots = fetch_slots
        self._max_section_bytes = max_section_bytes
        self._flows: dict[FlowKey, Flow] = {}
        # By object, for entries of one object share its GETs; in order of first arrival.
        self._waiting: dict[_ObjectName, list[Entry]] = {}
        self._ready: deque[Flow] = deque()  # flows whose head can be handed out, round robin
        self._is_queued: set[FlowKey] = set()
        self._retrying: list[Entry] = []
        self._fetches_in_flight = 0
        self._held_bytes = 0

    # --- assignment ---------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Decoded and in-flight bytes now."""
        return self._held_bytes

    @property
    def fetches_in_flight(self) -> int:
        """GETs begun and not answered."""
        return self._fetches_in_flight

    @property
    def has_ready(self) -> bool:
        """Whether something may be ready to be handed out."""
        return bool(self._ready)

    @property
    def flows(self) -> dict[FlowKey, Flow]:
        """The assigned partitions."""
        return self._flows

    def assigned(self, key: FlowKey, position: int | None) -> Flow:
        """Begin a partition.

        Args:
            key: Topic and partition; must not be assigned.
            position: The virtual offset to go on from; None to take whatever comes first.
        """
        if key in self._flows:
            raise AssertionError(f"{key} is assigned twice")
        flow = self._flows[key] = Flow(key, position)
        return flow

    def revoked(self, key: FlowKey) -> None:
        """End a partition; whatever was read ahead of it is dropped, now and later."""
        flow = self._flows.pop(key, None)
        if flow is not None:
            self._drop_read_ahead(flow)

    def sought(self, key: FlowKey, position: int | None) -> None:
        """Go on at another position; what was read ahead is dropped."""
        flow = self._flows[key]
        self._drop_read_ahead(flow)
        flow.needed_position = position

    def _drop_read_ahead(self, flow: Flow) -> None:
        flow.settled_position = flow.position()
        flow.generation += 1
        if flow.run is not None:
            flow.run.end = flow.run.index
            flow.run = None
        for entry in flow.entries:
            if entry.state is EntryState.WAITING:
                self._stop_waiting(entry)
            # What is in flight is charged until its answer comes, for its bytes are in memory.
            if entry.state is not EntryState.FETCHING:
                self._release(entry)
        flow.entries.clear()
        flow.payload_bytes = 0
        self._retrying = [e for e in self._retrying if e.flow is not flow]
        if flow.key in self._is_queued:
            self._is_queued.discard(flow.key)
            self._ready = deque(f for f in self._ready if f is not flow)

    def paused_by_user(self, key: FlowKey, *, is_paused: bool) -> None:
        """Stop or go on handing out a partition's records; what was read ahead stays."""
        flow = self._flows[key]
        flow.is_paused_by_user = is_paused
        if not is_paused:
            self._queue_if_ready(flow)

    # --- what Kafka brought -------------------------------------------------------------------

    def notification_received(
        self, flow: Flow, kafka_offset: int, notification: Notification, context: Any
    ) -> bool:
        """A notification whose bytes lie in the store.

        Args:
            flow: Its partition.
            kafka_offset: Where it lies.
            notification: What it says.
            context: Kept on the entry for whoever decodes its bytes.

        Returns:
            False when the flow's position is none that this notification can have (the user gave a
            Kafka offset, unconverted); it is not taken then.
        """
        if _is_outside(flow, kafka_offset, notification.records):
            return False
        entry = Entry(flow, kafka_offset, notification, notification.records)
        entry.context = context
        entry.sources = [None] * len(notification.parts)
        entry.missing_parts = len(notification.parts)
        entry.charged_bytes = sum(_charge(part) for part in notification.parts)
        flow.entries.append(entry)
        self._wait(entry)
        return True

    def records_received(
        self, flow: Flow, kafka_offset: int, sources: Sequence[Any], records: int, size_bytes: int
    ) -> bool:
        """Records that came through Kafka itself: inline segments, or a plain record.

        Args:
            flow: Their partition.
            kafka_offset: Where they lie.
            sources: One per part.
            records: How many in all.
            size_bytes: Their size in memory.

        Returns:
            As `notification_received`.
        """
        if _is_outside(flow, kafka_offset, records):
            return False
        entry = Entry(flow, kafka_offset, None, records)
        entry.sources = list(sources)
        entry.charged_bytes = size_bytes
        entry.state = EntryState.READY
        self._held_bytes += size_bytes
        flow.payload_bytes += size_bytes
        flow.entries.append(entry)
        self._queue_if_ready(flow)
        return True

    def event_received(self, flow: Flow, kafka_offset: int, event: Any) -> None:
        """An end-of-partition or error event: handed out behind the records before it."""
        entry = Entry(flow, kafka_offset, None, 0)
        entry.event = event
        entry.state = EntryState.READY
        flow.entries.append(entry)
        self._queue_if_ready(flow)

    def damaged_received(
        self, flow: Flow, kafka_offset: int, failure: Failure, now_ms: int
    ) -> None:
        """A Kafka record that can't be read: a damaged notification, a position outside of it."""
        entry = Entry(flow, kafka_offset, None, 0)
        flow.entries.append(entry)
        self._fail(entry, failure, now_ms)

    # --- fetching -----------------------------------------------------------------------------

    def plan(self) -> list[FetchSection]:
        """The GETs to begin now, within slots and memory, in order of arrival."""
        sections: list[FetchSection] = []
        while self._waiting and self._fetches_in_flight < self._fetch_slots:
            name, entries = next(iter(self._waiting.items()))
            is_starving = self._fetches_in_flight == 0 and not self._ready
            charge = entries[0].charged_bytes
            if not is_starving and self._held_bytes + charge > self._prefetch_max_bytes:
                break
            sections += self._take_object(name, entries)
        return sections

    def _wait(self, entry: Entry) -> None:
        entry.state = EntryState.WAITING
        self._waiting.setdefault(_object_of(entry), []).append(entry)

    def _stop_waiting(self, entry: Entry) -> None:
        name = _object_of(entry)
        entries = self._waiting[name]
        entries.remove(entry)
        if not entries:
            del self._waiting[name]

    def _take_object(self, name: _ObjectName, entries: list[Entry]) -> list[FetchSection]:
        """Begin the first of an object's waiting entries and all others that memory allows."""
        taken: list[Entry] = []
        kept: list[Entry] = []
        for entry in entries:
            fits = self._held_bytes + entry.charged_bytes <= self._prefetch_max_bytes
            if fits or not taken:
                entry.state = EntryState.FETCHING
                self._held_bytes += entry.charged_bytes
                taken.append(entry)
            else:
                kept.append(entry)
        if kept:
            self._waiting[name] = kept
        else:
            del self._waiting[name]
        store, key = name
        parts = sorted(
            (
                (entry, index, part)
                for entry in taken
                for index, part in enumerate(_notification_of(entry).parts)
                if entry.sources[index] is None
            ),
            key=lambda item: item[2].byte_range.start,
        )
        merged = coalesce(
            [part.byte_range for _, _, part in parts], _COALESCE_GAP_BYTES, self._max_section_bytes
        )
        sections = [
            FetchSection(
                store,
                key,
                section,
                tuple(item for item in parts if section.contains(item[2].byte_range)),
            )
            for section in merged
        ]
        self._fetches_in_flight += len(sections)
        return sections

    def fetched(
        self, section: FetchSection, outcomes: Sequence[Any | Failure], now_ms: int
    ) -> None:
        """A GET was answered.

        Args:
            section: As `plan` gave it.
            outcomes: For each of its parts a decoded source, or what is wrong with it.
            now_ms: Monotonic time.
        """
        self._fetches_in_flight -= 1
        for (entry, part_index, _), outcome in zip(section.parts, outcomes, strict=True):
            if not entry.is_current:
                entry.missing_parts -= 1
                if entry.missing_parts == 0 or isinstance(outcome, Failure):
                    self._release(entry)
            elif entry.state is not EntryState.FETCHING:
                continue  # another of its parts has failed already
            elif isinstance(outcome, Failure):
                self._release(entry)
                self._fail(entry, outcome, now_ms)
            elif entry.sources[part_index] is None:
                entry.sources[part_index] = outcome
                entry.missing_parts -= 1
                if entry.missing_parts == 0:
                    entry.state = EntryState.READY
                    self._queue_if_ready(entry.flow)

    def _fail(self, entry: Entry, failure: Failure, now_ms: int) -> None:
        entry.failure = failure
        if failure.kind in self._skipped_kinds:
            entry.state = EntryState.SKIPPED
            count = self.skipped_records.get(failure.kind, 0)
            self.skipped_records[failure.kind] = count + max(1, entry.record_count)
            self._queue_if_ready(entry.flow)
            return
        entry.state = EntryState.FAILED
        entry.is_reported = failure.kind is FailureKind.TRANSIENT
        back_off_ms = min(_RETRY_MAX_MS, _RETRY_FIRST_MS << min(entry.attempts, 10))
        entry.attempts += 1
        entry.retry_at_ms = now_ms + back_off_ms
        if entry.notification is not None:
            entry.sources = [None] * len(entry.notification.parts)
            entry.missing_parts = len(entry.notification.parts)
        self._retrying.append(entry)
        self._queue_if_ready(entry.flow)

    def tick(self, now_ms: int) -> None:
        """Let failed entries whose back-off is over wait for a fetch again."""
        due = [e for e in self._retrying if e.is_reported and now_ms >= e.retry_at_ms]
        for entry in due:
            self._retrying.remove(entry)
            if entry.notification is not None:
                self._wait(entry)
            elif entry.failure is not None:
                # Nothing to fetch again: a damaged notification stays damaged, and is said again.
                self._fail(entry, entry.failure, now_ms)

    # --- handing out --------------------------------------------------------------------------

    def next_run(self) -> Run | Entry | None:
        """What to hand out next.

        Returns:
            A run of records; or an entry with an event (`event`), or with a `failure` that has not
            been reported since its last attempt; or None when nothing is ready.
        """
        while self._ready:
            flow = self._ready[0]
            if flow.is_paused_by_user or not flow.entries:
                self._ready.popleft()
                self._is_queued.discard(flow.key)
                continue
            entry = flow.entries[0]
            if entry.event is not None:
                self._finish(flow, entry)
                self._rotate(flow)
                return entry
            if entry.state is EntryState.FAILED and not entry.is_reported:
                entry.is_reported = True
                self._rotate(flow)
                return entry
            if entry.state is EntryState.SKIPPED:
                flow.settled_position = to_virtual(entry.kafka_offset + 1)
                self._finish(flow, entry)
                continue
            if entry.state is not EntryState.READY:
                self._ready.popleft()
                self._is_queued.discard(flow.key)
                continue
            run = self._run_of(flow, entry)
            if run is not None:
                return run
        return None

    def _run_of(self, flow: Flow, entry: Entry) -> Run | None:
        """The run at the flow's head; None when it has just been used up."""
        run = flow.run
        if run is not None and run.index < run.end:
            return run
        skip = 0
        if run is None:
            position = flow.needed_position
            if position is not None and position >= 0:
                skip = records_to_skip(position, entry.kafka_offset, entry.record_count)
            flow.needed_position = None
        else:
            flow.settled_position = run.position()
            entry.next_part += 1
        while entry.next_part < len(entry.sources):
            source = entry.sources[entry.next_part]
            if skip < source.records:
                flow.run = Run(entry, source, skip, source.records)
                return flow.run
            skip -= source.records
            entry.next_part += 1
        # The position's own record count covers it all: go on behind it.
        flow.settled_position = to_virtual(entry.kafka_offset + 1)
        flow.run = None
        self._finish(flow, entry)
        self._rotate(flow)
        return None

    def _finish(self, flow: Flow, entry: Entry) -> None:
        flow.entries.popleft()
        if entry.notification is None:
            flow.payload_bytes -= entry.charged_bytes
        self._release(entry)

    def _release(self, entry: Entry) -> None:
        if entry.state not in (EntryState.WAITING, EntryState.FAILED, EntryState.SKIPPED):
            self._held_bytes -= entry.charged_bytes
        entry.state = EntryState.SKIPPED
        entry.sources = []

    def _rotate(self, flow: Flow) -> None:
        """Let the other ready flows go first."""
        if self._ready and self._ready[0] is flow:
            self._ready.rotate(-1)

    def _queue_if_ready(self, flow: Flow) -> None:
        if flow.key in self._is_queued or not flow.entries or flow.is_paused_by_user:
            return
        head = flow.entries[0]
        ready = head.state in (EntryState.READY, EntryState.SKIPPED)
        if ready or (head.state is EntryState.FAILED and not head.is_reported):
            self._is_queued.add(flow.key)
            self._ready.append(flow)

    # --- flow control -------------------------------------------------------------------------

    def take_pauses(self) -> tuple[list[FlowKey], list[FlowKey]]:
        """Which partitions Kafka must pause and resume now, because of what is read ahead.

        Returns:
            Partitions to pause, partitions to resume; each is returned once per change.
        """
        pauses: list[FlowKey] = []
        resumes: list[FlowKey] = []
        for flow in self._flows.values():
            count = len(flow.entries)
            if flow.is_paused_by_us:
                if count <= _RESUME_AT_ENTRIES and flow.payload_bytes <= _PAUSE_AT_BYTES // 2:
                    flow.is_paused_by_us = False
                    resumes.append(flow.key)
            elif count >= _PAUSE_AT_ENTRIES or flow.payload_bytes >= _PAUSE_AT_BYTES:
                flow.is_paused_by_us = True
                pauses.append(flow.key)
        return pauses, resumes

    def next_retry_ms(self) -> int | None:
        """When `tick` has something to do, monotonic; None: nothing waits for a retry."""
        return min((e.retry_at_ms for e in self._retrying if e.is_reported), default=None)


def _is_outside(flow: Flow, kafka_offset: int, records: int) -> bool:
    position = flow.needed_position
    if position is None or position < 0 or flow.entries:
        return False
    remaining = remaining_records(position)
    return to_kafka(position) == kafka_offset and remaining is not None and remaining > records


def _object_of(entry: Entry) -> _ObjectName:
    notification = _notification_of(entry)
    if notification.key is None:
        raise AssertionError("an inline notification waits for a fetch")
    return notification.store, notification.key


def _notification_of(entry: Entry) -> Notification:
    if entry.notification is None:
        raise AssertionError("an entry without a notification waits for a fetch")
    return entry.notification


def _charge(part: Part) -> int:
    """Memory a part takes: its bytes as fetched and, when compressed, as decoded."""
    compressed = 0 if part.codec is Codec.NONE else part.byte_range.length
    return compressed + part.uncompressed_bytes
