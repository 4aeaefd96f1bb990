"""The units that travel through the producer's cores: lanes, open and sealed segments, batches.

Values and counters only. Who changes them: `OpenSegment` and `Lane` the batcher and whoever adds a
record (`record_step`, `record_path`), `SealedSegment` the notifier, `Batch` nobody after it is
sealed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blobmsg.core.offsets import MAX_NOTIFICATION_RECORDS
from blobmsg.core.step_fields import (
    CHARGE_BYTES_PER_RECORD,
    ENCODED_BYTES_PER_RECORD,
    LaneFields,
    SegmentFields,
)
from blobmsg.format.rows import NARROW, WIDE, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blobmsg.core.batcher import TopicLanes
    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg.format.notification import Part
    from blobmsg.format.object_key import RetentionClass
    from blobmsg.format.segment import Headers

__all__ = [
    "Batch",
    "Lane",
    "LaneKey",
    "OpenSegment",
    "Route",
    "SealedSegment",
    "SegmentState",
    "headers_bytes",
    "payload_sizes",
]

#: `OpenSegment.callback` of a wide one: each record has its own.
EACH_ITS_OWN: Final[Any] = object()


class Route(enum.Enum):
    """How a segment reaches its consumers."""

    BLOB = "blob"  # in a batch object, by notification
    INLINE = "inline"  # encoded, inside its notification
    PLAIN = "plain"  # as ordinary Kafka records


class LaneKey(NamedTuple):
    """What records of one batch object have in common."""

    isolation: str
    retention_class: RetentionClass
    destination_zone: str  # "" = none: one lane for all zones


class Lane(LaneFields):
    """One batch under construction.

    Threads: under the producer's lock, but for what `step_fields` has.
    """

    __slots__ = (
        "is_direct",
        "is_plain",
        "key",
        "last_sealed_ms",
        "opened_ms",
        "rate_bytes_per_ms",
        "recent_bytes",
        "recent_ms",
        "segments",
        "stored_share",
    )

    def __init__(
        self,
        key: LaneKey,
        seal_at_bytes: int,
        *,
        is_direct: bool,
        is_plain: bool = False,
        now_ms: int,
    ) -> None:
        self.key = key
        self.seal_at_bytes = seal_at_bytes
        self.is_direct = is_direct  # records leave at once: waiting would buy nothing
        # Of compacted topics: always direct, and their bytes say nothing about objects' rates.
        self.is_plain = is_plain
        self.segments: list[OpenSegment] = []
        self.size_bytes = 0  # as encoded, uncompressed
        self.opened_ms = now_ms
        self.last_sealed_ms = now_ms
        self.rate_bytes_per_ms = 0.0  # with its two terms, moved by the router
        self.recent_bytes = 0.0
        self.recent_ms = 0.0
        self.stored_share = 1.0  # what compression leaves of its bytes, likewise


class OpenSegment(SegmentFields):
    """Records of one partition that join the lane's next batch.

    All of narrow rows have the segment's callback; each wide one has a callback of its own.

    Threads: see `record_step`.
    """

    __slots__ = ("opened_ms", "owner", "partition")

    def __init__(
        self,
        owner: TopicLanes,
        partition: int,
        lane: Lane,
        callback: Callable[..., Any] | None,
        now_ms: int,
        *,
        width: int,
    ) -> None:
        self.owner = owner
        self.partition = partition
        self.lane = lane
        self.opened_ms = now_ms
        self.rows = Rows(width)
        self.records_left = MAX_NOTIFICATION_RECORDS
        self.callback = callback if width == NARROW else EACH_ITS_OWN
        self.charged_bytes = 0

    def fits(self, headers: Headers | None, callback: Callable[..., Any] | None) -> bool:
        """Whether a record with these can join."""
        if self.records_left <= 0:
            return False
        if self.rows.width == WIDE:
            return True
        if callback is not self.callback and not (
            # A method is another object each time that it is taken from its instance.
            isinstance(callback, MethodType) and callback == self.callback
        ):
            return False
        return not headers

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers | None,
        callback: Callable[..., Any] | None,
        payload_bytes: int,
    ) -> bool:
        """Add one record that fits. The record path has this inline.

        Args:
            key: The record's key.
            value: The record's value.
            timestamp_ms: Its wall time in ms, taken at produce.
            headers: Its headers; None and an empty list are the same.
            callback: Its delivery callback.
            payload_bytes: Bytes of key, value and headers together.

        Returns:
            Whether the lane is full and must be sealed.
        """
        lane = self.lane
        self.charged_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD
        lane.size_bytes += payload_bytes + ENCODED_BYTES_PER_RECORD
        self.records_left -= 1
        self.rows.extend(self.row(key, value, timestamp_ms, headers, callback))
        return lane.size_bytes >= lane.seal_at_bytes

    def row(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers | None,
        callback: Callable[..., Any] | None,
    ) -> tuple[Any, ...]:
        """The cells of one record that fits."""
        if self.rows.width == NARROW:
            return (key, value, timestamp_ms)
        return (key, value, timestamp_ms, headers or None, callback)

    @property
    def record_count(self) -> int:
        """How many records it has."""
        return self.rows.record_count


class SegmentState(enum.Enum):
    """Where a sealed segment is on its way; moved by the notifier alone."""

    WAITING = "waiting"  # for its upload or encoding
    READY = "ready"  # may be notified once everything before it in its partition has been
    NOTIFYING = "notifying"  # handed to the Kafka producer
    DELIVERED = "delivered"
    FAILED = "failed"
    CUT = "cut"  # others have its records


_NO_ROWS: Final = Rows(NARROW)


class SealedSegment:
    """Consecutive records of one partition; the unit of notification, failure and report."""

    __slots__ = (
        "acknowledged_records",
        "batch",
        "callback",
        "callbacks",
        "charged_bytes",
        "deadline_ms",
        "encoded",
        "error",
        "has_fallen_back",
        "inline",
        "inline_charged_bytes",
        "inline_max_bytes",
        "kafka_offset",
        "opened_ms",
        "part",
        "partition",
        "payload_bytes",
        "record_count",
        "record_errors",
        "record_offsets",
        "route",
        "rows",
        "sequence",
        "settled_ms",
        "state",
        "topic",
    )

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        rows: Rows,
        callback: Callable[..., Any] | None,
        charged_bytes: int,
        opened_ms: int,
        deadline_ms: int | None,
        inline_max_bytes: int = 1 << 31,  # more in one message Kafka does not take
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.rows = rows  # empty once nobody needs the records any more
        self.callback = callback
        self.callbacks: list[Callable[..., Any] | None] | None = None
        if rows.width == WIDE:
            callbacks = rows.callbacks
            if all(map(is_, callbacks, repeat(callbacks[0]))):
                self.callback = callbacks[0]
            else:
                self.callback, self.callbacks = None, callbacks
        self.record_count = rows.record_count
        self.charged_bytes = charged_bytes
        # The charge ends when the records are freed; their size stays true.
        self.payload_bytes = charged_bytes - CHARGE_BYTES_PER_RECORD * self.record_count
        self.opened_ms = opened_ms
        self.deadline_ms = deadline_ms  # monotonic; None: no limit
        self.route = Route.BLOB
        self.state = SegmentState.WAITING
        self.batch: Batch | None = None
        self.part: Part | None = None  # where it lies, once uploaded or encoded
        # Its bytes while they are in memory for an object that is not stored yet.
        self.encoded: EncodedSegment | None = None
        self.inline: bytes | None = None
        self.inline_charged_bytes = 0  # for what travels in its notification
        self.has_fallen_back = False  # goes inline because the store fails
        self.inline_max_bytes = inline_max_bytes  # of its topic
        self.sequence = -1
        self.error: Any = None  # what the shell reports: a KafkaError or an exception
        self.kafka_offset = -1
        self.settled_ms = 0
        # Plain route only: each record is acknowledged by itself.
        self.acknowledged_records = 0
        self.record_offsets: list[int] | None = None
        self.record_errors: dict[int, Any] | None = None

    @property
    def encoded_bytes(self) -> int:
        """Its size as encoded, before compression and without the segment's own header."""
        return self.payload_bytes + ENCODED_BYTES_PER_RECORD * self.record_count

    @property
    def has_callbacks(self) -> bool:
        """Whether somebody wants to hear of its records."""
        return self.callback is not None or self.callbacks is not None

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is known."""
        return self.state in (SegmentState.DELIVERED, SegmentState.FAILED)

    def callback_of(self, record_index: int) -> Callable[..., Any] | None:
        """The delivery callback of one record."""
        return self.callback if self.callbacks is None else self.callbacks[record_index]

    @property
    def length_bytes(self) -> int:
        """How long it is, encoded: as near as anybody knows."""
        return self.encoded_bytes if self.encoded is None else self.encoded.length_bytes

    def waits_for(self, batch: Batch) -> bool:
        """Whether it can't go on before this object is stored."""
        is_waiting = self.state is SegmentState.WAITING and self.route is Route.BLOB
        return is_waiting and self.batch is batch

    def drop_records(self) -> None:
        """Free the records once nobody needs them any more."""
        self.rows = _NO_ROWS

    def drop_callbacks(self) -> None:
        """Free what was told of the records, and all that it has.

        Segments and their batch have each other, so they live on until garbage is collected.
        """
        self.callback = self.callbacks = None


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A sealed lane: what becomes one batch object.

    Args:
        number: Counts this producer's batches from 0; also the object number in the key.
        lane_key: What its records have in common.
        object_key: Where it goes, below the store's prefix. Never used for anything else.
        segments: Its segments in the order they were opened.
        size_bytes: Their size as encoded, before compression.
        deadline_ms: Monotonic time after which none of its segments may be notified any more;
            None: no limit.
    """

    number: int
    lane_key: LaneKey
    object_key: str
    segments: tuple[SealedSegment, ...]
    size_bytes: int
    deadline_ms: int | None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for its object."""
        return any(segment.waits_for(self) for segment in self.segments)


def headers_bytes(headers: Sequence[tuple[str, bytes | None]] | None) -> int:
    """What a record's headers are charged, in bytes."""
    if not headers:
        return 0
    return sum(len(name) + len(value or b"") for name, value in headers)


def payload_sizes(rows: Rows) -> Iterator[int]:
    """Of each record what its key, value and headers are charged, in bytes."""
    for key, value, headers in zip(
        rows.keys, rows.values, rows.headers or repeat(None), strict=False
    ):
        yield len(key or b"") + len(value or b"") + headers_bytes(headers)
