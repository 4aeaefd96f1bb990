"""In which order notifications leave and delivery reports come, per partition.

Decides: when a segment may be notified (everything sealed before it in its partition has been, or
has failed), what is sent again because Kafka refused it for the sake of another, when it has timed
out, when its outcome may be reported (all earlier ones of its partition are). Never: how bytes get
to the store or to Kafka.

States of a segment (`SegmentState`), all moved here: WAITING -> READY (`ready`) -> NOTIFYING (its
turn came before its deadline; a `Notify` was returned) -> DELIVERED or FAILED (`acknowledged`,
`rejected`, `record_settled`); or FAILED straight from WAITING or READY (`failed`, `purge`, or its
deadline passed), or CUT from WAITING (`replace`: others have its place). Once NOTIFYING, Kafka's
answer settles it; the exceptions are `not_handed_over`, for what the shell did not hand over, and
`purge`, for what Kafka has refused and would get again. Each partition has one queue for everything
it sends, whatever its route, so that uploads may finish in any order.

A partition's messages (notifications and plain records) leave in *waves*: the next one when all of
the last are answered, for only then is it known that none of them must be sent again. A wave is
small enough to be one batch of Kafka's, which is taken or refused as a whole: the answer does not
tell whose fault it was. The refused messages become *suspects*; they are sent again before anything
later, half as many at once, until one that is refused while alone is known to be guilty and fails.

In a transaction nothing leaves while it holds, and nothing any more once it is stopped
(`transaction`); what fails stops it.

A notification refused for its missing key tells that its topic was made compacted: its records go
as plain ones, as long as they are still there (they are if somebody hears their reports).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from blobmsg.core.events import Notify, ProducerAction, ReadTopic, Report
from blobmsg.core.segments import Route, SealedSegment, SegmentState
from blobmsg.core.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Notifier"]

# While deadlines pass in numbers (the store is down), the queues are looked through this often at
# most. A report may be late by so much; a notification never is, its turn checks the deadline.
_SCAN_EVERY_MS: Final = 100
# Limits of a wave. librdkafka makes one batch of what is handed over between two flushes, and ends
# it at `batch.size` (1,000,000).
WAVE_MESSAGES: Final = 1000
WAVE_BYTES: Final = 500_000
# What a message of a wave takes besides the record or inline segment in it.
_MESSAGE_BYTES: Final = 200
# Stands for the record index of a notification, which is a single message.
_WHOLE: Final = 0


class _Message(NamedTuple):
    """What Kafka answers by itself: a notification, or one record of a plain segment."""

    segment: SealedSegment
    record_index: int
    error: object = None  # why it was refused


class _Wave:
    """What of a partition was handed over together and is not answered in full."""

    __slots__ = ("delivered_to", "messages", "purge_error", "refused", "turns", "unanswered")

    def __init__(self) -> None:
        self.messages = 0
        self.unanswered = 0
        self.purge_error: object = None  # of what is refused: it is not to be sent again
        # By segment: its turn in the wave. It keeps it though it be notified in several pieces.
        self.turns: dict[SealedSegment, int] = {}
        self.refused: list[_Message] = []
        self.delivered_to: tuple[int, int] = (-1, -1)  # place of the last message that is delivered

    def place_of(self, segment: SealedSegment, record_index: int) -> tuple[int, int]:
        """Where a message comes in the wave; for comparing."""
        return self.turns[segment], record_index


class _PartitionQueue:
    """One partition's segments on their way. Threads: under the producer's lock."""

    __slots__ = ("next_record", "next_sequence", "suspects", "suspects_at_once", "unnotified",
                 "unreported", "wave")  # fmt: skip

    def __init__(self) -> None:
        self.next_sequence = 0
        self.unnotified: deque[SealedSegment] = deque()
        self.next_record = 0  # of the first in `unnotified`: plain ones may need several waves
        self.unreported: deque[SealedSegment] = deque()
        self.wave: _Wave | None = None
        self.suspects: deque[_Message] = deque()
        self.suspects_at_once = 1


class Notifier:
    """The ordered queues. Threads: under the producer's lock.

    Args:
        timed_out_error: What a segment's error becomes when its deadline passes before it was
            handed to Kafka.
        refuses_batch: Whether an error is Kafka's for a whole batch because of one message in it.
        refuses_keyless: Whether it may be for a missing key.
        transaction: The producer's, told of what is handed over and of what fails; None: it has no
            transactions.
    """

    def __init__(
        self,
        timed_out_error: object,
        refuses_batch: Callable[[object], bool] = lambda _error: False,
        refuses_keyless: Callable[[object], bool] = lambda _error: False,
        transaction: Transaction | None = None,
    ) -> None:
        self._timed_out_error = timed_out_error
        self.transaction = Transaction(0, 0) if transaction is None else transaction
        self._refuses_batch = refuses_batch
        self._refuses_keyless = refuses_keyless
        self._queues: dict[tuple[str, int], _PartitionQueue] = {}
        self._unsettled = 0
        self._unanswered = 0  # messages that were handed to Kafka
        # No segment that is not notified yet has an earlier deadline; it may have a later one.
        self._next_scan_ms: int | None = None

    @property
    def unsettled_segments(self) -> int:
        """How many sealed segments have no outcome yet."""
        return self._unsettled

    def is_next(self, segment: SealedSegment) -> bool:
        """Whether everything before it in its partition was handed to Kafka."""
        unnotified = self._queue_of(segment).unnotified
        return bool(unnotified) and unnotified[0] is segment

    @property
    def awaits_kafka(self) -> bool:
        """Whether Kafka owes an answer."""
        return self._unanswered > 0

    def enqueue(self, segment: SealedSegment, now_ms: int) -> list[ProducerAction]:
        """Take the next segment of its partition.

        Args:
            segment: With its route; in the order it was sealed, and with no earlier deadline than
                those before it in its partition.
            now_ms: Monotonic time.
        """
        key = (segment.topic, segment.partition)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _PartitionQueue()
        queue.unnotified.append(segment)
        queue.unreported.append(segment)
        self._unsettled += 1
        self.transaction.sealed(now_ms)
        deadline_ms = segment.deadline_ms
        if deadline_ms is not None and (
            self._next_scan_ms is None or deadline_ms < self._next_scan_ms
        ):
            self._next_scan_ms = deadline_ms
        if segment.route is Route.PLAIN:
            segment.state = SegmentState.READY
            return self._advance(queue, now_ms)
        return []

    def ready(self, segments: Iterable[SealedSegment], now_ms: int) -> list[ProducerAction]:
        """The segments' objects are durable, or their inline bytes made.

        Args:
            segments: Uploaded or encoded; those that failed meanwhile are left alone.
            now_ms: Monotonic time; a segment past its deadline is not notified any more.
        """
        ready = [segment for segment in segments if segment.state is SegmentState.WAITING]
        for segment in ready:
            segment.state = SegmentState.READY
        return self._advance_all(ready, now_ms)

    def failed(
        self, segments: Iterable[SealedSegment], error: object, now_ms: int
    ) -> list[ProducerAction]:
        """The segments cannot be sent; the ones behind them go on.

        Args:
            segments: Not yet handed to Kafka; those that are, or are settled, are left alone.
            error: What their records' reports carry.
            now_ms: Monotonic time.
        """
        unsent = (SegmentState.WAITING, SegmentState.READY)
        failed = [segment for segment in segments if segment.state in unsent]
        for segment in failed:
            segment.error = error
            self._settle(segment, SegmentState.FAILED, now_ms)
        return self._advance_all(failed, now_ms)

    def replace(self, segment: SealedSegment, pieces: Sequence[SealedSegment]) -> None:
        """Let others take a segment's place.

        Args:
            segment: WAITING.
            pieces: Its records, cut.
        """
        queue = self._queue_of(segment)
        for segments in (queue.unnotified, queue.unreported):
            place = segments.index(segment)
            segments.rotate(-place)
            segments.popleft()
            segments.extendleft(reversed(pieces))
            segments.rotate(place)
        segment.state = SegmentState.CUT
        self._unsettled += len(pieces) - 1

    def release(self, now_ms: int) -> list[ProducerAction]:
        """Hold nothing back any more: the transaction is flushed or committed, or has held long."""
        if not self.transaction.is_holding:
            return []
        self.transaction.released()
        actions: list[ProducerAction] = []
        for queue in self._queues.values():
            actions += self._advance(queue, now_ms)
        return actions

    def acknowledged(
        self, segment: SealedSegment, kafka_offset: int | None, now_ms: int
    ) -> list[ProducerAction]:
        """All in-sync replicas have the segment's notification.

        Args:
            segment: Handed to Kafka.
            kafka_offset: Where it lies; None when Kafka can't tell (the broker had it already and
                the first answer was lost).
            now_ms: Monotonic time.
        """
        queue, wave = self._answered(segment)
        segment.kafka_offset = -1 if kafka_offset is None else kafka_offset
        wave.delivered_to = max(wave.delivered_to, wave.place_of(segment, _WHOLE))
        self._settle(segment, SegmentState.DELIVERED, now_ms)
        return self._count_answer(queue, wave, now_ms)

    def rejected(self, segment: SealedSegment, error: object, now_ms: int) -> list[ProducerAction]:
        """Kafka refused the segment's notification, or it timed out in there."""
        queue, wave = self._answered(segment)
        message = _Message(segment, _WHOLE, error)
        if self._refuses_batch(error):
            wave.refused.append(message)
        else:
            self._fail(message, now_ms)
        return self._count_answer(queue, wave, now_ms)

    def record_settled(
        self, segment: SealedSegment, record_index: int, outcome: object, now_ms: int
    ) -> list[ProducerAction]:
        """Kafka has answered for one record of a plain segment.

        Args:
            segment: With route `PLAIN`.
            record_index: Which of its records.
            outcome: The record's Kafka offset (an int; None when Kafka can't tell), or its error.
            now_ms: Monotonic time.
        """
        queue, wave = self._answered(segment)
        if outcome is None or isinstance(outcome, int):
            wave.delivered_to = max(wave.delivered_to, wave.place_of(segment, record_index))
            self._settle_record(segment, record_index, outcome, now_ms)
        elif self._refuses_batch(outcome):
            wave.refused.append(_Message(segment, record_index, outcome))
        else:
            self._fail(_Message(segment, record_index, outcome), now_ms)
        return self._count_answer(queue, wave, now_ms)

    def is_too_late(self, segment: SealedSegment, now_ms: int) -> bool:
        """Whether the segment's deadline has passed, so that it may not be handed to Kafka."""
        return segment.deadline_ms is not None and now_ms >= segment.deadline_ms

    def not_handed_over(
        self,
        segment: SealedSegment,
        records: range,
        now_ms: int,
        error: object = None,
    ) -> list[ProducerAction]:
        """The segment had its turn and Kafka did not get it, nor will it.

        Args:
            segment: NOTIFYING, but not handed to Kafka, or not all of its records (plain).
            records: Those of one `Notify` that were not handed over; others of the same segment
                may be on their way, or have their turn in the same wave. Of a notification: all.
            now_ms: Monotonic time.
            error: Why; None: Kafka's queue was full until the segment's deadline.
        """
        error = self._timed_out_error if error is None else error
        if segment.route is not Route.PLAIN:
            return self.rejected(segment, error, now_ms)
        actions: list[ProducerAction] = []
        for record_index in records:
            actions += self.record_settled(segment, record_index, error, now_ms)
        return actions

    def purge(self, error: object, now_ms: int) -> list[ProducerAction]:
        """Fail everything that has not had its turn, and what was to have another one.

        Args:
            error: What the records' reports carry.
            now_ms: Monotonic time.
        """
        actions: list[ProducerAction] = []
        for queue in self._queues.values():
            if queue.wave is not None:
                queue.wave.purge_error = error
                self._drop(queue.wave.refused, error, now_ms)
            self._drop(queue.suspects, error, now_ms)
            if queue.next_record:  # Kafka has the first records of this one
                self._give_up(queue.unnotified.popleft(), queue.next_record, error, now_ms)
                queue.next_record = 0
            actions += self.failed(queue.unnotified, error, now_ms)
            queue.unnotified.clear()
            actions += self._advance(queue, now_ms)
        return actions

    @property
    def next_tick_ms(self) -> int | None:
        """When `tick` may have something to do, monotonic; None: nothing has a deadline."""
        release_ms = self.transaction.release_ms
        due_ms = [ms for ms in (self._next_scan_ms, release_ms) if ms is not None]
        return min(due_ms, default=None)

    def tick(self, now_ms: int) -> list[ProducerAction]:
        """Fail what is past its deadline and not yet handed to Kafka; release what is held long.

        Costs nothing before the earliest deadline that was seen, however much is queued.
        """
        actions: list[ProducerAction] = []
        release_ms = self.transaction.release_ms
        if release_ms is not None and now_ms >= release_ms:
            actions = self.release(now_ms)
        if self._next_scan_ms is None or now_ms < self._next_scan_ms:
            return actions
        next_ms: int | None = None
        for queue in self._queues.values():
            if not queue.unnotified:
                continue
            overdue, deadline_ms = self._overdue(queue, now_ms)
            if overdue:
                actions += self.failed(overdue, self._timed_out_error, now_ms)
            if deadline_ms is not None:
                next_ms = deadline_ms if next_ms is None else min(next_ms, deadline_ms)
        self._next_scan_ms = None if next_ms is None else max(next_ms, now_ms + _SCAN_EVERY_MS)
        return actions

    def _overdue(
        self, queue: _PartitionQueue, now_ms: int
    ) -> tuple[list[SealedSegment], int | None]:
        """What of a queue is overdue, and the deadline of the first that is not."""
        overdue: list[SealedSegment] = []
        for segment in queue.unnotified:
            if segment.is_settled or segment.deadline_ms is None:
                continue
            if now_ms < segment.deadline_ms:
                return overdue, segment.deadline_ms  # those behind it are due later still
            overdue.append(segment)
        return overdue, None

    def _answered(self, segment: SealedSegment) -> tuple[_PartitionQueue, _Wave]:
        queue = self._queue_of(segment)
        wave = queue.wave
        if segment.state is not SegmentState.NOTIFYING or wave is None:
            raise AssertionError(
                f"{segment.topic} [{segment.partition}] segment {segment.sequence} has Kafka's "
                f"answer while it is {segment.state.value}"
            )
        return queue, wave

    def _count_answer(
        self, queue: _PartitionQueue, wave: _Wave, now_ms: int
    ) -> list[ProducerAction]:
        wave.unanswered -= 1
        self._unanswered -= 1
        if wave.unanswered:
            return self._reports(queue)
        queue.wave = None
        actions: list[ProducerAction] = []
        if wave.purge_error is not None:
            self._drop(wave.refused, wave.purge_error, now_ms)
        elif wave.refused:
            judge = self._judge if self.transaction.is_closed else self._fail_refused
            actions = judge(queue, wave, now_ms)
        else:
            queue.suspects_at_once = min(WAVE_MESSAGES, 2 * queue.suspects_at_once)
        return actions + self._advance(queue, now_ms)

    def _drop(self, messages: list[_Message] | deque[_Message], error: object, now_ms: int) -> None:
        """Fail messages that are not sent again, and forget them."""
        for segment, record_index, _ in messages:
            self._fail(_Message(segment, record_index, error), now_ms)
        messages.clear()

    def _fail_refused(
        self, _queue: _PartitionQueue, wave: _Wave, now_ms: int
    ) -> list[ProducerAction]:
        """Fail the refused messages: in a transaction none can be sent again before an abort."""
        actions: list[ProducerAction] = []
        for message in wave.refused:
            self._fail(message, now_ms)
            if self._refuses_keyless(message.error):
                actions = [ReadTopic(message.segment.topic)]
        return actions

    def _judge(self, queue: _PartitionQueue, wave: _Wave, now_ms: int) -> list[ProducerAction]:
        """Sort the refused messages of a wave into guilty ones and suspects."""
        if wave.messages == 1:
            return self._condemn(queue, wave.refused[0], now_ms)
        suspects: list[_Message] = []
        for message in sorted(wave.refused, key=lambda m: wave.place_of(m.segment, m.record_index)):
            if wave.place_of(message.segment, message.record_index) < wave.delivered_to:
                # The wave was more than one batch after all, and a later one was taken: sent again
                # it would come behind its successors. It fails, as with stock.
                self._fail(message, now_ms)
            else:
                suspects.append(message)
        queue.suspects.extendleft(reversed(suspects))
        queue.suspects_at_once = wave.messages // 2
        return []

    def _condemn(
        self, queue: _PartitionQueue, message: _Message, now_ms: int
    ) -> list[ProducerAction]:
        """What to do with a message that was refused while alone."""
        segment, _, error = message
        if segment.route is Route.PLAIN or not self._refuses_keyless(error):
            self._fail(message, now_ms)
            return []
        if segment.rows.record_count:
            segment.route = Route.PLAIN
            records = [_Message(segment, index) for index in range(segment.record_count)]
            queue.suspects.extendleft(reversed(records))
            queue.suspects_at_once = segment.record_count
        else:
            self._fail(message, now_ms)
        return [ReadTopic(segment.topic)]

    def _fail(self, message: _Message, now_ms: int) -> None:
        segment = message.segment
        if segment.route is Route.PLAIN:
            self._settle_record(segment, message.record_index, message.error, now_ms)
        else:
            segment.error = message.error
            self._settle(segment, SegmentState.FAILED, now_ms)

    def _settle_record(
        self, segment: SealedSegment, record_index: int, outcome: object, now_ms: int
    ) -> None:
        if segment.record_offsets is None:
            segment.record_offsets = [-1] * segment.record_count
        if isinstance(outcome, int):
            segment.record_offsets[record_index] = outcome
        elif outcome is not None:
            if segment.record_errors is None:
                segment.record_errors = {}
            segment.record_errors[record_index] = outcome
            self.transaction.records_failed(outcome, 1)
        segment.acknowledged_records += 1
        if segment.acknowledged_records == segment.record_count:
            self._settle(segment, SegmentState.DELIVERED, now_ms)

    def _settle(self, segment: SealedSegment, state: SegmentState, now_ms: int) -> None:
        if state is SegmentState.FAILED:
            self.transaction.records_failed(segment.error, segment.record_count)
        segment.state = state
        segment.settled_ms = now_ms
        self._unsettled -= 1

    def _advance_all(self, segments: Iterable[SealedSegment], now_ms: int) -> list[ProducerAction]:
        """Let the partitions of these segments go on, once each."""
        actions: list[ProducerAction] = []
        for key in dict.fromkeys((segment.topic, segment.partition) for segment in segments):
            actions += self._advance(self._queues[key], now_ms)
        return actions

    def _advance(self, queue: _PartitionQueue, now_ms: int) -> list[ProducerAction]:
        """Notify what has its turn, then report what has its."""
        actions: list[ProducerAction] = []
        if queue.wave is None and not self.transaction.is_stopped:
            wave = _Wave()
            actions = self._suspects(queue, wave, now_ms)
            if not actions and not self.transaction.is_holding:
                actions = self._unsent(queue, wave, now_ms)
            if wave.messages:
                queue.wave = wave
        return actions + self._reports(queue)

    def _suspects(self, queue: _PartitionQueue, wave: _Wave, now_ms: int) -> list[ProducerAction]:
        """The next suspects; neighbours among plain records go together."""
        actions: list[ProducerAction] = []
        at_once = min(WAVE_MESSAGES, queue.suspects_at_once)
        room_bytes = WAVE_BYTES
        while queue.suspects and wave.messages < at_once and room_bytes > 0:
            segment, first, _ = queue.suspects.popleft()
            if self.is_too_late(segment, now_ms):
                self._fail(_Message(segment, first, self._timed_out_error), now_ms)
                continue
            end = first + 1
            message_bytes = _message_bytes(segment)
            most = min(at_once - wave.messages, max(1, room_bytes // message_bytes))
            while queue.suspects and queue.suspects[0][:2] == (segment, end) and end - first < most:
                queue.suspects.popleft()
                end += 1
            room_bytes -= message_bytes * (end - first)
            actions.append(self._notify(wave, segment, range(first, end), now_ms))
        return actions

    def _unsent(self, queue: _PartitionQueue, wave: _Wave, now_ms: int) -> list[ProducerAction]:
        """What comes next in the queue, as much as a wave takes."""
        actions: list[ProducerAction] = []
        unnotified = queue.unnotified
        room_bytes = WAVE_BYTES
        while unnotified and wave.messages < WAVE_MESSAGES and room_bytes > 0:
            head = unnotified[0]
            first = queue.next_record
            if head.state is SegmentState.WAITING:
                break
            if head.state is not SegmentState.READY and not first:
                unnotified.popleft()  # it has failed
                continue
            if self.is_too_late(head, now_ms):
                unnotified.popleft()
                queue.next_record = 0
                self._give_up(head, first, self._timed_out_error, now_ms)
                continue
            message_bytes = _message_bytes(head)
            end = 1
            if head.route is Route.PLAIN:
                room = min(WAVE_MESSAGES - wave.messages, max(1, room_bytes // message_bytes))
                end = min(head.record_count, first + room)
                queue.next_record = 0 if end == head.record_count else end
            elif wave.messages and message_bytes > room_bytes:
                break
            if not first:
                self._begin(queue, head)
            if not queue.next_record:
                unnotified.popleft()
            room_bytes -= message_bytes * (end - first)
            actions.append(self._notify(wave, head, range(first, end), now_ms))
        return actions

    def _begin(self, queue: _PartitionQueue, segment: SealedSegment) -> None:
        segment.state = SegmentState.NOTIFYING
        if segment.route is not Route.PLAIN:
            # Plain records carry no sequence; one for them would look like a gap.
            segment.sequence = queue.next_sequence
            queue.next_sequence += 1

    def _give_up(
        self, segment: SealedSegment, first_record_index: int, error: object, now_ms: int
    ) -> None:
        """The segment, or the rest of it from this record on, will have no turn."""
        if not first_record_index:
            segment.error = error
            self._settle(segment, SegmentState.FAILED, now_ms)
            return
        for record_index in range(first_record_index, segment.record_count):
            self._settle_record(segment, record_index, error, now_ms)

    def _notify(self, wave: _Wave, segment: SealedSegment, records: range, now_ms: int) -> Notify:
        self.transaction.handed_over(now_ms)
        wave.turns.setdefault(segment, len(wave.turns))
        wave.messages += len(records)
        wave.unanswered += len(records)
        self._unanswered += len(records)
        if segment.route is not Route.PLAIN or len(records) == segment.record_count:
            return Notify(segment)
        return Notify(segment, records)

    def _reports(self, queue: _PartitionQueue) -> list[ProducerAction]:
        reports: list[ProducerAction] = []
        while queue.unreported and queue.unreported[0].is_settled:
            reports.append(Report(queue.unreported.popleft()))
        return reports

    def _queue_of(self, segment: SealedSegment) -> _PartitionQueue:
        return self._queues[segment.topic, segment.partition]


def _message_bytes(segment: SealedSegment) -> int:
    """About what one of the segment's messages takes in a batch of Kafka's."""
    if segment.route is Route.PLAIN:
        return _MESSAGE_BYTES + segment.payload_bytes // segment.record_count
    return _MESSAGE_BYTES + len(segment.inline or b"")
