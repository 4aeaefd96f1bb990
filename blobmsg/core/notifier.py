"""In which order notifications leave and delivery reports come, per partition.

Decides: when a segment may be notified (everything sealed before it in its partition has been, or
has failed), when it has timed out, when its outcome may be reported (all earlier ones of its
partition are). Never: how bytes get to the store or to Kafka.

States of a segment (`SegmentState`), all moved here: WAITING -> READY (`ready`) -> NOTIFYING (its
turn came; a `Notify` was returned) -> DELIVERED or FAILED (`acknowledged`, `rejected`); or FAILED
straight from WAITING or READY (`failed`, `tick` past its deadline). Once NOTIFYING, only Kafka's
answer settles it. Each partition has one queue for everything it sends, whatever its route, so
that uploads may finish in any order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from blobmsg.core.events import Notify, ProducerAction, Report
from blobmsg.core.segments import Route, SealedSegment, SegmentState

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Notifier"]


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

    def __init__(self, timed_out_error: Any) -> None:
        self._timed_out_error = timed_out_error
        self._queues: dict[tuple[str, int], _PartitionQueue] = {}
        self._unsettled = 0

    @property
    def unsettled_segments(self) -> int:
        """How many sealed segments have no outcome yet."""
        return self._unsettled

    def enqueue(self, segment: SealedSegment) -> list[ProducerAction]:
        """Take the next segment of its partition, in the order it was sealed."""
        key = (segment.topic, segment.partition)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _PartitionQueue()
        queue.unnotified.append(segment)
        queue.unreported.append(segment)
        self._unsettled += 1
        if segment.route is Route.PLAIN:
            segment.state = SegmentState.READY
            return self._advance(queue)
        return []

    def ready(self, segments: Iterable[SealedSegment], now_ms: int) -> list[ProducerAction]:
        """The segments' objects are durable, or their inline bytes made.

        Args:
            segments: Uploaded or encoded; those that failed meanwhile are left alone.
            now_ms: Monotonic time; segments past their deadline are not notified any more.
        """
        actions: list[ProducerAction] = []
        for segment in segments:
            if segment.state is not SegmentState.WAITING:
                continue
            if _is_overdue(segment, now_ms):
                actions += self.failed([segment], self._timed_out_error, now_ms)
                continue
            segment.state = SegmentState.READY
            actions += self._advance(self._queue_of(segment))
        return actions

    def failed(
        self, segments: Iterable[SealedSegment], error: Any, now_ms: int
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
            actions += self._settle(segment, SegmentState.FAILED, now_ms)
        return actions

    def acknowledged(
        self, segment: SealedSegment, kafka_offset: int, now_ms: int
    ) -> list[ProducerAction]:
        """All in-sync replicas have the segment's notification."""
        segment.kafka_offset = kafka_offset
        return self._settle(segment, SegmentState.DELIVERED, now_ms)

    def rejected(self, segment: SealedSegment, error: Any, now_ms: int) -> list[ProducerAction]:
        """Kafka refused the segment's notification, or it timed out in there."""
        segment.error = error
        return self._settle(segment, SegmentState.FAILED, now_ms)

    def record_settled(
        self, segment: SealedSegment, record_index: int, outcome: int | Any, now_ms: int
    ) -> list[ProducerAction]:
        """One record of a plain segment has its outcome.

        Args:
            segment: With route `PLAIN`.
            record_index: Which of its records.
            outcome: The record's Kafka offset (an int), or its error.
            now_ms: Monotonic time.
        """
        if segment.record_offsets is None:
            segment.record_offsets = [-1] * segment.record_count
        if isinstance(outcome, int):
            segment.record_offsets[record_index] = outcome
        else:
            if segment.record_errors is None:
                segment.record_errors = {}
            segment.record_errors[record_index] = outcome
        segment.acknowledged_records += 1
        if segment.acknowledged_records < segment.record_count:
            return []
        return self._settle(segment, SegmentState.DELIVERED, now_ms)

    def tick(self, now_ms: int) -> list[ProducerAction]:
        """Fail what is past its deadline and not yet handed to Kafka."""
        actions: list[ProducerAction] = []
        for queue in self._queues.values():
            overdue = [s for s in queue.unnotified if _is_overdue(s, now_ms)]
            if overdue:
                actions += self.failed(overdue, self._timed_out_error, now_ms)
        return actions

    def _settle(
        self, segment: SealedSegment, state: SegmentState, now_ms: int
    ) -> list[ProducerAction]:
        if segment.is_settled:
            raise AssertionError(
                f"{segment.topic} [{segment.partition}] segment {segment.sequence} is settled twice"
            )
        segment.state = state
        segment.settled_ms = now_ms
        self._unsettled -= 1
        queue = self._queue_of(segment)
        actions = self._advance(queue)
        unreported = queue.unreported
        while unreported and unreported[0].is_settled:
            actions.append(Report(unreported.popleft()))
        return actions

    def _advance(self, queue: _PartitionQueue) -> list[ProducerAction]:
        actions: list[ProducerAction] = []
        unnotified = queue.unnotified
        while unnotified:
            head = unnotified[0]
            if head.state is SegmentState.WAITING:
                break
            unnotified.popleft()
            if head.state is SegmentState.READY:
                head.state = SegmentState.NOTIFYING
                head.sequence = queue.next_sequence
                queue.next_sequence += 1
                actions.append(Notify(head))
        return actions

    def _queue_of(self, segment: SealedSegment) -> _PartitionQueue:
        return self._queues[segment.topic, segment.partition]


def _is_overdue(segment: SealedSegment, now_ms: int) -> bool:
    return segment.deadline_ms is not None and now_ms >= segment.deadline_ms
