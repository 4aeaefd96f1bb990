from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from blobmsg.core import notifier as notifier_module
from blobmsg.core.events import Notify, ProducerAction, ReadTopic, Report
from blobmsg.core.notifier import Notifier
from blobmsg.core.segments import Route, SealedSegment, SegmentState
from tests.helpers.producing import REFUSED, TIMED_OUT, sealed_segment

if TYPE_CHECKING:
    from collections.abc import Sequence


def queued(
    notifier: Notifier, count: int = 1, *, partition: int = 0, deadline_ms: int | None = None
) -> list[SealedSegment]:
    """Segments of one partition whose objects are not stored yet."""
    segments = [sealed_segment(partition, deadline_ms=deadline_ms) for _ in range(count)]
    for segment in segments:
        assert notifier.enqueue(segment, 0) == []
    return segments


def plain(records: int = 1, *, deadline_ms: int | None = None) -> SealedSegment:
    return sealed_segment(records=records, route=Route.PLAIN, deadline_ms=deadline_ms)


def notified(actions: Sequence[ProducerAction]) -> list[SealedSegment]:
    return [action.segment for action in actions if isinstance(action, Notify)]


def reported(actions: Sequence[ProducerAction]) -> list[SealedSegment]:
    return [action.segment for action in actions if isinstance(action, Report)]


def test_nothing_is_notified_before_its_object_is_stored() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier)

    actions = notifier.ready([segment], 5)

    assert actions == [Notify(segment)]
    assert segment.state is SegmentState.NOTIFYING


def test_a_later_upload_waits_for_the_earlier_of_its_partition() -> None:
    notifier = Notifier(TIMED_OUT)
    first, second = queued(notifier, 2)

    assert notifier.ready([second], 0) == []
    assert notified(notifier.ready([first], 0)) == [first, second]


def test_partitions_do_not_wait_for_each_other() -> None:
    notifier = Notifier(TIMED_OUT)
    queued(notifier)
    (other,) = queued(notifier, partition=1)

    assert notified(notifier.ready([other], 0)) == [other]


def test_a_plain_segment_goes_at_once_when_nothing_is_before_it() -> None:
    notifier = Notifier(TIMED_OUT)
    segment = plain()

    assert notifier.enqueue(segment, 0) == [Notify(segment)]


def test_a_plain_segment_waits_behind_an_upload() -> None:
    notifier = Notifier(TIMED_OUT)
    (blob,) = queued(notifier)
    segment = plain()

    assert notifier.enqueue(segment, 0) == []
    assert notified(notifier.ready([blob], 0)) == [blob, segment]


def test_a_failed_segment_is_passed_over_and_never_notified() -> None:
    notifier = Notifier(TIMED_OUT)
    first, second = queued(notifier, 2)
    notifier.ready([second], 0)

    actions = notifier.failed([first], "store is down", 7)

    assert actions == [Notify(second), Report(first)]
    assert (first.state, first.error, first.settled_ms) == (SegmentState.FAILED, "store is down", 7)
    assert notifier.ready([first], 8) == []


def test_a_failure_in_the_middle_is_reported_in_its_turn() -> None:
    notifier = Notifier(TIMED_OUT)
    first, second, third = queued(notifier, 3)

    assert notifier.failed([second], "store is down", 0) == []
    notifier.ready([first, third], 0)

    assert notifier.acknowledged(third, 12, 0) == []
    assert reported(notifier.acknowledged(first, 11, 0)) == [first, second, third]


def test_what_kafka_has_is_not_failed_by_us() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier)
    notifier.ready([segment], 0)

    assert notifier.failed([segment], "store is down", 0) == []
    assert segment.state is SegmentState.NOTIFYING


def test_an_acknowledged_segment_knows_its_place_and_time() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier)
    notifier.ready([segment], 0)

    assert notifier.acknowledged(segment, 42, 9) == [Report(segment)]
    assert (segment.state, segment.kafka_offset) == (SegmentState.DELIVERED, 42)
    assert segment.settled_ms == 9


def test_a_place_that_kafka_can_not_tell_stays_unknown() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier)
    notifier.ready([segment], 0)

    notifier.acknowledged(segment, None, 0)

    assert (segment.state, segment.kafka_offset) == (SegmentState.DELIVERED, -1)


def test_a_refused_notification_is_reported_failed_and_the_next_ones_go_on() -> None:
    notifier = Notifier(TIMED_OUT)
    first, second = queued(notifier, 2)
    notifier.ready([first, second], 0)

    assert notifier.rejected(first, "too large", 3) == [Report(first)]
    assert (first.state, first.error) == (SegmentState.FAILED, "too large")
    assert notifier.acknowledged(second, 1, 4) == [Report(second)]


def test_an_answer_for_what_kafka_was_not_given_is_a_defect() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier)

    with pytest.raises(AssertionError, match="waiting"):
        notifier.acknowledged(segment, 1, 0)


def test_an_answer_for_what_waits_behind_what_kafka_has_is_a_defect() -> None:
    notifier = Notifier(TIMED_OUT)
    first, second = queued(notifier, 2)
    notifier.ready([first], 0)

    with pytest.raises(AssertionError, match="waiting"):
        notifier.acknowledged(second, 1, 0)


def test_two_answers_for_one_segment_are_a_defect() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier)
    notifier.ready([segment], 0)
    notifier.acknowledged(segment, 1, 0)

    with pytest.raises(AssertionError, match="delivered"):
        notifier.rejected(segment, "late", 0)


def test_sequences_count_notifications_of_a_partition_without_gaps() -> None:
    notifier = Notifier(TIMED_OUT)
    first, failing, last = queued(notifier, 3)
    (other,) = queued(notifier, partition=1)
    between = plain()
    notifier.enqueue(between, 0)
    (behind,) = queued(notifier)

    notifier.failed([failing], "store is down", 0)
    notifier.ready([first, last, behind, other], 0)

    assert [s.sequence for s in (first, failing, last, between, behind)] == [0, -1, 1, -1, 2]
    assert other.sequence == 0


def test_unsettled_segments_are_counted_until_their_outcome() -> None:
    notifier = Notifier(TIMED_OUT)
    first, second = queued(notifier, 2)
    assert notifier.unsettled_segments == 2

    notifier.failed([first], "store is down", 0)
    assert notifier.unsettled_segments == 1
    notifier.ready([second], 0)
    assert notifier.unsettled_segments == 1
    notifier.acknowledged(second, 1, 0)
    assert notifier.unsettled_segments == 0


def test_the_next_one_is_the_first_that_kafka_was_not_given() -> None:
    notifier = Notifier(TIMED_OUT)
    first, second = queued(notifier, 2)
    assert [notifier.is_next(segment) for segment in (first, second)] == [True, False]

    notifier.ready([first], 0)
    assert [notifier.is_next(segment) for segment in (first, second)] == [False, True]
    notifier.acknowledged(first, 1, 0)
    notifier.ready([second], 0)
    assert [notifier.is_next(segment) for segment in (first, second)] == [False, False]


def test_kafka_owes_an_answer_from_the_first_message_to_the_last_answer() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier)
    records = sealed_segment(1, records=2, route=Route.PLAIN)
    assert not notifier.awaits_kafka

    owed = []
    notifier.ready([segment], 0)
    owed.append(notifier.awaits_kafka)
    notifier.enqueue(records, 0)
    notifier.acknowledged(segment, 1, 0)
    owed.append(notifier.awaits_kafka)
    notifier.record_settled(records, 0, 1, 0)
    owed.append(notifier.awaits_kafka)
    notifier.record_settled(records, 1, 2, 0)
    owed.append(notifier.awaits_kafka)

    assert owed == [True, True, True, False]


def test_pieces_take_the_place_of_their_segment_and_nobody_asks_for_it_again() -> None:
    notifier = Notifier(TIMED_OUT)
    first, cut, last = queued(notifier, 3)
    pieces = [sealed_segment(), sealed_segment()]

    notifier.replace(cut, pieces)

    assert notifier.unsettled_segments == 4
    assert notifier.ready([cut, last], 0) == []
    assert notifier.failed([cut], "late", 0) == []
    assert cut.state is SegmentState.CUT
    assert notified(notifier.ready([first, *pieces], 0)) == [first, *pieces, last]
    for segment in (last, pieces[1], pieces[0]):
        assert notifier.acknowledged(segment, 1, 0) == []
    assert reported(notifier.acknowledged(first, 1, 0)) == [first, *pieces, last]


# --- plain records --------------------------------------------------------------------------------


def test_a_plain_segment_is_settled_with_its_last_record() -> None:
    notifier = Notifier(TIMED_OUT)
    segment = plain(3)
    notifier.enqueue(segment, 0)

    assert notifier.record_settled(segment, 2, 12, 1) == []
    assert notifier.record_settled(segment, 0, 10, 2) == []
    assert notifier.record_settled(segment, 1, 11, 3) == [Report(segment)]
    assert segment.record_offsets == [10, 11, 12]
    assert segment.record_errors is None
    assert segment.state is SegmentState.DELIVERED


def test_each_plain_record_has_its_own_error() -> None:
    notifier = Notifier(TIMED_OUT)
    segment = plain(3)
    notifier.enqueue(segment, 0)

    notifier.record_settled(segment, 0, "too large", 0)
    notifier.record_settled(segment, 1, 11, 0)
    notifier.record_settled(segment, 2, "no", 0)

    assert segment.record_errors == {0: "too large", 2: "no"}
    assert segment.record_offsets == [-1, 11, -1]


def test_a_plain_record_whose_place_kafka_can_not_tell_has_no_error() -> None:
    notifier = Notifier(TIMED_OUT)
    segment = plain()
    notifier.enqueue(segment, 0)

    assert notifier.record_settled(segment, 0, None, 0) == [Report(segment)]
    assert segment.record_offsets == [-1]
    assert segment.record_errors is None


# --- waves, and what is sent again ----------------------------------------------------------------


def refusing() -> Notifier:
    return Notifier(TIMED_OUT, lambda error: error == REFUSED)


def handed(actions: Sequence[ProducerAction]) -> list[tuple[SealedSegment, list[int] | None]]:
    """Which segments are to be notified, and which records of them; None: all."""
    return [
        (action.segment, None if action.records is None else list(action.records))
        for action in actions
        if isinstance(action, Notify)
    ]


def test_what_comes_later_waits_for_the_answers_to_what_kafka_has() -> None:
    notifier = Notifier(TIMED_OUT)
    first, second, third = queued(notifier, 3)
    notifier.ready([first, second], 0)

    assert notifier.ready([third], 0) == []
    assert notified(notifier.acknowledged(first, 1, 0)) == []
    assert notified(notifier.acknowledged(second, 2, 0)) == [third]


def test_a_message_refused_while_alone_is_guilty() -> None:
    notifier = refusing()
    (segment,) = queued(notifier)
    notifier.ready([segment], 0)

    assert notifier.rejected(segment, REFUSED, 0) == [Report(segment)]
    assert segment.error == REFUSED


def test_of_a_refused_batch_only_the_guilty_fails_and_all_comes_in_order() -> None:
    notifier = refusing()
    first, guilty, last = queued(notifier, 3)
    (later,) = queued(notifier)
    notifier.ready([first, guilty, last], 0)
    notifier.ready([later], 0)

    assert notifier.rejected(first, REFUSED, 0) == []
    assert notifier.rejected(guilty, REFUSED, 0) == []
    assert notified(notifier.rejected(last, REFUSED, 0)) == [first]
    # It was right to doubt, so twice as many go at once; and again half as many.
    assert notified(notifier.acknowledged(first, 1, 0)) == [guilty, last]
    assert notifier.rejected(guilty, REFUSED, 0) == []
    assert notified(notifier.rejected(last, REFUSED, 0)) == [guilty]
    actions = notifier.rejected(guilty, REFUSED, 0)
    assert notified(actions) == [last]
    assert reported(actions) == [guilty]
    actions = notifier.acknowledged(last, 2, 0)
    assert notified(actions) == [later]
    assert reported(actions) == [last]
    assert [s.error for s in (first, guilty, last)] == [None, REFUSED, None]
    assert [s.sequence for s in (first, guilty, last, later)] == [0, 1, 2, 3]


def test_of_refused_plain_records_only_the_guilty_fails() -> None:
    notifier = refusing()
    segment = plain(4)
    assert handed(notifier.enqueue(segment, 0)) == [(segment, None)]

    for index in range(3):
        assert notifier.record_settled(segment, index, REFUSED, 0) == []
    assert handed(notifier.record_settled(segment, 3, REFUSED, 0)) == [(segment, [0, 1])]
    notifier.record_settled(segment, 0, 10, 0)
    assert handed(notifier.record_settled(segment, 1, 11, 0)) == [(segment, [2, 3])]
    notifier.record_settled(segment, 2, REFUSED, 0)
    assert handed(notifier.record_settled(segment, 3, REFUSED, 0)) == [(segment, [2])]
    assert handed(notifier.record_settled(segment, 2, REFUSED, 0)) == [(segment, [3])]
    assert notifier.record_settled(segment, 3, 12, 0) == [Report(segment)]

    assert segment.record_offsets == [10, 11, -1, 12]
    assert segment.record_errors == {2: REFUSED}


def test_what_was_refused_is_not_sent_behind_its_successors() -> None:
    notifier = refusing()
    first, second, third = queued(notifier, 3)
    notifier.ready([first, second, third], 0)

    # Kafka made two batches of the three, refused the first and took the second.
    notifier.rejected(first, REFUSED, 0)
    notifier.rejected(second, REFUSED, 0)
    assert reported(notifier.acknowledged(third, 1, 0)) == [first, second, third]
    assert [s.error for s in (first, second, third)] == [REFUSED, REFUSED, None]


@pytest.mark.parametrize("delivered", [(1, 3), (3, 1)])
def test_a_plain_record_that_was_refused_is_not_sent_behind_its_successors(
    delivered: tuple[int, ...],
) -> None:
    notifier = refusing()
    segment = plain(5)
    notifier.enqueue(segment, 0)
    notifier.record_settled(segment, 0, REFUSED, 0)
    notifier.record_settled(segment, 2, REFUSED, 0)
    notifier.record_settled(segment, 4, REFUSED, 0)

    for index in delivered:
        actions = notifier.record_settled(segment, index, 10 + index, 0)

    assert handed(actions) == [(segment, [4])]
    assert segment.record_errors == {0: REFUSED, 2: REFUSED}


def test_as_many_suspects_again_go_at_once_when_the_last_were_taken() -> None:
    notifier = refusing()
    segments = queued(notifier, 16)
    notifier.ready(segments, 0)

    for segment in segments:
        actions = notifier.rejected(segment, REFUSED, 0)
    assert notified(actions) == segments[:8]
    for segment in segments[:8]:
        actions = notifier.rejected(segment, REFUSED, 0)
    assert notified(actions) == segments[:4]
    for segment in segments[:4]:
        actions = notifier.acknowledged(segment, 1, 0)

    assert notified(actions) == segments[4:12]


def test_suspects_of_two_segments_share_what_goes_at_once() -> None:
    notifier = refusing()
    (before,) = queued(notifier)
    first, second = plain(2), plain(4)
    notifier.enqueue(first, 0)
    notifier.enqueue(second, 0)
    notifier.failed([before], "store is down", 0)

    for segment in (first, second):
        for index in range(segment.record_count):
            actions = notifier.record_settled(segment, index, REFUSED, 0)

    assert handed(actions) == [(first, None), (second, [0])]


def test_suspects_with_a_gap_between_them_stay_before_those_of_the_next_segment() -> None:
    notifier = refusing()
    (before,) = queued(notifier)
    first, second = plain(3), plain(4)
    notifier.enqueue(first, 0)
    notifier.enqueue(second, 0)
    notifier.failed([before], "store is down", 0)
    notifier.record_settled(first, 1, "too large", 0)
    for segment, index in [(first, 0), (first, 2), *((second, index) for index in range(4))]:
        actions = notifier.record_settled(segment, index, REFUSED, 0)
    assert handed(actions) == [(first, [0]), (first, [2]), (second, [0])]
    for segment, index in [(first, 0), (first, 2), (second, 0)]:
        actions = notifier.record_settled(segment, index, REFUSED, 0)
    assert handed(actions) == [(first, [0])]

    actions = notifier.record_settled(first, 0, 10, 0)

    assert handed(actions) == [(first, [2]), (second, [0])]


def test_a_suspect_past_its_deadline_is_not_sent_again() -> None:
    notifier = refusing()
    first, second = queued(notifier, 2, deadline_ms=100)
    notifier.ready([first, second], 0)
    notifier.rejected(first, REFUSED, 50)
    assert notified(notifier.rejected(second, REFUSED, 50)) == [first]

    assert reported(notifier.acknowledged(first, 1, 100)) == [first, second]
    assert second.error == TIMED_OUT


def test_a_notification_refused_for_its_missing_key_goes_plain_in_its_place() -> None:
    notifier = Notifier(TIMED_OUT, lambda e: e == REFUSED, lambda e: e == REFUSED)
    segment = sealed_segment(records=2)
    notifier.enqueue(segment, 0)
    (later,) = queued(notifier)
    notifier.ready([segment, later], 0)
    notifier.rejected(segment, REFUSED, 0)
    assert notified(notifier.rejected(later, REFUSED, 0)) == [segment]

    assert notifier.rejected(segment, REFUSED, 0) == [ReadTopic("flights"), Notify(segment)]

    assert segment.route is Route.PLAIN
    assert notifier.record_settled(segment, 0, 5, 0) == []
    actions = notifier.record_settled(segment, 1, 6, 0)
    assert (notified(actions), reported(actions)) == ([later], [segment])
    assert segment.record_offsets == [5, 6]


def test_records_that_go_plain_instead_of_their_notification_go_in_waves() -> None:
    notifier = Notifier(TIMED_OUT, lambda e: e == REFUSED, lambda e: e == REFUSED)
    segment = sealed_segment(records=5, value=bytes(notifier_module.WAVE_BYTES * 2 // 5))
    notifier.enqueue(segment, 0)
    notifier.ready([segment], 0)

    actions = notifier.rejected(segment, REFUSED, 0)

    # The third begins before the size of a wave is reached.
    assert handed(actions) == [(segment, [0, 1]), (segment, [2])]
    for index in range(3):
        actions = notifier.record_settled(segment, index, index, 0)
    assert handed(actions) == [(segment, [3, 4])]


def test_a_notification_refused_for_its_missing_key_fails_when_its_records_are_freed() -> None:
    notifier = Notifier(TIMED_OUT, lambda e: e == REFUSED, lambda e: e == REFUSED)
    (segment,) = queued(notifier)
    segment.drop_records()
    notifier.ready([segment], 0)

    actions = notifier.rejected(segment, REFUSED, 0)

    assert actions == [ReadTopic("flights"), Report(segment)]
    assert segment.error == REFUSED


def test_a_plain_record_without_a_key_that_a_compacted_topic_refuses_fails() -> None:
    notifier = Notifier(TIMED_OUT, lambda e: e == REFUSED, lambda e: e == REFUSED)
    segment = plain()
    notifier.enqueue(segment, 0)

    assert notifier.record_settled(segment, 0, REFUSED, 0) == [Report(segment)]


def test_other_errors_than_a_refused_batch_are_final() -> None:
    notifier = refusing()
    first, second = queued(notifier, 2)
    notifier.ready([first, second], 0)

    notifier.rejected(first, "Kafka is away", 0)
    assert reported(notifier.rejected(second, "Kafka is away", 0)) == [second]


def test_a_large_plain_segment_goes_in_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "WAVE_MESSAGES", 2)
    notifier = Notifier(TIMED_OUT)
    segment = plain(5, deadline_ms=100)

    assert handed(notifier.enqueue(segment, 0)) == [(segment, [0, 1])]
    notifier.record_settled(segment, 0, 10, 0)
    assert handed(notifier.record_settled(segment, 1, 11, 0)) == [(segment, [2, 3])]
    notifier.record_settled(segment, 2, 12, 0)
    assert notifier.record_settled(segment, 3, 13, 100) == [Report(segment)]
    assert segment.record_errors == {4: TIMED_OUT}


def test_what_follows_a_plain_segment_that_timed_out_half_handed_over_goes_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifier_module, "WAVE_MESSAGES", 2)
    notifier = Notifier(TIMED_OUT)
    segment, later = plain(3, deadline_ms=100), plain(2)
    notifier.enqueue(segment, 0)
    notifier.enqueue(later, 0)
    notifier.record_settled(segment, 0, 10, 0)

    actions = notifier.record_settled(segment, 1, 11, 100)

    assert handed(actions) == [(later, None)]
    assert reported(actions) == [segment]


def test_plain_segments_share_a_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "WAVE_MESSAGES", 3)
    notifier = Notifier(TIMED_OUT)
    (before,) = queued(notifier)
    first, second = plain(2), plain(2)
    notifier.enqueue(first, 0)
    notifier.enqueue(second, 0)

    actions = notifier.failed([before], "store is down", 0)

    assert handed(actions) == [(first, None), (second, [0])]


def test_what_a_full_wave_has_no_room_for_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "WAVE_MESSAGES", 1)
    notifier = Notifier(TIMED_OUT)
    first, second = queued(notifier, 2)

    assert notified(notifier.ready([first, second], 0)) == [first]

    assert [notifier.is_next(segment) for segment in (first, second)] == [False, True]


def test_a_wave_ends_at_the_size_of_a_batch() -> None:
    notifier = Notifier(TIMED_OUT)
    segments = queued(notifier, 4)
    for segment in segments:
        segment.route = Route.INLINE
        segment.inline = bytes(notifier_module.WAVE_BYTES * 2 // 5)

    assert notified(notifier.ready(segments, 0)) == segments[:2]


def test_a_wave_may_be_filled_to_its_last_byte() -> None:
    notifier = Notifier(TIMED_OUT)
    segments = queued(notifier, 2)
    for segment in segments:
        segment.route = Route.INLINE
        segment.inline = bytes(notifier_module.WAVE_BYTES // 2 - notifier_module._MESSAGE_BYTES)

    assert notified(notifier.ready(segments, 0)) == segments


def test_plain_segments_share_the_size_of_a_wave() -> None:
    notifier = Notifier(TIMED_OUT)
    (before,) = queued(notifier)
    value = bytes(notifier_module.WAVE_BYTES * 2 // 5)
    first, second = (
        sealed_segment(route=Route.PLAIN, records=records, value=value) for records in (3, 4)
    )
    notifier.enqueue(first, 0)
    notifier.enqueue(second, 0)

    actions = notifier.failed([before], "store is down", 0)
    # A plain segment goes on as long as the size is not reached.
    assert handed(actions) == [(first, [0, 1]), (first, [2])]
    for index in range(3):
        actions = notifier.record_settled(first, index, index, 0)

    assert handed(actions) == [(second, [0, 1]), (second, [2])]


def test_a_small_rest_of_a_plain_segment_leaves_room_in_its_wave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifier_module, "WAVE_MESSAGES", 2)
    notifier = Notifier(TIMED_OUT)
    value = bytes(notifier_module.WAVE_BYTES * 2 // 5)
    first, second = (sealed_segment(route=Route.PLAIN, records=3, value=value) for _ in range(2))
    notifier.enqueue(first, 0)
    notifier.enqueue(second, 0)
    notifier.record_settled(first, 0, 0, 0)

    actions = notifier.record_settled(first, 1, 1, 0)

    assert handed(actions) == [(first, [2]), (second, [0])]


def test_what_is_larger_than_a_wave_goes_alone() -> None:
    notifier = Notifier(TIMED_OUT)
    segments = [
        sealed_segment(route=Route.PLAIN, records=2, value=bytes(notifier_module.WAVE_BYTES))
        for _ in range(2)
    ]

    assert handed(notifier.enqueue(segments[0], 0)) == [(segments[0], [0])]
    assert notifier.enqueue(segments[1], 0) == []
    assert handed(notifier.record_settled(segments[0], 0, 1, 0)) == [(segments[0], [1])]
    assert handed(notifier.record_settled(segments[0], 1, 2, 0)) == [(segments[1], [0])]


# --- deadlines ------------------------------------------------------------------------------------


def test_an_upload_that_comes_past_the_deadline_is_not_notified() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier, deadline_ms=100)

    assert notifier.ready([segment], 100) == [Report(segment)]
    assert (segment.state, segment.error) == (SegmentState.FAILED, TIMED_OUT)


def test_an_upload_in_the_last_millisecond_is_notified() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier, deadline_ms=100)

    assert notifier.ready([segment], 99) == [Notify(segment)]


def test_what_was_ready_in_time_but_blocked_past_its_deadline_is_not_notified() -> None:
    notifier = Notifier(TIMED_OUT)
    (first,) = queued(notifier)
    (second,) = queued(notifier, deadline_ms=100)
    notifier.ready([second], 50)

    actions = notifier.ready([first], 150)

    assert notified(actions) == [first]
    assert (second.state, second.error, second.settled_ms) == (SegmentState.FAILED, TIMED_OUT, 150)
    assert reported(notifier.acknowledged(first, 1, 151)) == [first, second]


def test_what_is_behind_one_past_its_deadline_goes_on_at_once() -> None:
    notifier = Notifier(TIMED_OUT)
    (late,) = queued(notifier, deadline_ms=100)
    (behind,) = queued(notifier)

    assert notifier.ready([late, behind], 100) == [Notify(behind), Report(late)]


def test_a_plain_segment_past_its_deadline_is_not_notified() -> None:
    notifier = Notifier(TIMED_OUT)
    segment = plain(deadline_ms=100)

    assert notifier.enqueue(segment, 100) == [Report(segment)]
    assert segment.error == TIMED_OUT


def test_time_alone_fails_what_is_overdue_and_lets_the_rest_go_on() -> None:
    notifier = Notifier(TIMED_OUT)
    (first,) = queued(notifier, deadline_ms=100)
    (second,) = queued(notifier, deadline_ms=200)
    notifier.ready([second], 0)

    assert notifier.tick(99) == []
    assert notifier.tick(100) == [Notify(second), Report(first)]
    assert first.error == TIMED_OUT


def test_time_does_not_fail_what_kafka_has() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier, deadline_ms=100)
    notifier.ready([segment], 0)

    assert notifier.tick(1000) == []
    assert segment.state is SegmentState.NOTIFYING


def test_without_deadlines_time_does_nothing() -> None:
    notifier = Notifier(TIMED_OUT)
    queued(notifier)

    assert notifier.next_tick_ms is None
    assert notifier.tick(1 << 40) == []


def test_the_next_tick_is_the_earliest_deadline() -> None:
    notifier = Notifier(TIMED_OUT)
    queued(notifier, partition=0, deadline_ms=300)
    queued(notifier, partition=1, deadline_ms=200)
    queued(notifier, partition=2, deadline_ms=250)

    assert notifier.next_tick_ms == 200
    notifier.tick(200)
    assert notifier.next_tick_ms == 300  # 100 ms later at the earliest, for a scan has its price


def test_the_tick_after_one_is_the_earliest_deadline_that_is_left() -> None:
    notifier = Notifier(TIMED_OUT)
    for partition, deadline_ms in enumerate((200, 500, 900, 700)):
        queued(notifier, partition=partition, deadline_ms=deadline_ms)

    notifier.tick(200)

    assert notifier.next_tick_ms == 500


def test_deadlines_that_pass_in_numbers_are_looked_for_every_100_ms() -> None:
    notifier = Notifier(TIMED_OUT)
    (first,) = queued(notifier, deadline_ms=200)
    (second,) = queued(notifier, deadline_ms=201)

    assert reported(notifier.tick(200)) == [first]
    assert notifier.tick(299) == []
    assert reported(notifier.tick(300)) == [second]
    assert notifier.next_tick_ms is None


def test_a_settled_segment_behind_the_head_is_not_timed_out_as_well() -> None:
    notifier = Notifier(TIMED_OUT)
    (head,) = queued(notifier)
    failed, waiting = queued(notifier, 2, deadline_ms=100)
    notifier.failed([failed], "store is down", 0)

    notifier.tick(100)

    assert (failed.error, waiting.error) == ("store is down", TIMED_OUT)
    assert head.state is SegmentState.WAITING


def test_a_tick_before_the_earliest_deadline_looks_at_nothing() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier, deadline_ms=100)
    segment.deadline_ms = 0  # would be found overdue if the queue were looked through

    assert notifier.tick(99) == []


def test_a_notification_that_found_no_room_in_kafkas_queue_fails_at_its_deadline() -> None:
    notifier = Notifier(TIMED_OUT)
    (segment,) = queued(notifier, deadline_ms=100)
    notifier.ready([segment], 0)

    assert not notifier.is_too_late(segment, 99)
    assert notifier.is_too_late(segment, 100)
    assert notifier.not_handed_over(segment, range(1), 100) == [Report(segment)]
    assert (segment.state, segment.error) == (SegmentState.FAILED, TIMED_OUT)


def test_without_a_deadline_nothing_is_too_late() -> None:
    assert not Notifier(TIMED_OUT).is_too_late(sealed_segment(), 1 << 60)


def test_plain_records_that_found_no_room_fail_and_those_handed_over_keep_their_answers() -> None:
    notifier = Notifier(TIMED_OUT)
    segment = plain(3, deadline_ms=100)
    notifier.enqueue(segment, 0)

    assert notifier.not_handed_over(segment, range(1, 3), 100) == []
    assert notifier.record_settled(segment, 0, 10, 120) == [Report(segment)]
    assert segment.record_errors == {1: TIMED_OUT, 2: TIMED_OUT}
    assert segment.record_offsets == [10, -1, -1]


def test_large_plain_records_that_found_no_room_fail_once_each() -> None:
    notifier = Notifier(TIMED_OUT)
    value = bytes(notifier_module.WAVE_BYTES * 2 // 5)
    segment = sealed_segment(records=4, route=Route.PLAIN, value=value, deadline_ms=100)
    assert handed(notifier.enqueue(segment, 0)) == [(segment, [0, 1]), (segment, [2])]

    assert notifier.not_handed_over(segment, range(1, 2), 100) == []
    assert notifier.not_handed_over(segment, range(2, 3), 100) == []
    assert notifier.record_settled(segment, 0, 10, 120) == [Report(segment)]

    assert segment.record_errors == dict.fromkeys((1, 2, 3), TIMED_OUT)
    assert (notifier.unsettled_segments, notifier.awaits_kafka) == (0, False)


def test_a_purge_fails_what_has_had_no_turn_and_keeps_the_answers_of_the_rest() -> None:
    notifier = Notifier(TIMED_OUT)
    handed_over, stored, waiting = queued(notifier, 3)
    (other,) = queued(notifier, partition=1)
    notifier.ready([handed_over], 0)
    notifier.ready([stored], 0)

    assert reported(notifier.purge("purged", 1)) == [other]  # the others wait for their turn
    assert [segment.error for segment in (stored, waiting, other)] == ["purged"] * 3
    assert notifier.ready([waiting, other], 2) == []  # their upload ends all the same
    actions = notifier.acknowledged(handed_over, 7, 3)
    assert actions == [Report(handed_over), Report(stored), Report(waiting)]
    assert (handed_over.error, handed_over.kafka_offset) == (None, 7)
    assert notifier.unsettled_segments == 0


def test_a_purge_fails_the_rest_of_a_plain_segment_that_is_half_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifier_module, "WAVE_MESSAGES", 2)
    notifier = Notifier(TIMED_OUT)
    segment = plain(5)
    assert handed(notifier.enqueue(segment, 0)) == [(segment, [0, 1])]

    assert notifier.purge("purged", 1) == []
    assert notifier.record_settled(segment, 0, 10, 2) == []
    assert notifier.record_settled(segment, 1, 11, 2) == [Report(segment)]
    assert segment.record_offsets == [10, 11, -1, -1, -1]
    assert segment.record_errors == dict.fromkeys((2, 3, 4), "purged")
    later = plain(2)
    assert handed(notifier.enqueue(later, 3)) == [(later, None)]


def test_what_comes_after_a_purge_is_next() -> None:
    notifier = Notifier(TIMED_OUT)
    handed_over, _ = queued(notifier, 2)
    notifier.ready([handed_over], 0)

    notifier.purge("purged", 1)
    (later,) = queued(notifier)

    assert notifier.is_next(later)


def test_a_purge_fails_what_was_to_be_sent_again() -> None:
    notifier = refusing()
    segments = queued(notifier, 3)
    notifier.ready(segments, 0)
    for segment in segments:
        actions = notifier.rejected(segment, REFUSED, 1)
    again = notified(actions)
    assert again == segments[:1]

    notifier.purge("purged", 2)

    assert [segment.error for segment in segments] == [None, "purged", "purged"]
    assert notifier.acknowledged(segments[0], 5, 3) == [Report(s) for s in segments]


def test_what_is_refused_around_a_purge_is_not_sent_again() -> None:
    notifier = refusing()
    before, after, behind = queued(notifier, 3)
    notifier.ready([before, after], 0)
    notifier.rejected(before, REFUSED, 1)

    assert reported(notifier.purge("purged", 2)) == [before]
    actions = notifier.rejected(after, REFUSED, 3)

    assert actions == [Report(after), Report(behind)]
    assert [segment.error for segment in (before, after, behind)] == ["purged"] * 3
    (later,) = queued(notifier)
    assert notified(notifier.ready([later], 4)) == [later]
