"""The producer core against a model of what was appended to each partition.

The machine plays the application (records, flushes, purges), the store (uploads end in any order,
or fail; or an attempt does, and segments go inline), Kafka (answers in any order, refuses, lets its
queue run full) and the clock. Every record has a timestamp of its own, by which the model knows it
again. A second Kafka makes batches of what it is given, refuses a batch as a whole for one guilty
record, and keeps a log.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

from blobmsg.core import notifier as notifier_module
from blobmsg.core import segments as segments_module
from blobmsg.core.cutting import cut_segment
from blobmsg.core.events import (
    CutSegment,
    EncodeInline,
    Notify,
    ProducerAction,
    Report,
    UploadBatch,
)
from blobmsg.core.segments import Batch, Route, SealedSegment, SegmentState
from blobmsg.format.object_key import retention_class
from blobmsg.format.rows import Rows
from tests.helpers.producing import (
    DAY_MS,
    DEADLINE_MS,
    HANGS_AFTER_MS,
    REFUSED,
    TIMED_OUT,
    ScriptedRouter,
    encoded_of,
    make_bench,
    part_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg.format.segment import Headers

TOPICS = ("flights", "weather")
PARTITIONS = 3
INLINE_MAX_BYTES = 400
SCAN_EVERY_MS = 100  # how late a report of a timeout may be
PURGED = "purged"
FALLBACK_AFTER_MS = 1000
FALLBACK_BYTES_PER_SECOND = 2000
FALLBACK_SLICE_MS = 100  # how much earlier than the rate has it something may leave
MOST_RECORDS = 4  # per segment, so that lanes are cut now and then

Place = tuple[str, int]
routes = st.lists(st.sampled_from(Route), max_size=6)


@dataclass(eq=False)
class Upload:
    """A batch on its way to the store."""

    batch: Batch
    rows: dict[SealedSegment, Rows]
    object_bytes: int


class ProducerMachine(RuleBasedStateMachine):
    has_deadline = True

    def __init__(self) -> None:
        super().__init__()
        self.router = ScriptedRouter(inline_max_bytes=INLINE_MAX_BYTES)
        self.now_ms = 0
        self.next_id = 0
        self.appended: dict[Place, list[int]] = {}
        self.appended_ms: dict[int, int] = {}
        self.notified: dict[Place, list[int]] = {}
        self.reported: dict[Place, list[int]] = {}
        self.durable: set[int] = set()  # ids whose object is stored, or whose bytes are made
        self.failed: set[int] = set()  # ids whose upload failed
        self.acknowledged: set[int] = set()
        self.waiting_uploads: deque[Batch] = deque()
        self.uploads: list[Upload] = []
        self.encodings: list[SealedSegment] = []
        self.cuts: list[CutSegment] = []
        self.fallen_back_ms: int | None = None  # when the first segment did
        self.fallen_back_bytes = 0
        self.sealed: list[SealedSegment] = []  # those that need the store or an encoding
        self.outbox: deque[Notify] = deque()
        self.handed_over = 0  # records of the outbox' first action
        self.message_of: dict[int, tuple[SealedSegment, int]] = {}
        self.answers = 0
        self.ids: dict[SealedSegment, list[int]] = {}  # taken when sealed: columns are freed early
        self.refused: set[int] = set()  # ids that were refused for others, and not sent again
        self.at_kafka: list[tuple[SealedSegment, int]] = []
        self.unserved: list[SealedSegment] = []
        self.unserved_records = 0
        self.errors: dict[int, object] = {}

    @initialize(
        limit=st.sampled_from([600, 1000, 1600, 1 << 20]), reserve_share=st.sampled_from([0, 2])
    )
    def build(self, limit: int, reserve_share: int) -> None:
        self.bench = make_bench(
            self.router,
            limit_bytes=limit,
            encode_reserve_bytes=limit // reserve_share if reserve_share else 0,
            inline_max_bytes=INLINE_MAX_BYTES,
            batch_size_bytes=500,
            deadline_after_ms=DEADLINE_MS if self.has_deadline else None,
            fallback_after_ms=FALLBACK_AFTER_MS,
            fallback_bytes_per_second=FALLBACK_BYTES_PER_SECOND,
        )
        self.core = self.bench.core
        self.enqueue = self.core.notifier.enqueue
        self.core.notifier.enqueue = self.note_ids  # type: ignore[method-assign]
        for topic in TOPICS:
            self.bench.topic(topic, ("", "az1", "az2"))

    def note_ids(self, segment: SealedSegment, now_ms: int) -> list[ProducerAction]:
        self.note_ids_of(segment)
        return self.enqueue(segment, now_ms)

    def note_ids_of(self, segment: SealedSegment) -> None:
        self.ids[segment] = list(segment.rows.timestamps_ms)
        self.message_of.update((i, (segment, n)) for n, i in enumerate(self.ids[segment]))

    def ids_of(self, segment: SealedSegment) -> list[int]:
        return self.ids[segment]

    # --- the application ----------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(TOPICS),
        partition=st.integers(0, PARTITIONS - 1),
        sizes=st.lists(st.sampled_from([0, 1, 30, 350]), min_size=1, max_size=6),
        is_heard=st.booleans(),
        new_routes=routes,
    )
    def append(
        self, topic: str, partition: int, sizes: list[int], is_heard: bool, new_routes: list[Route]
    ) -> None:
        self.router.routes = new_routes
        self.append_some(topic, partition, sizes, is_heard, None)

    def append_some(
        self,
        topic: str,
        partition: int,
        sizes: list[int],
        is_heard: bool,
        headers: Headers | None,
    ) -> None:
        memory = self.core.memory
        for size in sizes:
            if partition >= self.bench.topics[topic].partition_count:
                return
            if memory.records and memory.records_bytes + size > memory.record_limit_bytes:
                event("the buffer is full")
                self.do(self.core.seal_all(self.now_ms, 0))
                return
            record_id = self.next_id
            self.next_id += 1
            self.appended.setdefault((topic, partition), []).append(record_id)
            self.appended_ms[record_id] = self.now_ms
            self.do(
                self.bench.append(
                    b"v" * size,
                    topic=topic,
                    partition=partition,
                    timestamp_ms=record_id,
                    headers=headers,
                    callback=self.heard if is_heard else None,
                    now_ms=self.now_ms,
                )
            )

    @staticmethod
    def heard() -> None:
        """A delivery callback; the model looks at reports itself."""

    @rule(new_routes=routes)
    def flush(self, new_routes: list[Route]) -> None:
        self.router.routes = new_routes
        self.do(self.core.seal_all(self.now_ms, 0))

    @rule()
    def serve(self) -> None:
        served, self.unserved = self.unserved, []
        self.core.records_reported(served)
        self.unserved_records -= sum(segment.record_count for segment in served)

    # --- the cluster --------------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(TOPICS),
        zones=st.lists(st.sampled_from(["", "az1", "az2"]), min_size=1, max_size=PARTITIONS),
        retention_ms=st.sampled_from([DAY_MS, 7 * DAY_MS]),
        is_plain=st.booleans(),
    )
    def reconfigure(self, topic: str, zones: list[str], retention_ms: int, is_plain: bool) -> None:
        self.core.batcher.configure_topic(
            self.bench.topics[topic],
            destination_zones=zones,
            retention_class=retention_class(retention_ms),
            segment_ms=0,
            is_plain=is_plain,
        )

    # --- the clock ----------------------------------------------------------------------------

    @rule(elapsed_ms=st.sampled_from([1, 99, 400, 1000, 3000, DEADLINE_MS]), new_routes=routes)
    def tick(self, elapsed_ms: int, new_routes: list[Route]) -> None:
        self.router.routes = new_routes
        self.now_ms += elapsed_ms
        self.do(self.core.tick(self.now_ms, 0))
        for segment in self.sealed:
            if segment.state in (SegmentState.WAITING, SegmentState.READY) and self.has_deadline:
                opened_ms = self.appended_ms[self.ids_of(segment)[0]]
                assert self.now_ms < opened_ms + DEADLINE_MS + SCAN_EVERY_MS

    # --- the store ----------------------------------------------------------------------------

    @rule()
    def begin_upload(self) -> None:
        if not self.waiting_uploads:
            return
        batch = self.waiting_uploads[0]
        rows = {segment: segment.rows for segment in batch.segments if segment.waits_for(batch)}
        if rows and not self.core.reserve_object(batch, self.now_ms):
            event("an object waits for memory")
            return
        self.waiting_uploads.popleft()
        if rows:
            self.uploads.append(Upload(batch, rows, 0))
        else:
            self.core.upload_needless(batch)

    @precondition(lambda self: any(not upload.object_bytes for upload in self.uploads))
    @rule(data=st.data())
    def encode(self, data: st.DataObject) -> None:
        upload = data.draw(st.sampled_from([u for u in self.uploads if not u.object_bytes]))
        self.encode_object(upload)

    def encode_object(self, upload: Upload) -> None:
        upload.object_bytes = 1 + upload.batch.size_bytes
        encoded = {segment: encoded_of(segment, rows) for segment, rows in upload.rows.items()}
        self.core.object_encoded(upload.batch, encoded, upload.object_bytes, self.now_ms)

    @rule(
        place=st.tuples(st.sampled_from(TOPICS), st.integers(0, PARTITIONS - 1)),
        sizes=st.lists(st.sampled_from([1, 30, 350]), min_size=1, max_size=6),
        is_heard=st.booleans(),
        headers=st.sampled_from([None, None, [("头" * 20, b"")]]),
        fails_ms=st.sampled_from([0, FALLBACK_AFTER_MS - 1, FALLBACK_AFTER_MS, 3000]),
    )
    def outage(
        self,
        place: Place,
        sizes: list[int],
        is_heard: bool,
        headers: Headers | None,
        fails_ms: int,
    ) -> None:
        """Whatever is under way fails, again and again; what waits joins it."""
        self.append_some(*place, sizes, is_heard, headers)
        self.flush([])
        self.begin_upload()
        for upload in self.uploads:
            if not upload.object_bytes:
                self.encode_object(upload)
        begun_ms = self.now_ms
        self.now_ms += fails_ms
        for upload in list(self.uploads):
            self.do(self.core.attempt_failed(upload.batch, begun_ms, self.now_ms))
            if not upload.batch.is_wanted:
                event("an upload is abandoned")
                self.uploads.remove(upload)
                self.core.object_released(upload.batch, upload.object_bytes)
                self.core.upload_needless(upload.batch)

    @precondition(lambda self: self.uploads)
    @rule(data=st.data(), succeeds=st.sampled_from([True, True, True, False]))
    def end_upload(self, data: st.DataObject, succeeds: bool) -> None:
        upload = self.uploads.pop(data.draw(st.integers(0, len(self.uploads) - 1), "which"))
        self.core.object_released(upload.batch, upload.object_bytes)
        if succeeds and upload.object_bytes:
            for segment in upload.rows:
                if segment.state is not SegmentState.CUT:
                    self.durable.update(self.ids_of(segment))
            parts = {segment: part_of(segment) for segment in upload.rows}
            self.do(self.core.uploaded(upload.batch, parts, self.now_ms))
        else:
            for segment in upload.batch.segments:
                if segment.waits_for(upload.batch):
                    self.failed.update(self.ids_of(segment))
            self.do(self.core.upload_failed(upload.batch, "store is down", self.now_ms))

    @precondition(lambda self: self.encodings)
    @rule(data=st.data())
    def encode_inline(self, data: st.DataObject) -> None:
        segment = self.encodings.pop(data.draw(st.integers(0, len(self.encodings) - 1), "which"))
        contents = self.contents_of(segment)
        if contents is None:
            return
        encoded = encoded_of(segment, contents) if isinstance(contents, Rows) else contents
        size = encoded.length_bytes
        if segment.has_fallen_back:
            sent_bytes = size if size <= INLINE_MAX_BYTES else 0
            self.fallen_back_bytes -= segment.length_bytes - sent_bytes
        if size <= INLINE_MAX_BYTES:
            self.durable.update(self.ids_of(segment))
        lanes = self.bench.topics[segment.topic]
        part = part_of(segment, size)
        self.do(self.core.inline_encoded(segment, part, b"x" * size, lanes, self.now_ms, 0))

    def contents_of(self, segment: SealedSegment) -> Rows | EncodedSegment | None:
        """What the shell has to make inline bytes of."""
        if segment.state is not SegmentState.WAITING:
            return None
        contents = segment.rows if segment.rows.record_count else segment.encoded
        assert contents is not None
        return contents

    @precondition(lambda self: self.cuts)
    @rule()
    def cut(self) -> None:
        action = self.cuts.pop()
        contents = self.contents_of(action.segment)
        pieces = []
        if contents is not None:
            event("a segment is cut")
            pieces = cut_segment(action.segment, contents, action.max_bytes)
            for piece in pieces:
                self.note_ids_of(piece)
            ids = [record_id for piece in pieces for record_id in self.ids_of(piece)]
            assert ids == self.ids.pop(action.segment)
        lanes = self.bench.topics[action.segment.topic]
        self.do(self.core.cut(action.segment, pieces, lanes, self.now_ms, 0))

    # --- Kafka --------------------------------------------------------------------------------

    @precondition(lambda self: self.outbox)
    @rule(most=st.integers(1, 5))
    def hand_over(self, most: int) -> None:
        """Move records from the outbox into Kafka's queue, which has room for `most`."""
        while self.outbox and most > 0:
            action = self.outbox[0]
            segment = action.segment
            records = action.records or range(segment.record_count)
            if self.core.notifier.is_too_late(segment, self.now_ms):
                event("too late for Kafka's queue")
                left = records[self.handed_over :]
                self.do(self.core.notifier.not_handed_over(segment, left, self.now_ms))
            elif segment.route is Route.PLAIN:
                while self.handed_over < len(records) and most > 0:
                    self.at_kafka.append((segment, records[self.handed_over]))
                    self.handed_over += 1
                    most -= 1
                if self.handed_over < len(records):
                    return
            else:
                self.at_kafka.append((segment, -1))
                most -= 1
            self.outbox.popleft()
            self.handed_over = 0

    @precondition(lambda self: self.at_kafka)
    @rule(data=st.data(), answer=st.sampled_from(["yes", "yes", "known already", "no"]))
    def answer(self, data: st.DataObject, answer: str) -> None:
        which = data.draw(st.integers(0, len(self.at_kafka) - 1), "which")
        self.answers += 1
        segment, record_index = self.at_kafka.pop(which)
        notifier = self.core.notifier
        offset = None if answer == "known already" else 1000 + which
        if record_index >= 0:
            if answer != "no":
                self.acknowledged.add(self.ids_of(segment)[record_index])
            outcome = "refused" if answer == "no" else offset
            self.do(notifier.record_settled(segment, record_index, outcome, self.now_ms))
        elif answer == "no":
            self.do(notifier.rejected(segment, "refused", self.now_ms))
        else:
            self.acknowledged.update(self.ids_of(segment))
            self.do(notifier.acknowledged(segment, offset, self.now_ms))

    # --- the shell ----------------------------------------------------------------------------

    @rule(new_routes=routes)
    def purge(self, new_routes: list[Route]) -> None:
        """All that Kafka was not given fails; what is left are the answers it owes."""
        self.router.routes = new_routes
        self.do(self.core.purge(PURGED, self.now_ms, 0))
        for _ in range(len(self.outbox)):
            action = self.outbox[0]
            records = action.records or range(action.segment.record_count)
            left = records[self.handed_over :]
            self.do(self.core.notifier.not_handed_over(action.segment, left, self.now_ms, PURGED))
            self.outbox.popleft()
            self.handed_over = 0
        at_kafka = {segment for segment, _ in self.at_kafka}
        assert all(segment.is_settled or segment in at_kafka for segment in self.ids)

    def do(self, actions: Iterable[ProducerAction]) -> None:
        for action in actions:
            if isinstance(action, UploadBatch):
                self.waiting_uploads.append(action.batch)
                self.sealed.extend(action.batch.segments)
            elif isinstance(action, EncodeInline):
                self.encodings.append(action.segment)
                self.sealed.append(action.segment)
                if action.segment.has_fallen_back:
                    self.check_rate(action.segment)
            elif isinstance(action, CutSegment):
                assert not self.cuts
                self.cuts.append(action)
            elif isinstance(action, Notify):
                self.check_notify(action)
                self.outbox.append(action)
            elif isinstance(action, Report):
                self.check_report(action)

    def check_rate(self, segment: SealedSegment) -> None:
        event("a segment falls back")
        if self.fallen_back_ms is None:
            self.fallen_back_ms = self.now_ms
        elapsed_ms = self.now_ms - self.fallen_back_ms + FALLBACK_SLICE_MS
        assert self.fallen_back_bytes <= elapsed_ms * FALLBACK_BYTES_PER_SECOND / 1000
        self.fallen_back_bytes += segment.length_bytes

    def check_notify(self, action: Notify) -> None:
        segment = action.segment
        ids = self.ids_of(segment)
        assert segment.route is Route.PLAIN or self.durable.issuperset(ids)
        assert self.failed.isdisjoint(ids)
        if self.has_deadline:
            assert self.now_ms < self.appended_ms[ids[0]] + DEADLINE_MS
        assert ids == sorted(ids)
        if action.records is not None:
            assert segment.route is Route.PLAIN
            ids = [ids[index] for index in action.records]
        earlier = self.notified.setdefault((segment.topic, segment.partition), [])
        if self.refused.issuperset(ids):
            event("sent again")
            self.refused.difference_update(ids)
        else:
            assert not earlier or earlier[-1] < ids[0]
            earlier.extend(ids)
        # Whatever comes first in the partition comes first here: nothing refused is left behind.
        assert not any(i < ids[0] and self.is_open(i) for i in self.refused.intersection(earlier))

    def is_open(self, record_id: int) -> bool:
        segment, index = self.message_of[record_id]
        return not segment.is_settled and index not in (segment.record_errors or {})

    def check_report(self, action: Report) -> None:
        segment = action.segment
        place = (segment.topic, segment.partition)
        reported = self.reported.setdefault(place, [])
        ids = self.ids_of(segment)
        assert ids == self.appended[place][len(reported) : len(reported) + len(ids)]
        reported.extend(ids)
        for index, record_id in enumerate(ids):
            error = segment.error
            if segment.record_errors is not None:
                error = segment.record_errors.get(index)
            assert (error is None) is (record_id in self.acknowledged)
            if error == TIMED_OUT:
                assert self.has_deadline
                assert self.now_ms >= self.appended_ms[ids[0]] + DEADLINE_MS
            elif record_id in self.failed:
                assert error == "store is down"
        self.unserved_records += segment.record_count
        if segment.has_callbacks:
            assert len(segment.rows.values) == segment.record_count
            self.unserved.append(segment)
        else:
            self.core.records_reported([segment])
            self.unserved_records -= segment.record_count

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def memory_is_accounted_for(self) -> None:
        memory = self.core.memory
        reported = sum(map(len, self.reported.values()))
        assert memory.records == self.next_id - reported + self.unserved_records
        assert memory.object_bytes == sum(
            upload.object_bytes or upload.batch.size_bytes for upload in self.uploads
        )
        assert memory.records_bytes >= 0
        assert memory.inline_bytes >= 0
        if memory.records == 0:
            assert memory.records_bytes == memory.inline_bytes == 0

    @invariant()
    def what_is_overdue_is_told_soon(self) -> None:
        due_ms = self.core.next_tick_ms(self.now_ms)
        unsettled = self.core.notifier.unsettled_segments
        at_kafka = sum(segment.state is SegmentState.NOTIFYING for segment in self.ids)
        if self.has_deadline and unsettled > at_kafka:
            assert due_ms is not None
        if not self.has_deadline and due_ms is not None:
            assert due_ms <= self.now_ms + max(1000, HANGS_AFTER_MS)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.do(self.core.seal_all(self.now_ms, 0))
        idle = 0
        while self.core.notifier.unsettled_segments or self.uploads or self.waiting_uploads:
            before = self.progress()
            self.now_ms += 100  # what has fallen back leaves in its time
            self.do(self.core.tick(self.now_ms, 0))
            while self.cuts:
                self.cut()
            self.begin_upload()
            for upload in self.uploads:
                if not upload.object_bytes:
                    self.encode_object(upload)
            while self.uploads:
                self.end_upload(First(), succeeds=True)
            while self.encodings:
                self.encode_inline(First())
            if self.outbox:
                self.hand_over(1000)
            while self.at_kafka:
                self.answer(First(), "yes")
            idle = 0 if self.progress() != before else idle + 1
            assert idle < 600, "deadlock"  # a minute: what is taken leaves at its rate
        self.serve()
        for place, ids in self.appended.items():
            assert self.reported.get(place, []) == ids
        memory = self.core.memory
        assert (memory.records, memory.held_bytes) == (0, 0)

    def progress(self) -> tuple[int, ...]:
        return (
            self.answers,
            self.core.notifier.unsettled_segments,
            len(self.waiting_uploads),
            len(self.uploads),
            len(self.encodings),
        )


class First:
    """Stands in for Hypothesis' data at the end, when everything simply goes on."""

    def draw(self, *_arguments: object) -> int:
        return 0


class TimelessProducerMachine(ProducerMachine):
    has_deadline = False


class RefusingProducerMachine(ProducerMachine):
    """Kafka answers a partition's messages in order, batch by batch; every fifth is guilty."""

    is_wave_one_batch = True

    def __init__(self) -> None:
        super().__init__()
        self.log: dict[Place, list[int]] = {}

    @precondition(lambda self: self.at_kafka)
    @rule(data=st.data(), answer=st.sampled_from(["yes", "yes", "yes", "no"]))
    def answer(self, data: st.DataObject, answer: str) -> None:
        first = self.at_kafka[data.draw(st.integers(0, len(self.at_kafka) - 1), "which")][0]
        place = (first.topic, first.partition)
        batch = [
            (segment, index)
            for segment, index in self.at_kafka
            if (segment.topic, segment.partition) == place
        ]
        if self.is_wave_one_batch:
            if any((a.segment.topic, a.segment.partition) == place for a in self.outbox):
                return
        else:
            batch = batch[: 1 + data.draw(st.integers(0, len(batch) - 1), "batch")]
        self.answers += 1
        self.at_kafka = [message for message in self.at_kafka if message not in batch]
        guilty = [ids for ids in map(self.message_ids, batch) if ids[0] % 5 == 0]
        if guilty and answer == "yes":
            event("a batch is refused")
            self.refuse(batch)
            return
        log = self.log.setdefault(place, [])
        for segment, index in batch:
            ids = self.message_ids((segment, index))
            if answer == "yes":
                assert not log or log[-1] < ids[0]
                log += ids
                self.acknowledged.update(ids)
            outcome = len(self.acknowledged) if answer == "yes" else "Kafka is away"
            if index >= 0:
                self.do(self.core.notifier.record_settled(segment, index, outcome, self.now_ms))
            elif answer == "yes":
                self.do(self.core.notifier.acknowledged(segment, len(log), self.now_ms))
            else:
                self.do(self.core.notifier.rejected(segment, outcome, self.now_ms))

    def refuse(self, batch: list[tuple[SealedSegment, int]]) -> None:
        for message in batch:
            self.refused.update(self.message_ids(message))
        for segment, index in batch:
            self.refused_by_core(segment, index)

    def refused_by_core(self, segment: SealedSegment, index: int) -> None:
        notifier = self.core.notifier
        if index >= 0:
            self.do(notifier.record_settled(segment, index, REFUSED, self.now_ms))
        else:
            self.do(notifier.rejected(segment, REFUSED, self.now_ms))

    def message_ids(self, message: tuple[SealedSegment, int]) -> list[int]:
        segment, index = message
        return self.ids_of(segment) if index < 0 else [self.ids_of(segment)[index]]

    def check_report(self, action: Report) -> None:
        segment = action.segment
        ids = self.ids_of(segment)
        self.refused.difference_update(ids)
        super().check_report(action)
        for index, record_id in enumerate(ids):
            errors = segment.record_errors or {}
            error = errors.get(index) if segment.route is Route.PLAIN else segment.error
            if error == REFUSED and self.is_wave_one_batch:
                guilty = record_id if segment.route is Route.PLAIN else ids[0]
                assert guilty % 5 == 0


class SplittingProducerMachine(RefusingProducerMachine):
    """Kafka's batches end anywhere: innocents may fail, but never come out of order."""

    is_wave_one_batch = False


# A failure takes minutes to shrink, and only then says how to repeat it.
pytestmark = pytest.mark.timeout(400)

MACHINE_SETTINGS = settings(max_examples=200, stateful_step_count=60, deadline=None)


def test_every_record_leaves_and_is_reported_once_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments_module, "MAX_NOTIFICATION_RECORDS", MOST_RECORDS)
    # So small that a wave takes a plain segment in two pieces.
    monkeypatch.setattr(notifier_module, "WAVE_BYTES", 700)

    run_state_machine_as_test(ProducerMachine, settings=MACHINE_SETTINGS)


def test_without_a_deadline_nothing_times_out_and_nothing_is_stuck() -> None:
    run_state_machine_as_test(TimelessProducerMachine, settings=MACHINE_SETTINGS)


@pytest.mark.parametrize("machine", [RefusingProducerMachine, SplittingProducerMachine])
def test_only_the_guilty_fail_of_a_refused_batch_and_order_holds(
    monkeypatch: pytest.MonkeyPatch, machine: type[RefusingProducerMachine]
) -> None:
    monkeypatch.setattr(segments_module, "MAX_NOTIFICATION_RECORDS", MOST_RECORDS)
    monkeypatch.setattr(notifier_module, "WAVE_MESSAGES", 8)

    run_state_machine_as_test(machine, settings=MACHINE_SETTINGS)
