"""Which way segments go: object, inline or plain, by what each would cost.

Decides when a lane's batch is sealed, and again when its bytes are known, for they may have
compressed well; and whether a lane is *direct* (its records leave at once, because at its rate
waiting would buy nothing). Never chooses what costs more than plain Kafka, reads and notifications
included (DESIGN.md, rule 11).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from blobmsg.core.cost import (
    PriceTable,
    break_even_bytes,
    marginal_segment_bytes,
    object_usd,
    plain_usd,
)
from blobmsg.core.segments import Lane, Route, SealedSegment, payload_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Router", "worth_storing"]

# A lane leaves direct mode at this multiple of the rate at which it enters it, so that a rate near
# the break-even does not flap.
_DIRECT_HYSTERESIS: Final = 2.0
# The rate is an exponential average over about this many intervals: long enough to ride out one
# empty interval, short enough that a burst is noticed within its first interval.
_RATE_INTERVALS: Final = 2.0
# A rate is not judged over less: the first record alone, a millisecond after its lane, is no burst.
_RATE_FLOOR_MS: Final = 50.0
# How well a lane compresses is an average over about so much: what is about the break-even says it
# by itself, small segments little by little.
_SHARE_BYTES: Final = 128 << 10


class Router:
    """Assigns routes. Threads: under the producer's lock.

    Args:
        route: The setting `blobmsg.route`: auto, blob, inline or plain.
        prices: What requests and crossings cost; used by `auto`.
        groups: How many consumer groups read what is written.
        interval_ms: How long a lane waits to fill.
        inline_max_bytes: Largest segment, as encoded, that fits into a notification.
    """

    def __init__(
        self,
        route: str,
        prices: PriceTable,
        groups: int,
        *,
        interval_ms: int,
        inline_max_bytes: int,
    ) -> None:
        self._route = route
        self._prices = prices
        self._groups = groups
        self._object_break_even_bytes = break_even_bytes(prices, groups=groups)
        self._interval_ms = interval_ms
        self._inline_max_bytes = inline_max_bytes

    def is_direct_at_first(self) -> bool:
        """Whether a lane without history sends its records at once."""
        return self._route in ("auto", "plain")

    def seal_at_bytes(self, batch_size_bytes: int) -> int:
        """The lane size at which a batch is sealed."""
        if self._route == "inline":
            # A lane is sealed by the record that reaches its size. At half of what fits, that
            # record stays inline too, unless it is half of the limit by itself.
            return min(batch_size_bytes, self._inline_max_bytes // 2)
        return batch_size_bytes

    def observe_sealed(self, lane: Lane, size_bytes: int, now_ms: int) -> None:
        """Learn the lane's rate from a sealed batch and decide whether it is direct.

        Args:
            lane: The lane that was just sealed.
            size_bytes: What it held, before compression.
            now_ms: Monotonic time of the seal.
        """
        elapsed_ms = max(1, now_ms - lane.last_sealed_ms)
        lane.last_sealed_ms = now_ms
        # An exponential average of which the weights add up to the time that was observed, so
        # that the first interval counts in full: a burst is stored from its first second on.
        span_ms = _RATE_INTERVALS * max(1, self._interval_ms)
        decay = math.exp(-elapsed_ms / span_ms)
        weight_ms = span_ms * (1.0 - decay)
        lane.recent_ms = lane.recent_ms * decay + weight_ms
        stored_bytes = size_bytes * lane.stored_share
        lane.recent_bytes = lane.recent_bytes * decay + stored_bytes / elapsed_ms * weight_ms
        lane.rate_bytes_per_ms = lane.recent_bytes / max(lane.recent_ms, _RATE_FLOOR_MS)
        if self._route == "auto":
            per_interval = lane.rate_bytes_per_ms * self._interval_ms
            threshold: float = self._object_break_even_bytes
            if lane.is_direct:
                threshold *= _DIRECT_HYSTERESIS
            lane.is_direct = per_interval < threshold

    def assign_routes(self, segments: Sequence[SealedSegment], *, is_direct: bool) -> None:
        """Set `route` on each segment of one sealed batch.

        Args:
            segments: The batch's segments; `plain` ones of compacted topics are already marked.
            is_direct: Whether the lane sent them without waiting.
        """
        if self._route == "plain":
            _assign(segments, Route.PLAIN)
        elif self._route == "blob":
            _assign(segments, Route.BLOB)
        elif self._route == "inline":
            for segment in segments:
                segment.route = self._small_route(segment)
        else:
            self._assign_by_cost(segments, is_direct=is_direct)

    def _assign_by_cost(self, segments: Sequence[SealedSegment], *, is_direct: bool) -> None:
        worth = worth_storing(
            [segment.encoded_bytes for segment in segments], self._prices, groups=self._groups
        )
        for segment, is_worth in zip(segments, worth, strict=True):
            segment.route = Route.BLOB if is_worth else self._kafka_route(segment)
        if is_direct:
            # One record by itself needs no envelope: consumers of any kind can read it.
            for segment in segments:
                if segment.route is Route.INLINE and segment.record_count == 1:
                    segment.route = Route.PLAIN

    def worth_storing(self, stored_bytes: Sequence[int]) -> list[bool]:
        """Which segments stay in their object, now that they are encoded.

        Args:
            stored_bytes: Of each segment, compressed.
        """
        if self._route != "auto":
            return [True] * len(stored_bytes)
        return worth_storing(stored_bytes, self._prices, groups=self._groups)

    def observe_encoded(self, lane: Lane, size_bytes: int, stored_bytes: int) -> None:
        """Learn how well a lane's records compress.

        Args:
            lane: Any.
            size_bytes: Some of its bytes, before compression.
            stored_bytes: What they became.
        """
        weight = min(1.0, size_bytes / _SHARE_BYTES)
        lane.stored_share += weight * (stored_bytes / max(1, size_bytes) - lane.stored_share)

    def route_without_envelope(self, segment: SealedSegment, stored_bytes: int) -> Route:
        """The route of a segment that was to go inline and has become too large for that.

        Args:
            segment: Has its records.
            stored_bytes: How long it has become.
        """
        pays = all(self.worth_storing([stored_bytes]))
        return Route.PLAIN if not pays and self._fits_by_record(segment) else Route.BLOB

    def _kafka_route(self, segment: SealedSegment) -> Route:
        """Through Kafka, for an object is dearer; a segment too large for it record by record."""
        route = self._small_route(segment)
        is_too_large = route is Route.BLOB
        return Route.PLAIN if is_too_large and self._fits_by_record(segment) else route

    def _fits_by_record(self, segment: SealedSegment) -> bool:
        return max(payload_sizes(segment.rows)) <= self._max_bytes(segment)

    def _small_route(self, segment: SealedSegment) -> Route:
        fits = segment.encoded_bytes <= self._max_bytes(segment)
        return Route.INLINE if fits else Route.BLOB

    def _max_bytes(self, segment: SealedSegment) -> int:
        return min(self._inline_max_bytes, segment.inline_max_bytes)


def _assign(segments: Sequence[SealedSegment], route: Route) -> None:
    for segment in segments:
        segment.route = route


def worth_storing(sizes: Sequence[int], prices: PriceTable, *, groups: int) -> list[bool]:
    """Which segments of an object are cheaper in it than through Kafka.

    Args:
        sizes: Their bytes.
        prices: What requests and crossings cost.
        groups: How many consumer groups read what is written.
    """
    least_bytes = marginal_segment_bytes(prices, groups=groups)
    stored = [size for size in sizes if size >= least_bytes]
    inline_usd = sum(plain_usd(size, 1, prices) for size in stored)
    # Without a zone tier every partition may have a reader of its own, hence a GET each.
    blob_usd = object_usd(len(stored), prices, groups=groups, gets_per_group=len(stored))
    pays = inline_usd > blob_usd
    return [pays and size >= least_bytes for size in sizes]
