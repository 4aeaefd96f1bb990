"""Which lane a record joins, and when a lane's batch is sealed.

Decides: the lane of a partition (isolation, retention class, destination zone), sealing by size,
age, flush or short memory, the object key of a batch.
Never decides: the route of a segment (`router`), the order of notifications (`notifier`).

States of a lane: empty -> filling (first `OpenSegment`) -> sealed (its segments leave as a
`Batch`, the lane is empty again). The shell moves it by `segment_for`, records that join, `seal`,
`tick`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blobmsg.core.segments import (
    Batch,
    Lane,
    LaneKey,
    OpenSegment,
    Route,
    SealedSegment,
)
from blobmsg.core.step_fields import TopicFields
from blobmsg.format.object_key import ObjectKey, expiry_hour
from blobmsg.format.rows import NARROW, WIDE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blobmsg.core.router import Router
    from blobmsg.format.object_key import RetentionClass
    from blobmsg.format.segment import Headers

__all__ = ["Batcher", "TopicLanes"]


class TopicLanes(TopicFields):
    """What the batcher knows of one topic, and its open segments by partition.

    Threads: under the producer's lock, but for what `step_fields` has.
    """

    __slots__ = (
        "destination_zones",
        "inline_max_bytes",
        "is_plain",
        "is_wide",
        "retention_class",
        "segment_ms",
        "topic",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.partition_count = 0
        self.open_segments = []
        self.destination_zones: Sequence[str] = ()
        self.retention_class: RetentionClass | None = None
        self.segment_ms = 0
        self.inline_max_bytes = 1 << 31  # of an encoded segment, by the topic's `max.message.bytes`
        self.is_plain = False  # compacted topics: Kafka must see the keys
        # Records have headers or callbacks of their own; from the first such one on, so that they
        # need no segment besides.
        self.is_wide = False


class Batcher:
    """Fills and seals lanes.

    Args:
        router: Assigns routes when a batch is sealed.
        batch_size_bytes: Seal at this size, as encoded.
        batch_interval_ms: Seal at this age.
        deadline_after_ms: How long a record may take until it is notified; None: no limit.
        isolation: First element of object keys.
        writer_zone: The zone of this process; "" when unknown.
        writer_id: 32 hex digits, unique to this producer.

    Attributes:
        router: As above.

    Threads: under the producer's lock.
    """

    def __init__(
        self,
        router: Router,
        *,
        batch_size_bytes: int,
        batch_interval_ms: int,
        deadline_after_ms: int | None,
        isolation: str,
        writer_zone: str,
        writer_id: str,
    ) -> None:
        self.router = router
        self._seal_at_bytes = router.seal_at_bytes(batch_size_bytes)
        self._interval_ms = batch_interval_ms
        self._deadline_after_ms = deadline_after_ms
        self._isolation = isolation
        self._writer_zone = writer_zone
        self._writer_id = writer_id
        # Compacted topics have lanes of their own, which never wait; see `Lane.is_plain`.
        self._lanes: dict[tuple[LaneKey, bool], Lane] = {}
        self._next_batch_number = 0

    def configure_topic(
        self,
        lanes: TopicLanes,
        *,
        destination_zones: Sequence[str],
        retention_class: RetentionClass,
        segment_ms: int,
        is_plain: bool,
    ) -> None:
        """Take a topic's partitions and settings, first or changed.

        Args:
            lanes: The topic.
            destination_zones: The zone of each partition ("" = none); its length is the partition
                count, smaller than before when the topic was made anew.
            retention_class: Of the topic's objects.
            segment_ms: The topic's `segment.ms`: Kafka deletes whole log segments, so records live
                that much longer than `retention.ms`.
            is_plain: Whether every record must go as an ordinary Kafka record.
        """
        lanes.destination_zones = tuple(destination_zones)
        lanes.retention_class = retention_class
        lanes.segment_ms = segment_ms
        lanes.is_plain = is_plain
        # Never shorter: what a vanished partition still holds is sealed by its lane.
        missing = len(destination_zones) - len(lanes.open_segments)
        lanes.open_segments.extend([None] * missing)
        lanes.partition_count = len(destination_zones)

    def segment_for(
        self,
        lanes: TopicLanes,
        partition: int,
        headers: Headers | None,
        callback: Callable[..., Any] | None,
        now_ms: int,
    ) -> OpenSegment:
        """The segment that a partition's next record joins; a new one where none is open or fits.

        A signal handler may produce to the same partition, or have its lane sealed, in the middle
        of this. CPython runs it only behind calls: so there is none between the two places that a
        new segment takes, and who is on a thread with handlers looks whether the one returned
        is still open.

        Args:
            lanes: The partition's topic, configured.
            partition: Below `partition_count`.
            headers: The headers of the record that is about to be appended.
            callback: Its delivery callback.
            now_ms: Monotonic time.
        """
        segment = lanes.open_segments[partition]
        if segment is not None:
            if segment.fits(headers, callback):
                return segment
            if segment.records_left > 0:
                lanes.is_wide = True
            lane = segment.lane  # even if new records go to another by now: they stay in order
        else:
            lane = self._lane_of(lanes, partition, now_ms)
        if not lane.segments:
            lane.opened_ms = now_ms
        width = WIDE if lanes.is_wide or headers else NARROW
        opened = OpenSegment(lanes, partition, lane, callback, now_ms, width=width)
        lanes.open_segments[partition] = opened
        lane.segments.append(opened)
        return opened

    def _lane_of(self, lanes: TopicLanes, partition: int, now_ms: int) -> Lane:
        key = self.lane_key(lanes, partition)
        lane = self._lanes.get((key, lanes.is_plain))
        if lane is None:
            made = Lane(
                key,
                self._seal_at_bytes,
                is_direct=lanes.is_plain or self.router.is_direct_at_first(),
                is_plain=lanes.is_plain,
                now_ms=now_ms,
            )
            # A signal handler may have been faster, and have put records into its own.
            lane = self._lanes.setdefault((key, lanes.is_plain), made)
        return lane

    def lane_key(self, lanes: TopicLanes, partition: int) -> LaneKey:
        """The lane that records of a partition join."""
        if lanes.retention_class is None:
            raise AssertionError(f"topic {lanes.topic!r} is used before it is configured")
        zones = lanes.destination_zones
        zone = zones[partition] if partition < len(zones) else ""
        return LaneKey(self._isolation, lanes.retention_class, zone)

    def seal(self, lane: Lane, now_ms: int, timestamp_ms: int) -> list[SealedSegment]:
        """Close the lane's batch; no record joins it any more.

        Args:
            lane: Any lane; an empty one gives nothing.
            now_ms: Monotonic time.
            timestamp_ms: Wall time, for the expiry hour.

        Returns:
            Its segments with their routes; those with route `BLOB` share one `Batch`. In the order
            they were opened, which is the order in which each partition's must be notified.
        """
        if not lane.segments:
            return []
        sealed: list[SealedSegment] = []
        segment_ms = 0
        for segment in lane.segments:
            owner = segment.owner
            if owner.open_segments[segment.partition] is segment:
                owner.open_segments[segment.partition] = None
            segment_ms = max(segment_ms, owner.segment_ms)
            # Its first record may not have been taken after all: an interrupt, a refused partition.
            if segment.record_count:
                sealed.append(self._close(segment))
        plain_topics = {s.owner.topic for s in lane.segments if s.owner.is_plain}
        lane.segments = []
        size_bytes, lane.size_bytes = lane.size_bytes, 0
        was_direct = lane.is_direct
        if not lane.is_plain:
            self.router.observe_sealed(lane, size_bytes, now_ms)
        self.router.assign_routes(
            [s for s in sealed if s.topic not in plain_topics], is_direct=was_direct
        )
        for segment_ in sealed:
            if segment_.topic in plain_topics:
                segment_.route = Route.PLAIN
        blobs = [segment for segment in sealed if segment.route is Route.BLOB]
        if blobs:
            self._make_batch(lane.key, blobs, segment_ms, timestamp_ms)
        return sealed

    def make_batch_of(
        self, segments: Sequence[SealedSegment], lanes: TopicLanes, timestamp_ms: int
    ) -> Batch:
        """Give segments an object of their own: one that is too large to go inline, or its pieces.

        Args:
            segments: Sealed, not notified, of one partition.
            lanes: Their topic.
            timestamp_ms: Wall time, for the expiry hour.
        """
        for segment in segments:
            segment.route = Route.BLOB
        key = self.lane_key(lanes, segments[0].partition)
        return self._make_batch(key, segments, lanes.segment_ms, timestamp_ms)

    def _make_batch(
        self,
        lane_key: LaneKey,
        segments: Sequence[SealedSegment],
        segment_ms: int,
        timestamp_ms: int,
    ) -> Batch:
        number = self._next_batch_number
        self._next_batch_number += 1
        object_key = ObjectKey(
            isolation=lane_key.isolation,
            shard=f"{number & 15:x}",
            expiry_hour=expiry_hour(
                timestamp_ms,
                max(segment.rows.last_timestamp_ms for segment in segments),
                lane_key.retention_class,
                segment_ms,
            ),
            zone=self._writer_zone or "none",
            writer_id=self._writer_id,
            number=number,
        )
        deadlines = [s.deadline_ms for s in segments if s.deadline_ms is not None]
        batch = Batch(
            number=number,
            lane_key=lane_key,
            object_key=object_key.encode(),
            segments=tuple(segments),
            size_bytes=sum(segment.encoded_bytes for segment in segments),
            deadline_ms=max(deadlines) if deadlines else None,
        )
        for segment in segments:
            segment.batch = batch
        return batch

    def _close(self, segment: OpenSegment) -> SealedSegment:
        deadline_ms = (
            None if self._deadline_after_ms is None else segment.opened_ms + self._deadline_after_ms
        )
        return SealedSegment(
            topic=segment.owner.topic,
            partition=segment.partition,
            rows=segment.rows,
            callback=segment.callback,
            charged_bytes=segment.charged_bytes,
            opened_ms=segment.opened_ms,
            deadline_ms=deadline_ms,
            inline_max_bytes=segment.owner.inline_max_bytes,
        )

    def encoded(self, key: LaneKey, size_bytes: int, stored_bytes: int) -> None:
        """Segments of a lane are encoded: so many bytes became so many."""
        lane = self._lanes.get((key, False))
        if lane is not None:
            self.router.observe_encoded(lane, size_bytes, stored_bytes)

    def lanes_due(self, now_ms: int) -> list[Lane]:
        """The lanes to seal now: direct ones at once, others at their age."""
        return [
            lane
            for lane in self._lanes.values()
            if lane.segments and (lane.is_direct or now_ms >= lane.opened_ms + self._interval_ms)
        ]

    def filling_lanes(self) -> list[Lane]:
        """All lanes that hold records, largest first."""
        filling = [lane for lane in self._lanes.values() if lane.segments]
        return sorted(filling, key=lambda lane: -lane.size_bytes)

    def next_due_ms(self) -> int | None:
        """When the next lane is due, monotonic; None when all are empty."""
        due = [
            lane.opened_ms + (0 if lane.is_direct else self._interval_ms)
            for lane in self._lanes.values()
            if lane.segments
        ]
        return min(due, default=None)
