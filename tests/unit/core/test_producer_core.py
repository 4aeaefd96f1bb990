from __future__ import annotations

import tracemalloc

import pytest

from blobmsg.core.events import EncodeInline, Notify, ReadTopic, Report, UploadBatch
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
    INTERVAL_MS,
    TIMED_OUT,
    Bench,
    ScriptedRouter,
    make_bench,
    part_of,
)


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

    assert made.core.next_tick_ms() == 10 + INTERVAL_MS
    assert made.core.tick(9 + INTERVAL_MS, 0) == []
    assert len(made.core.tick(10 + INTERVAL_MS, 0)) == 1


def test_a_flush_seals_all_lanes() -> None:
    made = bench()
    made.append(partition=0)
    made.append(partition=2)

    batches = [action.batch for action in made.core.seal_all(0, 0) if hasattr(action, "batch")]

    assert {batch.lane_key.destination_zone for batch in batches} == {"", "az2"}


def test_with_nothing_to_do_there_is_no_next_tick() -> None:
    assert bench().core.next_tick_ms() is None


def test_the_next_tick_is_a_deadline_when_nothing_fills() -> None:
    made = bench()
    made.append(now_ms=10)
    made.core.seal_all(20, 0)

    assert made.core.next_tick_ms() == 10 + DEADLINE_MS
    made.append(now_ms=30)
    assert made.core.next_tick_ms() == 30 + INTERVAL_MS


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


# --- memory ---------------------------------------------------------------------------------------


def test_records_are_held_until_they_are_reported() -> None:
    made = bench()
    made.append(b"12345", key=b"k", callback=heard)
    (segment,) = sealed(made)
    memory = made.core.memory
    charge = 6 + CHARGE_BYTES_PER_RECORD + CHARGE_BYTES_PER_SEGMENT
    assert (memory.records, memory.held_bytes) == (1, charge)

    made.core.object_encoded(batch_of(segment), [segment], 80)
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

    made.core.object_encoded(batch_of(segment), [segment], 80)

    assert made.core.memory.held_bytes == 80 + CHARGE_BYTES_PER_SEGMENT
    assert segment.rows.values == []
    made.core.object_released(batch_of(segment), 80)
    made.core.records_reported([segment])
    assert (made.core.memory.records, made.core.memory.held_bytes) == (0, 0)


def test_records_that_time_out_while_their_object_is_encoded_are_released_once() -> None:
    made = bench()
    made.append(b"12345")
    (segment,) = sealed(made)
    made.core.tick(DEADLINE_MS, 0)

    made.core.records_reported([segment])
    made.core.object_encoded(batch_of(segment), [segment], 80)
    made.core.object_released(batch_of(segment), 80)

    assert (made.core.memory.records, made.core.memory.records_bytes) == (0, 0)


def test_records_with_callbacks_keep_their_columns_until_then() -> None:
    made = bench()
    made.append(b"12345", callback=heard)
    (segment,) = sealed(made)

    made.core.object_encoded(batch_of(segment), [segment], 80)
    assert segment.rows.values == [b"12345"]
    made.core.records_reported([segment])
    assert segment.rows.values == []


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
    made.core.object_encoded(batch, [segment], 80)
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
    assert BufferMemory(1000, 0, 7).limit_records == 7
    assert BufferMemory(1000, 0, None).limit_records > 1 << 60
