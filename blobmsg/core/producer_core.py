"""The producer's state machine: batcher, router, notifier and the memory they may use.

Decides everything about batches, order, deadlines and memory; never calls out. The shell
(`blobmsg.producer`) appends records to open segments, tells events, and does the returned actions
in order. Events: `seal`, `seal_all`, `tick`, `inline_encoded`, `uploaded`, `upload_failed`,
`object_encoded`, `object_released`, `acknowledged`, `rejected`, `record_settled`, `timed_out` (of
the notifier), `records_reported`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blobmsg.core.events import EncodeInline, Notify, ProducerAction, Report, UploadBatch
from blobmsg.core.segments import Batch, Lane, Route, SealedSegment
from blobmsg.core.step_fields import MemoryFields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from blobmsg.core.batcher import Batcher, TopicLanes
    from blobmsg.core.kafka_presence import KafkaPresence
    from blobmsg.core.notifier import Notifier
    from blobmsg.format.notification import Part

__all__ = ["CHARGE_BYTES_PER_SEGMENT", "BufferMemory", "ProducerCore"]

# What a sealed segment is charged besides its records: itself, the smallest chunks of its columns,
# its part, its places in two queues.
CHARGE_BYTES_PER_SEGMENT: Final = 2048


class BufferMemory(MemoryFields):
    """What records, objects and inline bytes hold, against a limit.

    Records are charged when appended, segments when sealed (of open ones there are few: one for
    each partition), objects and inline bytes when encoded. A segment with its records and inline
    bytes is released once, at the latest when it is reported; an object when its upload ends.

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
        # What `records_bytes` may reach now: the record path compares only with this.
        self.records_ceiling_bytes = self.record_limit_bytes

    @property
    def held_bytes(self) -> int:
        """All that is charged now."""
        return self.records_bytes + self.object_bytes + self.inline_bytes

    def is_full_for(self, payload_bytes: int) -> bool:
        """Whether a record of this size must wait; an empty buffer takes any."""
        return self.records > 0 and (
            self.records_bytes + payload_bytes > self.records_ceiling_bytes
            or self.records >= self.limit_records
        )

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

    def _move_ceiling(self) -> None:
        room_bytes = self.limit_bytes - self.object_bytes - self.inline_bytes
        self.records_ceiling_bytes = min(self.record_limit_bytes, room_bytes)

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
        inline_max_bytes: Largest encoded segment that may travel in a notification.
    """

    def __init__(
        self,
        batcher: Batcher,
        notifier: Notifier,
        memory: BufferMemory,
        presence: KafkaPresence,
        *,
        inline_max_bytes: int,
    ) -> None:
        self.batcher = batcher
        self.notifier = notifier
        self.memory = memory
        self.presence = presence
        self._inline_max_bytes = inline_max_bytes
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
                    actions.append(UploadBatch(segment.batch))
            elif segment.route is Route.INLINE:
                actions.append(EncodeInline(segment))
        for segment in sealed:
            actions += self.notifier.enqueue(segment, now_ms)
        return actions

    def seal_all(self, now_ms: int, timestamp_ms: int) -> list[ProducerAction]:
        """Seal every lane at once: flush, commit, close, or memory is short."""
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
        sealed = self.seal_all(now_ms, timestamp_ms)
        # Plain records have their turn with the seal; of the others nothing is worth the work.
        actions = [action for action in sealed if isinstance(action, (Notify, Report))]
        return actions + self.notifier.purge(error, now_ms)

    def tick(self, now_ms: int, timestamp_ms: int) -> list[ProducerAction]:
        """Let time pass: lanes come of age, segments reach their deadline."""
        actions: list[ProducerAction] = []
        for lane in self.batcher.lanes_due(now_ms):
            actions += self.seal(lane, now_ms, timestamp_ms)
        return actions + self.notifier.tick(now_ms)

    def next_tick_ms(self) -> int | None:
        """When `tick` has something to do, monotonic; None: not before the next record."""
        due_ms = [self.batcher.next_due_ms(), self.notifier.next_tick_ms]
        return min((ms for ms in due_ms if ms is not None), default=None)

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

        Bytes of a segment that has failed meanwhile are not kept.
        """
        if segment.is_settled:
            return []
        if len(data) > min(self._inline_max_bytes, lanes.inline_max_bytes):
            return [UploadBatch(self.batcher.make_batch_of(segment, lanes, timestamp_ms))]
        segment.part = part
        segment.inline = data
        self.memory.charge_inline(len(data))
        if not segment.has_callbacks:
            self._free_records(segment)
        return self.notifier.ready([segment], now_ms)

    def uploaded(
        self, batch: Batch, parts: Mapping[SealedSegment, Part], now_ms: int
    ) -> list[ProducerAction]:
        """The store has confirmed the batch's object."""
        for segment, part in parts.items():
            segment.part = part
        return self.notifier.ready(batch.segments, now_ms)

    def upload_failed(self, batch: Batch, error: object, now_ms: int) -> list[ProducerAction]:
        """The object can't be stored in time, or at all."""
        return self.notifier.failed(batch.segments, error, now_ms)

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
        self, batch: Batch, encoded: Iterable[SealedSegment], object_bytes: int
    ) -> None:
        """The batch's object is built of these segments.

        Records that nobody waits for live on in it alone.
        """
        self._end_reservation(batch)
        self.memory.charge_object(object_bytes)
        for segment in encoded:
            if not segment.has_callbacks:
                self._free_records(segment)

    def object_released(self, batch: Batch, size_bytes: int) -> None:
        """The batch's upload has ended: its object's bytes (0: never built) are free again."""
        self._end_reservation(batch)
        self.memory.charge_object(-size_bytes)

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
            if segment.inline is not None:
                memory.charge_inline(-len(segment.inline))
                segment.inline = None

    def _free_records(self, segment: SealedSegment) -> None:
        # Their charge goes with them: an object may be encoded after its records timed out. The
        # segment's own stays until its report, else a Kafka that is away would let segments pile
        # up without limit.
        rest_bytes = min(segment.charged_bytes, CHARGE_BYTES_PER_SEGMENT)  # 0 after its report
        self.memory.records_bytes -= segment.charged_bytes - rest_bytes
        segment.charged_bytes = rest_bytes
        segment.drop_records()
