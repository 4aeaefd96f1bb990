"""The debatcher against a model of what each partition must still hand out, in order.

The machine plays Kafka (records arrive in offset order, with gaps), the store (GETs are answered
in any order, or fail), the group (partitions come and go) and the user (takes, pauses, seeks).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from blobmsg.core.debatcher import (
    Debatcher,
    Entry,
    EntryState,
    Failure,
    FailureKind,
    FetchSection,
    Run,
)
from tests.helpers.consuming import (
    ABSENT,
    MISSING,
    REFUSED,
    TRANSIENT,
    FakeRecords,
    decode,
    decoded,
    inline_records,
    notification,
    object_key,
    part,
    part_bytes,
)

TOPIC = "flights"
OBJECTS = 3
LARGEST_PART = 6
FULL = 1 << 20


@dataclass
class Record:
    """What Kafka keeps at one offset."""

    kafka_offset: int
    kind: str  # blob, inline, plain
    counts: list[int]  # records by part
    object_number: int = 0
    starts: list[int] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(self.counts)


@dataclass
class Partition:
    """One partition's log, and what the model expects of it while it is assigned."""

    log: list[Record] = field(default_factory=list)
    end: int = 0
    is_assigned: bool = False
    cursor: int = 0  # index in `log` of what Kafka brings next
    position: tuple[int, int | None] | None = None  # K and remaining, until the first record
    pending: deque[Any] = field(default_factory=deque)  # labels and events, in order
    is_stuck: bool = False  # behind a position that no notification has
    is_paused: bool = False
    last: int | None = None  # position after the last record, since assign or seek
    stored: int | None = None


class RecordDraw(NamedTuple):
    """One record to be written, as Hypothesis draws it."""

    kind: str
    counts: list[int]
    skipped_offsets: int  # control or aborted records before it
    object_number: int
    gap: int  # bytes of others before each part


record_draws = st.builds(
    RecordDraw,
    st.sampled_from(["blob", "blob", "blob", "inline", "plain"]),
    st.lists(st.integers(1, LARGEST_PART), min_size=1, max_size=3),
    st.sampled_from([0, 0, 0, 1, 3]),
    st.integers(0, OBJECTS - 1),
    st.sampled_from([0, 0, 5, 1000, 300_000]),
)


class DebatcherMachine(RuleBasedStateMachine):
    skips_missing = False

    def __init__(self) -> None:
        super().__init__()
        self.partitions = [Partition() for _ in range(3)]
        self.object_ends = [0] * OBJECTS
        self.in_flight: list[FetchSection] = []
        self.now_ms = 0
        self.events = 0
        self.run: Run | None = None
        self.answered_missing: set[tuple[int, int]] = set()

    @initialize(
        limit=st.sampled_from([1, 500, 2000, 1 << 20]),
        slots=st.integers(1, 4),
        max_section=st.sampled_from([300, 1 << 20]),
        gather_ms=st.sampled_from([0, 25]),
        logs=st.lists(st.lists(record_draws, min_size=1, max_size=8), min_size=3, max_size=3),
    )
    def build(
        self,
        limit: int,
        slots: int,
        max_section: int,
        gather_ms: int,
        logs: list[list[RecordDraw]],
    ) -> None:
        self.limit = limit
        self.core = Debatcher(
            prefetch_max_bytes=limit,
            fetch_slots=slots,
            max_section_bytes=max_section,
            gather_ms=gather_ms,
            skips_missing=self.skips_missing,
            skips_expired=False,
        )
        for number, partition in enumerate(self.partitions):
            for draw in logs[number]:
                self._append_one(partition, draw)
            self.core.assigned((TOPIC, number), None)
            partition.is_assigned = True
        self.serve(5)

    # --- Kafka --------------------------------------------------------------------------------

    @rule(number=st.integers(0, 2), draws=st.lists(record_draws, min_size=1, max_size=4))
    def append(self, number: int, draws: list[RecordDraw]) -> None:
        for draw in draws:
            self._append_one(self.partitions[number], draw)

    def _append_one(self, partition: Partition, draw: RecordDraw) -> None:
        counts = draw.counts if draw.kind != "plain" else [1]
        record = Record(partition.end + draw.skipped_offsets, draw.kind, counts)
        if draw.kind == "blob":
            record.object_number = draw.object_number
            for count in counts:
                start = self.object_ends[draw.object_number] + draw.gap
                record.starts.append(start)
                self.object_ends[draw.object_number] = start + part_bytes(count)
        partition.log.append(record)
        partition.end = record.kafka_offset + 1

    @rule(most=st.integers(0, 5))
    def serve(self, most: int) -> None:
        """What a shell does on every poll: take what Kafka has, begin what may be fetched."""
        for number in range(3):
            self.receive(number, most)
        self.plan()

    def receive(self, number: int, most: int) -> None:
        partition = self.partitions[number]
        flow = self.core.flows.get((TOPIC, number))
        if flow is None or partition.is_paused or flow.is_paused_by_us:
            return
        for _ in range(most):
            if partition.cursor >= len(partition.log):
                break
            self._receive_one(number, partition, partition.log[partition.cursor])
            partition.cursor += 1

    def _receive_one(self, number: int, partition: Partition, record: Record) -> None:
        flow = self.core.flows[TOPIC, number]
        labels = [(number, record.kafka_offset, index) for index in range(record.records)]
        is_outside = False
        if partition.position is not None:
            kafka_offset, remaining = partition.position
            if kafka_offset == record.kafka_offset and remaining is not None:
                is_outside = remaining > record.records
                labels = labels[-remaining:]
            partition.position = None
        if record.kind == "blob":
            parts = [
                part(count, start)
                for count, start in zip(record.counts, record.starts, strict=True)
            ]
            told = notification(*parts, key=object_key(record.object_number))
            taken = self.core.notification_received(flow, record.kafka_offset, told, None)
        else:
            sources, records = inline_records(number, record.kafka_offset, record.counts)
            taken = self.core.records_received(
                flow, record.kafka_offset, sources, records, part_bytes(records)
            )
        assert taken is not is_outside
        if is_outside:
            event("a position that no notification has")
            self.core.damaged_received(flow, record.kafka_offset, REFUSED, self.now_ms)
            partition.is_stuck = True
        partition.pending.extend(labels)

    @rule(number=st.integers(0, 2), is_told=st.booleans(), unseen=st.sampled_from([0, 0, 1, 4]))
    def reach_end(self, number: int, is_told: bool, unseen: int) -> None:
        """Kafka says that nothing comes; behind the records lie so many markers."""
        flow = self.core.flows.get((TOPIC, number))
        partition = self.partitions[number]
        if flow is None or partition.cursor < len(partition.log):
            return
        partition.end += unseen
        self.events += 1
        self.core.end_received(flow, partition.end, f"end {self.events}" if is_told else None)
        if is_told:
            partition.pending.append(f"end {self.events}")

    # --- the group ----------------------------------------------------------------------------

    @rule(number=st.integers(0, 2), data=st.data(), comes_back=st.booleans())
    def rebalance(self, number: int, data: st.DataObject, comes_back: bool) -> None:
        """Take the partition if it is ours, and give it, perhaps to us again."""
        partition = self.partitions[number]
        was_assigned = partition.is_assigned
        self.core.revoked((TOPIC, number))
        partition.is_assigned = False
        partition.pending.clear()
        if comes_back or not was_assigned:
            self.core.assigned((TOPIC, number), self._go_to(partition, data))
            partition.is_assigned = True
            partition.is_paused = False
            partition.stored = None

    # --- the user -----------------------------------------------------------------------------

    @rule(number=st.integers(0, 2), data=st.data())
    def seek(self, number: int, data: st.DataObject) -> None:
        partition = self.partitions[number]
        if not partition.is_assigned:
            return
        self.core.sought((TOPIC, number), self._go_to(partition, data))
        assert self.core.flows[TOPIC, number].position() is None
        if not self.skips_missing:  # what was skipped moves it, too
            stored = self.core.flows[TOPIC, number].stored_position()
            assert partition.stored is None or (stored or -1) >= partition.stored

    def _go_to(self, partition: Partition, data: st.DataObject) -> int | None:
        """Draw a place in the log, as the virtual offset a user gives and as the model has it."""
        partition.pending.clear()
        partition.is_stuck = False
        partition.last = None
        if data.draw(st.booleans(), "from the start"):
            partition.cursor = 0
            partition.position = None
            return None
        kafka_offset = data.draw(st.integers(0, partition.end), "Kafka offset")
        remaining = data.draw(st.none() | st.integers(1, 3 * LARGEST_PART + 1), "remaining")
        partition.position = (kafka_offset, remaining)
        partition.cursor = sum(record.kafka_offset < kafka_offset for record in partition.log)
        return kafka_offset * FULL if remaining is None else (kafka_offset + 1) * FULL - remaining

    @rule(number=st.integers(0, 2), is_paused=st.booleans())
    def pause(self, number: int, is_paused: bool) -> None:
        if self.partitions[number].is_assigned:
            self.core.paused_by_user((TOPIC, number), is_paused=is_paused)
            self.partitions[number].is_paused = is_paused
            if self.run is not None and self.run.entry.flow.key == (TOPIC, number):
                self.run = None  # as the shell does

    @rule(most=st.integers(1, 20))
    def take(self, most: int) -> None:
        for _ in range(most):
            if self.run is None or self.run.index >= self.run.end:
                upcoming = self.core.next_run()
                if upcoming is None:
                    return
                if not isinstance(upcoming, Run):
                    self._check_entry(upcoming)
                    continue
                self.run = upcoming
                self._check_position_before(upcoming)
            source: FakeRecords = self.run.source
            label = source.label(self.run.index)
            self.run.index += 1
            self._check_record(label, self.run.entry)

    def _check_position_before(self, run: Run) -> None:
        flow = run.entry.flow
        if not self.skips_missing and run.index == run.first:
            last, position = self.partitions[flow.key[1]].last, flow.position()
            assert position == last or (position or -1) > (last or -1)  # behind what nobody sees

    def _check_record(self, label: tuple[int, int, int], entry: Entry) -> None:
        number, kafka_offset, index = label
        partition = self.partitions[number]
        assert partition.is_assigned
        assert not partition.is_paused
        assert not partition.is_stuck
        self._pass_skipped(number, partition, label)
        assert partition.pending.popleft() == label
        partition.last = partition.stored = (
            (kafka_offset + 1) * FULL - entry.record_count + index + 1
        )
        assert entry.flow.position() == partition.last

    def _check_entry(self, entry: Entry) -> None:
        number = entry.flow.key[1]
        partition = self.partitions[number]
        assert partition.is_assigned
        assert not partition.is_paused
        if entry.event is not None:
            self._pass_skipped(number, partition, entry.event)
            assert partition.pending.popleft() == entry.event
            return
        assert entry.failure is not None
        assert entry.failure.kind not in (FailureKind.TRANSIENT, FailureKind.ABSENT)
        wanted = next(i for i in partition.pending if i[1:2] == (entry.kafka_offset,))
        self._pass_skipped(number, partition, wanted)
        head = partition.pending[0]
        if partition.is_stuck:
            return
        assert entry.first_offset() == (head[1] + 1) * FULL - entry.record_count + head[2]

    def _pass_skipped(self, number: int, partition: Partition, wanted: object) -> None:
        """Only what was answered missing may be left out, and only as a whole."""
        while partition.pending and partition.pending[0] != wanted:
            _, kafka_offset, _ = partition.pending[0]
            assert self.skips_missing
            assert (number, kafka_offset) in self.answered_missing
            while partition.pending and partition.pending[0][1:2] == (kafka_offset,):
                partition.pending.popleft()

    # --- the store ----------------------------------------------------------------------------

    def plan(self) -> None:
        sections = self.core.plan(self.now_ms)
        for section in sections:
            assert section.parts
            for entry, _, fetched in section.parts:
                assert section.section.contains(fetched.byte_range)
                assert entry.is_current
                assert not self.partitions[entry.flow.key[1]].is_paused
                self.answered_missing.discard((entry.flow.key[1], entry.kafka_offset))
        begun = [(id(entry), index) for section in sections for entry, index, _ in section.parts]
        assert len(begun) == len(set(begun))
        self.in_flight += sections

    @precondition(lambda self: self.in_flight)
    @rule(
        which=st.integers(0, 20),
        failures=st.lists(
            st.sampled_from([None, None, None, TRANSIENT, ABSENT, MISSING, REFUSED]),
            min_size=1,
            max_size=4,
        ),
    )
    def answer(self, which: int, failures: list[Failure | None]) -> None:
        section = self.in_flight.pop(which % len(self.in_flight))
        outcomes: list[Any] = []
        for (entry, part_index, _), failure in zip(section.parts, cycle(failures), strict=False):
            outcomes.append(decode(entry, part_index) if failure is None else failure)
            if failure in (ABSENT, MISSING) and entry.is_current:
                self.answered_missing.add((entry.flow.key[1], entry.kafka_offset))
        self.core.fetched(section, outcomes, self.now_ms)

    @rule()
    def answer_all(self) -> None:
        sections, self.in_flight = self.in_flight, []
        for section in sections:
            self.core.fetched(section, decoded(section), self.now_ms)

    @rule(rounds=st.integers(1, 6), most=st.integers(1, 10))
    def go_on(self, rounds: int, most: int) -> None:
        """All goes well for a while."""
        for _ in range(rounds):
            self.serve(5)
            self.answer_all()
            self.take(most)
            self.now_ms += 25

    @rule(elapsed_ms=st.integers(0, 40_000))
    def wait(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.core.tick(self.now_ms)
        self.core.take_pauses()

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def memory_is_bounded(self) -> None:
        flows = self.core.flows.values()
        payload = sum(flow.payload_bytes for flow in flows)
        largest = max(
            (part_bytes(0) * 2 + part_bytes(r.records) for p in self.partitions for r in p.log),
            default=0,
        )
        assert payload <= self.core.held_bytes <= self.limit + largest + payload

    @invariant()
    def no_position_is_behind_what_is_still_to_come(self) -> None:
        for (_, number), flow in self.core.flows.items():
            position, pending = flow.position(), self.partitions[number].pending
            label = next((label for label in pending if isinstance(label, tuple)), None)
            if position is None or label is None or self.skips_missing:
                continue
            _, kafka_offset, index = label
            log = self.partitions[number].log
            count = next(r.records for r in log if r.kafka_offset == kafka_offset)
            assert position <= (kafka_offset + 1) * FULL - count + index

    @invariant()
    def what_is_held_is_what_is_there(self) -> None:
        entries = [entry for flow in self.core.flows.values() for entry in flow.entries]
        in_flight = {id(e): e for section in self.in_flight for e, _, _ in section.parts}
        in_flight.update({id(e): e for e in entries})
        assert self.core.held_bytes == sum(entry.held_bytes for entry in in_flight.values())
        assert self.core.fetches_in_flight == len(self.in_flight)
        for entry in in_flight.values():
            has_bytes = entry.state in (EntryState.FETCHING, EntryState.READY)
            is_event = entry.is_end or entry.event is not None
            assert (entry.held_bytes > 0) is (has_bytes and not is_event)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for number in range(3):
            self.pause(number, False)
        # Enough rounds for every entry to be begun alone, and once more after a failure.
        rounds = 10 + 6 * sum(len(partition.log) for partition in self.partitions)
        for _ in range(rounds):
            for number, partition in enumerate(self.partitions):
                if partition.is_assigned and partition.is_stuck:
                    self.core.sought((TOPIC, number), None)
                    partition.pending.clear()
                    partition.cursor, partition.position, partition.is_stuck = 0, None, False
                self.receive(number, 5)
            self.plan()
            self.memory_is_bounded()
            self.answer_all()
            self.take(1000)
            self.wait(40_000)
        for number, partition in enumerate(self.partitions):
            self._pass_skipped(number, partition, None)
            assert not partition.pending
            assert partition.cursor == len(partition.log) or not partition.is_assigned
        assert self.core.held_bytes == 0
        assert self.core.fetches_in_flight == 0
        assert self.core.plan(self.now_ms) == []


class SkippingDebatcherMachine(DebatcherMachine):
    skips_missing = True


# A failure takes minutes to shrink, and only then says how to repeat it.
pytestmark = pytest.mark.timeout(400)

MACHINE_SETTINGS = settings(max_examples=200, stateful_step_count=60, deadline=None)


def test_each_partition_is_handed_out_once_in_order_within_memory() -> None:
    run_state_machine_as_test(DebatcherMachine, settings=MACHINE_SETTINGS)


def test_only_what_is_missing_is_skipped() -> None:
    run_state_machine_as_test(SkippingDebatcherMachine, settings=MACHINE_SETTINGS)
