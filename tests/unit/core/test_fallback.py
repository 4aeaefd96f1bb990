"""When the store fails, which segments leave it to Kafka, and how fast."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from blobmsg.core.events import CutSegment, EncodeInline
from blobmsg.core.fallback import InlineFallback
from blobmsg.core.segments import Batch, LaneKey, Route, SegmentState
from blobmsg.format import Codec
from blobmsg.format.encoded_segment import encode_object_segment
from blobmsg.format.object_key import retention_class
from tests.helpers.producing import DAY_MS, HANGS_AFTER_MS, sealed_segment

if TYPE_CHECKING:
    from blobmsg.core.segments import SealedSegment

AFTER_MS = 5000
BYTES_PER_SECOND = 10_000
MAX_BYTES = 1000
_numbers = count()


def make_fallback(after_ms: int | None = AFTER_MS) -> InlineFallback:
    return InlineFallback(after_ms, BYTES_PER_SECOND, MAX_BYTES, HANGS_AFTER_MS)


def make_batch(*segments: SealedSegment, size_bytes: int = 100) -> Batch:
    number = next(_numbers)
    batch = Batch(
        number=number,
        lane_key=LaneKey("shared", retention_class(DAY_MS), ""),
        object_key=f"{number}",
        segments=segments or (sealed_segment(),),
        size_bytes=size_bytes,
        deadline_ms=None,
    )
    for segment in batch.segments:
        segment.batch = batch
    return batch


def under_way(fallback: InlineFallback, *segments: SealedSegment, now_ms: int = 0) -> Batch:
    batch = make_batch(*segments)
    fallback.sealed(batch, now_ms)
    fallback.begun(batch, now_ms)
    return batch


def taken(fallback: InlineFallback, now_ms: int) -> list[SealedSegment]:
    return [action.segment for action in fallback.take(now_ms)]


# --- when -----------------------------------------------------------------------------------------


def test_what_the_store_takes_in_time_never_leaves_it() -> None:
    fallback = make_fallback()
    batch = under_way(fallback)
    fallback.attempt_failed(batch, 0, 100)
    fallback.stored(batch, AFTER_MS - 1)

    assert fallback.next_ms(AFTER_MS) is None
    assert fallback.take(AFTER_MS) == []
    assert not fallback.is_on


def test_an_object_that_fails_long_enough_goes_inline() -> None:
    fallback = make_fallback()
    batch = under_way(fallback, now_ms=10)
    fallback.attempt_failed(batch, 10, 400)

    assert fallback.next_ms(400) == 10 + AFTER_MS
    assert fallback.take(10 + AFTER_MS - 1) == []
    assert fallback.take(10 + AFTER_MS) == [EncodeInline(batch.segments[0])]
    assert batch.segments[0].route is Route.INLINE
    assert fallback.is_on
    assert not batch.is_wanted


def test_while_the_store_fails_the_next_object_goes_inline_at_its_first_failure() -> None:
    fallback = make_fallback()
    fallback.attempt_failed(under_way(fallback), 0, 100)
    fallback.take(AFTER_MS)
    later = under_way(fallback, now_ms=AFTER_MS + 1000)

    assert fallback.take(AFTER_MS + 1001) == []
    fallback.attempt_failed(later, AFTER_MS + 1001, AFTER_MS + 1002)
    assert taken(fallback, AFTER_MS + 1002) == [*later.segments]


def test_what_waits_behind_uploads_that_hang_goes_inline_by_its_age() -> None:
    fallback = make_fallback()
    hanging = under_way(fallback)
    behind = make_batch()
    fallback.sealed(behind, 7000)

    assert fallback.next_ms(7000) == HANGS_AFTER_MS
    assert fallback.take(HANGS_AFTER_MS - 1) == []
    assert taken(fallback, HANGS_AFTER_MS) == [*hanging.segments]
    assert fallback.next_ms(HANGS_AFTER_MS) == 7000 + AFTER_MS
    assert taken(fallback, 7000 + AFTER_MS) == [*behind.segments]


def test_uploads_that_end_one_after_the_other_do_not_hang() -> None:
    fallback = make_fallback()
    slow = under_way(fallback)
    for now_ms in range(1000, 3 * HANGS_AFTER_MS, HANGS_AFTER_MS - 1):
        assert fallback.take(now_ms) == []
        fallback.stored(under_way(fallback, now_ms=now_ms), now_ms)

    assert slow.is_wanted


def test_an_object_that_fails_alone_goes_inline_alone() -> None:
    fallback = make_fallback()
    sick, well = under_way(fallback), under_way(fallback)
    fallback.attempt_failed(sick, 0, 100)
    fallback.stored(well, 200)
    waiting = under_way(fallback, now_ms=300)
    fallback.attempt_failed(sick, 3990, 4000)

    assert taken(fallback, AFTER_MS) == [*sick.segments]
    assert waiting.is_wanted


def test_when_the_store_is_back_what_waits_is_left_to_it() -> None:
    fallback = make_fallback()
    first, second, third = under_way(fallback), under_way(fallback), under_way(fallback)
    for batch in (first, second, third):
        fallback.attempt_failed(batch, 0, 100)
    fallback.stored(second, AFTER_MS - 1)

    assert fallback.take(2 * AFTER_MS) == []
    # It was between two attempts; the next one tells.
    fallback.attempt_failed(third, 2 * AFTER_MS - 10, 2 * AFTER_MS)
    assert taken(fallback, 2 * AFTER_MS) == [*third.segments]
    assert first.is_wanted


def test_objects_that_wait_when_time_began_are_no_exception() -> None:
    fallback = make_fallback(0)
    batch = under_way(fallback, now_ms=0)
    fallback.attempt_failed(batch, 0, 0)

    assert taken(fallback, 0) == [*batch.segments]


def test_those_who_would_rather_wait_do() -> None:
    fallback = make_fallback(None)
    batch = under_way(fallback)
    fallback.attempt_failed(batch, 0, 100)

    assert fallback.next_ms(1 << 30) is None
    assert fallback.take(1 << 30) == []


def test_nothing_is_asked_of_an_object_that_nobody_uploads() -> None:
    fallback = make_fallback()
    batch = under_way(fallback)
    fallback.attempt_failed(batch, 0, 100)
    fallback.ended(batch)

    assert fallback.take(AFTER_MS) == []


def test_what_has_failed_meanwhile_is_left_alone() -> None:
    fallback = make_fallback()
    failed, waiting = sealed_segment(), sealed_segment(1)
    batch = under_way(fallback, failed, waiting)
    fallback.attempt_failed(batch, 0, 100)
    failed.state = SegmentState.FAILED

    assert taken(fallback, AFTER_MS) == [waiting]


def test_an_object_that_is_due_does_not_wait_for_an_older_one_that_is_not() -> None:
    fallback = make_fallback()
    older, sick = under_way(fallback), under_way(fallback)
    fallback.attempt_failed(sick, 0, 100)
    fallback.stored(under_way(fallback), 100)  # in the same millisecond: it may be the earlier

    assert fallback.next_ms(100) == AFTER_MS
    assert taken(fallback, AFTER_MS) == [*sick.segments]
    assert older.is_wanted


def test_an_object_that_may_not_leave_the_store_is_not_waited_for() -> None:
    fallback = make_fallback()
    batch = make_batch()
    fallback.begun(batch, 0)
    fallback.attempt_failed(batch, 0, 100)

    assert fallback.next_ms(HANGS_AFTER_MS) is None
    assert fallback.take(HANGS_AFTER_MS) == []
    fallback.ended(batch)
    later = under_way(fallback, now_ms=HANGS_AFTER_MS)
    assert fallback.next_ms(HANGS_AFTER_MS) == 2 * HANGS_AFTER_MS
    assert later.is_wanted


def test_an_object_counts_from_the_failure_of_the_store_if_that_is_earlier() -> None:
    fallback = make_fallback()
    fallback.attempt_failed(under_way(fallback), 0, 100)
    later = under_way(fallback, now_ms=1000)
    fallback.attempt_failed(later, 1000, 1500)

    assert fallback.next_ms(1500) == AFTER_MS
    assert len(fallback.take(AFTER_MS)) == 1
    assert fallback.next_ms(AFTER_MS) == 100 + AFTER_MS
    assert taken(fallback, 100 + AFTER_MS) == [*later.segments]


def test_what_there_is_no_memory_for_is_asked_for_again_and_holds_up_nothing() -> None:
    fallback = make_fallback()
    first, second, third = (sealed_segment(partition) for partition in range(3))
    fallback.attempt_failed(under_way(fallback, first, second), 0, 100)
    fallback.attempt_failed(under_way(fallback, third), 0, 100)

    actions = fallback.take(AFTER_MS, lambda segment: segment is not first)

    assert [action.segment for action in actions] == [second, third]
    assert fallback.next_ms(AFTER_MS) is not None
    assert taken(fallback, AFTER_MS) == [first]
    assert fallback.next_ms(AFTER_MS) is None


def test_what_has_failed_and_ended_says_nothing_of_what_is_under_way_later() -> None:
    fallback = make_fallback()
    sick = under_way(fallback)
    fallback.attempt_failed(sick, 0, 100)
    fallback.attempt_failed(sick, 200, 300)
    fallback.stored(under_way(fallback), 400)
    fallback.ended(sick)

    under_way(fallback, now_ms=1000)

    assert fallback.next_ms(1000) == 1000 + HANGS_AFTER_MS


def test_what_was_under_way_takes_no_time_of_what_is_under_way_later() -> None:
    fallback = make_fallback()
    large = make_batch(size_bytes=1 << 30)
    fallback.sealed(large, 0)
    fallback.begun(large, 0)
    assert (fallback.next_ms(0) or 0) > 60 * HANGS_AFTER_MS
    fallback.stored(large, 500)

    under_way(fallback, now_ms=1000)

    assert fallback.next_ms(1000) == 1000 + HANGS_AFTER_MS


def test_the_first_object_that_is_stored_ends_it() -> None:
    fallback = make_fallback()
    fallback.attempt_failed(under_way(fallback), 0, 100)
    later = under_way(fallback, now_ms=AFTER_MS)
    fallback.take(AFTER_MS)
    was_on = fallback.is_on

    fallback.stored(later, AFTER_MS + 1)

    assert (was_on, fallback.is_on) == (True, False)


# --- how fast -------------------------------------------------------------------------------------


def test_the_rate_holds_and_the_oldest_go_first() -> None:
    fallback = make_fallback()
    size = BYTES_PER_SECOND // 20 - 16  # a twentieth of a second each
    segments = [sealed_segment(i, value=b"v" * size) for i in range(100)]
    batches = [under_way(fallback, *segments[i : i + 10]) for i in range(0, 100, 10)]
    for batch in batches:
        fallback.attempt_failed(batch, 0, 100)
    leaving: list[SealedSegment] = []
    now_ms = AFTER_MS

    while len(leaving) < 100:
        leaving += taken(fallback, now_ms)
        sent_bytes = sum(segment.encoded_bytes for segment in leaving)
        # A tenth of a second early at most, and the one that was let through by then.
        assert sent_bytes <= (now_ms - AFTER_MS + 100) * BYTES_PER_SECOND / 1000 + size + 16
        next_ms = fallback.next_ms(now_ms)
        if next_ms is None:
            break
        assert next_ms > now_ms
        now_ms = next_ms

    assert leaving == segments
    assert now_ms - AFTER_MS >= 100 * 50 - 200


def test_what_compression_saves_may_be_sent_besides() -> None:
    fallback = make_fallback()
    first, second = sealed_segment(value=b"v" * 900), sealed_segment(1, value=b"v" * 900)
    third = sealed_segment(2, value=b"v" * 900)
    batch = under_way(fallback, first, second, third)
    fallback.attempt_failed(batch, 0, 100)
    assert taken(fallback, AFTER_MS) == [first, second]
    assert taken(fallback, AFTER_MS) == []

    fallback.encoded(first.length_bytes, 10)

    assert taken(fallback, AFTER_MS) == [third]


# --- what is too long -----------------------------------------------------------------------------


def test_a_segment_too_long_for_a_notification_is_cut_first() -> None:
    fallback = make_fallback()
    long = sealed_segment(records=3, value=b"v" * 600)
    behind = sealed_segment(1)
    fallback.attempt_failed(under_way(fallback, long, behind), 0, 100)

    assert fallback.take(AFTER_MS) == [CutSegment(long, MAX_BYTES)]
    assert fallback.take(AFTER_MS) == []
    assert fallback.next_ms(AFTER_MS) is None
    pieces = [sealed_segment(value=b"v" * 600) for _ in range(3)]
    fallback.cut(long, make_batch(*pieces))

    assert taken(fallback, AFTER_MS) == pieces[:2]
    assert taken(fallback, AFTER_MS + 1000) == [pieces[2], behind]


def test_a_topic_that_takes_less_has_shorter_pieces() -> None:
    fallback = make_fallback()
    long = sealed_segment(records=3, value=b"v" * 200)
    long.inline_max_bytes = 500
    fallback.attempt_failed(under_way(fallback, long), 0, 100)

    assert fallback.take(AFTER_MS) == [CutSegment(long, 500)]


def test_a_record_too_long_for_kafka_waits_for_the_store() -> None:
    fallback = make_fallback()
    long, behind = sealed_segment(value=b"v" * (MAX_BYTES + 1)), sealed_segment(1)
    batch = under_way(fallback, long, behind)
    fallback.attempt_failed(batch, 0, 100)

    assert taken(fallback, AFTER_MS) == [behind]
    assert batch.is_wanted
    assert fallback.next_ms(AFTER_MS) is None


def test_a_segment_that_needs_no_cut_any_more_holds_nothing_up() -> None:
    fallback = make_fallback()
    long, behind = sealed_segment(records=3, value=b"v" * 600), sealed_segment(1)
    fallback.attempt_failed(under_way(fallback, long, behind), 0, 100)
    fallback.take(AFTER_MS)

    fallback.cut(long, None)

    assert taken(fallback, AFTER_MS) == [behind]


# --- what the first version got wrong -------------------------------------------------------------


def test_the_store_is_tried_again_however_little_it_is_waited_for() -> None:
    fallback = make_fallback(0)
    fallback.attempt_failed(under_way(fallback), 0, 1)
    fallback.take(1)
    later = make_batch()
    fallback.sealed(later, 100)

    assert fallback.take(100) == []
    fallback.begun(later, 101)
    fallback.stored(later, 150)
    fallback.sealed(make_batch(), 200)
    assert fallback.next_ms(200) is None


def test_one_upload_that_is_reset_says_nothing_of_others_that_are_slow() -> None:
    fallback = make_fallback()
    reset, *slow = [under_way(fallback) for _ in range(8)]
    fallback.attempt_failed(reset, 0, 8500)

    assert taken(fallback, 8500) == [*reset.segments]
    assert all(batch.is_wanted for batch in slow)


def test_much_that_is_under_way_may_take_longer() -> None:
    fallback = make_fallback()
    for _ in range(8):
        batch = make_batch(size_bytes=16 << 20)
        fallback.sealed(batch, 0)
        fallback.begun(batch, 0)

    assert fallback.take(8 * HANGS_AFTER_MS - 1) == []
    assert len(fallback.take(8 * HANGS_AFTER_MS)) == 8


def test_nothing_is_kept_of_what_has_ended() -> None:
    fallback = make_fallback()
    for number in range(10):
        batch = under_way(fallback, now_ms=number)
        fallback.attempt_failed(batch, number, number + 1)
        fallback.ended(batch)

    assert fallback.next_ms(1 << 30) is None
    assert fallback.take(1 << 30) == []


def test_small_segments_need_no_timer_of_a_millisecond() -> None:
    fallback = make_fallback()
    segments = [sealed_segment(value=b"v" * 84) for _ in range(1000)]
    fallback.attempt_failed(under_way(fallback, *segments), 0, 100)
    now_ms, wakes = AFTER_MS, 0

    while any(segment.route is Route.BLOB for segment in segments):
        fallback.take(now_ms)
        now_ms = fallback.next_ms(now_ms) or now_ms + 1
        wakes += 1

    # Ten seconds' worth.
    assert wakes <= 102


def test_what_was_compressed_is_judged_by_what_it_is() -> None:
    fallback = make_fallback()
    segment = sealed_segment(records=100, value=b"v" * 100)
    segment.encoded = encode_object_segment(
        segment.rows,
        Codec.ZSTD,
        topic="flights",
        partition=0,
        destination_zone="",
        producer_id=bytes(16),
    )
    assert segment.encoded_bytes > MAX_BYTES > segment.encoded.length_bytes
    fallback.attempt_failed(under_way(fallback, segment), 0, 100)

    assert fallback.take(AFTER_MS) == [EncodeInline(segment)]
