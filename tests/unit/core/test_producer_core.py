from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.core.cutting import cut_segment
from blobmsg.core.events import (
    CutSegment,
    EncodeInline,
    Notify,
    ReadTopic,
    Report,
    UploadBatch,
)
from blobmsg.core.kafka_presence import AWAY_AFTER_MS
from blobmsg.core.producer_core import CHARGE_BYTES_PER_SEGMENT, BufferMemory
from blobmsg.core.segments import (
    Batch,
    Route,
    SealedSegment,
    SegmentState,
)
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD
from blobmsg.format.rows import drop_unused
from tests.helpers.producing import (
    DEADLINE_MS,
    HANGS_AFTER_MS,
    INTERVAL_MS,
    TIMED_OUT,
    Bench,
    ScriptedRouter,
    encoded_of,
    make_bench,
    make_router,
    part_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.core.events import ProducerAction


def bench(*routes: Route, **options: int) -> Bench:
    """With a topic of three partitions; segments get these routes in turn, then BLOB."""
    made = make_bench(ScriptedRouter(*routes), **options)
    made.topic("flights", ["", "", "az2"])
    return made


def heard() -> None:
    """A delivery callback, only told apart."""


def batch_of(segment: SealedSegment) -> Batch:
    assert segment.batch is not None
    return segment.batch


def sealed(made: Bench, now_ms: int = 0) -> list[SealedSegment]:
    """Seal everything; the segments in order of partition."""
    segments: list[SealedSegment] = []
    for action in made.core.seal_all(now_ms, 0):
        if isinstance(action, UploadBatch):
            segments.extend(action.batch.segments)
        elif not isinstance(action, ReadTopic):
            segments.append(action.segment)
    return sorted(segments, key=lambda segment: segment.partition)


def inline_encoded(made: Bench, segment: SealedSegment, size: int, now_ms: int = 0) -> list[object]:
    lanes = made.topics["flights"]
    part = part_of(segment, size)
    return list(made.core.inline_encoded(segment, part, b"x" * size, lanes, now_ms, 0))


def test_a_seal_uploads_once_for_all_segments_of_a_batch() -> None:
    made = bench()
    made.append(partition=0)
    made.append(partition=1)

    actions = made.core.seal_all(0, 0)

    assert len(actions) == 1
    assert isinstance(actions[0], UploadBatch)
    assert [s.partition for s in actions[0].batch.segments] == [0, 1]


def test_routes_may_differ_within_one_seal() -> None:
    made = bench(Route.INLINE, Route.PLAIN)
    made.append(partition=0)
    made.append(partition=1)

    encode, notify = made.core.seal_all(0, 0)

    assert isinstance(encode, EncodeInline)
    assert isinstance(notify, Notify)
    assert (encode.segment.partition, notify.segment.partition) == (0, 1)


def test_a_full_lane_is_sealed_by_its_last_record() -> None:
    made = bench(batch_size_bytes=100)

    assert made.append(b"v" * 50) == []
    (action,) = made.append(b"v" * 50)

    assert isinstance(action, UploadBatch)
    assert action.batch.size_bytes == 2 * (50 + 16)


def test_a_lane_is_sealed_at_its_age() -> None:
    made = bench()
    made.append(now_ms=10)

    assert made.core.next_tick_ms(10) == 10 + INTERVAL_MS
    assert made.core.tick(9 + INTERVAL_MS, 0) == []
    assert len(made.core.tick(10 + INTERVAL_MS, 0)) == 1


def test_a_flush_seals_all_lanes() -> None:
    made = bench()
    made.append(partition=0)
    made.append(partition=2)

    batches = [action.batch for action in made.core.seal_all(0, 0) if hasattr(action, "batch")]

    assert {batch.lane_key.destination_zone for batch in batches} == {"", "az2"}


def test_with_nothing_to_do_there_is_no_next_tick() -> None:
    assert bench().core.next_tick_ms(0) is None


def test_the_next_tick_is_a_deadline_when_nothing_fills() -> None:
    made = bench()
    made.append(now_ms=10)
    made.core.seal_all(20, 0)

    assert made.core.next_tick_ms(20) == 10 + DEADLINE_MS
    made.append(now_ms=30)
    assert made.core.next_tick_ms(30) == 30 + INTERVAL_MS


def test_what_is_not_stored_at_its_deadline_fails() -> None:
    made = bench()
    made.append()
    (segment,) = sealed(made)

    assert made.core.tick(DEADLINE_MS - 1, 0) == []
    assert made.core.tick(DEADLINE_MS, 0) == [Report(segment)]
    assert segment.error == TIMED_OUT


def test_a_stored_batch_notifies_its_segments_with_their_places() -> None:
    made = bench()
    made.append(partition=0)
    made.append(partition=1)
    first, second = sealed(made)
    parts = {segment: part_of(segment) for segment in (first, second)}

    actions = made.core.uploaded(batch_of(first), parts, 5)

    assert actions == [Notify(first), Notify(second)]
    assert first.part is parts[first]


def test_a_failed_upload_fails_all_its_segments() -> None:
    made = bench()
    made.append(partition=0)
    made.append(partition=1)
    first, second = sealed(made)

    actions = made.core.upload_failed(batch_of(first), "denied", 5)

    assert actions == [Report(first), Report(second)]
    assert second.error == "denied"


def test_an_upload_that_lands_after_the_deadline_is_never_notified() -> None:
    made = bench()
    made.append()
    (segment,) = sealed(made)
    made.core.tick(DEADLINE_MS, 0)

    parts = {segment: part_of(segment)}

    assert made.core.uploaded(batch_of(segment), parts, DEADLINE_MS + 1) == []
    assert segment.state is SegmentState.FAILED


def test_inline_bytes_make_a_segment_ready() -> None:
    made = bench(Route.INLINE)
    made.append()
    (segment,) = sealed(made)

    assert inline_encoded(made, segment, 100) == [Notify(segment)]
    assert segment.inline == b"x" * 100
    assert segment.part is not None


def test_inline_bytes_too_large_for_a_record_become_an_object() -> None:
    made = bench(Route.INLINE, inline_max_bytes=99)
    made.append()
    (segment,) = sealed(made)

    (action,) = inline_encoded(made, segment, 100)

    assert action == UploadBatch(batch_of(segment))
    assert segment.route is Route.BLOB
    assert segment.inline is None
    assert made.core.memory.inline_bytes == 0


# --- the route again, by what the bytes have become -----------------------------------------------


def careful_bench(*values: bytes, callback: Callable[..., Any] | None = None) -> Bench:
    """One that chooses by cost, with a record of each value in a partition of its own."""
    made = make_bench(make_router(inline_max_bytes=500_000), inline_max_bytes=500_000,
                      batch_size_bytes=1 << 24, limit_bytes=1 << 24)  # fmt: skip
    made.topic("flights", [""] * len(values))
    for partition, value in enumerate(values):
        made.append(value, partition=partition, callback=callback)
    return made


def built(made: Bench, **length_bytes: int) -> tuple[list[SealedSegment], list[ProducerAction]]:
    """Seal, and have an object built of segments that have become so long, by partition."""
    segments = sealed(made)
    of_segments = {
        segment: replace(encoded_of(segment), length_bytes=length)
        for segment, length in zip(segments, length_bytes.values(), strict=True)
    }
    return segments, made.core.object_encoded(batch_of(segments[0]), of_segments, 0, 0)


def test_what_has_compressed_so_well_that_an_object_is_dearer_goes_inline() -> None:
    made = careful_bench(b"v" * 300_000, b"v" * 200_000, callback=heard)

    segments, actions = built(made, first=30_000, second=20_000)

    assert actions == [EncodeInline(segment) for segment in segments]
    assert not batch_of(segments[0]).is_wanted
    made.core.object_released(batch_of(segments[0]), 0)
    assert made.core.memory.inline_bytes == 50_000
    for segment in segments:
        assert inline_encoded(made, segment, 20_000) == [Notify(segment)]


def test_what_an_object_is_still_cheaper_for_stays_in_it_and_the_others_go() -> None:
    made = careful_bench(b"v" * 300_000, b"v" * 200_000, b"v" * 200_000)

    (large, small, middle), actions = built(made, large=150_000, small=1000, middle=20_000)

    assert actions == [EncodeInline(small)]
    assert batch_of(large).is_wanted
    parts = {segment: part_of(segment) for segment in (large, middle)}
    assert made.core.uploaded(batch_of(large), parts, 0) == [Notify(large), Notify(middle)]
    assert inline_encoded(made, small, 1000) == [Notify(small)]
    assert [s.route for s in (large, small, middle)] == [Route.BLOB, Route.INLINE, Route.BLOB]


def test_what_has_failed_meanwhile_holds_nobody_in_the_object() -> None:
    made = careful_bench(b"v" * 300_000, b"v" * 200_000)
    large, small = sealed(made)
    made.core.notifier.failed([large], "failed", 0)
    of_segments = {
        large: replace(encoded_of(large), length_bytes=300_000),
        small: replace(encoded_of(small), length_bytes=1000),
    }

    actions = made.core.object_encoded(batch_of(large), of_segments, 0, 0)

    assert actions == [EncodeInline(small)]


def test_a_lane_that_compresses_well_is_direct_at_the_rate_of_what_is_left() -> None:
    made = careful_bench()
    made.topic("flights", ["", ""])
    lane = made.core.batcher.segment_for(made.topics["flights"], 0, None, None, 0).lane
    for number in range(1, 6):
        for partition in (0, 1):
            made.append(b"v" * 200_000, partition=partition, now_ms=number * INTERVAL_MS)
        segments = sorted(
            (s for a in made.core.seal(lane, number * INTERVAL_MS, 0)
             if isinstance(a, UploadBatch) for s in a.batch.segments),
            key=lambda segment: segment.partition,
        )  # fmt: skip
        was_direct = lane.is_direct
        if segments:
            of_segments = {s: replace(encoded_of(s), length_bytes=5000) for s in segments}
            made.core.object_encoded(batch_of(segments[0]), of_segments, 0, 0)

    assert lane.stored_share < 0.05
    assert was_direct


def test_what_was_to_be_stored_whatever_it_costs_stays_in_its_object() -> None:
    made = bench()
    made.append(b"v" * 100)

    (segment,), actions = built(made, only=10)

    assert actions == []
    assert batch_of(segment).is_wanted


def test_what_has_failed_while_it_was_encoded_goes_nowhere() -> None:
    made = careful_bench(b"v" * 300_000, b"v" * 200_000)
    segments = sealed(made)
    made.core.tick(DEADLINE_MS, 0)
    of_segments = {s: replace(encoded_of(s), length_bytes=1000) for s in segments}

    assert made.core.object_encoded(batch_of(segments[0]), of_segments, 0, DEADLINE_MS) == []


def test_what_is_too_large_for_a_notification_stays_in_its_object() -> None:
    made = careful_bench(b"v" * 300_000)
    made.topics["flights"].inline_max_bytes = 5000

    (segment,), actions = built(made, only=5001)

    assert actions == []
    assert batch_of(segment).is_wanted


def test_inline_bytes_too_large_for_a_record_go_one_by_one_where_an_object_is_dearer() -> None:
    made = make_bench(make_router(inline_max_bytes=500), inline_max_bytes=500)
    made.topic("flights", [""])
    made.append(b"v" * 300)
    made.append(b"v" * 100)
    (segment,) = sealed(made)
    before = segment.route

    (action,) = inline_encoded(made, segment, 501)

    assert action == Notify(segment)
    assert [before, segment.route] == [Route.INLINE, Route.PLAIN]


# --- memory ---------------------------------------------------------------------------------------


def test_records_are_held_until_they_are_reported() -> None:
    made = bench()
    made.append(b"12345", key=b"k", callback=heard)
    (segment,) = sealed(made)
    memory = made.core.memory
    charge = 6 + CHARGE_BYTES_PER_RECORD + CHARGE_BYTES_PER_SEGMENT
    assert (memory.records, memory.held_bytes) == (1, charge)

    made.core.object_encoded(batch_of(segment), {segment: encoded_of(segment)}, 80, 0)
    # The callback wants the record back.
    assert memory.held_bytes == charge + 80
    made.core.object_released(batch_of(segment), 80)
    assert memory.held_bytes == charge
    made.core.records_reported([segment])
    assert (memory.records, memory.held_bytes) == (0, 0)


def test_the_charge_covers_segments_of_one_record_each() -> None:
    made, segments = bench(), []
    drop_unused()  # it counts from the last call on
    drop_unused()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(500):
            key = b"%d" % number
            for partition in range(3):
                made.append(b"", key=key, partition=partition, headers=[("h", key)])
            segments += sealed(made)
            for segment in segments[-3:]:
                segment.part = part_of(segment)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert len(segments) == 1500
    assert 0.3 * made.core.memory.held_bytes <= held <= made.core.memory.held_bytes


def test_records_nobody_waits_for_live_on_in_their_object_alone() -> None:
    made = bench()
    for _ in range(8):
        made.append(b"v" * 90)
    (segment,) = sealed(made)

    made.core.object_encoded(batch_of(segment), {segment: encoded_of(segment)}, 80, 0)

    assert made.core.memory.held_bytes == 80 + CHARGE_BYTES_PER_SEGMENT
    assert segment.rows.values == []
    made.core.object_released(batch_of(segment), 80)
    made.core.records_reported([segment])
    assert (made.core.memory.records, made.core.memory.held_bytes) == (0, 0)


def test_records_that_time_out_while_their_object_is_encoded_are_released_once() -> None:
    made = bench()
    made.append(b"12345")
    (segment,) = sealed(made)
    encoded = encoded_of(segment)
    made.core.tick(DEADLINE_MS, 0)

    made.core.records_reported([segment])
    made.core.object_encoded(batch_of(segment), {segment: encoded}, 80, DEADLINE_MS)
    made.core.object_released(batch_of(segment), 80)

    assert (made.core.memory.records, made.core.memory.records_bytes) == (0, 0)


def test_records_with_callbacks_keep_their_columns_until_then() -> None:
    made = bench()
    made.append(b"12345", callback=heard)
    (segment,) = sealed(made)

    made.core.object_encoded(batch_of(segment), {segment: encoded_of(segment)}, 80, 0)
    assert segment.rows.values == [b"12345"]
    made.core.records_reported([segment])
    assert segment.rows.values == []


def test_callbacks_are_freed_with_the_report() -> None:
    made = bench()
    made.append(callback=heard)
    (segment,) = sealed(made)
    had_callbacks = segment.has_callbacks

    made.core.records_reported([segment])

    assert [had_callbacks, segment.has_callbacks] == [True, False]


def test_what_outcomes_take_leaves_less_for_records() -> None:
    memory = BufferMemory(1000, 200, None)
    memory.charge_record(100)
    held = memory.held_bytes

    memory.hold_outcomes(300)
    assert (memory.held_bytes, memory.records_ceiling_bytes) == (held + 300, 500)
    memory.charge_object(600)
    assert memory.records_ceiling_bytes == 100
    memory.hold_outcomes(0)
    assert (memory.held_bytes, memory.records_ceiling_bytes) == (held + 600, 400)


def test_inline_bytes_are_held_until_the_report() -> None:
    made = bench(Route.INLINE, Route.INLINE)
    made.append(partition=0, callback=heard)
    made.append(partition=1)
    loud, silent = sealed(made)
    memory = made.core.memory

    inline_encoded(made, loud, 100)
    inline_encoded(made, silent, 50)

    assert memory.inline_bytes == 150
    # The callback wants its record back.
    assert memory.records_bytes == 2 * CHARGE_BYTES_PER_SEGMENT + 1 + CHARGE_BYTES_PER_RECORD
    made.core.records_reported([loud, silent])
    assert (memory.records, memory.held_bytes) == (0, 0)


def test_inline_bytes_of_a_failed_segment_are_not_kept() -> None:
    made = bench(Route.INLINE, inline_max_bytes=99)
    made.append()
    (segment,) = sealed(made)
    made.core.tick(DEADLINE_MS, 0)
    made.core.records_reported([segment])

    assert inline_encoded(made, segment, 50, DEADLINE_MS) == []
    assert inline_encoded(made, segment, 200, DEADLINE_MS) == []
    assert made.core.memory.held_bytes == 0


def test_a_batch_is_charged_from_the_moment_it_may_be_encoded() -> None:
    made = bench()
    made.append(b"12345", callback=heard)
    (segment,) = sealed(made)
    batch, memory = batch_of(segment), made.core.memory

    assert made.core.reserve_object(batch, 0)
    assert memory.object_bytes == batch.size_bytes
    made.core.object_encoded(batch, {segment: encoded_of(segment)}, 80, 0)
    assert memory.object_bytes == 80
    made.core.object_released(batch, 80)
    assert memory.object_bytes == 0


def test_a_batch_that_was_never_encoded_gives_its_reservation_back() -> None:
    made = bench()
    made.append(b"12345", callback=heard)
    (segment,) = sealed(made)

    assert made.core.reserve_object(batch_of(segment), 0)
    made.core.object_released(batch_of(segment), 0)

    assert made.core.memory.object_bytes == 0


def test_objects_and_inline_bytes_count_against_new_records() -> None:
    memory = BufferMemory(1000, 0, None)
    memory.records, memory.records_bytes = 1, 100
    assert not memory.is_full_for(100)

    memory.charge_inline(850)

    assert memory.is_full_for(100)


def test_an_object_counts_against_new_records_too() -> None:
    memory = BufferMemory(1000, 0, None)
    memory.records, memory.records_bytes = 1, 100

    memory.charge_object(800)
    assert not memory.is_full_for(100)
    assert memory.is_full_for(101)
    memory.charge_object(-800)

    assert not memory.is_full_for(900)


def test_a_record_that_joins_no_segment_yet_is_charged_until_it_does() -> None:
    memory = BufferMemory(1000, 0, None)

    memory.charge_record(300)
    assert (memory.records, memory.held_bytes) == (1, 300 + CHARGE_BYTES_PER_RECORD)
    memory.charge_record(300, -1)

    assert (memory.records, memory.held_bytes) == (0, 0)


@pytest.mark.parametrize(("inline_bytes", "is_full"), [(250, False), (251, True)])
def test_what_travels_in_notifications_may_take_a_quarter(inline_bytes: int, is_full: bool) -> None:
    memory = BufferMemory(1000, 0, None)

    memory.charge_inline(inline_bytes)

    assert memory.is_full_of_inline is is_full


def test_an_empty_buffer_takes_a_record_of_any_size() -> None:
    assert not BufferMemory(1000, 0, None).is_full_for(5000)


def test_one_object_is_always_admitted() -> None:
    memory = BufferMemory(1000, 0, None)
    memory.records_bytes = 1000

    assert memory.may_encode(5000)


def test_a_second_object_must_fit() -> None:
    memory = BufferMemory(1000, 0, None)
    memory.records_bytes = 300
    memory.charge_object(300)
    memory.charge_inline(100)

    assert memory.held_bytes == 700
    assert memory.may_encode(300)
    assert not memory.may_encode(301)


def test_inline_bytes_that_wait_behind_an_object_do_not_keep_it_from_being_built() -> None:
    memory = BufferMemory(1000, 0, None)
    memory.records_bytes = 900
    memory.charge_inline(200)

    assert memory.may_encode(500)


@pytest.mark.parametrize(("reserve", "expected"), [(0, 1000), (300, 700), (5000, 500)])
def test_part_of_the_limit_is_kept_for_encoding(reserve: int, expected: int) -> None:
    assert BufferMemory(1000, reserve, None).record_limit_bytes == expected


def test_records_are_limited_by_number_when_asked() -> None:
    memory = BufferMemory(1000, 0, 7)
    memory.records = 6
    assert not memory.is_full_for(1)
    memory.records = 7
    assert memory.is_full_for(1)
    assert BufferMemory(1000, 0, None).limit_records > 1 << 60


# --- the fallback ---------------------------------------------------------------------------------

AFTER_MS = 1000


def falling_back(made: Bench) -> SealedSegment:
    """A segment whose object fails for so long that it has been taken to go inline."""
    made.append(b"12345")
    (segment,) = sealed(made)
    batch = batch_of(segment)
    made.core.object_encoded(batch, {segment: encoded_of(segment)}, 80, 0)
    assert made.core.attempt_failed(batch, 0, AFTER_MS) == [EncodeInline(segment)]
    return segment


def test_a_segment_that_fell_back_leaves_once_though_its_object_is_stored_then() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    segment = falling_back(made)
    batch = batch_of(segment)

    assert inline_encoded(made, segment, 100, AFTER_MS) == [Notify(segment)]
    inline_part = segment.part
    made.core.object_released(batch, 80)

    assert made.core.uploaded(batch, {segment: part_of(segment)}, AFTER_MS) == []
    assert segment.part is inline_part
    assert segment.route is Route.INLINE


def test_an_object_that_is_stored_first_has_its_segment_though_it_was_to_fall_back() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    segment = falling_back(made)
    batch, part = batch_of(segment), part_of(segment)
    made.core.object_released(batch, 80)

    assert made.core.uploaded(batch, {segment: part}, AFTER_MS) == [Notify(segment)]
    assert inline_encoded(made, segment, 100, AFTER_MS) == []
    assert (segment.route, segment.part, segment.inline) == (Route.BLOB, part, None)
    assert made.core.memory.inline_bytes == 0


def test_an_upload_that_fails_for_good_takes_nothing_with_it_that_fell_back() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    segment = falling_back(made)
    batch = batch_of(segment)
    made.core.object_released(batch, 80)

    assert made.core.upload_failed(batch, "no", AFTER_MS) == []
    # Its records are gone, but not its bytes.
    assert segment.encoded is not None
    assert inline_encoded(made, segment, 100, AFTER_MS) == [Notify(segment)]
    assert segment.encoded is None


def test_nothing_falls_back_on_a_kafka_that_is_away() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    made.append()
    (segment,) = sealed(made)
    batch = batch_of(segment)
    made.core.object_encoded(batch, {segment: encoded_of(segment)}, 80, 0)
    made.core.presence.all_brokers_down(0)
    now_ms = AFTER_MS + AWAY_AFTER_MS

    assert made.core.attempt_failed(batch, 0, now_ms) == []
    assert made.core.next_tick_ms(now_ms) == now_ms + 100
    made.core.presence.metadata_read(is_waiting=False)
    assert made.core.tick(now_ms, 0) == [EncodeInline(segment)]


def test_pieces_of_a_segment_take_its_place_and_its_charge() -> None:
    made = bench(fallback_after_ms=AFTER_MS, inline_max_bytes=400, batch_size_bytes=10_000)
    for _ in range(4):
        made.append(b"v" * 150, callback=heard)
    (segment,) = sealed(made)
    batch, memory = batch_of(segment), made.core.memory
    encoded = encoded_of(segment)
    made.core.object_encoded(batch, {segment: encoded}, 800, 0)
    charged_bytes = memory.records_bytes
    (cut,) = made.core.attempt_failed(batch, 0, AFTER_MS)
    assert cut == CutSegment(segment, 400)

    pieces = cut_segment(segment, segment.rows, 400)
    lanes = made.topics["flights"]
    upload, *taken = made.core.cut(segment, pieces, lanes, AFTER_MS, 0)

    assert not batch.is_wanted
    assert isinstance(upload, UploadBatch)
    assert upload.batch.segments == tuple(pieces)
    assert taken == [EncodeInline(piece) for piece in pieces]
    more_bytes = (len(pieces) - 1) * CHARGE_BYTES_PER_SEGMENT
    assert memory.records_bytes == charged_bytes + more_bytes
    assert memory.records == 4
    assert made.core.notifier.unsettled_segments == len(pieces)


def test_pieces_nobody_needs_any_more_are_forgotten() -> None:
    made = bench(fallback_after_ms=AFTER_MS, inline_max_bytes=300, batch_size_bytes=10_000)
    for _ in range(4):
        made.append(b"v" * 150)
    (segment,) = sealed(made)
    batch = batch_of(segment)
    encoded = encoded_of(segment)
    pieces = cut_segment(segment, segment.rows, 300)
    made.core.object_encoded(batch, {segment: encoded}, 800, 0)
    assert len(made.core.attempt_failed(batch, 0, AFTER_MS)) == 1
    made.core.uploaded(batch, {segment: part_of(segment)}, AFTER_MS)

    assert made.core.cut(segment, pieces, made.topics["flights"], AFTER_MS, 0) == []
    assert segment.state is SegmentState.NOTIFYING


def test_what_turns_out_too_long_by_its_headers_is_cut_then() -> None:
    made = bench(fallback_after_ms=AFTER_MS, inline_max_bytes=300, batch_size_bytes=10_000)
    for _ in range(4):
        made.append(b"v", headers=[("h", b"")])
    (segment,) = sealed(made)
    batch = batch_of(segment)
    made.core.object_encoded(batch, {segment: encoded_of(segment)}, 800, 0)
    assert made.core.attempt_failed(batch, 0, AFTER_MS) == [EncodeInline(segment)]

    (cut,) = inline_encoded(made, segment, 301, AFTER_MS)

    assert isinstance(cut, CutSegment)
    assert segment.encoded is not None
    # It is said to be shorter than it is: what is cut has more than one piece all the same.
    assert len(cut_segment(segment, segment.encoded, cut.max_bytes)) >= 2


def test_a_record_that_is_too_long_after_all_waits_for_the_store_with_its_records() -> None:
    made = bench(fallback_after_ms=AFTER_MS, inline_max_bytes=116, batch_size_bytes=10_000)
    made.append(b"v" * 100)  # as long as a notification may be, and something about it
    (segment,) = sealed(made)
    batch = batch_of(segment)
    made.core.fallback.begun(batch, 0)
    assert made.core.attempt_failed(batch, 0, AFTER_MS) == [EncodeInline(segment)]
    encoded = encoded_of(segment)
    made.core.object_encoded(batch, {segment: encoded}, 200, AFTER_MS)

    (upload,) = inline_encoded(made, segment, encoded.length_bytes, AFTER_MS)

    assert upload == UploadBatch(batch_of(segment))
    assert batch_of(segment) is not batch
    assert segment.rows.values == [b"v" * 100]
    # The first object has it as well, and may still be the one that is stored.
    assert not batch.is_wanted
    assert made.core.upload_failed(batch, "no", AFTER_MS) == []
    part = part_of(segment)
    made.core.object_released(batch, 200)
    assert made.core.uploaded(batch, {segment: part}, AFTER_MS) == [Notify(segment)]
    assert batch_of(segment) is batch


def test_what_is_purged_is_not_kept_for_a_fallback() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    made.append()
    made.core.purge("purged", 0, 0)
    made.append()
    (segment,) = sealed(made)
    made.core.object_encoded(batch_of(segment), {segment: encoded_of(segment)}, 80, 0)
    made.core.purge("purged", 0, 0)
    made.core.object_released(batch_of(segment), 80)
    made.core.upload_needless(batch_of(segment))

    assert made.core.fallback._objects == {}


def test_a_cut_that_fails_does_not_end_the_fallback() -> None:
    made = bench(fallback_after_ms=AFTER_MS, inline_max_bytes=400, batch_size_bytes=10_000)
    for _ in range(4):
        made.append(b"v" * 150)
    made.append(partition=1)
    first, second = sealed(made)
    batch = batch_of(first)
    both = {segment: encoded_of(segment) for segment in (first, second)}
    made.core.object_encoded(batch, both, 800, 0)
    assert made.core.attempt_failed(batch, 0, AFTER_MS) == [CutSegment(first, 400)]

    report, taken = made.core.inline_failed(first, "no memory", AFTER_MS)

    assert report == Report(first)
    assert first.error == "no memory"
    assert taken == EncodeInline(second)


def test_a_routers_segment_that_is_too_long_may_fall_back_in_pieces() -> None:
    made = bench(Route.INLINE, fallback_after_ms=AFTER_MS, inline_max_bytes=300)
    for _ in range(4):
        made.append(b"v" * 90)
    (segment,) = sealed(made)
    (upload,) = inline_encoded(made, segment, 500)
    assert isinstance(upload, UploadBatch)
    made.core.object_encoded(upload.batch, {segment: encoded_of(segment)}, 500, 0)

    assert made.core.attempt_failed(upload.batch, 0, AFTER_MS) == [CutSegment(segment, 300)]


def test_a_purge_uploads_nothing_any_more() -> None:
    made = bench()
    made.append()

    actions = made.core.purge("purged", 0, 0)

    assert [type(action) for action in actions] == [Report]


def test_no_object_is_begun_while_kafka_is_away_or_memory_is_short() -> None:
    made = bench(limit_bytes=100_000)
    made.append(callback=heard)
    (segment,) = sealed(made)
    batch = batch_of(segment)
    made.core.presence.all_brokers_down(0)
    assert not made.core.reserve_object(batch, AWAY_AFTER_MS)
    made.core.presence.metadata_read(is_waiting=False)

    made.core.memory.charge_object(100_000)
    assert not made.core.reserve_object(batch, AWAY_AFTER_MS)
    made.core.memory.charge_object(-100_000)

    assert made.core.reserve_object(batch, AWAY_AFTER_MS)


def test_segments_fall_back_though_kafka_owes_an_answer_to_others() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    made.append(partition=1)
    (other,) = sealed(made)
    made.core.object_encoded(batch_of(other), {other: encoded_of(other)}, 80, 0)
    made.core.object_released(batch_of(other), 80)
    made.core.uploaded(batch_of(other), {other: part_of(other)}, 0)
    assert made.core.notifier.awaits_kafka

    segment = falling_back(made)

    assert segment.route is Route.INLINE


def test_what_compression_saves_lets_the_next_segment_fall_back_earlier() -> None:
    made = bench(
        fallback_after_ms=AFTER_MS, fallback_bytes_per_second=1000, batch_size_bytes=10_000
    )
    for partition in range(2):
        made.append(b"v" * 900, partition=partition, callback=heard)
    first, second = sealed(made)
    batch = batch_of(first)
    both = {segment: encoded_of(segment) for segment in (first, second)}
    made.core.object_encoded(batch, both, 2000, 0)
    assert made.core.attempt_failed(batch, 0, AFTER_MS) == [EncodeInline(first)]
    assert made.core.tick(AFTER_MS, 0) == []

    inline_encoded(made, first, 10, AFTER_MS)

    assert made.core.tick(AFTER_MS, 0) == [EncodeInline(second)]


def under_way(made: Bench, partition: int, now_ms: int) -> SealedSegment:
    """A segment whose object is on its way to the store."""
    made.append(partition=partition, now_ms=now_ms)
    segment = next(s for s in sealed(made, now_ms) if s.partition == partition)
    made.core.object_encoded(batch_of(segment), {segment: encoded_of(segment)}, 80, now_ms)
    return segment


def test_the_first_object_that_is_stored_ends_the_fallback() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    falling_back(made)
    assert made.core.fallback.is_on
    other = under_way(made, 1, AFTER_MS)

    made.core.uploaded(batch_of(other), {other: part_of(other)}, AFTER_MS + 10)

    assert not made.core.fallback.is_on


def test_only_what_is_under_way_can_hang() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    segment = under_way(made, 0, 0)
    assert made.core.fallback.next_ms(0) == HANGS_AFTER_MS

    made.core.upload_failed(batch_of(segment), "no", 0)

    assert made.core.fallback.next_ms(0) is None


def test_what_is_reported_keeps_no_bytes() -> None:
    made = bench(Route.INLINE)
    made.append(callback=heard)
    (segment,) = sealed(made)
    inline_encoded(made, segment, 100)
    segment.encoded = encoded_of(segment)

    made.core.records_reported([segment])

    kept: list[object] = [segment.inline, segment.encoded]
    assert kept == [None, None]
    assert segment.charged_bytes == made.core.memory.inline_bytes == 0


def test_an_object_that_is_released_leaves_bytes_only_to_what_is_to_go_inline() -> None:
    made = bench(fallback_after_ms=AFTER_MS)
    segment = falling_back(made)
    stored = under_way(made, 1, AFTER_MS)
    made.core.object_released(batch_of(segment), 80)
    made.core.object_released(batch_of(stored), 80)

    assert segment.encoded is not None
    assert made.core.memory.inline_bytes == segment.encoded.length_bytes
    assert stored.encoded is None
