"""The threads behind a BlobProducer: records in, uploads and notifications out, reports back.

A shell: takes an event, calls `ProducerCore` under one lock, puts the actions into queues while
the lock is held (so that two threads can't swap them), and lets the thread that owns a queue do
them. Decides nothing about batches, order or memory.

Threads: `append`, `serve`, `flush` any; uploads by `Uploader`'s; topics are read by the one of
`ProducerTopics`; the notifier thread alone calls the inner producer's `produce` and `poll`.
Lock order: `_lock` is the only lock; nothing is called out while it is held.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.core.batcher import Batcher
from blobmsg.core.events import Notify, ProducerAction, Report, UploadBatch
from blobmsg.core.notifier import Notifier
from blobmsg.core.producer_core import BufferMemory, ProducerCore
from blobmsg.core.router import Router
from blobmsg.core.segments import CHARGE_BYTES_PER_RECORD, Route, SealedSegment, SegmentState
from blobmsg.delivery_reports import DeliveryReports, kafka_error_of
from blobmsg.errors import BlobmsgError
from blobmsg.format.codec import Codec
from blobmsg.format.notification import (
    HEADER_NAME,
    HEADER_VALUE,
    Notification,
    encode_notification,
)
from blobmsg.inner_config import TimeBudget
from blobmsg.producer_topics import (
    ENVELOPE_BYTES,
    ProducerTopics,
    WaitingRecord,
    unknown_partition,
)
from blobmsg.uploader import Uploader, columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blobmsg.clock import Clock
    from blobmsg.config import Settings
    from blobmsg.core.segments import Batch
    from blobmsg.format.part import Part
    from blobmsg.format.segment import Columns, Headers
    from blobmsg.kafka_settings import KafkaView
    from blobmsg.resources import Stores
    from blobmsg.topic_directory import TopicDirectory

__all__ = ["ProducerPipeline"]

logger = logging.getLogger("blobmsg.producer")

# How long the notifier thread gives itself to Kafka before it looks for new work; it is a delay
# only for what becomes ready while something else is in flight.
_POLL_SLICE_S: Final = 0.005
# Longest sleep of an idle notifier thread: statistics and errors of the inner client wait so long.
_IDLE_S: Final = 0.2
# One line per cause in this time, however many records fail of it.
_LOG_EVERY_S: Final = 60.0

_NOTIFICATION_HEADERS: Final = [(HEADER_NAME, HEADER_VALUE)]


class ProducerPipeline:
    """Carries records from `append` to their reports.

    Args:
        inner: The stock producer; anything with its `produce`, `poll`, `flush`, `list_topics`.
        settings: Ours.
        view: The user's librdkafka settings that we interpret.
        directory: Reads topics.
        stores: The store is opened when the first batch needs it.
        clock: Time.
        name: For thread names and log lines.
        producer_id: 16 bytes, unique to this producer.
    """

    def __init__(
        self,
        inner: Any,
        settings: Settings,
        view: KafkaView,
        *,
        directory: TopicDirectory,
        stores: Stores,
        clock: Clock,
        name: str,
        producer_id: bytes,
    ) -> None:
        self._inner = inner
        self._settings = settings
        self._view = view
        self._directory = directory
        self._stores = stores
        self._clock = clock
        self._name = name
        self._producer_id = producer_id
        self._budget = TimeBudget.of(settings, view)
        self._inline_max_bytes = view.message_max_bytes - ENVELOPE_BYTES
        self._core = self._build_core()
        self._memory = self._core.memory
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._is_stopping = False
        self._fatal: KafkaError | None = None
        self._outbox: deque[SealedSegment] = deque()
        self._outbox_record = 0  # records of the outbox' first segment already produced (plain)
        self._in_flight = 0  # at the inner producer
        self._acknowledged_silently = 0
        self.reports = DeliveryReports(
            only_errors=view.delivery_report_only_error, segment_served=self._segment_served
        )
        self._logged: dict[str, float] = {}
        self.counters: dict[str, int] = dict.fromkeys(
            (
                "records",
                "payload_bytes",
                "batches",
                "object_bytes",
                "notifications",
                "notification_bytes",
                "inline_segments",
                "plain_records",
                "failed_records",
                "unheard_failures",
            ),
            0,
        )
        self._uploader = Uploader(
            lambda: stores.get().store,
            self,
            codec=Codec[settings.compression_type.upper()],
            producer_id=producer_id,
            threads=settings.upload_threads,
            keep_bytes=self._memory.limit_bytes - self._memory.record_limit_bytes,
            name=name,
        )
        self._notifier_thread = threading.Thread(
            target=self._run, args=(self._run_notifier,), name=f"{name}-notifier", daemon=True
        )
        self._producer_topics = ProducerTopics(
            directory,
            self._core,
            view,
            clock=clock,
            changed=self._changed,
            dispatch=self._dispatch,
            run=self._run,
            wake_notifier=self._wake.set,
            name=name,
        )
        self._topics = self._producer_topics.by_name

    def _build_core(self) -> ProducerCore:
        settings, view, budget = self._settings, self._view, self._budget
        router = Router(
            settings.route,
            settings.price_table,
            settings.cost_groups,
            interval_ms=budget.batch_interval_ms,
            inline_max_bytes=self._inline_max_bytes,
        )
        batcher = Batcher(
            router,
            batch_size_bytes=settings.batch_size_bytes,
            batch_interval_ms=budget.batch_interval_ms,
            deadline_after_ms=budget.wrapper_deadline_ms,
            isolation=settings.isolation,
            writer_zone=settings.zone or "",
            writer_id=self._producer_id.hex(),
        )
        limit_bytes = view.queue_buffering_max_bytes
        memory = BufferMemory(
            # The inner producer's queue has the other eighth (`inner_producer_config`).
            limit_bytes - limit_bytes // 8,
            settings.upload_threads * settings.batch_size_bytes,
            view.queue_buffering_max_messages,
        )
        timed_out = KafkaError(KafkaError._MSG_TIMED_OUT)
        return ProducerCore(
            batcher, Notifier(timed_out), memory, inline_max_bytes=self._inline_max_bytes
        )

    def start(self) -> None:
        """Start the threads."""
        self._uploader.start()
        self._notifier_thread.start()
        self._producer_topics.start()

    # --- records in ---------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Headers | None,
        callback: Callable[..., Any] | None,
        payload_bytes: int,
        *,
        is_urgent: bool = False,
    ) -> None:
        """Take one record.

        Args:
            topic: Its topic.
            key: Its key.
            value: Its value.
            partition: -1 to let the partitioner choose.
            timestamp_ms: Wall time in ms.
            headers: Its headers.
            callback: Its delivery callback.
            payload_bytes: Bytes of key, value and headers.
            is_urgent: Seal its lane at once.

        Raises:
            BufferError: No room; a full buffer is sealed, so waiting makes progress.
            KafkaException: The topic or partition does not exist, as far as is known.
        """
        with self._lock:
            memory = self._memory
            if self._fatal is not None:
                raise KafkaException(self._fatal)
            if memory.is_full_for(payload_bytes):
                self._refuse_full()
            known = self._topics.get(topic)
            if known is None or not known.is_known:
                self._producer_topics.add_waiting(
                    topic,
                    WaitingRecord(
                        key,
                        value,
                        partition,
                        timestamp_ms,
                        headers,
                        callback,
                        payload_bytes,
                        is_urgent,
                        self._clock.now_ms(),
                    ),
                )
                return
            lanes = known.lanes
            if partition < 0:
                partition = known.partitioner.partition(
                    key,
                    lanes.partition_count,
                    0 if key else self._clock.now_ms(),
                    known.unavailable,
                )
            elif partition >= lanes.partition_count:
                raise unknown_partition()
            segment = lanes.open_segments[partition]
            if segment is None:
                segment = self._core.batcher.open_segment(
                    lanes, partition, callback, self._clock.now_ms()
                )
                self._wake.set()
            memory.records += 1
            memory.records_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD
            if segment.append(key, value, timestamp_ms, headers, callback, payload_bytes) or (
                is_urgent
            ):
                now_ms, wall_ms = self._clock.now_ms(), self._clock.timestamp_ms()
                self._dispatch(self._core.seal(segment.lane, now_ms, wall_ms))

    def _refuse_full(self) -> None:
        self._producer_topics.seal_when_known()
        self._dispatch(self._core.seal_all(self._clock.now_ms(), self._clock.timestamp_ms()))
        raise BufferError("Local: Queue full")

    def _dispatch(self, actions: list[ProducerAction]) -> None:
        """Put actions into the queues of the threads that do them. Under the lock."""
        has_news = False
        for action in actions:
            if isinstance(action, Notify):
                self._outbox.append(action.segment)
                self._wake.set()
            elif isinstance(action, Report):
                self._report(action.segment)
                has_news = True
            elif isinstance(action, UploadBatch):
                self.counters["batches"] += 1
                self._uploader.upload(action.batch)
            else:
                self._uploader.encode_inline(action.segment)
        if has_news:
            self._changed.notify_all()

    def _report(self, segment: SealedSegment) -> None:
        failed = (
            segment.record_count
            if segment.state is SegmentState.FAILED
            else len(segment.record_errors or ())
        )
        self.counters["records"] += segment.record_count - failed
        self.counters["failed_records"] += failed
        self.counters["payload_bytes"] += segment.payload_bytes
        if segment.has_callbacks:
            self.reports.add_segment(segment)
            return
        self._acknowledged_silently += segment.record_count
        self._core.records_reported([segment])
        if failed:
            self.counters["unheard_failures"] += failed
            error = segment.error or next(iter((segment.record_errors or {}).values()))
            self._log_once(
                f"{failed} records of {segment.topic} [{segment.partition}] failed and nobody "
                f"listens (no on_delivery): {error}",
                cause=str(error),
            )

    def _segment_served(self, segment: SealedSegment) -> None:
        with self._changed:
            self._core.records_reported([segment])
            self._changed.notify_all()

    # --- outcomes of uploads (UploadOutcomes) ---------------------------------------------------

    def begin_encoding(self, batch: Batch) -> list[tuple[SealedSegment, Columns]]:
        """See `UploadOutcomes`."""
        with self._changed:
            while not self._is_stopping:
                waiting = [s for s in batch.segments if s.state is SegmentState.WAITING]
                if not waiting:
                    return []
                if self._core.reserve_object(batch):
                    return [(segment, columns_of(segment)) for segment in waiting]
                self._changed.wait(1.0)
            return []

    def object_encoded(self, batch: Batch, object_bytes: int) -> None:
        """See `UploadOutcomes`."""
        with self._changed:
            self._core.object_encoded(batch, object_bytes)
            self._changed.notify_all()

    def uploaded(
        self, batch: Batch, parts: Mapping[SealedSegment, Part], object_bytes: int
    ) -> None:
        """See `UploadOutcomes`."""
        with self._changed:
            self.counters["object_bytes"] += object_bytes
            self._core.object_released(batch, object_bytes)
            self._dispatch(self._core.uploaded(batch, parts, self._clock.now_ms()))
            self._changed.notify_all()

    def upload_failed(self, batch: Batch, error: BaseException, object_bytes: int) -> None:
        """See `UploadOutcomes`."""
        now_ms = self._clock.now_ms()
        kafka_error = kafka_error_of(error)
        # The store is asked again until the deadline, so what might still pass means that it came
        # (or would have come during the next back-off).
        may_pass = isinstance(error, BlobmsgError) and error.retriable
        if batch.deadline_ms is not None and (may_pass or now_ms >= batch.deadline_ms):
            text = f"Local: Message timed out: {error}"
            kafka_error = KafkaError(KafkaError._MSG_TIMED_OUT, text)
        self._log_once(
            f"object {batch.object_key} with {len(batch.segments)} segments is not stored: {error}",
            cause=type(error).__name__,
        )
        with self._changed:
            self._core.object_released(batch, object_bytes)
            self._dispatch(self._core.upload_failed(batch, kafka_error, now_ms))
            self._changed.notify_all()

    def begin_inline(self, segment: SealedSegment) -> Columns | None:
        """See `UploadOutcomes`."""
        with self._lock:
            return columns_of(segment) if segment.state is SegmentState.WAITING else None

    def inline_failed(self, segment: SealedSegment, error: BaseException) -> None:
        """See `UploadOutcomes`."""
        with self._changed:
            failed = self._core.notifier.failed(
                [segment], kafka_error_of(error), self._clock.now_ms()
            )
            self._dispatch(failed)

    def inline_encoded(self, segment: SealedSegment, part: Part, data: bytes) -> None:
        """See `UploadOutcomes`."""
        now_ms, wall_ms = self._clock.now_ms(), self._clock.timestamp_ms()
        with self._lock:
            lanes = self._topics[segment.topic].lanes
            self._dispatch(self._core.inline_encoded(segment, part, data, lanes, now_ms, wall_ms))

    def thread_failed(self, error: BaseException) -> None:
        """A thread ended by a defect: nothing more can be promised."""
        with self._changed:
            if self._fatal is None:
                self._fatal = KafkaError(
                    KafkaError._FATAL,
                    f"a thread of {self._name} ended by a defect: {type(error).__name__}: {error}",
                    fatal=True,
                )
            self._changed.notify_all()

    # --- the notifier thread ------------------------------------------------------------------

    def _run(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            logger.critical("%s: a thread ended by a defect", self._name, exc_info=True)
            self.thread_failed(error)

    def _run_notifier(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            with self._lock:
                now_ms = self._clock.now_ms()
                self._dispatch(self._core.tick(now_ms, self._clock.timestamp_ms()))
                due_ms = self._core.next_tick_ms()
            self._send_outbox()
            wait_s = _IDLE_S if due_ms is None else (due_ms - self._clock.now_ms()) / 1000
            if self._in_flight:
                self._inner.poll(max(0.0, min(_POLL_SLICE_S, wait_s)))
            elif not self._outbox:
                self._wake.wait(max(0.0, min(_IDLE_S, wait_s)))
                self._inner.poll(0)

    def _send_outbox(self) -> None:
        """Hand over what is due, in order, until the inner producer's queue is full."""
        while self._outbox:
            segment = self._outbox[0]
            now_ms = self._clock.now_ms()
            if self._core.notifier.is_too_late(segment, now_ms):
                with self._lock:
                    notifier = self._core.notifier
                    self._dispatch(notifier.timed_out(segment, self._outbox_record, now_ms))
                self._outbox.popleft()
                self._outbox_record = 0
                continue
            try:
                if segment.route is Route.PLAIN:
                    self._produce_plain(segment)
                else:
                    self._produce_notification(segment)
            except BufferError:
                self._inner.poll(_POLL_SLICE_S)
                return
            self._outbox.popleft()
            self._outbox_record = 0

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
            self._inner.produce(
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
        self._in_flight += 1
        self.counters["notification_bytes"] += len(value)
        self.counters["notifications" if inline is None else "inline_segments"] += 1

    def _notified(self, segment: SealedSegment, error: KafkaError | None, message: Any) -> None:
        self._in_flight -= 1
        self._settle(segment, error, message.offset() if error is None else -1)

    def _settle(
        self, segment: SealedSegment, error: KafkaError | None, kafka_offset: int = -1
    ) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            notifier = self._core.notifier
            self._dispatch(
                notifier.acknowledged(segment, kafka_offset, now_ms)
                if error is None
                else notifier.rejected(segment, error, now_ms)
            )

    def _produce_plain(self, segment: SealedSegment) -> None:
        """Produce the segment's records from `_outbox_record` on."""
        keys, values, headers = segment.keys, segment.values, segment.headers
        timestamps_ms = segment.timestamps_ms
        for index in range(self._outbox_record, segment.record_count):
            try:
                self._inner.produce(
                    segment.topic,
                    value=values[index],
                    key=keys[index],
                    partition=segment.partition,
                    headers=None if headers is None else headers[index],
                    timestamp=max(0, timestamps_ms[index]),
                    on_delivery=partial(self._record_delivered, segment, index),
                )
            except KafkaException as error:
                self._settle_record(segment, index, error.args[0])
            else:
                self._in_flight += 1
            self._outbox_record = index + 1
        self.counters["plain_records"] += segment.record_count

    def _record_delivered(
        self, segment: SealedSegment, index: int, error: KafkaError | None, message: Any
    ) -> None:
        self._in_flight -= 1
        self._settle_record(segment, index, message.offset() if error is None else error)

    def _settle_record(self, segment: SealedSegment, index: int, outcome: int | KafkaError) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            self._dispatch(self._core.notifier.record_settled(segment, index, outcome, now_ms))

    # --- reports and waiting --------------------------------------------------------------------

    @property
    def undelivered(self) -> int:
        """Records without a report, and events not served yet."""
        return self._memory.records + len(self.reports)

    @property
    def fatal_error(self) -> KafkaError | None:
        """Set when a defect ended one of the threads."""
        return self._fatal

    def serve(self, timeout_s: float) -> int:
        """Run due callbacks; wait for the first one at most `timeout_s` (negative: no limit).

        Returns:
            Events served; records without a callback that were acknowledged count too.
        """
        deadline = None if timeout_s < 0 else time.monotonic() + timeout_s
        while True:
            served = self.reports.serve()
            with self._changed:
                served += self._acknowledged_silently
                self._acknowledged_silently = 0
                self._raise_fatal()
                if served or not self.reports.is_empty:
                    if served:
                        return served
                    continue
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return 0
                self._changed.wait(remaining)

    def flush(self, timeout_s: float) -> int:
        """Seal everything at once and wait until all is reported, serving callbacks.

        Args:
            timeout_s: At most so long; negative: no limit.

        Returns:
            What remains undelivered.
        """
        deadline = None if timeout_s < 0 else time.monotonic() + timeout_s
        is_first = True
        while True:
            self.reports.serve()
            with self._changed:
                self._raise_fatal()
                # Again when all that was sealed is settled: callbacks may have produced more.
                if is_first or not self._core.notifier.unsettled_segments:
                    is_first = False
                    self._producer_topics.seal_when_known()
                    now_ms, wall_ms = self._clock.now_ms(), self._clock.timestamp_ms()
                    self._dispatch(self._core.seal_all(now_ms, wall_ms))
                if not self.undelivered:
                    self._acknowledged_silently = 0
                    return 0
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return self.undelivered
                if self.reports.is_empty:
                    self._changed.wait(remaining)

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise KafkaException(self._fatal)

    def event(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Queue an event of the inner client for the user's callback."""
        with self._changed:
            self.reports.add_event(partial(callback, *arguments))
            self._changed.notify_all()

    def _log_once(self, text: str, *, cause: str) -> None:
        now = time.monotonic()
        if now - self._logged.get(cause, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged[cause] = now
            logger.error("%s: %s", self._name, text)

    def stop(self, timeout_s: float) -> None:
        """End the threads; what is not delivered yet is lost. Waits at most `timeout_s`."""
        self._is_stopping = True
        self._wake.set()
        self._producer_topics.stop()
        self._uploader.stop()
        deadline = time.monotonic() + timeout_s
        self._notifier_thread.join(max(0.0, deadline - time.monotonic()))
        self._producer_topics.join(max(0.0, deadline - time.monotonic()))
        self._uploader.join(max(0.0, deadline - time.monotonic()))
