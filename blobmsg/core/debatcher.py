"""What a consumer fetches, when, and in which order it hands records out.

Decides: what a failed fetch leads to, what gives way when memory is short (`prefetch` decides the
order of fetches within it), when a partition's reading ahead pauses, which records come next.
Never: how bytes are fetched, what a user's callback does. Told of everything by its shells
(`blobmsg.consumption`, `blobmsg.intake`, `blobmsg.handout`; Spark's); results of fetches that
belong to an older assignment are dropped.

A `Flow` is one assigned partition: a queue of `Entry`s in Kafka's order, the head of which is
handed out. States of an entry: WAITING (a notification, not fetched) -> FETCHING -> READY (records
can be handed out; WAITING again when its flow is paused and memory is short), FAILED (reported
unless it will pass by itself; WAITING again after a back-off) or SKIPPED (passed over); plain and
inline records are READY at once. Moved by `plan`, `fetched`, `tick`. A fetch of several GETs has
its outcome when all of them are answered, so that their bytes stay charged and no late answer
meets a new attempt.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from blobmsg.core.flow import Entry, EntryState, Failure, FailureKind, Flow, FlowKey, Run
from blobmsg.core.offsets import (
    VirtualOffset,
    records_to_skip,
    remaining_records,
    to_kafka,
    to_virtual,
)
from blobmsg.core.prefetch import FetchSection, Prefetch, size_bytes_of
from blobmsg.core.sequences import Sequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobmsg.core.flow import RecordSource
    from blobmsg.format.notification import Notification

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

# Notifications read ahead per partition before Kafka is told to pause it. 2,000 are about 1 MB.
_PAUSE_AT_ENTRIES: Final = 2000
_RESUME_AT_ENTRIES: Final = 500
# Plain and inline payload read ahead per partition before it is paused. One entry may be larger
# alone: it is in the queue by then, so pausing never keeps it from being handed out.
_PAUSE_AT_BYTES: Final = 16 * 1024 * 1024
# Plain and inline entries that can be handed out now, over all partitions, from which on no more
# are read: pausing costs, for librdkafka throws away what it has fetched of a paused partition.
_ENOUGH_PAYLOAD_ENTRIES: Final = 1000
_READ_AHEAD_RECORDS: Final = 500
_RETRY_FIRST_MS: Final = 500
_RETRY_MAX_MS: Final = 30_000
# What is not there is looked for so often again, 3.5 s in all, before it counts as missing: an
# object that is replicated from elsewhere may come later than its notification.
_ABSENT_RETRIES: Final = 3

# What may pass by itself, so that nobody is told of it.
_PASSING: Final = (FailureKind.TRANSIENT, FailureKind.ABSENT)


class Debatcher:
    """The consumer's flows and fetches. Threads: under the consumer's lock.

    Args:
        prefetch_max_bytes: Limit of decoded and in-flight bytes; one entry is always admitted.
        fetch_slots: With this many GETs in flight no further object is begun.
        max_section_bytes: Largest GET made by merging neighbours.
        gather_ms: An object is begun when no notification of it has come for so long.
        skips_missing: `blobmsg.on.missing` is `skip`.
        skips_expired: `auto.offset.reset` lets reading go on behind what Kafka should have deleted.
        checks_positions: `blobmsg.offset.check`: refuse positions that no notification has.
    """

    def __init__(
        self,
        *,
        prefetch_max_bytes: int,
        fetch_slots: int,
        max_section_bytes: int,
        gather_ms: int,
        skips_missing: bool,
        skips_expired: bool,
        checks_positions: bool = True,
    ) -> None:
        self._skipped_kinds = {
            kind
            for kind, skips in (
                (FailureKind.MISSING, skips_missing),
                (FailureKind.EXPIRED, skips_expired),
            )
            if skips
        }
        self._checks_positions = checks_positions
        self.skipped_records: dict[FailureKind, int] = {}  # by kind, for statistics
        self._prefetch = Prefetch(
            max_bytes=prefetch_max_bytes,
            fetch_slots=fetch_slots,
            max_section_bytes=max_section_bytes,
            gather_ms=gather_ms,
        )
        self._sequences = Sequences()
        self._flows: dict[FlowKey, Flow] = {}
        # Flows whose head can be handed out, round robin; never one that the user has paused.
        self._ready: deque[Flow] = deque()
        self._is_queued: set[FlowKey] = set()
        self._retrying: list[Entry] = []

    # --- assignment ---------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Decoded and in-flight bytes now."""
        return self._prefetch.held_bytes

    @property
    def sequence_gaps(self) -> int:
        """How often notifications of one producer were missing in a partition, for statistics."""
        return self._sequences.gaps

    @property
    def fetches_in_flight(self) -> int:
        """GETs begun and not answered."""
        return self._prefetch.fetches_in_flight

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

    def taken_back(self, key: FlowKey, position: int | None) -> None:
        """The user does not have what was taken from this position on; `sought` follows.

        Args:
            key: An assigned partition.
            position: None: the user has nothing since the assignment or the last seek.
        """
        flow = self._flows[key]
        self._end_run(flow)
        flow.settled_position = None if position is None else VirtualOffset(position)

    def sought(self, key: FlowKey, position: int | None) -> None:
        """Go on at another position; what was read ahead is dropped.

        Args:
            key: An assigned partition.
            position: Where to; None: where Kafka's client begins by itself.
        """
        flow = self._flows[key]
        flow.position_before_seek = flow.stored_position()
        self._drop_read_ahead(flow)
        flow.settled_position = None
        flow.needed_position = position
        flow.next_offset = None if position is None else to_kafka(position)

    def _drop_read_ahead(self, flow: Flow) -> None:
        self._end_run(flow)
        self._sequences.forget(flow.key)
        flow.generation += 1
        for entry in flow.entries:
            if entry.state is EntryState.WAITING and not flow.is_paused_by_user:
                self._prefetch.withdraw(entry)
            # What is in flight is charged until its answer comes, for its bytes are in memory.
            if entry.state is not EntryState.FETCHING:
                self._prefetch.release(entry)
        flow.entries.clear()
        flow.payload_bytes = flow.payload_entries = 0
        self._retrying = [entry for entry in self._retrying if entry.flow is not flow]
        self._unqueue(flow)

    def _end_run(self, flow: Flow) -> None:
        """Take the run back that the shell may still have."""
        run = flow.run
        if run is not None:
            flow.settled_position = flow.position()
            run.end = run.index
            flow.run = None

    def paused_by_user(self, key: FlowKey, *, is_paused: bool) -> None:
        """Stop or go on handing out a partition's records.

        What was read ahead stays while there is memory for it; nothing more is fetched.
        """
        flow = self._flows[key]
        if flow.is_paused_by_user == is_paused:
            return
        waiting = [entry for entry in flow.entries if entry.state is EntryState.WAITING]
        flow.is_paused_by_user = is_paused
        if is_paused:
            self._unqueue(flow)
            for entry in waiting:
                self._prefetch.withdraw(entry)
        else:
            for entry in waiting:
                self._prefetch.wait(entry)
            self._queue_if_ready(flow)

    # --- what Kafka brought -------------------------------------------------------------------

    def sequence_received(self, flow: Flow, notification: Notification) -> None:
        """A notification came, whatever it leads to: its payload in the store or inline."""
        self._sequences.received(flow.key, notification.producer_id, notification.sequence)

    def notification_received(
        self, flow: Flow, kafka_offset: int, notification: Notification, context: object
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
        if self._is_outside(flow, kafka_offset, notification.records):
            return False
        entry = Entry(flow, kafka_offset, notification, notification.records)
        entry.context = context
        entry.size_bytes = size_bytes_of(notification)
        flow.entries.append(entry)
        self._wait(entry)
        return True

    def records_received(
        self,
        flow: Flow,
        kafka_offset: int,
        sources: Sequence[RecordSource],
        records: int,
        size_bytes: int,
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
        if self._is_outside(flow, kafka_offset, records):
            return False
        entry = Entry(flow, kafka_offset, None, records)
        entry.sources = list(sources)
        entry.state = EntryState.READY
        self._prefetch.hold(entry, size_bytes)
        flow.payload_bytes += size_bytes
        flow.payload_entries += 1
        flow.entries.append(entry)
        self._queue_if_ready(flow)
        return True

    def event_received(self, flow: Flow, kafka_offset: int, event: object) -> None:
        """An error event: handed out behind the records before it."""
        self._add_event(flow, kafka_offset, event, is_end=False)

    def end_received(self, flow: Flow, kafka_offset: int, event: object | None) -> None:
        """The end of the partition, for now: all before this Kafka offset has come.

        It may be more than the records before it: markers of transactions and aborted records,
        which nobody sees. Once those records are handed out, the position and with it commits are
        behind all of it, as in stock, else a reader would never be seen to be at the end.

        Args:
            flow: Its partition.
            kafka_offset: Of the next record that will be there.
            event: Handed out behind the records; None: the user does not wish to hear of it.
        """
        if event is None:
            # Nothing to hand out, so no entry more than it takes to keep the order.
            if not flow.entries:
                _pass(flow, to_virtual(kafka_offset))
                return
            last = flow.entries[-1]
            if last.is_end and last.event is None:
                last.kafka_offset = kafka_offset
                return
        self._add_event(flow, kafka_offset, event, is_end=True)

    def _add_event(
        self, flow: Flow, kafka_offset: int, event: object | None, *, is_end: bool
    ) -> None:
        entry = Entry(flow, kafka_offset, None, 0)
        entry.event = event
        entry.is_end = is_end
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

    def _is_outside(self, flow: Flow, kafka_offset: int, records: int) -> bool:
        position = flow.needed_position
        if not self._checks_positions or position is None or to_kafka(position) != kafka_offset:
            return False
        remaining = remaining_records(position)
        return remaining is not None and remaining > records

    def room_records(self) -> int:
        """How many Kafka records to read ahead now, besides the one that a poll takes anyway."""
        entries = sum(flow.payload_entries for flow in self._ready)
        payload_bytes = sum(flow.payload_bytes for flow in self._ready)
        if entries >= _ENOUGH_PAYLOAD_ENTRIES or payload_bytes >= self._prefetch.max_bytes // 2:
            return 0
        return _READ_AHEAD_RECORDS

    # --- fetching -----------------------------------------------------------------------------

    @property
    def has_waiting(self) -> bool:
        """Whether a notification waits for its fetch."""
        return self._prefetch.has_waiting

    def plan(self, now_ms: int) -> list[FetchSection]:
        """The GETs to begin now.

        Within memory in order of arrival. When nothing fits and nothing is left that could make
        room by itself (in flight, or fetched and ready for the user), a flow's head is begun all
        the same; while the user has other records only if it fits.
        """
        sections = self._prefetch.plan(now_ms)
        gathered = self._prefetch.first_gathered(now_ms) is not None
        if gathered and not sections and not self.fetches_in_flight and not self._makes_room():
            head = next((entry for entry in self._prefetch.waiting() if _is_head(entry)), None)
            if head is not None:
                self._evict_paused(head)
                if not self._ready or not self._prefetch.would_overflow(head):
                    sections = self._prefetch.begin(head)
        return sections

    def _makes_room(self) -> bool:
        """Whether the user takes something that was fetched; plain records hold little."""
        return any(flow.entries and flow.entries[0].notification for flow in self._ready)

    def _evict_paused(self, wanted: Entry) -> None:
        """Give back what paused flows hold until `wanted` fits; it is fetched again on resume."""
        for flow in self._flows.values():
            if not flow.is_paused_by_user:
                continue
            for entry in list(reversed(flow.entries)):
                if not self._prefetch.would_overflow(wanted):
                    return
                if entry.state is EntryState.READY and entry.notification is not None:
                    self._evict(flow, entry)

    def _evict(self, flow: Flow, entry: Entry) -> None:
        entry.state = EntryState.WAITING
        self._prefetch.release(entry)
        run = flow.run
        if run is None or run.entry is not entry:
            return
        position = run.position()
        self._end_run(flow)
        if to_kafka(position) == entry.kafka_offset:
            flow.needed_position = position
            entry.next_part = 0
        else:
            # Its last record has been taken; fetched again, all of them would come again.
            flow.entries.popleft()

    def _wait(self, entry: Entry) -> None:
        """What belongs to a paused flow waits for its resume before it waits for a fetch."""
        entry.state = EntryState.WAITING
        if not entry.flow.is_paused_by_user:
            self._prefetch.wait(entry)

    def fetched(self, section: FetchSection, outcomes: Sequence[object], now_ms: int) -> None:
        """A GET was answered.

        Args:
            section: As `plan` gave it.
            outcomes: For each of its parts a decoded `RecordSource`, or the `Failure`.
            now_ms: Monotonic time.
        """
        self._prefetch.fetches_in_flight -= 1
        for (entry, part_index, _), outcome in zip(section.parts, outcomes, strict=True):
            entry.parts_in_flight -= 1
            if not isinstance(outcome, Failure):
                entry.sources[part_index] = outcome
            elif entry.failure is None or entry.failure.kind in _PASSING:
                entry.failure = outcome  # one that will not pass by itself says more
            if entry.parts_in_flight == 0:
                self._fetch_ended(entry, now_ms)

    def _fetch_ended(self, entry: Entry, now_ms: int) -> None:
        if not entry.is_current:
            self._prefetch.release(entry)
        elif entry.failure is not None:
            self._prefetch.release(entry)
            self._fail(entry, entry.failure, now_ms)
        else:
            entry.state = EntryState.READY
            self._queue_if_ready(entry.flow)

    def _fail(self, entry: Entry, failure: Failure, now_ms: int) -> None:
        if failure.kind is FailureKind.ABSENT:
            entry.times_absent += 1
            if entry.times_absent > _ABSENT_RETRIES:
                failure = Failure(FailureKind.MISSING, failure.error)
            if entry.times_absent == _ABSENT_RETRIES + 1:
                entry.attempts = 0  # whoever is told of it and puts it back does not wait for long
        entry.failure = failure
        if failure.kind in self._skipped_kinds:
            entry.state = EntryState.SKIPPED
            count = self.skipped_records.get(failure.kind, 0)
            self.skipped_records[failure.kind] = count + max(1, entry.record_count)
        else:
            entry.state = EntryState.FAILED
            entry.is_reported = failure.kind in _PASSING
            back_off_ms = min(_RETRY_MAX_MS, _RETRY_FIRST_MS << min(entry.attempts, 10))
            entry.attempts += 1
            entry.retry_at_ms = now_ms + back_off_ms
            self._retrying.append(entry)
        self._queue_if_ready(entry.flow)

    def tick(self, now_ms: int) -> None:
        """Let failed entries whose back-off is over wait for a fetch again.

        Those that the user has not been told of yet stay as they are until then.
        """
        retrying, self._retrying = self._retrying, []
        for entry in retrying:
            if not entry.is_reported or now_ms < entry.retry_at_ms:
                self._retrying.append(entry)
            elif entry.notification is None and entry.failure is not None:
                # Nothing to fetch again: a damaged notification stays damaged, and is said again.
                self._fail(entry, entry.failure, now_ms)
            else:
                self._wait(entry)

    # --- handing out --------------------------------------------------------------------------

    # Ctrl-C can raise in this part of the shell's call (elsewhere it waits), and only where Python
    # calls something. So what changes together is assigned after the last call.

    def next_run(self) -> Run | Entry | None:
        """What to hand out next.

        Returns:
            A run of records; or an entry with an event (`event`), or with a `failure` that has not
            been reported since its last attempt; or None when nothing is ready.
        """
        while self._ready:
            flow = self._ready[0]
            entry = flow.entries[0] if flow.entries else None
            if entry is None or not _is_due(entry):
                self._is_queued.discard(flow.key)
                del self._ready[0]
            elif entry.is_end or entry.event is not None:
                if entry.is_end:
                    _pass(flow, to_virtual(entry.kafka_offset))
                self._finish(flow, entry)
                if entry.event is not None:
                    return entry
            elif entry.state is EntryState.FAILED:
                entry.is_reported = True
                self._ready.rotate(-1)
                return entry
            elif entry.state is EntryState.SKIPPED:
                flow.settled_position = to_virtual(entry.kafka_offset + 1)
                self._finish(flow, entry)
            else:
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
        if run is not None:
            settled = run.position()
            flow.settled_position, flow.run = settled, None
            entry.next_part += 1
        position = flow.needed_position
        if position is not None and position >= 0:
            skip = records_to_skip(position, entry.kafka_offset, entry.record_count)
        part_index = entry.next_part
        while part_index < len(entry.sources):
            source = entry.sources[part_index]
            if skip < source.records:
                run = Run(entry, source, skip, source.records)
                flow.run, flow.needed_position, entry.next_part = run, None, part_index
                return run
            skip -= source.records
            part_index += 1
        end = to_virtual(entry.kafka_offset + 1)
        flow.settled_position, flow.needed_position, entry.next_part = end, None, part_index
        self._finish(flow, entry)
        return None

    def _finish(self, flow: Flow, entry: Entry) -> None:
        """The ready flow's head is done: forget it and let the other ready flows go first."""
        self._ready.rotate(-1)
        held_bytes = entry.held_bytes
        self._prefetch.release(entry)
        if entry.notification is None and entry.record_count:
            flow.payload_bytes -= held_bytes
            flow.payload_entries -= 1
        del flow.entries[0]

    def _unqueue(self, flow: Flow) -> None:
        if flow.key in self._is_queued:
            self._is_queued.discard(flow.key)
            self._ready.remove(flow)

    def _queue_if_ready(self, flow: Flow) -> None:
        if flow.key in self._is_queued or not flow.entries or flow.is_paused_by_user:
            return
        if _is_due(flow.entries[0]):
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
            if flow.is_paused_by_us:
                if self._may_resume(flow):
                    flow.is_paused_by_us = False
                    resumes.append(flow.key)
            elif self._must_pause(flow):
                flow.is_paused_by_us = True
                pauses.append(flow.key)
        return pauses, resumes

    def _must_pause(self, flow: Flow) -> bool:
        if len(flow.entries) >= _PAUSE_AT_ENTRIES or flow.payload_bytes >= _PAUSE_AT_BYTES:
            return True
        # Payload behind a head that can't be handed out yet only makes memory shorter.
        is_full = self._prefetch.held_bytes >= self._prefetch.max_bytes
        return is_full and flow.payload_bytes > 0 and flow.key not in self._is_queued

    def _may_resume(self, flow: Flow) -> bool:
        if len(flow.entries) > _RESUME_AT_ENTRIES or flow.payload_bytes > _PAUSE_AT_BYTES // 2:
            return False
        is_roomy = self._prefetch.held_bytes <= self._prefetch.max_bytes // 2
        return is_roomy or not flow.payload_bytes


def _is_due(entry: Entry) -> bool:
    """Whether a flow with this head has something to hand out or to tell."""
    if entry.state is EntryState.FAILED:
        return not entry.is_reported
    return entry.state in (EntryState.READY, EntryState.SKIPPED)


def _pass(flow: Flow, end: VirtualOffset) -> None:
    """Move the position behind what nobody sees; where nothing lies it stays as it is."""
    start = flow.needed_position if flow.settled_position is None else flow.settled_position
    if start is not None and 0 <= start < end:
        flow.settled_position = end


def _is_head(entry: Entry) -> bool:
    return entry.flow.entries[0] is entry
