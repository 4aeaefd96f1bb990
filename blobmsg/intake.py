"""What a message of the inner consumer is: a notification, a plain record, an event.

Translates for the debatcher; decides nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from blobmsg.core.debatcher import Debatcher, Entry, Failure, FailureKind, Flow, FlowKey
from blobmsg.core.offsets import to_virtual, virtual_offset_of_first
from blobmsg.errors import CorruptSegment, UnsupportedFormat
from blobmsg.fetcher import EntryContext, decode_part
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.notification import (
    Limits,
    Notification,
    decode_notification,
    is_notification,
)
from blobmsg.message import Message, PlainView

if TYPE_CHECKING:
    from collections.abc import Container

    from blobmsg.clock import Clock
    from blobmsg.core.resets import Resets
    from blobmsg.handout import Handout

__all__ = ["Intake"]


class Intake:
    """Hands messages of the inner consumer to the debatcher.

    Args:
        core: Takes them.
        handout: Takes errors for the user that belong to no assigned partition, or to one whose
            position is not known yet.
        resets: Says what to drop of a client that begins elsewhere than it was sent.
        unresolved: Partitions of which nothing is taken, for their position is not known yet.
        clock: Time.
        record_max_bytes: `blobmsg.record.max.bytes`; segments up to 4 times of it are read.
        tells_ends: The user wishes to hear when a partition's end is reached.

    Attributes:
        is_fenced: Whether Kafka has fenced the inner consumer, or it has failed fatally for another
            reason: it loses its partitions then.
        received: What came and is not taken yet; added to by `append` and `extend`, without a lock.

    Threads: under the consumer's lock.
    """

    def __init__(
        self,
        core: Debatcher,
        handout: Handout,
        resets: Resets,
        unresolved: Container[FlowKey],
        clock: Clock,
        record_max_bytes: int,
        *,
        tells_ends: bool,
    ) -> None:
        self._core = core
        self._handout = handout
        self._resets = resets
        self._unresolved = unresolved
        self._tells_ends = tells_ends
        self._clock = clock
        self._limits = Limits(
            max_segment_bytes=max(Limits().max_segment_bytes, 4 * record_max_bytes),
            max_uncompressed_bytes=max(Limits().max_uncompressed_bytes, 4 * record_max_bytes),
        )
        self.counters: dict[str, int] = dict.fromkeys(
            ("notifications", "inline_segments", "plain_records", "damaged"), 0
        )
        self.is_fenced = False
        self.received: deque[Any] = deque()  # an exception before it is taken must not lose it

    def take_all(self) -> None:
        """Take what has come."""
        while self.received:
            error = self._take(self.received[0])
            if error is not None:
                self._handout.add_errors([error])
            self.received.popleft()

    def drop(self, key: FlowKey) -> None:
        """Drop what came of a partition before a seek or revocation."""
        if self.received:
            kept = [m for m in self.received if (m.topic(), m.partition()) != key]
            self.received.clear()
            self.received.extend(kept)

    def _take(self, message: Any) -> Message | None:
        """Take one; the error, if it is one for the user that nothing waits before."""
        error = message.error()
        topic, partition = message.topic(), message.partition()
        flow = self._core.flows.get((topic, partition))
        if error is not None:
            return self._take_error(message, error, flow)
        if flow is None or flow.key in self._unresolved:
            return None
        kafka_offset: int = message.offset()
        if self._resets.is_in_place(flow, kafka_offset):
            self._take_record(flow, message, kafka_offset)
            flow.next_offset = kafka_offset + 1
        return None

    def _take_record(self, flow: Flow, message: Any, kafka_offset: int) -> None:
        headers, value = message.headers(), message.value()
        if headers is None or not is_notification(headers, value):
            self.counters["plain_records"] += 1
            view = PlainView(message, virtual_offset_of_first(kafka_offset, 1))
            if not self._core.records_received(
                flow, kafka_offset, [view], 1, len(value or b"") + 256
            ):
                self._refuse_position(flow, kafka_offset)
            return
        topic, partition = flow.key
        try:
            notification = decode_notification(value, self._limits)
            self._take_notification(flow, message, notification)
        except UnsupportedFormatError as problem:
            text = f"{topic} [{partition}] at Kafka offset {kafka_offset}: {problem}"
            failure = Failure(FailureKind.REFUSED, UnsupportedFormat(text).kafka_error)
            self._core.damaged_received(flow, kafka_offset, failure, self._clock.now_ms())
        except FormatError as problem:
            self.counters["damaged"] += 1
            text = f"damaged notification in {topic} [{partition}] at Kafka offset {kafka_offset}: "
            failure = Failure(FailureKind.MISSING, CorruptSegment(text + str(problem)).kafka_error)
            self._core.damaged_received(flow, kafka_offset, failure, self._clock.now_ms())

    def _take_notification(self, flow: Flow, message: Any, notification: Notification) -> None:
        timestamp_type, timestamp_ms = message.timestamp()
        kafka_offset: int = message.offset()
        context = EntryContext(
            timestamp_type=timestamp_type,
            log_append_ms=timestamp_ms if timestamp_type == TIMESTAMP_LOG_APPEND_TIME else None,
            leader_epoch=message.leader_epoch(),
        )
        self._core.sequence_received(flow, notification)
        if notification.inline is None:
            self.counters["notifications"] += 1
            taken = self._core.notification_received(flow, kafka_offset, notification, context)
        else:
            self.counters["inline_segments"] += 1
            entry = Entry(flow, kafka_offset, notification, notification.records)
            entry.context = context
            views = [
                decode_part(entry, index, part, notification.inline, part.byte_range.start)
                for index, part in enumerate(notification.parts)
            ]
            size_bytes = sum(len(view.segment.data) for view in views)
            taken = self._core.records_received(
                flow, kafka_offset, views, notification.records, size_bytes
            )
        if not taken:
            self._refuse_position(flow, kafka_offset)

    def _take_error(self, message: Any, error: KafkaError, flow: Flow | None) -> Message | None:
        if error.code() == KafkaError._FATAL:
            self.is_fenced = True
        raw = message.offset()
        kafka_offset = -1 if raw is None else raw
        is_end = error.code() == KafkaError._PARTITION_EOF
        event: Message | None = None
        if self._tells_ends or not is_end:
            event = Message(
                message.topic(),
                message.partition(),
                None if raw is None else to_virtual(raw),
                value=message.value(),
                error=error,
                timestamp=message.timestamp(),
                leader_epoch=message.leader_epoch(),
            )
        if flow is None:
            return event
        if flow.key in self._unresolved:
            # An end of the partition comes again when its position is known; nothing else does.
            return None if is_end else event
        if is_end:
            if self._resets.is_in_place(flow, kafka_offset):
                self._core.end_received(flow, kafka_offset, event)
                flow.next_offset = kafka_offset
        else:
            self._core.event_received(flow, kafka_offset, event)
        return None

    def _refuse_position(self, flow: Flow, kafka_offset: int) -> None:
        topic, partition = flow.key
        text = (
            f"{topic} [{partition}]: no notification ends {flow.needed_position}: this looks like "
            "a Kafka offset; convert it once with blobmsg.offsets.to_virtual"
        )
        error = KafkaError(KafkaError._INVALID_ARG, text)
        failure = Failure(FailureKind.REFUSED, error)
        self._core.damaged_received(flow, kafka_offset, failure, self._clock.now_ms())
