"""The step in which a record joins its open segment: what `produce` costs each record.

In C (`native/record_step.c`) it takes no lock: the GIL is held from the look for the segment until
the record is counted and in its rows, and no Python code runs in between, so for other threads,
signal handlers and finalizers it is one step.

The twin in Python takes the core's lock, for a trace function or a build without the GIL would let
other threads in anywhere. What remains are signal handlers and finalizers of its own thread.
CPython runs handlers behind calls, at the starts of functions and at the ends of loop rounds, so
there is none of these between the look for the segment and the one call that adds the record; and
the row is made before, for in Python 3.11 making a tuple may run the collector and finalizers.

While one of the producer's own threads is inside of the core (`is_deciding`), no record joins.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from zlib import crc32

from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD, ENCODED_BYTES_PER_RECORD
from blobmsg.native import native

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.core.batcher import TopicLanes
    from blobmsg.core.segments import Lane
    from blobmsg.core.step_fields import MemoryFields
    from blobmsg.reentrant import CoreLock

__all__ = ["RecordStep", "unusual_places"]

if TYPE_CHECKING or native is None:

    def unusual_places(messages: list[Any]) -> list[int]:
        """Where those are that are no dict of a key, which is not empty, and a value of bytes."""
        return [place for place, message in enumerate(messages) if not _is_plain(message)]

    def _is_plain(message: Any) -> bool:
        if message.__class__ is not dict or len(message) != 2:
            return False
        key = message.get("key")
        return key.__class__ is bytes and bool(key) and message.get("value").__class__ is bytes

    class RecordStep:
        """Adds records with a key and a value, both bytes, and nothing else.

        Args:
            topics: By name the topics in use that place keys by CRC-32; who calls goes on changing
                it.
            memory: What may be held.
            core_lock: Guards the core.
            seal: Called with a lane that is full, and False for "not urgent".
            record_max_bytes: Largest key and value together.

        Threads: any; a signal handler or finalizer may come between any two steps.
        """

        __slots__ = ("_core_lock", "_memory", "_record_max_bytes", "_seal", "_topics")

        def __init__(
            self,
            topics: dict[str, TopicLanes],
            memory: MemoryFields,
            core_lock: CoreLock,
            seal: Callable[[Lane, bool], None],
            record_max_bytes: int,
        ) -> None:
            self._topics = topics
            self._memory = memory
            self._core_lock = core_lock
            self._seal = seal
            self._record_max_bytes = record_max_bytes

        def __call__(
            self,
            topic: str,
            key: Any,
            value: Any,
            partition: Any,
            callback: Callable[..., Any] | None,
            timestamp_ms: Any,
            headers: Any,
        ) -> bool:
            """Add one record, if nothing is unusual about it.

            Args:
                topic: Its topic.
                key: Its key.
                value: Its value.
                partition: -1 to let its key choose.
                callback: Its delivery callback.
                timestamp_ms: Wall time in ms; 0: now.
                headers: None, or it is not taken.

            Returns:
                Whether it joined; if not, an argument is unusual or wrong, or its segment is not
                open, or there is no room.
            """
            if (
                headers is not None
                or key.__class__ is not bytes
                or not key
                or value.__class__ is not bytes
                or partition.__class__ is not int
                or timestamp_ms.__class__ is not int
                or topic.__class__ is not str
            ):
                return False
            if not -(1 << 63) <= timestamp_ms < 1 << 63:
                return False
            payload_bytes = len(key) + len(value)
            row = (key, value, timestamp_ms or time.time_ns() // 1_000_000)
            with self._core_lock.lock:
                lanes = self._topics.get(topic)
                if lanes is None or not -1 <= partition < lanes.partition_count:
                    return False
                place = partition if partition >= 0 else crc32(key) % lanes.partition_count
                segment = lanes.open_segments[place]
                if segment is not None and segment.callback is not callback:
                    if not segment.fits(None, callback):
                        return False
                    row = segment.row(key, value, row[2], None, callback)
                    if lanes.open_segments[place] is not segment:
                        return False
                # One step: there was no call since the look for the segment.
                memory = self._memory
                if (
                    segment is None
                    or self._core_lock.is_deciding
                    or segment.records_left <= 0
                    or payload_bytes > self._record_max_bytes
                    or memory.records_bytes + payload_bytes > memory.records_ceiling_bytes
                    or memory.records >= memory.limit_records
                ):
                    return False
                lane = segment.lane
                lane.size_bytes += payload_bytes + ENCODED_BYTES_PER_RECORD
                segment.charged_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD
                segment.records_left -= 1
                memory.records_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD
                memory.records += 1
                segment.rows.extend(row)
            if lane.size_bytes >= lane.seal_at_bytes:
                self._seal(lane, False)
            return True

        def join_messages(
            self,
            topic: str,
            messages: list[dict[str, Any]],
            first: int,
            partition: int,
            callback: Callable[..., Any] | None,
        ) -> int:
            """Add messages of a batch until one is unusual; it may end sooner.

            Args:
                topic: Their topic.
                messages: dicts as in `BlobProducer.produce_batch`.
                first: The place of the first one to add.
                partition: Of all; -1 to let their keys choose.
                callback: The delivery callback of all.

            Returns:
                The place of the first one that was not added.
            """
            place = first
            now_ms = time.time_ns() // 1_000_000
            while place < len(messages):
                message = messages[place]
                if not _is_plain(message) or not self(
                    topic, message["key"], message["value"], partition, callback, now_ms, None
                ):
                    break
                place += 1
            return place

else:
    unusual_places, RecordStep = native.unusual_places, native.RecordStep
