"""The producer's state machine: batcher, router, notifier, fallback and the memory they may use.

Decides everything about batches, order, deadlines and memory; never calls out. The shell
(`blobmsg.producer`) appends records to open segments, tells events, and does the returned actions
in order. Events: `seal`, `seal_all`, `tick`, `inline_encoded`, `cut`, `attempt_failed`,
`uploaded`, `upload_failed`, `upload_needless`, `object_encoded`, `object_released`, `acknowledged`,
`rejected`, `record_settled` (of the notifier), `records_reported`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blobmsg.core.events import (
    EncodeInline,
    Notify,
    ProducerAction,
    Report,
    UploadBatch,
)
from blobmsg.core.segments import Batch, Lane, Route, SealedSegment, SegmentState
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD, MemoryFields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from blobmsg.core.batcher import Batcher, TopicLanes
    from blobmsg.core.fallback import InlineFallback
    from blobmsg.core.kafka_presence import KafkaPresence
    from blobmsg.core.notifier import Notifier
    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg.format.notification import Part

__all__ = ["CHARGE_BYTES_PER_SEGMENT", "BufferMemory", "ProducerCore"]

# What a sealed segment is charged besides its records: itself, the smallest chunks of its columns,
# its part, its places in two queues.
CHARGE_BYTES_PER_SEGMENT: Final = 2048
# How often it is looked whether Kafka has room again for what is to go inline.
_LOOK_AGAIN_MS: Final = 100


class BufferMemory(MemoryFields):
    """What records, objects and inline bytes hold, against a limit.

    Records are charged when appended, segments when sealed (of open ones there are few: one for
    each partition), objects and inline bytes when encoded. A segment with its records and inline
    bytes is released once, at the latest when it is reported; an object when its upload ends. Who
    keeps something for each record besides, an asyncio client its Future, says how much in all.

    Args:
        limit_bytes: All that may be held, without the inner producer's queue.
        encode_reserve_bytes: Part of it kept free of records, so that a buffer full of records
            can still be encoded; at most half of the limit counts.
        limit_records: Most records buffered at once; None: no limit but the bytes.
    """

    __slots__ = (
        "inline_bytes",
        "limit_bytes",
        "object_bytes",
        "outcome_bytes",
        "record_limit_bytes",
    )

    def __init__(
        self, limit_bytes: int, encode_reserve_bytes: int, limit_records: int | None
    ) -> None:
        self.limit_bytes = limit_bytes
        self.record_limit_bytes = limit_bytes - min(encode_reserve_bytes, limit_bytes // 2)
        self.limit_records = limit_records if limit_records is not None else 1 << 62
        self.records = 0
        self.records_bytes = 0
        self.object_bytes = 0  # of encoded objects whose upload has not ended
        self.inline_bytes = 0  # of encoded segments that travel in their notification
        self.outcome_bytes = 0  # of what records' outcomes are told to
        # What `records_bytes` may reach now: the record path compares only with this.
        self.records_ceiling_bytes = self.record_limit_bytes

    @property
    def is_full_of_inline(self) -> bool:
        """Whether what travels in notifications takes a quarter of all."""
        return self.inline_bytes > self.limit_bytes // 4

    @property
    def held_bytes(self) -> int:
        """All that is charged now."""
        return self.records_bytes + self.object_bytes + self.inline_bytes + self.outcome_bytes

    def is_full_for(self, payload_bytes: int) -> bool:
        """Whether a record of this size must wait; an empty buffer takes any."""
        return self.records > 0 and (
            self.records_bytes + payload_bytes > self.records_ceiling_bytes
            or self.records >= self.limit_records
        )

    def charge_record(self, payload_bytes: int, times: int = 1) -> None:
        """Charge a record that joins no segment yet; -1 times ends its charge."""
        self.records += times
        self.records_bytes += times * (payload_bytes + CHARGE_BYTES_PER_RECORD)

    def charge_segment(self, segment: SealedSegment) -> None:
        """Charge a new segment, besides its records."""
        self.records_bytes += CHARGE_BYTES_PER_SEGMENT
        segment.charged_bytes += CHARGE_BYTES_PER_SEGMENT

    def charge_object(self, size_bytes: int) -> None:
        """Charge an object; a negative size ends its charge."""
        self.object_bytes += size_bytes
        self._move_ceiling()

    def charge_inline(self, size_bytes: int) -> None:
        """Charge a segment that travels in its notification; a negative size ends its charge."""
        self.inline_bytes += size_bytes
        self._move_ceiling()

    def hold_outcomes(self, size_bytes: int) -> None:
        """What records' outcomes are told to takes so much now, in place of what it took.

        At most half of the limit is charged: some may be of records that are not in this buffer.
        """
        self.outcome_bytes = min(size_bytes, self.limit_bytes // 2)
        self._move_ceiling()

    def _move_ceiling(self) -> None:
        room_bytes = self.limit_bytes - self.object_bytes - self.inline_bytes
        ceiling_bytes = min(self.record_limit_bytes, room_bytes)
        self.records_ceiling_bytes = ceiling_bytes - self.outcome_bytes

    def may_encode(self, size_bytes: int) -> bool:
        """Whether an object of this size may be built now.

        One object is always admitted, for an upload ends by itself. Inline bytes don't count for
        that: they may wait in their partition behind the very object that asks.
        """
        return self.object_bytes == 0 or self.held_bytes + size_bytes <= self.limit_bytes


class ProducerCore:
    """The whole of a producer's decisions. Threads: under the producer's lock.

    Args:
        batcher: Fills and seals lanes.
        notifier: Orders notifications and reports.
        memory: The limits.
        presence: Whether Kafka is there.
        fallback: What goes inline because the store fails.
    """

    def __init__(
        self,
        batcher: Batcher,
        notifier: Notifier,
        memory: BufferMemory,
        presence: KafkaPresence,
        fallback: InlineFallback,
    ) -> None:
        self.batcher = batcher
        self.notifier = notifier
        self.memory = memory
        self.presence = presence
        self.fallback = fallback
        self.transaction = notifier.transaction
        self._reserved: set[int] = set()  # numbers of batches that are being encoded

    def seal(self, lane: Lane, now_ms: int, timestamp_ms: int) -> list[ProducerAction]:
        """Seal one lane; uploads and encodings first, in the order segments were opened."""
        sealed = self.batcher.seal(lane, now_ms, timestamp_ms)
        actions: list[ProducerAction] = []
        batches: set[int] = set()
        for segment in sealed:
            self.memory.charge_segment(segment)
            if segment.route is Route.BLOB and segment.batch is not None:
                if segment.batch.number not in batches:
                    batches.add(segment.batch.number)
                    self.fallback.sealed(segment.batch, now_ms)
                    actions.append(UploadBatch(segment.batch))
            elif segment.route is Route.INLINE:
                actions.append(EncodeInline(segment))
        for segment in sealed:
            actions += self.notifier.enqueue(segment, now_ms)
        return actions

    def seal_all(self, now_ms: int, timestamp_ms: int) -> list[ProducerAction]:
        """Seal every lane at once, and hold nothing: flush, commit, close, or memory is short."""
        return self.notifier.release(now_ms) + self._seal_lanes(now_ms, timestamp_ms)

    def _seal_lanes(self, now_ms: int, timestamp_ms: int) -> list[ProducerAction]:
        actions: list[ProducerAction] = []
        for lane in self.batcher.filling_lanes():
            actions += self.seal(lane, now_ms, timestamp_ms)
        return actions

    def purge(self, error: object, now_ms: int, timestamp_ms: int) -> list[ProducerAction]:
        """Fail every record that Kafka was not given; what has its turn is the shell's.

        Args:
            error: What the records' reports carry.
            now_ms: Monotonic time.
            timestamp_ms: Wall time.
        """
        sealed = self._seal_lanes(now_ms, timestamp_ms)
        for action in sealed:
            if isinstance(action, UploadBatch):
                self.fallback.ended(action.batch)
        # Plain records have their turn with the seal; of the others nothing is worth the work.
        actions = [action for action in sealed if isinstance(action, (Notify, Report))]
        return actions + self.notifier.purge(error, now_ms)

    def tick(self, now_ms: int, timestamp_ms: int) -> list[ProducerAction]:
        """Let time pass: lanes come of age, segments reach their deadline or leave the store."""
        actions: list[ProducerAction] = []
        for lane in self.batcher.lanes_due(now_ms):
            actions += self.seal(lane, now_ms, timestamp_ms)
        actions += self.notifier.tick(now_ms)
        return actions + self._fall_back(now_ms)

    def next_tick_ms(self, now_ms: int) -> int | None:
        """When `tick` has something to do, monotonic; None: not before the next record."""
        fallback_ms = self.fallback.next_ms(now_ms)
        if fallback_ms is not None and not self._may_fall_back(now_ms):
            fallback_ms = max(fallback_ms, now_ms + _LOOK_AGAIN_MS)
        due_ms = [self.batcher.next_due_ms(), self.notifier.next_tick_ms, fallback_ms]
        return min((ms for ms in due_ms if ms is not None), default=None)

    def _may_fall_back(self, now_ms: int) -> bool:
        is_busy = self.memory.is_full_of_inline and self.notifier.awaits_kafka
        return not is_busy and not self.presence.is_away(now_ms)

    def _fall_back(self, now_ms: int) -> list[ProducerAction]:
        if not self._may_fall_back(now_ms):
            return []
        return [*self.fallback.take(now_ms, self._has_room_for_inline)]

    def _has_room_for_inline(self, segment: SealedSegment) -> bool:
        # What is inline already may wait behind this very segment.
        return not self.memory.is_full_of_inline or self.notifier.is_next(segment)

    def inline_encoded(
        self,
        segment: SealedSegment,
        part: Part,
        data: bytes,
        lanes: TopicLanes,
        now_ms: int,
        timestamp_ms: int,
    ) -> list[ProducerAction]:
        """A segment's bytes are made; too large ones get an object of their own instead.

        Bytes of a segment that has failed meanwhile, or that is stored after all, are not kept.
        """
        if segment.state is not SegmentState.WAITING:
            return []
        key = self.batcher.lane_key(lanes, segment.partition)
        self.batcher.encoded(key, segment.encoded_bytes, len(data))
        max_bytes = self.fallback.max_bytes_of(segment)
        fits = len(data) <= max_bytes
        if segment.has_fallen_back:
            self.fallback.encoded(segment.length_bytes, len(data) if fits else 0)
            if not fits and segment.record_count > 1:  # many headers
                half_bytes = min(max_bytes, segment.encoded_bytes // 2)
                return [self.fallback.cutting(segment, half_bytes)]
        if not fits:
            if segment.rows.record_count and not segment.has_fallen_back:
                segment.route = self.batcher.router.route_without_envelope(segment, len(data))
                if segment.route is Route.PLAIN:
                    return self.notifier.ready([segment], now_ms)
            batch = self.batcher.make_batch_of([segment], lanes, timestamp_ms)
            if segment.record_count > 1:  # else it may not leave the object
                self.fallback.sealed(batch, now_ms)
            return [UploadBatch(batch)]
        segment.part = part
        segment.inline = data
        segment.encoded = None
        self._charge_inline(segment, len(data))
        if not segment.has_callbacks:
            self._free_records(segment)
        return self.notifier.ready([segment], now_ms)

    def cut(
        self,
        segment: SealedSegment,
        pieces: Sequence[SealedSegment],
        lanes: TopicLanes,
        now_ms: int,
        timestamp_ms: int,
    ) -> list[ProducerAction]:
        """A segment is cut; for nothing if it has failed meanwhile, or is stored after all."""
        if segment.state is not SegmentState.WAITING:
            self.fallback.cut(segment, None)
            return self._fall_back(now_ms)
        self.notifier.replace(segment, pieces)
        self.memory.records_bytes -= segment.charged_bytes
        segment.charged_bytes = 0
        segment.drop_records()
        segment.drop_callbacks()
        segment.encoded = None
        self._charge_inline(segment, 0)
        for piece in pieces:
            self.memory.records_bytes += piece.charged_bytes
            self.memory.charge_segment(piece)
        batch = self.batcher.make_batch_of(pieces, lanes, timestamp_ms)
        self.fallback.cut(segment, batch)
        return [UploadBatch(batch), *self._fall_back(now_ms)]

    def inline_failed(
        self, segment: SealedSegment, error: object, now_ms: int
    ) -> list[ProducerAction]:
        """A segment can't be encoded, or cut."""
        self.fallback.cut(segment, None)
        return self.notifier.failed([segment], error, now_ms) + self._fall_back(now_ms)

    def attempt_failed(self, batch: Batch, begun_ms: int, now_ms: int) -> list[ProducerAction]:
        """The store did not take the batch's object, or did not say so; it is tried again.

        Args:
            batch: Its object is under way.
            begun_ms: When the attempt began, monotonic.
            now_ms: Monotonic time.
        """
        self.fallback.attempt_failed(batch, begun_ms, now_ms)
        return self._fall_back(now_ms)

    def uploaded(
        self, batch: Batch, parts: Mapping[SealedSegment, Part], now_ms: int
    ) -> list[ProducerAction]:
        """The store has confirmed the batch's object."""
        self.fallback.stored(batch, now_ms)
        stored = [s for s in batch.segments if s in parts and s.state is SegmentState.WAITING]
        for segment in stored:
            segment.route = Route.BLOB  # even if it was about to go inline, or by another object
            segment.batch = batch
            segment.part = parts[segment]
            segment.encoded = None
            self._charge_inline(segment, 0)
        return self.notifier.ready(stored, now_ms)

    def upload_failed(self, batch: Batch, error: object, now_ms: int) -> list[ProducerAction]:
        """The object can't be stored in time, or at all."""
        self.fallback.ended(batch)
        waiting = [segment for segment in batch.segments if segment.waits_for(batch)]
        return self.notifier.failed(waiting, error, now_ms)

    def upload_needless(self, batch: Batch) -> None:
        """Nobody waits for the object: its segments have failed, or go inline."""
        self.fallback.ended(batch)

    def reserve_object(self, batch: Batch, now_ms: int) -> bool:
        """Whether the batch may be encoded now; its size is charged from here on.

        Not while Kafka is away (`KafkaPresence`), nor while memory is short.
        """
        if not self.memory.may_encode(batch.size_bytes) or not self.presence.may_store(now_ms):
            return False
        self._reserved.add(batch.number)
        self.memory.charge_object(batch.size_bytes)
        return True

    def object_encoded(
        self,
        batch: Batch,
        encoded: Mapping[SealedSegment, EncodedSegment],
        object_bytes: int,
        now_ms: int,
    ) -> list[ProducerAction]:
        """The batch's segments are encoded, and on their way to the store.

        Records that nobody waits for live on there alone. Segments that have become so short that
        they cost more in the object leave it for their notifications.
        """
        self._end_reservation(batch)
        self.memory.charge_object(object_bytes)
        self.fallback.begun(batch, now_ms)
        for segment, encoded_segment in encoded.items():
            segment.encoded = encoded_segment
            # Of what has fallen back, the one who encodes it has the records; it may be cut.
            if not segment.has_callbacks and not segment.has_fallen_back:
                self._free_records(segment)
        waiting = [segment for segment in encoded if segment.waits_for(batch)]
        lengths = [segment.length_bytes for segment in waiting]
        self.batcher.encoded(
            batch.lane_key, sum(segment.encoded_bytes for segment in waiting), sum(lengths)
        )
        worth = self.batcher.router.worth_storing(lengths)
        leaving = [
            segment
            for segment, is_worth in zip(waiting, worth, strict=True)
            if not is_worth and segment.length_bytes <= self.fallback.max_bytes_of(segment)
        ]
        for segment in leaving:
            segment.route = Route.INLINE
        return [EncodeInline(segment) for segment in leaving]

    def object_released(self, batch: Batch, size_bytes: int) -> None:
        """The batch's upload has ended: its object's bytes (0: never built) are free again."""
        self._end_reservation(batch)
        self.memory.charge_object(-size_bytes)
        for segment in batch.segments:
            if segment.state is not SegmentState.WAITING or segment.route is Route.BLOB:
                segment.encoded = None
            elif segment.encoded is not None:  # it is on its way into a notification
                self._charge_inline(segment, segment.encoded.length_bytes)

    def _end_reservation(self, batch: Batch) -> None:
        if batch.number in self._reserved:
            self._reserved.remove(batch.number)
            self.memory.charge_object(-batch.size_bytes)

    def records_reported(self, segments: Iterable[SealedSegment]) -> None:
        """The segments' records have left the buffer: reported, or nobody listens."""
        memory = self.memory
        for segment in segments:
            memory.records -= segment.record_count
            memory.records_bytes -= segment.charged_bytes
            segment.charged_bytes = 0
            segment.drop_records()
            segment.drop_callbacks()
            segment.encoded = None
            segment.inline = None
            self._charge_inline(segment, 0)

    def _charge_inline(self, segment: SealedSegment, size_bytes: int) -> None:
        self.memory.charge_inline(size_bytes - segment.inline_charged_bytes)
        segment.inline_charged_bytes = size_bytes

    def _free_records(self, segment: SealedSegment) -> None:
        # Their charge goes with them: an object may be encoded after its records timed out. The
        # segment's own stays until its report, else a Kafka that is away would let segments pile
        # up without limit.
        rest_bytes = min(segment.charged_bytes, CHARGE_BYTES_PER_SEGMENT)  # 0 after its report
        self.memory.records_bytes -= segment.charged_bytes - rest_bytes
        segment.charged_bytes = rest_bytes
        segment.drop_records()
