"""What has its turn, on its way into the inner producer, and the inner producer's answers.

Hands over what the core says in the order it says it, until the inner producer's queue is full,
and tells the core every answer. Decides nothing about order or about what is sent again; only
which errors mean that a whole batch was refused (`refuses_batch`).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.core.segments import Route, SealedSegment
from blobmsg.format.notification import (
    HEADER_NAME,
    HEADER_VALUE,
    Notification,
    encode_notification,
)
from blobmsg.time_limit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.clock import Clock
    from blobmsg.core.events import Notify, ProducerAction
    from blobmsg.core.producer_core import ProducerCore
    from blobmsg.reentrant import CoreLock

__all__ = ["Outbox", "refuses_batch", "refuses_keyless"]

_NOTIFICATION_HEADERS: Final = [(HEADER_NAME, HEADER_VALUE)]
_INVALID_RECORD: Final = 87  # older confluent-kafka has no name for it, nor for the next
# librdkafka's `_INVALID_DIFFERENT_RECORD`.
_INVALID_DIFFERENT_RECORD: Final = -138
# Seen on Kafka 4.1 with librdkafka 2.16: one record that the broker does not take, and all of its
# batch have this error; which one it was is told only when there are several.
_BATCH_REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.RECORD_LIST_TOO_LARGE,
        _INVALID_RECORD,
        _INVALID_DIFFERENT_RECORD,
    }
)


def refuses_batch(error: object) -> bool:
    """Whether Kafka has refused a whole batch because of something in it, taking none of it."""
    return isinstance(error, KafkaError) and error.code() in _BATCH_REFUSALS


def refuses_keyless(error: object) -> bool:
    """Whether Kafka may have refused a record for its missing key: its topic is compacted."""
    return isinstance(error, KafkaError) and error.code() == _INVALID_RECORD


class Outbox:
    """The queue before the inner producer's own.

    Args:
        inner: The stock producer, or anything with its `produce`, `flush`, `purge`.
        core: Told of every answer.
        clock: Time.
        core_lock: Enters the core.
        dispatch: Does the core's actions; called under the lock.
        producer_id: 16 bytes, for notifications.
        counters: The pipeline's; counts what is handed over.

    Attributes:
        inner: The notifier thread's.

    Threads: `add` under the lock; all else the notifier thread, which also flushes the
    inner producer, so that answers come in it.
    """

    def __init__(
        self,
        inner: Any,
        core: ProducerCore,
        *,
        clock: Clock,
        core_lock: CoreLock,
        dispatch: Callable[[list[ProducerAction]], None],
        producer_id: bytes,
        counters: dict[str, int],
    ) -> None:
        self.inner: Any = inner
        self._core = core
        self._clock = clock
        self._core_lock = core_lock
        self._dispatch = dispatch
        self._producer_id = producer_id
        self._counters = counters
        self._queue: deque[Notify] = deque()
        self._handed_over = 0  # records of the first in the queue (plain)
        self.in_flight = 0  # messages at the inner producer
        self._is_deaf = False  # to its answers

    @property
    def is_empty(self) -> bool:
        """Whether everything is handed over."""
        return not self._queue

    def add(self, action: Notify) -> None:
        """Take the next in order."""
        self._queue.append(action)

    def send(self) -> bool:
        """Hand over what is due; False: the inner producer's queue is full."""
        if self._queue and not self.in_flight:
            with self._core_lock:
                self._core.presence.handed_over(self._clock.now_ms())
        while self._queue:
            action = self._queue[0]
            segment = action.segment
            now_ms = self._clock.now_ms()
            notifier = self._core.notifier
            if notifier.is_too_late(segment, now_ms):
                self._give_up(action)
            else:
                try:
                    if segment.route is Route.PLAIN:
                        self._produce_plain(segment, action.records or range(segment.record_count))
                    else:
                        self._produce_notification(segment)
                except BufferError:
                    return False
            self._queue.popleft()
            self._handed_over = 0
        return True

    def purge(self, error: KafkaError) -> None:
        """Fail what is not handed over, in order."""
        for _ in range(len(self._queue)):
            self._give_up(self._queue[0], error)
            self._queue.popleft()
            self._handed_over = 0

    def forget(self, timeout_s: float) -> None:
        """Have the inner producer answer all that it was given, and hear nothing of it.

        librdkafka never frees the callbacks of messages that it is destroyed with, and each of
        ours holds all of this pipeline.

        Args:
            timeout_s: How long at most.
        """
        self._is_deaf = True
        if self.in_flight:
            self.inner.purge(in_queue=True, in_flight=True)
        limit = TimeLimit(timeout_s)
        while self.in_flight and not limit.is_over:
            with suppress(KafkaException):  # fatal ones, too, concern nobody any more
                self.inner.flush(limit.rest_s())

    def _give_up(self, action: Notify, error: KafkaError | None = None) -> None:
        records = action.records or range(action.segment.record_count)
        with self._core_lock:
            self._dispatch(
                self._core.notifier.not_handed_over(
                    action.segment, records[self._handed_over :], self._clock.now_ms(), error
                )
            )

    def _produce_notification(self, segment: SealedSegment) -> None:
        part, inline = segment.part, segment.inline
        if part is None:
            raise AssertionError("a segment without a place is to be notified")
        value = encode_notification(
            Notification(
                parts=(part,),
                sequence=segment.sequence,
                producer_id=self._producer_id,
                key=segment.batch.object_key if inline is None and segment.batch else None,
                inline=inline,
            )
        )
        try:
            self.inner.produce(
                segment.topic,
                value=value,
                partition=segment.partition,
                headers=_NOTIFICATION_HEADERS,
                timestamp=max(0, part.last_timestamp_ms),
                on_delivery=partial(self._notified, segment),
            )
        except KafkaException as error:
            self._settle(segment, error.args[0])
            return
        self.in_flight += 1
        self._counters["notification_bytes"] += len(value)
        self._counters["notifications" if inline is None else "inline_segments"] += 1

    def _notified(self, segment: SealedSegment, error: KafkaError | None, message: Any) -> None:
        self.in_flight -= 1
        if not self._is_deaf:
            self._settle(segment, error, message.offset() if error is None else -1)

    def _settle(
        self, segment: SealedSegment, error: KafkaError | None, kafka_offset: int = -1
    ) -> None:
        now_ms = self._clock.now_ms()
        with self._core_lock:
            self._note_answer(error, now_ms)
            notifier = self._core.notifier
            self._dispatch(
                notifier.acknowledged(segment, kafka_offset, now_ms)
                if error is None
                else notifier.rejected(segment, error, now_ms)
            )

    def _produce_plain(self, segment: SealedSegment, records: range) -> None:
        """Produce these records, from the first one that is not handed over on."""
        for index in records[self._handed_over :]:
            key, value, timestamp_ms, headers = segment.rows.record(index)
            try:
                self.inner.produce(
                    segment.topic,
                    value=value,
                    key=key,
                    partition=segment.partition,
                    headers=headers,
                    timestamp=max(0, timestamp_ms),
                    on_delivery=partial(self._record_delivered, segment, index),
                )
            except KafkaException as error:
                self._settle_record(segment, index, error.args[0])
            else:
                self.in_flight += 1
                self._counters["plain_records"] += 1
            self._handed_over += 1

    def _record_delivered(
        self, segment: SealedSegment, index: int, error: KafkaError | None, message: Any
    ) -> None:
        self.in_flight -= 1
        if not self._is_deaf:
            self._settle_record(segment, index, message.offset() if error is None else error)

    def _settle_record(self, segment: SealedSegment, index: int, outcome: int | KafkaError) -> None:
        now_ms = self._clock.now_ms()
        with self._core_lock:
            self._note_answer(outcome, now_ms)
            self._dispatch(self._core.notifier.record_settled(segment, index, outcome, now_ms))

    def _note_answer(self, outcome: int | KafkaError | None, now_ms: int) -> None:
        # librdkafka's own errors, time-outs above all, have negative codes: no broker has spoken.
        if not isinstance(outcome, KafkaError) or outcome.code() > 0:
            self._core.presence.answered(now_ms, has_more=self.in_flight > 0)
