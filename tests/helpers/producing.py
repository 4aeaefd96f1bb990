"""A producer core with everything it needs, and the few things its shell does around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blobmsg.core.batcher import Batcher, TopicLanes
from blobmsg.core.cost import BUILT_IN_PRICES
from blobmsg.core.fallback import InlineFallback
from blobmsg.core.kafka_presence import KafkaPresence
from blobmsg.core.notifier import Notifier
from blobmsg.core.producer_core import BufferMemory, ProducerCore
from blobmsg.core.router import Router
from blobmsg.core.segments import Route, SealedSegment
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD
from blobmsg.format import ByteRange, Codec, Part
from blobmsg.format.encoded_segment import encode_object_segment
from blobmsg.format.object_key import retention_class
from blobmsg.format.rows import WIDE, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blobmsg.core.events import ProducerAction
    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg.format.segment import Headers

TIMED_OUT = "timed out"
REFUSED = "the batch is refused"
WRITER_ID = "0123456789abcdef" * 2
DAY_MS = 24 * 3600 * 1000
INTERVAL_MS = 1000
DEADLINE_MS = 10_000
HANGS_AFTER_MS = 10_000


class ScriptedRouter(Router):
    """Gives segments the routes it is told, in turn; lanes wait for their interval."""

    def __init__(self, *routes: Route, inline_max_bytes: int = 1 << 20) -> None:
        super().__init__(
            "blob",
            BUILT_IN_PRICES,
            1,
            interval_ms=INTERVAL_MS,
            inline_max_bytes=inline_max_bytes,
        )
        self.routes = list(routes)

    def assign_routes(self, segments: Sequence[SealedSegment], *, is_direct: bool) -> None:
        for segment in segments:
            segment.route = self.routes.pop(0) if self.routes else Route.BLOB


def make_router(route: str = "auto", **options: Any) -> Router:
    settings: dict[str, Any] = {"interval_ms": INTERVAL_MS, "inline_max_bytes": 1_000_000}
    prices = options.pop("prices", BUILT_IN_PRICES)
    groups = options.pop("groups", 1)
    return Router(route, prices, groups, **{**settings, **options})


def make_batcher(router: Router | None = None, **options: Any) -> Batcher:
    settings: dict[str, Any] = {
        "batch_size_bytes": 1000,
        "batch_interval_ms": INTERVAL_MS,
        "deadline_after_ms": DEADLINE_MS,
        "isolation": "shared",
        "writer_zone": "az1",
        "writer_id": WRITER_ID,
    }
    return Batcher(router or ScriptedRouter(), **{**settings, **options})


def make_topic(
    batcher: Batcher,
    topic: str = "flights",
    zones: Sequence[str] = ("",),
    *,
    retention_ms: int = DAY_MS,
    segment_ms: int = 0,
    is_plain: bool = False,
) -> TopicLanes:
    lanes = TopicLanes(topic)
    batcher.configure_topic(
        lanes,
        destination_zones=zones,
        retention_class=retention_class(retention_ms),
        segment_ms=segment_ms,
        is_plain=is_plain,
    )
    return lanes


@dataclass
class Bench:
    """A core, its lanes and its memory; `append` charges as the shell does."""

    core: ProducerCore
    topics: dict[str, TopicLanes] = field(default_factory=dict)

    def topic(self, topic: str = "flights", zones: Sequence[str] = ("",), **options: Any) -> None:
        self.topics[topic] = make_topic(self.core.batcher, topic, zones, **options)

    def append(
        self,
        value: bytes | None = b"v",
        *,
        key: bytes | None = None,
        topic: str = "flights",
        partition: int = 0,
        timestamp_ms: int = 0,
        headers: Headers | None = None,
        callback: Callable[..., Any] | None = None,
        now_ms: int = 0,
    ) -> list[ProducerAction]:
        """Append one record; the actions of the seal that it may cause."""
        lanes = self.topics[topic]
        segment = self.core.batcher.segment_for(lanes, partition, headers, callback, now_ms)
        payload_bytes = len(key or b"") + len(value or b"")
        self.core.memory.records += 1
        self.core.memory.records_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD
        if segment.append(key, value, timestamp_ms, headers, callback, payload_bytes):
            return self.core.seal(segment.lane, now_ms, 0)
        return []


def make_bench(
    router: Router | None = None,
    *,
    limit_bytes: int = 1 << 20,
    encode_reserve_bytes: int = 0,
    inline_max_bytes: int = 1 << 20,
    fallback_after_ms: int | None = None,
    fallback_bytes_per_second: int = 1 << 20,
    **batcher_options: Any,
) -> Bench:
    core = ProducerCore(
        make_batcher(router, **batcher_options),
        Notifier(TIMED_OUT, lambda error: error == REFUSED),
        BufferMemory(limit_bytes, encode_reserve_bytes, None),
        KafkaPresence(),
        InlineFallback(
            fallback_after_ms, fallback_bytes_per_second, inline_max_bytes, HANGS_AFTER_MS
        ),
    )
    return Bench(core)


def part_of(segment: SealedSegment, length: int = 0) -> Part:
    """A place for a segment, as an uploader would tell it."""
    size = 64 + 64 * segment.record_count
    return Part(
        byte_range=ByteRange(0, length or size),
        records=segment.record_count,
        codec=Codec.ZSTD,
        uncompressed_bytes=size,
        checksum=0,
        first_timestamp_ms=0,
        last_timestamp_ms=0,
        producer_id=bytes(16),
    )


def encoded_of(segment: SealedSegment, rows: Rows | None = None) -> EncodedSegment:
    """A segment's bytes, as an uploader makes them."""
    return encode_object_segment(
        segment.rows if rows is None else rows,
        Codec.NONE,
        topic=segment.topic,
        partition=segment.partition,
        destination_zone="",
        producer_id=bytes(16),
    )


def sealed_segment(
    partition: int = 0,
    *,
    topic: str = "flights",
    records: int = 1,
    value: bytes | None = b"v",
    keys: list[bytes | None] | None = None,
    values: list[bytes | None] | None = None,
    route: Route = Route.BLOB,
    deadline_ms: int | None = None,
    callback: Callable[..., Any] | None = None,
    callbacks: list[Callable[..., Any] | None] | None = None,
    headers: list[Headers | None] | None = None,
    first_timestamp_ms: int = 0,
) -> SealedSegment:
    """A segment outside of any lane."""
    rows = Rows(WIDE)
    for index in range(records):
        of_all = (
            keys[index] if keys else None,
            values[index] if values else value,
            first_timestamp_ms + index,
        )
        own = headers[index] if headers else None, callbacks[index] if callbacks else callback
        rows.extend(of_all + own)
    segment = SealedSegment(
        topic=topic,
        partition=partition,
        rows=rows,
        callback=None,
        charged_bytes=records * (len(value or b"") + CHARGE_BYTES_PER_RECORD),
        opened_ms=0,
        deadline_ms=deadline_ms,
    )
    segment.route = route
    return segment
