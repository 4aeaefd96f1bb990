"""What came of uploads, for the producer's core.

A shell, between the uploader's threads and `ProducerCore`.

Threads: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from blobmsg.core.events import EncodeInline
from blobmsg.core.segments import SegmentState
from blobmsg.delivery_reports import kafka_error_of
from blobmsg.errors import BlobmsgError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blobmsg.clock import Clock
    from blobmsg.core.events import CutSegment, ProducerAction
    from blobmsg.core.producer_core import ProducerCore
    from blobmsg.core.segments import Batch, SealedSegment
    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg.format.part import Part
    from blobmsg.format.rows import Rows
    from blobmsg.producer_topics import ProducedTopic
    from blobmsg.rare_log import RareLog
    from blobmsg.reentrant import CoreLock, News

__all__ = ["UploadResults"]


class UploadResults:
    """`UploadOutcomes` that tells the core, under its lock.

    Args:
        core: Decides.
        core_lock: Guards it.
        topics: By name.
        clock: Time.
        dispatch: Takes the core's actions, under the lock.
        news: Told when memory may be free; whoever waits for room in the cache listens.
        wake_notifier: Called when its next look may be due earlier.
        is_stopping: Whether nobody waits for an object any more.
        thread_failed: Told of a defect that ended a thread.
        counters: Of the pipeline: `object_bytes`, `fallback_segments`, `fallback_bytes`.
        log: For what the user should know.
        name: The producer's, for log lines.
    """

    def __init__(
        self,
        core: ProducerCore,
        core_lock: CoreLock,
        topics: Mapping[str, ProducedTopic],
        *,
        clock: Clock,
        dispatch: Callable[[list[ProducerAction]], None],
        news: News,
        wake_notifier: Callable[[], None],
        is_stopping: Callable[[], bool],
        thread_failed: Callable[[BaseException], None],
        counters: dict[str, int],
        log: RareLog,
        name: str,
    ) -> None:
        self._core = core
        self._core_lock = core_lock
        self._topics = topics
        self._clock = clock
        self._dispatch = dispatch
        self._news = news
        self._wake_notifier = wake_notifier
        self._is_stopping = is_stopping
        self._thread_failed = thread_failed
        self._counters = counters
        self._log = log
        self._name = name

    def begin_encoding(self, batch: Batch) -> list[tuple[SealedSegment, Rows]]:
        """See `UploadOutcomes`."""
        with self._news.listening() as news:
            while not self._is_stopping():
                contents = self.try_encoding(batch)
                if contents is not None:
                    return contents
                news.wait(1.0)
        return []

    def try_encoding(self, batch: Batch) -> list[tuple[SealedSegment, Rows]] | None:
        """As `begin_encoding`; None: not yet."""
        with self._core_lock.lock:
            waiting = [s for s in batch.segments if s.waits_for(batch)]
            if not waiting:
                self._core.upload_needless(batch)
                return []
            if self._core.reserve_object(batch, self._clock.now_ms()):
                return [(segment, segment.rows) for segment in waiting]
        return None

    def object_encoded(
        self, batch: Batch, encoded: Mapping[SealedSegment, EncodedSegment], object_bytes: int
    ) -> list[SealedSegment]:
        """See `UploadOutcomes`."""
        with self._core_lock:
            now_ms = self._clock.now_ms()
            self._dispatch(self._core.object_encoded(batch, encoded, object_bytes, now_ms))
            self._news.tell()
            return [segment for segment in encoded if segment.waits_for(batch)]

    def attempt_failed(self, batch: Batch, begun_ms: int) -> None:
        """See `UploadOutcomes`."""
        with self._core_lock:
            self._dispatch(self._core.attempt_failed(batch, begun_ms, self._clock.now_ms()))
        self._wake_notifier()  # its clock may run from here on

    def uploaded(
        self, batch: Batch, parts: Mapping[SealedSegment, Part], object_bytes: int
    ) -> None:
        """See `UploadOutcomes`."""
        with self._core_lock:
            self._counters["object_bytes"] += object_bytes
            self._core.object_released(batch, object_bytes)
            self._dispatch(self._core.uploaded(batch, parts, self._clock.now_ms()))
            self._news.tell()

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
        self._log(
            f"{self._name}: object {batch.object_key} ({len(batch.segments)} segments) is not "
            f"stored: {error}",
            cause=type(error).__name__,
        )
        with self._core_lock:
            self._core.object_released(batch, object_bytes)
            self._dispatch(self._core.upload_failed(batch, kafka_error, now_ms))
            self._news.tell()

    def upload_abandoned(self, batch: Batch, object_bytes: int) -> None:
        """See `UploadOutcomes`."""
        with self._core_lock:
            self._core.object_released(batch, object_bytes)
            self._core.upload_needless(batch)
            self._news.tell()

    def begin_inline(self, action: EncodeInline | CutSegment) -> Rows | EncodedSegment | None:
        """See `UploadOutcomes`."""
        segment = action.segment
        with self._core_lock.lock:
            if segment.state is not SegmentState.WAITING:
                return None
            if isinstance(action, EncodeInline) and segment.encoded is not None:
                return segment.encoded  # an object was made of it
            return segment.rows if segment.rows.record_count else segment.encoded

    def cut(self, segment: SealedSegment, pieces: list[SealedSegment]) -> None:
        """See `UploadOutcomes`."""
        now_ms, wall_ms = self._clock.now_ms(), self._clock.timestamp_ms()
        with self._core_lock:
            lanes = self._topics[segment.topic].lanes
            self._dispatch(self._core.cut(segment, pieces, lanes, now_ms, wall_ms))
        self._wake_notifier()

    def inline_failed(self, segment: SealedSegment, error: BaseException) -> None:
        """See `UploadOutcomes`."""
        now_ms = self._clock.now_ms()
        with self._core_lock:
            self._dispatch(self._core.inline_failed(segment, kafka_error_of(error), now_ms))

    def inline_encoded(self, segment: SealedSegment, part: Part, data: bytes) -> None:
        """See `UploadOutcomes`."""
        now_ms, wall_ms = self._clock.now_ms(), self._clock.timestamp_ms()
        with self._core_lock:
            lanes = self._topics[segment.topic].lanes
            actions = self._core.inline_encoded(segment, part, data, lanes, now_ms, wall_ms)
            if segment.has_fallen_back and segment.inline is data:
                self._counters["fallback_segments"] += 1
                self._counters["fallback_bytes"] += len(data)
            self._dispatch(actions)

    def thread_failed(self, error: BaseException) -> None:
        """See `UploadOutcomes`."""
        self._thread_failed(error)
