"""In which order notifications leave and delivery reports come, per partition.

Decides: when a segment may be notified (everything sealed before it in its partition has been, or
has failed), when it has timed out, when its outcome may be reported (all earlier ones of its
partition are). Never: how bytes get to the store or to Kafka.

States of a segment (`SegmentState`), all moved here: WAITING -> READY (`ready`) -> NOTIFYING (its
turn came before its deadline; a `Notify` was returned) -> DELIVERED or FAILED (`acknowledged`,
`rejected`, `record_settled`); or FAILED straight from WAITING or READY (`failed`, or its deadline
passed). Once NOTIFYING, Kafka's answer settles it; the one exception is `timed_out`, for what the
shell could not hand over. Each partition has one queue for everything it sends, whatever its route,
so that uploads may finish in any order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from blobmsg.core.events import Notify, ProducerAction, Report
from blobmsg.core.segments import Route, SealedSegment, SegmentState

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Notifier"]

# While deadlines pass in numbers (the store is down), the queues are looked through this often at
# most. A report may be late by so much; a notification never is, its turn checks the deadline.
_SCAN_EVERY_MS: Final = 100


class _PartitionQueue:
    """One partition's segments on their way. Threads: under the producer's lock."""

    __slots__ = ("next_sequence", "unnotified", "unreported")

    def __init__(self) -> None:
        self.next_sequence = 0
        self.unnotified: deque[SealedSegment] = deque()
        self.unreported: deque[SealedSegment] = deque()


class Notifier:
    """The ordered queues. Threads: under the producer's lock.

    Args:
        timed_out_error: What a segment's error becomes when its deadline passes before it was
            handed to Kafka.
    """

    def __init__(self, timed_out_error: object) -> None:
        self._timed_out_error = timed_out_error
        self._queues: dict[tuple[str, int], _PartitionQueue] = {}
        self._unsettled = 0
        # No segment that is not notified yet has an earlier deadline; it may have a later one.
        self._next_scan_ms: int | None = None

    @property
    def unsettled_segments(self) -> int:
        """How many sealed segments have no outcome yet."""
        return self._unsettled

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
        actions: list[ProducerAction] = []
        for segment in segments:
            if segment.state is SegmentState.WAITING:
                segment.state = SegmentState.READY
                actions += self._advance(self._queue_of(segment), now_ms)
        return actions

    def failed(
        self, segments: Iterable[SealedSegment], error: object, now_ms: int
    ) -> list[ProducerAction]:
        """The segments cannot be sent; the ones behind them go on.

        Args:
            segments: Not yet handed to Kafka; those that are, or are settled, are left alone.
            error: What their records' reports carry.
            now_ms: Monotonic time.
        """
        actions: list[ProducerAction] = []
        for segment in segments:
            if segment.state not in (SegmentState.WAITING, SegmentState.READY):
                continue
            segment.error = error
            self._settle(segment, SegmentState.FAILED, now_ms)
            actions += self._advance(self._queue_of(segment), now_ms)
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
        segment.kafka_offset = -1 if kafka_offset is None else kafka_offset
        return self._answered(segment, SegmentState.DELIVERED, now_ms)

    def rejected(self, segment: SealedSegment, error: object, now_ms: int) -> list[ProducerAction]:
        """Kafka refused the segment's notification, or it timed out in there."""
        segment.error = error
        return self._answered(segment, SegmentState.FAILED, now_ms)

    def record_settled(
        self, segment: SealedSegment, record_index: int, outcome: object, now_ms: int
    ) -> list[ProducerAction]:
        """One record of a plain segment has its outcome.

        Args:
            segment: With route `PLAIN`.
            record_index: Which of its records.
            outcome: The record's Kafka offset (an int; None when Kafka can't tell), or its error.
            now_ms: Monotonic time.
        """
        if segment.record_offsets is None:
            segment.record_offsets = [-1] * segment.record_count
        if isinstance(outcome, int):
            segment.record_offsets[record_index] = outcome
        elif outcome is not None:
            if segment.record_errors is None:
                segment.record_errors = {}
            segment.record_errors[record_index] = outcome
        segment.acknowledged_records += 1
        if segment.acknowledged_records < segment.record_count:
            return []
        return self._answered(segment, SegmentState.DELIVERED, now_ms)

    def is_too_late(self, segment: SealedSegment, now_ms: int) -> bool:
        """Whether the segment's deadline has passed, so that it may not be handed to Kafka."""
        return segment.deadline_ms is not None and now_ms >= segment.deadline_ms

    def timed_out(
        self, segment: SealedSegment, first_record_index: int, now_ms: int
    ) -> list[ProducerAction]:
        """Kafka's queue was full from the segment's `Notify` until its deadline.

        Args:
            segment: NOTIFYING, but not handed to Kafka, or only its first records (plain).
            first_record_index: The first record that was not handed over; 0 for a notification.
            now_ms: Monotonic time.
        """
        if segment.route is not Route.PLAIN:
            return self.rejected(segment, self._timed_out_error, now_ms)
        actions: list[ProducerAction] = []
        for record_index in range(first_record_index, segment.record_count):
            actions += self.record_settled(segment, record_index, self._timed_out_error, now_ms)
        return actions

    @property
    def next_tick_ms(self) -> int | None:
        """When `tick` may have something to do, monotonic; None: nothing has a deadline."""
        return self._next_scan_ms

    def tick(self, now_ms: int) -> list[ProducerAction]:
        """Fail what is past its deadline and not yet handed to Kafka.

        Costs nothing before the earliest deadline that was seen, however much is queued.
        """
        if self._next_scan_ms is None or now_ms < self._next_scan_ms:
            return []
        actions: list[ProducerAction] = []
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

    def _answered(
        self, segment: SealedSegment, state: SegmentState, now_ms: int
    ) -> list[ProducerAction]:
        if segment.state is not SegmentState.NOTIFYING:
            raise AssertionError(
                f"{segment.topic} [{segment.partition}] segment {segment.sequence} has Kafka's "
                f"answer while it is {segment.state.value}"
            )
        self._settle(segment, state, now_ms)
        return self._reports(self._queue_of(segment))

    def _settle(self, segment: SealedSegment, state: SegmentState, now_ms: int) -> None:
        segment.state = state
        segment.settled_ms = now_ms
        self._unsettled -= 1

    def _advance(self, queue: _PartitionQueue, now_ms: int) -> list[ProducerAction]:
        """Notify what has its turn, then report what has its."""
        actions: list[ProducerAction] = []
        unnotified = queue.unnotified
        while unnotified:
            head = unnotified[0]
            if head.state is SegmentState.WAITING:
                break
            unnotified.popleft()
            if head.state is not SegmentState.READY:
                continue
            if self.is_too_late(head, now_ms):
                head.error = self._timed_out_error
                self._settle(head, SegmentState.FAILED, now_ms)
                continue
            head.state = SegmentState.NOTIFYING
            if head.route is not Route.PLAIN:
                # Plain records carry no sequence; one for them would look like a gap.
                head.sequence = queue.next_sequence
                queue.next_sequence += 1
            actions.append(Notify(head))
        return actions + self._reports(queue)

    def _reports(self, queue: _PartitionQueue) -> list[ProducerAction]:
        reports: list[ProducerAction] = []
        while queue.unreported and queue.unreported[0].is_settled:
            reports.append(Report(queue.unreported.popleft()))
        return reports

    def _queue_of(self, segment: SealedSegment) -> _PartitionQueue:
        return self._queues[segment.topic, segment.partition]
