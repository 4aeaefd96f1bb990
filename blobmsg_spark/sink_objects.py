"""Sealed lanes into the store, and their notifications.

Decides which segments travel in their notification, by cost as the producer's router does, and when
objects expire. A notification exists only after the store has confirmed its object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blobmsg.core.router import worth_storing
from blobmsg.format.batch_object import lay_out_object
from blobmsg.format.codec import Codec
from blobmsg.format.notification import Notification, encode_notification
from blobmsg.format.object_key import NO_ZONE, ObjectKey, expiry_hour
from blobmsg_spark.sink_message import SinkNotification
from blobmsg_spark.sink_segment import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg.format.object_key import RetentionClass
    from blobmsg.format.part import Part
    from blobmsg_spark.sink_lane import SealedLane
    from blobmsg_spark.worker import Worker

__all__ = ["SinkObjects"]

# Of `blobmsg.request.timeout.ms`: 2 minutes by default. Spark tries a failed task again, too.
_PUT_TIMES: Final = 4
_HOUR_MS: Final = 3_600_000
# Objects are notified when the whole job is done. So they live longer by this share of their
# retention class, at least an hour, and a job must not take longer.
_COMMIT_SHARE: Final = 8


class SinkObjects:
    """Stores what one task attempt writes; it counts as one producer.

    Args:
        here: Settings and store.
        writer_id: 16 bytes, of this attempt alone.
        is_wanted: Whether anybody waits for it still.

    Threads: one at a time.
    """

    def __init__(self, here: Worker, writer_id: bytes, is_wanted: Callable[[], bool]) -> None:
        self._worker = here
        self._settings = here.settings
        self._codec = Codec[here.settings.compression_type.upper()]
        self._writer_id = writer_id
        self._is_wanted = is_wanted
        self._next_number = 0
        self._sequences: dict[tuple[str, int], int] = {}
        self.commit_by_ms: int | None = None

    def write(self, lane: SealedLane) -> list[SinkNotification]:
        """Store a lane's records.

        Args:
            lane: Its segments are taken out of it, for what is encoded needs no place twice.

        Raises:
            BlobmsgError: The store does not take the object.
        """
        segments: list[EncodedSegment] = []
        lane.segments.reverse()
        while lane.segments:
            topic, partition, records = lane.segments.pop()
            segments.append(
                encode_records(
                    records,
                    self._codec,
                    topic=topic,
                    partition=partition,
                    destination_zone=lane.key.destination_zone,
                    producer_id=self._writer_id,
                )
            )
        is_stored = self._choose(segments, lane)
        stored = [segment for segment, is_in in zip(segments, is_stored, strict=True) if is_in]
        key, parts = self._put(stored, lane) if stored else (None, [])
        of_stored = iter(parts)
        return [
            self._notify(segment, key, next(of_stored)) if is_in else self._inline(segment)
            for segment, is_in in zip(segments, is_stored, strict=True)
        ]

    def _choose(self, segments: Sequence[EncodedSegment], lane: SealedLane) -> list[bool]:
        """Of each segment whether it goes into the object."""
        settings = self._settings
        if settings.route == "blob":
            return [True] * len(segments)
        sizes = [segment.length_bytes for segment in segments]
        if settings.route == "inline":
            wanted = [False] * len(segments)
        else:
            wanted = worth_storing(sizes, settings.price_table, groups=settings.cost_groups)
        return [
            is_wanted or size > lane.inline_max_bytes[segment.topic]
            for is_wanted, size, segment in zip(wanted, sizes, segments, strict=True)
        ]

    def _put(self, segments: Sequence[EncodedSegment], lane: SealedLane) -> tuple[str, list[Part]]:
        clock = self._worker.clock
        key = self._object_key(segments, lane)
        laid_out = lay_out_object(segments)
        self._worker.store.put(
            key,
            laid_out.pieces,
            deadline_ms=clock.now_ms() + _PUT_TIMES * self._settings.request_timeout_ms,
            crc32=laid_out.crc32,
            is_wanted=self._is_wanted,
        )
        return key, [entry.part for entry in laid_out.entries]

    def _object_key(self, segments: Sequence[EncodedSegment], lane: SealedLane) -> str:
        number = self._next_number
        self._next_number += 1
        retention = lane.key.retention_class
        now_ms = self._worker.clock.timestamp_ms()
        if not retention.is_forever:
            now_ms += commit_time_ms(retention)
            self.commit_by_ms = min(now_ms, self.commit_by_ms or now_ms)
        return ObjectKey(
            lane.key.isolation,
            f"{self._writer_id[0] + number & 15:x}",
            expiry_hour(
                now_ms,
                max(segment.last_timestamp_ms for segment in segments),
                retention,
                lane.segment_ms,
            ),
            self._settings.zone or NO_ZONE,
            self._writer_id.hex(),
            number,
        ).encode()

    def _inline(self, segment: EncodedSegment) -> SinkNotification:
        part, data = segment.inline()
        return self._notify(segment, None, part, data)

    def _notify(
        self, segment: EncodedSegment, key: str | None, part: Part, inline: bytes | None = None
    ) -> SinkNotification:
        place = (segment.topic, segment.partition)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + 1
        notification = Notification((part,), sequence, self._writer_id, key, inline=inline)
        return SinkNotification(
            *place, part.last_timestamp_ms, encode_notification(notification), part.records
        )


def commit_time_ms(retention: RetentionClass) -> int:
    """How long after an object was stored it may be notified."""
    return max(_HOUR_MS, retention.duration_ms // _COMMIT_SHARE)
