"""The way of a record that `record_step` leaves: unusual, or without a place.

Opens segments, chooses partitions by any partitioner, lets records wait for their topic, all of it
under the lock. Signal handlers and finalizers of its own thread may still come in, so a record
joins its segment in one step as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD, ENCODED_BYTES_PER_RECORD
from blobmsg.producer_topics import (
    ANY_PARTITION,
    ProducedTopic,
    WaitingRecord,
    unknown_partition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blobmsg.clock import Clock
    from blobmsg.core.producer_core import ProducerCore
    from blobmsg.core.segments import Lane
    from blobmsg.format.segment import Headers
    from blobmsg.reentrant import CoreLock

__all__ = ["RecordPath"]


class RecordPath:
    """Adds records to open segments.

    Args:
        core: Its batcher and memory are used.
        core_lock: Guards the core.
        topics: The topics whose partitions are known, by name.
        clock: Time.
        admit: Decides about a record that may have to wait, under the lock: its topic, or None when
            it was taken or put off; raises when it can't be taken.
        opened: Told that a segment has been opened, so that somebody looks at its lane's age.
        seal: Seals a lane that is full, or urgent, and waits until it is.

    Threads: any; a signal handler or finalizer may interrupt any of it and call it again.
    """

    def __init__(
        self,
        core: ProducerCore,
        core_lock: CoreLock,
        topics: Mapping[str, ProducedTopic],
        *,
        clock: Clock,
        admit: Callable[[str, WaitingRecord], ProducedTopic | None],
        opened: Callable[[], object],
        seal: Callable[[Lane, bool], None],
    ) -> None:
        self._memory = core.memory
        self._core_lock = core_lock
        self._topics = topics
        self._seal = seal
        self._batcher = core.batcher
        self._clock = clock
        self._admit = admit
        self._opened = opened

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
        is_urgent: bool = False,
        *,
        is_taken: bool = False,
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
            is_taken: Its `produce` has returned, so there must be room for it.

        Raises:
            BufferError: No room; a full buffer is sealed, so waiting makes progress.
            KafkaException: The topic or partition does not exist, as far as is known.
        """
        with self._core_lock.lock:
            known = self._topics.get(topic)
            if (
                known is None
                or self._core_lock.is_deciding
                or self._memory.is_full_for(payload_bytes)
            ):
                known = self._admit(
                    topic, WaitingRecord(key, value, partition, timestamp_ms, headers, callback,
                                         payload_bytes, is_urgent, self._clock.now_ms(), is_taken)
                )  # fmt: skip
                if known is None:
                    return
            lanes = known.lanes
            place = partition if partition != ANY_PARTITION else self._choose(known, key)
            if not 0 <= place < lanes.partition_count:
                raise unknown_partition()
            while True:
                segment = lanes.open_segments[place]
                if segment is None or not segment.fits(headers, callback):
                    self._opened()
                    segment = self._batcher.segment_for(
                        lanes, place, headers, callback, self._clock.now_ms()
                    )
                row = segment.row(key, value, timestamp_ms, headers, callback)
                if lanes.open_segments[place] is segment and segment.records_left > 0:
                    break  # and no call from here to `extend`: one step, see `record_step`
            lane, memory = segment.lane, self._memory
            lane.size_bytes += payload_bytes + ENCODED_BYTES_PER_RECORD
            segment.charged_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD
            segment.records_left -= 1
            memory.records_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD
            memory.records += 1
            try:
                segment.rows.extend(row)
            except (MemoryError, OverflowError):  # it has not joined
                lane.size_bytes -= payload_bytes + ENCODED_BYTES_PER_RECORD
                segment.charged_bytes -= payload_bytes + CHARGE_BYTES_PER_RECORD
                segment.records_left += 1
                memory.records_bytes -= payload_bytes + CHARGE_BYTES_PER_RECORD
                memory.records -= 1
                raise
        if is_urgent or lane.size_bytes >= lane.seal_at_bytes:
            self._seal(lane, is_urgent)

    def _choose(self, known: ProducedTopic, key: bytes | None) -> int:
        """The partition of a record that names none. Under the lock."""
        partition_count = known.lanes.partition_count
        if key and known.hashes_crc32:
            return crc32(key) % partition_count
        now_ms = 0 if key else self._clock.now_ms()
        return known.partitioner.partition(key, partition_count, now_ms, known.unavailable)
