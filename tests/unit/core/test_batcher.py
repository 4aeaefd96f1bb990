from __future__ import annotations

from typing import Any

import pytest

from blobmsg.core import batcher as batcher_module
from blobmsg.core import segments as segments_module
from blobmsg.core.batcher import Batcher, TopicLanes
from blobmsg.core.segments import Lane, Route, SealedSegment, headers_bytes
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD, ENCODED_BYTES_PER_RECORD
from blobmsg.format import ObjectKey
from blobmsg.format.object_key import HOUR_MS, RetentionClass
from blobmsg.format.rows import WIDE
from tests.helpers.producing import (
    DAY_MS,
    DEADLINE_MS,
    INTERVAL_MS,
    WRITER_ID,
    ScriptedRouter,
    make_batcher,
    make_router,
    make_topic,
)


def put(
    batcher: Batcher, lanes: TopicLanes, partition: int = 0, *sizes: int, now_ms: int = 0
) -> Lane:
    """Append records of these sizes, one without any; returns their lane."""
    for size in sizes or (1,):
        segment = batcher.segment_for(lanes, partition, None, None, now_ms)
        segment.append(None, b"v" * size, 0, None, None, size)
    return segment.lane


def seal(batcher: Batcher, lane: Lane, now_ms: int = 0) -> list[SealedSegment]:
    return batcher.seal(lane, now_ms, 0)


def test_partitions_of_one_lane_share_a_batch() -> None:
    batcher = make_batcher()
    flights, weather = make_topic(batcher, "flights", ["", ""]), make_topic(batcher, "weather")
    lane = put(batcher, flights, 1)
    put(batcher, flights, 0)
    put(batcher, weather, 0)

    sealed = seal(batcher, lane)

    assert [(s.topic, s.partition) for s in sealed] == [
        ("flights", 1),
        ("flights", 0),
        ("weather", 0),
    ]
    batch = sealed[0].batch
    assert batch is not None
    assert batch.segments == tuple(sealed)
    assert all(segment.batch is batch for segment in sealed)
    assert batch.size_bytes == 3 * 17


def test_destinations_have_lanes_of_their_own() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["az1", "az2", "az1"])

    assert put(batcher, lanes, 0) is put(batcher, lanes, 2)
    assert put(batcher, lanes, 0) is not put(batcher, lanes, 1)


def test_retention_classes_have_lanes_of_their_own() -> None:
    batcher = make_batcher()
    short = make_topic(batcher, "short", retention_ms=HOUR_MS)
    long = make_topic(batcher, "long", retention_ms=7 * DAY_MS)

    assert put(batcher, short) is not put(batcher, long)


def test_a_signal_handler_that_opens_a_lane_first_has_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["", ""])
    handlers = [lambda: put(batcher, lanes, 1)]

    def interrupted(*args: Any, **kwargs: Any) -> Lane:
        lane = Lane(*args, **kwargs)
        if handlers:
            handlers.pop()()
        return lane

    monkeypatch.setattr(batcher_module, "Lane", interrupted)

    lane = put(batcher, lanes, 0)

    assert batcher.filling_lanes() == [lane]
    assert [s.partition for s in seal(batcher, lane)] == [1, 0]


def test_a_sealed_lane_is_empty_and_takes_new_records() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher)
    lane = put(batcher, lanes, 0, 5)
    seal(batcher, lane)

    assert seal(batcher, lane) == []
    assert put(batcher, lanes, 0, 7) is lane
    assert [s.rows.values for s in seal(batcher, lane)] == [[b"v" * 7]]


def test_a_sealed_lane_takes_as_much_again() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher)
    lane = put(batcher, lanes, 0, 5)
    seal(batcher, lane)
    assert lane.size_bytes == 0

    put(batcher, lanes, 0, 5)

    assert lane.size_bytes == 5 + ENCODED_BYTES_PER_RECORD


def test_the_router_hears_of_each_batch_but_of_no_empty_or_compacted_one() -> None:
    class Listening(ScriptedRouter):
        def observe_sealed(self, lane: Lane, size_bytes: int, now_ms: int) -> None:
            heard.append((lane, size_bytes, now_ms))

    heard: list[tuple[Lane, int, int]] = []
    batcher = make_batcher(Listening())
    lane = put(batcher, make_topic(batcher), 0, 5)
    compacted = put(batcher, make_topic(batcher, "compacted", is_plain=True), 0, 5)

    for now_ms in (100, 200):
        seal(batcher, lane, now_ms)
        seal(batcher, compacted, now_ms)

    assert heard == [(lane, 5 + ENCODED_BYTES_PER_RECORD, 100)]


def test_a_lane_is_due_at_its_age_from_its_first_record() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["", ""])
    lane = put(batcher, lanes, 0, now_ms=100)
    put(batcher, lanes, 1, now_ms=500)

    assert batcher.next_due_ms() == 100 + INTERVAL_MS
    assert batcher.lanes_due(99 + INTERVAL_MS) == []
    assert batcher.lanes_due(100 + INTERVAL_MS) == [lane]


def test_a_refilled_lane_ages_anew() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher)
    seal(batcher, put(batcher, lanes, now_ms=0))

    put(batcher, lanes, now_ms=700)

    assert batcher.next_due_ms() == 700 + INTERVAL_MS


def test_the_lane_that_comes_of_age_first_is_the_next_one_due() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["az1", "az2"])
    put(batcher, lanes, 0, now_ms=100)
    put(batcher, lanes, 1, now_ms=500)

    assert batcher.next_due_ms() == 100 + INTERVAL_MS


def test_an_empty_batcher_has_nothing_due() -> None:
    batcher = make_batcher()
    seal(batcher, put(batcher, make_topic(batcher)))

    assert batcher.next_due_ms() is None
    assert batcher.lanes_due(1 << 40) == []
    assert batcher.filling_lanes() == []


def test_a_direct_lane_is_due_at_once() -> None:
    batcher = make_batcher(make_router("auto"))
    lane = put(batcher, make_topic(batcher), now_ms=100)

    assert batcher.next_due_ms() == 100
    assert batcher.lanes_due(100) == [lane]


def test_the_largest_lane_is_sealed_first_when_memory_is_short() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["az1", "az2", "az3"])
    small, large = put(batcher, lanes, 0, 1), put(batcher, lanes, 1, 100)

    assert batcher.filling_lanes() == [large, small]


@pytest.mark.parametrize("size", [1, 84, 100, 200, 234])
def test_what_an_inline_lane_holds_when_it_is_full_fits_into_a_record(size: int) -> None:
    batcher = make_batcher(make_router("inline", inline_max_bytes=500), batch_size_bytes=1 << 24)
    lanes = make_topic(batcher)
    is_full = False
    while not is_full:
        segment = batcher.segment_for(lanes, 0, None, None, 0)
        is_full = segment.append(None, b"v" * size, 0, None, None, size)

    sealed = seal(batcher, segment.lane)

    assert [segment.route for segment in sealed] == [Route.INLINE]


def test_routes_come_from_the_router_and_only_objects_get_a_batch() -> None:
    batcher = make_batcher(ScriptedRouter(Route.INLINE, Route.BLOB, Route.PLAIN))
    lanes = make_topic(batcher, zones=["", "", ""])
    lane = put(batcher, lanes, 0)
    put(batcher, lanes, 1)
    put(batcher, lanes, 2)

    inline, blob, plain = seal(batcher, lane)

    assert (inline.batch, plain.batch) == (None, None)
    assert blob.batch is not None
    assert blob.batch.segments == (blob,)


def test_a_compacted_topic_goes_plain_whatever_the_router_says() -> None:
    batcher = make_batcher(make_router("blob"))
    lane = put(batcher, make_topic(batcher, "compacted", is_plain=True))

    assert [segment.route for segment in seal(batcher, lane)] == [Route.PLAIN]


def test_a_compacted_topic_does_not_wait_for_a_batch() -> None:
    batcher = make_batcher(make_router("blob"))
    lane = put(batcher, make_topic(batcher, "compacted", is_plain=True), now_ms=100)
    batched = put(batcher, make_topic(batcher, "batched"), now_ms=100)

    assert batcher.lanes_due(100) == [lane]

    seal(batcher, lane, now_ms=100)
    assert lane.is_direct
    assert lane.rate_bytes_per_ms == 0.0
    assert batcher.lanes_due(100 + INTERVAL_MS) == [batched]


def test_a_topic_that_becomes_compacted_sends_what_it_has_buffered_plain() -> None:
    batcher = make_batcher(make_router("blob"))
    lanes, other = make_topic(batcher), make_topic(batcher, "other")
    lane = put(batcher, lanes)
    put(batcher, other)
    batcher.configure_topic(
        lanes, destination_zones=[""], retention_class=_class_of(lane), segment_ms=0, is_plain=True
    )

    assert [s.route for s in seal(batcher, lane)] == [Route.PLAIN, Route.BLOB]


def test_the_router_is_not_asked_about_a_topic_that_has_become_compacted() -> None:
    batcher = make_batcher(ScriptedRouter(Route.INLINE))
    lanes, other = make_topic(batcher), make_topic(batcher, "other")
    lane = put(batcher, lanes)
    put(batcher, other)
    batcher.configure_topic(
        lanes, destination_zones=[""], retention_class=_class_of(lane), segment_ms=0, is_plain=True
    )

    assert [s.route for s in seal(batcher, lane)] == [Route.PLAIN, Route.INLINE]


def test_a_topic_takes_no_records_and_is_not_compacted_before_it_is_configured() -> None:
    lanes = TopicLanes("flights")

    assert (lanes.partition_count, lanes.segment_ms, lanes.is_plain) == (0, 0, False)


def test_a_topic_must_be_configured_before_it_is_used() -> None:
    batcher = make_batcher()
    lanes = TopicLanes("flights")
    lanes.open_segments.append(None)

    with pytest.raises(AssertionError, match="flights"):
        batcher.segment_for(lanes, 0, None, None, 0)


def test_new_partitions_get_room() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher)
    put(batcher, lanes, 0)
    _configure(batcher, lanes, ["", "", "az1"])

    assert lanes.partition_count == 3
    put(batcher, lanes, 2)
    assert [segment is None for segment in lanes.open_segments] == [False, True, False]


def test_partitions_that_are_gone_get_no_more_records_but_keep_those_they_have() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["", "", ""])
    lane = put(batcher, lanes, 2)

    _configure(batcher, lanes, [""])

    assert lanes.partition_count == 1
    assert [segment.partition for segment in seal(batcher, lane)] == [2]


def test_a_partition_of_another_zone_moves_to_its_lane_with_the_next_segment() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["az1"])
    before = put(batcher, lanes)
    _configure(batcher, lanes, ["az2"])

    assert put(batcher, lanes) is before  # it goes on filling, or order would be lost
    assert len(seal(batcher, before)) == 1
    assert put(batcher, lanes) is not before


def test_the_object_key_tells_writer_number_and_expiry() -> None:
    batcher = make_batcher(isolation="payments", writer_zone="")
    lanes = make_topic(batcher, retention_ms=DAY_MS, segment_ms=2 * HOUR_MS)
    segment = batcher.segment_for(lanes, 0, None, None, 0)
    segment.append(None, b"v", 5 * HOUR_MS, None, None, 1)

    (sealed,) = batcher.seal(segment.lane, 0, timestamp_ms=3 * HOUR_MS)

    assert sealed.batch is not None
    key = ObjectKey.decode(sealed.batch.object_key)
    assert (key.isolation, key.zone, key.writer_id) == ("payments", "none", WRITER_ID)
    assert (key.number, key.shard) == (0, "0")
    # The latest record is later than the wall clock: + 1 d + segment.ms + 1 h.
    assert key.expiry_hour == "1970010208"


@pytest.mark.parametrize(("timestamp_ms", "hour"), [(0, "01"), (1, "02"), (HOUR_MS, "02")])
def test_the_expiry_hour_is_the_first_full_one(timestamp_ms: int, hour: str) -> None:
    batcher = make_batcher()
    segment = batcher.segment_for(make_topic(batcher, retention_ms=DAY_MS), 0, None, None, 0)
    segment.append(None, b"v", timestamp_ms, None, None, 1)

    (sealed,) = batcher.seal(segment.lane, 0, timestamp_ms)

    assert sealed.batch is not None
    assert ObjectKey.decode(sealed.batch.object_key).expiry_hour == f"19700102{hour}"


def test_an_object_lives_as_long_as_its_latest_record() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["", ""], retention_ms=DAY_MS)
    for partition, timestamp_ms in enumerate((5 * HOUR_MS, 0)):
        segment = batcher.segment_for(lanes, partition, None, None, 0)
        segment.append(None, b"v", timestamp_ms, None, None, 1)

    sealed = seal(batcher, segment.lane)

    assert sealed[0].batch is not None
    assert ObjectKey.decode(sealed[0].batch.object_key).expiry_hour == "1970010206"


def test_object_numbers_count_up_and_spread_over_the_shards() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher)
    keys = []
    for _ in range(18):
        (segment,) = seal(batcher, put(batcher, lanes))
        assert segment.batch is not None
        keys.append(ObjectKey.decode(segment.batch.object_key))

    assert [key.number for key in keys] == list(range(18))
    assert "".join(key.shard for key in keys) == "0123456789abcdef01"


def test_a_lanes_objects_live_as_long_as_its_topic_with_the_longest_log_segments() -> None:
    batcher = make_batcher()
    quick = make_topic(batcher, "quick", segment_ms=0)
    slow = make_topic(batcher, "slow", segment_ms=5 * HOUR_MS)
    lane = put(batcher, slow)
    put(batcher, quick)

    segment = seal(batcher, lane)[0]

    assert segment.batch is not None
    assert ObjectKey.decode(segment.batch.object_key).expiry_hour == "1970010206"


def test_a_segments_deadline_counts_from_its_first_record() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=["", ""])
    lane = put(batcher, lanes, 0, now_ms=100)
    put(batcher, lanes, 0, now_ms=900)
    put(batcher, lanes, 1, now_ms=500)

    first, second = seal(batcher, lane)

    assert (first.deadline_ms, second.deadline_ms) == (100 + DEADLINE_MS, 500 + DEADLINE_MS)
    assert first.batch is not None
    assert first.batch.deadline_ms == 500 + DEADLINE_MS  # useful until its last segment is not


def test_without_a_limit_there_is_no_deadline() -> None:
    batcher = make_batcher(deadline_after_ms=None)

    (segment,) = seal(batcher, put(batcher, make_topic(batcher)))

    assert segment.deadline_ms is None
    assert segment.batch is not None
    assert segment.batch.deadline_ms is None


def test_a_segment_is_full_when_a_notification_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "MAX_NOTIFICATION_RECORDS", 2)
    batcher = make_batcher()
    lanes = make_topic(batcher)

    for number in range(5):
        segment = batcher.segment_for(lanes, 0, None, None, 0)
        segment.append(b"k%d" % number, b"v", 10 + number, None, None, 3)

    first, second, third = seal(batcher, segment.lane)
    assert [s.rows.timestamps_ms for s in (first, second, third)] == [[10, 11], [12, 13], [14]]
    assert [s.charged_bytes for s in (first, second, third)] == [
        n * (CHARGE_BYTES_PER_RECORD + 3) for n in (2, 2, 1)
    ]
    assert not lanes.is_wide
    assert first.batch is third.batch
    assert first.batch is not None
    assert first.batch.segments == (first, second, third)


@pytest.mark.parametrize(("records", "is_wide"), [(1, True), (2, False)])
def test_a_topic_has_wide_rows_from_its_first_header_on_but_not_for_a_full_segment(
    records: int, is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "MAX_NOTIFICATION_RECORDS", 2)
    batcher = make_batcher()
    lanes = make_topic(batcher)
    put(batcher, lanes, 0, *[1] * records)

    segment = batcher.segment_for(lanes, 0, [("name", b"value")], None, 0)

    assert segment.rows.width == WIDE
    assert lanes.is_wide is is_wide


def test_a_segment_too_large_to_go_inline_gets_an_object_of_its_own() -> None:
    batcher = make_batcher(ScriptedRouter(Route.INLINE))
    lanes = make_topic(batcher, zones=["az2"])
    (segment,) = seal(batcher, put(batcher, lanes))

    batch = batcher.make_batch_of([segment], lanes, 0)

    assert segment.route is Route.BLOB
    assert segment.batch is batch
    assert batch.segments == (segment,)
    assert batch.lane_key.destination_zone == "az2"


def test_a_partition_that_is_gone_belongs_to_no_zone() -> None:
    batcher = make_batcher(ScriptedRouter(Route.INLINE))
    lanes = make_topic(batcher, zones=["az2", "az2"])
    (segment,) = seal(batcher, put(batcher, lanes, 1))
    _configure(batcher, lanes, ["az2"])

    assert batcher.make_batch_of([segment], lanes, 0).lane_key.destination_zone == ""


def test_header_bytes_are_names_and_values() -> None:
    assert headers_bytes(None) == headers_bytes([]) == 0
    assert headers_bytes([("abc", b"12"), ("d", None)]) == 6


def _class_of(lane: Lane) -> RetentionClass:
    return lane.key.retention_class


def _configure(batcher: Batcher, lanes: TopicLanes, zones: list[str]) -> None:
    assert lanes.retention_class is not None
    batcher.configure_topic(
        lanes,
        destination_zones=zones,
        retention_class=lanes.retention_class,
        segment_ms=0,
        is_plain=False,
    )


def test_a_second_segment_of_a_partition_joins_the_lane_of_the_first() -> None:
    batcher = make_batcher()
    lanes = make_topic(batcher, zones=("az1",))
    first = batcher.segment_for(lanes, 0, None, None, 0)
    first.append(None, b"v", 0, None, None, 1)
    assert lanes.retention_class is not None
    batcher.configure_topic(
        lanes,
        destination_zones=("az2",),
        retention_class=lanes.retention_class,
        segment_ms=0,
        is_plain=False,
    )

    second = batcher.segment_for(lanes, 0, [("n", b"1")], None, 0)
    second.append(None, b"w", 0, [("n", b"1")], None, 3)

    # In a lane of its own it could be sealed, and notified, before what comes before it.
    assert second is not first
    assert [s.rows.values for s in seal(batcher, first.lane)] == [[b"v"], [b"w"]]
