from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from blobmsg.core.cost import BUILT_IN_PRICES
from blobmsg.core.segments import Lane, LaneKey, Route
from blobmsg.format.object_key import retention_class
from tests.helpers.producing import INTERVAL_MS, make_router, sealed_segment

if TYPE_CHECKING:
    from blobmsg.core.router import Router

KIB = 1024
LANE_KEY = LaneKey("shared", retention_class(3_600_000), "")


def make_lane(*, is_direct: bool) -> Lane:
    return Lane(LANE_KEY, 1 << 24, is_direct=is_direct, now_ms=0)


def routes_of(router: Router, *sizes: int, is_direct: bool = False) -> list[Route]:
    segments = [sealed_segment(number, value=b"v" * size) for number, size in enumerate(sizes)]
    router.assign_routes(segments, is_direct=is_direct)
    return [segment.route for segment in segments]


def fill(router: Router, lane: Lane, per_interval_bytes: int, intervals: int = 40) -> None:
    """Seal the lane once in each interval with so many bytes."""
    start_ms = lane.last_sealed_ms
    for number in range(1, intervals + 1):
        router.observe_sealed(lane, per_interval_bytes, start_ms + number * INTERVAL_MS)


@pytest.mark.parametrize(
    ("route", "expected"), [("auto", True), ("plain", True), ("blob", False), ("inline", False)]
)
def test_only_what_may_stay_with_kafka_goes_at_once_at_first(route: str, expected: bool) -> None:
    assert make_router(route).is_direct_at_first() is expected


def test_a_lane_of_inline_segments_is_sealed_while_they_still_fit_into_a_record() -> None:
    assert make_router("inline", inline_max_bytes=1000).seal_at_bytes(16 << 20) == 500
    assert make_router("inline", inline_max_bytes=1000).seal_at_bytes(300) == 300
    assert make_router("blob", inline_max_bytes=1000).seal_at_bytes(16 << 20) == 16 << 20


@pytest.mark.parametrize(("route", "expected"), [("blob", Route.BLOB), ("plain", Route.PLAIN)])
def test_a_fixed_route_is_every_segments(route: str, expected: Route) -> None:
    assert routes_of(make_router(route), 1, 10, 2_000_000) == [expected] * 3


@pytest.mark.parametrize("is_direct", [False, True])
def test_what_its_topic_does_not_take_goes_as_an_object_though_it_costs_more(
    is_direct: bool,
) -> None:
    router = make_router(inline_max_bytes=1_000_000)
    fits, too_large = (sealed_segment(number, value=b"v" * 5000) for number in range(2))
    too_large.inline_max_bytes = 4000
    router.assign_routes([fits, too_large], is_direct=is_direct)

    assert fits.route is not Route.BLOB
    assert too_large.route is Route.BLOB


def test_inline_segments_that_fit_no_record_go_as_objects() -> None:
    router = make_router("inline", inline_max_bytes=1000)

    assert routes_of(router, 984, 985) == [Route.INLINE, Route.BLOB]


def test_a_large_batch_goes_as_an_object() -> None:
    assert routes_of(make_router(), 200 * KIB, 300 * KIB) == [Route.BLOB, Route.BLOB]


def test_a_small_segment_of_a_large_batch_goes_inline() -> None:
    # Under about 8 KiB its own notification and GET cost more than the crossing saved.
    assert routes_of(make_router(), 300 * KIB, 4 * KIB) == [Route.BLOB, Route.INLINE]


def test_a_batch_under_the_break_even_goes_inline() -> None:
    assert routes_of(make_router(), 20 * KIB, 20 * KIB) == [Route.INLINE, Route.INLINE]


def test_more_groups_make_the_same_batch_dearer_as_an_object() -> None:
    assert routes_of(make_router(groups=1), 150 * KIB) == [Route.BLOB]
    assert routes_of(make_router(groups=20), 150 * KIB) == [Route.INLINE]


def test_a_record_by_itself_needs_no_envelope_when_it_goes_at_once() -> None:
    router = make_router()
    two = sealed_segment(0, records=2, value=b"v" * 100)
    one = sealed_segment(1, value=b"v" * 100)

    router.assign_routes([two, one], is_direct=True)
    assert (two.route, one.route) == (Route.INLINE, Route.PLAIN)

    router.assign_routes([two, one], is_direct=False)
    assert (two.route, one.route) == (Route.INLINE, Route.INLINE)


def test_a_large_record_is_an_object_even_when_it_goes_at_once() -> None:
    assert routes_of(make_router(), 900 * KIB, is_direct=True) == [Route.BLOB]


def test_where_crossing_is_free_nothing_becomes_an_object() -> None:
    router = make_router(prices=replace(BUILT_IN_PRICES, crossing_usd_per_gib=0.0))

    assert routes_of(router, 500_000) == [Route.INLINE]


def test_segments_too_large_for_a_record_go_record_by_record_where_an_object_is_dearer() -> None:
    router = make_router(groups=500, inline_max_bytes=1000)
    segment = sealed_segment(records=3, value=b"v" * 900)
    with_headers = sealed_segment(records=1, value=b"v" * 900, headers=[[("h", b"x" * 100)]])
    too_large = sealed_segment(records=2, value=b"v" * 1001)

    router.assign_routes([segment, with_headers, too_large], is_direct=False)

    # 900 bytes of value, and 101 of header that the made-up segment is not charged for.
    assert segment.route is Route.PLAIN
    assert with_headers.route is Route.INLINE
    assert too_large.route is Route.BLOB


@pytest.mark.parametrize(("size", "route"), [(1000, Route.PLAIN), (1001, Route.BLOB)])
def test_records_go_one_by_one_if_the_largest_just_fits(size: int, route: Route) -> None:
    router = make_router(groups=500, inline_max_bytes=1000)
    segment = sealed_segment(records=2, values=[b"v" * size, b"v"], value=b"v" * size)

    router.assign_routes([segment], is_direct=False)

    assert segment.route is route


def test_headers_count_for_whether_a_record_fits_into_kafka() -> None:
    router = make_router(groups=500, inline_max_bytes=1000)
    segment = sealed_segment(records=2, value=b"v" * 990, headers=[None, [("name", b"x" * 100)]])

    router.assign_routes([segment], is_direct=False)

    assert segment.route is Route.BLOB


def test_a_lane_stops_going_at_once_when_waiting_would_fill_an_object() -> None:
    router, lane = make_router(), make_lane(is_direct=True)

    fill(router, lane, 300 * KIB)

    assert not lane.is_direct


def test_a_slow_lane_goes_at_once_again() -> None:
    router, lane = make_router(), make_lane(is_direct=False)

    fill(router, lane, 20 * KIB)

    assert lane.is_direct


def test_a_rate_near_the_break_even_does_not_flap() -> None:
    router = make_router()
    waiting, direct = make_lane(is_direct=False), make_lane(is_direct=True)

    fill(router, waiting, 1000 * KIB)
    fill(router, waiting, 150 * KIB)
    fill(router, direct, 150 * KIB)

    assert not waiting.is_direct
    assert direct.is_direct


def test_one_quiet_interval_does_not_end_a_fast_lanes_batches() -> None:
    router, lane = make_router(), make_lane(is_direct=False)
    fill(router, lane, 1000 * KIB)

    router.observe_sealed(lane, 1 * KIB, lane.last_sealed_ms + INTERVAL_MS)

    assert not lane.is_direct


def test_a_burst_is_noticed_within_its_first_interval() -> None:
    router, lane = make_router(), make_lane(is_direct=True)

    for number in range(1, 21):  # 50 MiB/s, sealed every 5 ms as in direct mode
        router.observe_sealed(lane, 256 * KIB, number * 5)

    assert not lane.is_direct


@pytest.mark.parametrize("route", ["blob", "inline"])
def test_a_fixed_route_never_becomes_direct(route: str) -> None:
    router, lane = make_router(route), make_lane(is_direct=False)

    fill(router, lane, 1)

    assert not lane.is_direct


def test_two_seals_in_the_same_millisecond_have_a_rate() -> None:
    router, lane = make_router(), make_lane(is_direct=True)

    router.observe_sealed(lane, 100, 0)
    router.observe_sealed(lane, 100, 0)

    assert 0 < lane.rate_bytes_per_ms < 100


def test_a_modest_rate_is_noticed_within_a_tenth_of_a_second() -> None:
    router, lane = make_router(), make_lane(is_direct=True)

    for number in range(1, 21):  # 3 MiB/s, sealed every 5 ms as in direct mode
        router.observe_sealed(lane, 15 * KIB, number * 5)

    assert not lane.is_direct


def test_a_first_record_alone_is_no_burst() -> None:
    router, lane = make_router(), make_lane(is_direct=True)

    router.observe_sealed(lane, 1 * KIB, 0)

    assert lane.is_direct


def test_a_first_interval_counts_in_full_and_a_steady_rate_stays() -> None:
    router, lane = make_router(), make_lane(is_direct=True)

    rates = []
    for number in range(1, 6):
        router.observe_sealed(lane, 3 * INTERVAL_MS, number * INTERVAL_MS)
        rates.append(lane.rate_bytes_per_ms)

    assert rates == pytest.approx([3.0] * 5)


def test_an_interval_counts_less_with_each_one_after_it() -> None:
    router, lane = make_router(), make_lane(is_direct=True)
    router.observe_sealed(lane, 3 * INTERVAL_MS, INTERVAL_MS)

    router.observe_sealed(lane, 0, 2 * INTERVAL_MS)

    older = math.exp(-1 / 2)  # of two intervals
    assert lane.rate_bytes_per_ms == pytest.approx(3.0 * older / (1 + older))


def test_a_rate_is_not_judged_over_less_than_50_ms() -> None:
    router, lane = make_router(), make_lane(is_direct=True)

    router.observe_sealed(lane, 100, 1)

    assert lane.rate_bytes_per_ms == pytest.approx(100 / 50, rel=1e-3)


def test_without_an_interval_a_lane_has_a_rate_as_well() -> None:
    router, lane = make_router(interval_ms=0), make_lane(is_direct=True)

    router.observe_sealed(lane, 400, 100)

    assert lane.rate_bytes_per_ms == pytest.approx(400 / 100 * 2 / 50, rel=1e-3)
    assert lane.is_direct
