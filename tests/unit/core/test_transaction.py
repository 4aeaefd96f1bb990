"""When a transaction takes records, when its notifications leave, and how it can end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from blobmsg.core.events import Notify, ProducerAction, ReadTopic, Report
from blobmsg.core.notifier import Notifier
from blobmsg.core.segments import Route, SealedSegment, SegmentState
from blobmsg.core.transaction import CommitStep, Transaction, TransactionState
from tests.helpers.producing import TIMED_OUT, sealed_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIMEOUT_MS = 60_000
HOLD_MS = 1000
S = TransactionState


def opened() -> Transaction:
    transaction = Transaction(TIMEOUT_MS, HOLD_MS)
    transaction.begun()
    return transaction


def queued(notifier: Notifier, partition: int = 0, *, now_ms: int = 0) -> SealedSegment:
    """A segment whose object is stored."""
    segment = sealed_segment(partition)
    assert notifier.enqueue(segment, now_ms) == []
    assert notified(notifier.ready([segment], now_ms)) == []
    return segment


def notified(actions: Sequence[ProducerAction]) -> list[SealedSegment]:
    return [action.segment for action in actions if isinstance(action, Notify)]


def test_its_life() -> None:
    transaction = Transaction(TIMEOUT_MS, HOLD_MS)
    seen = [(transaction.state, transaction.is_running)]
    for step in (transaction.begun, transaction.committing, transaction.ended):
        step()
        seen.append((transaction.state, transaction.is_running))

    assert seen == [
        (TransactionState.CLOSED, False),
        (TransactionState.OPEN, True),
        (TransactionState.COMMITTING, True),
        (TransactionState.CLOSED, False),
    ]


def test_what_is_stored_is_held_until_the_release() -> None:
    notifier = Notifier(TIMED_OUT, transaction=opened())
    segments = [queued(notifier), queued(notifier, 1), queued(notifier)]

    assert notified(notifier.release(5)) == [segments[0], segments[2], segments[1]]
    assert notifier.release(6) == []


def test_plain_records_are_held_too() -> None:
    notifier = Notifier(TIMED_OUT, transaction=opened())
    segment = sealed_segment(route=Route.PLAIN)

    assert notifier.enqueue(segment, 0) == []
    assert notified(notifier.release(0)) == [segment]


def test_nothing_is_held_behind_the_first_release() -> None:
    notifier = Notifier(TIMED_OUT, transaction=opened())
    notifier.release(0)
    segment = sealed_segment()
    notifier.enqueue(segment, 1)

    assert notified(notifier.ready([segment], 1)) == [segment]


def test_what_is_held_leaves_by_itself_after_a_while() -> None:
    notifier = Notifier(TIMED_OUT, transaction=opened())
    segment = queued(notifier, now_ms=100)
    queued(notifier, 1, now_ms=900)

    assert notifier.next_tick_ms == 100 + HOLD_MS
    assert notifier.tick(99 + HOLD_MS) == []
    assert notified(notifier.tick(100 + HOLD_MS))[0] is segment
    assert notifier.next_tick_ms is None


def test_a_deadline_before_the_release_comes_first() -> None:
    notifier = Notifier(TIMED_OUT, transaction=opened())
    segment = sealed_segment(deadline_ms=HOLD_MS // 2)
    notifier.enqueue(segment, 0)

    assert notifier.next_tick_ms == HOLD_MS // 2


def test_what_is_delivered_does_not_fail_it() -> None:
    transaction = opened()
    notifier = Notifier(TIMED_OUT, transaction=transaction)
    segment = queued(notifier)
    notifier.release(0)

    notifier.acknowledged(segment, 1, 1)

    assert (transaction.state, transaction.failed_records) == (TransactionState.OPEN, 0)


@pytest.mark.parametrize("is_keyless", [True, False])
def test_what_is_refused_in_it_is_not_sent_again(is_keyless: bool) -> None:
    transaction = opened()
    notifier = Notifier(TIMED_OUT, lambda _: True, lambda _: is_keyless, transaction)
    segments = [queued(notifier), queued(notifier)]
    notifier.release(0)
    notifier.rejected(segments[0], "refused", 1)

    actions = notifier.rejected(segments[1], "refused", 1)

    topics = [ReadTopic("flights")] if is_keyless else []
    assert actions == [*topics, *map(Report, segments)]
    assert [segment.error for segment in segments] == ["refused"] * 2
    assert transaction.state is TransactionState.FAILED


def test_the_next_one_holds_again() -> None:
    transaction = opened()
    notifier = Notifier(TIMED_OUT, transaction=transaction)
    segment = queued(notifier)
    notifier.release(0)
    notifier.acknowledged(segment, 1, 1)
    transaction.ended()
    transaction.begun()

    queued(notifier)


def test_a_failure_stops_everything_behind_it() -> None:
    transaction = opened()
    notifier = Notifier(TIMED_OUT, transaction=transaction)
    failing, behind, elsewhere = queued(notifier), queued(notifier), queued(notifier, 1)

    assert notified(notifier.failed([failing], "refused", 1)) == []
    assert transaction.state is TransactionState.FAILED
    assert transaction.failed_records == failing.record_count
    assert notifier.release(2) == []
    assert {behind.state, elsewhere.state} == {SegmentState.READY}


def test_a_plain_record_that_fails_stops_the_rest() -> None:
    transaction = opened()
    notifier = Notifier(TIMED_OUT, transaction=transaction)
    segment = sealed_segment(records=3, route=Route.PLAIN)
    notifier.enqueue(segment, 0)
    notifier.release(0)
    notifier.record_settled(segment, 0, 7, 1)

    notifier.record_settled(segment, 1, "refused", 1)

    assert transaction.failed_records == 1
    assert notified(notifier.enqueue(sealed_segment(1, route=Route.PLAIN), 2)) == []


def test_an_abort_forgets_what_is_queued_and_what_is_stored_late() -> None:
    transaction = opened()
    notifier = Notifier(TIMED_OUT, transaction=transaction)
    late = sealed_segment()
    notifier.enqueue(late, 0)
    queued(notifier)
    transaction.aborting()
    notifier.purge("purged", 1)
    transaction.ended()

    assert transaction.failed_records == 0
    assert notifier.unsettled_segments == 0
    assert notifier.ready([late], 2) == []
    transaction.begun()
    fresh = queued(notifier)
    assert notified(notifier.release(3)) == [fresh]


def test_an_abort_behind_a_failure_lets_the_next_one_begin_clean() -> None:
    transaction = opened()
    notifier = Notifier(TIMED_OUT, transaction=transaction)
    failing, _ = queued(notifier), queued(notifier)
    notifier.failed([failing], "refused", 1)
    transaction.aborting()
    notifier.purge("purged", 1)
    transaction.ended()
    transaction.begun()

    fresh = queued(notifier)
    transaction.committing()
    assert notified(notifier.release(3)) == [fresh]
    assert transaction.is_running


def test_failures_outside_of_a_transaction_mean_nothing() -> None:
    transaction = Transaction(TIMEOUT_MS, HOLD_MS)
    transaction.records_failed("refused", 3)

    transaction.begun()
    assert transaction.failed_records == 0
    assert transaction.is_running


def test_the_clock_starts_with_what_is_handed_over_first() -> None:
    transaction = opened()
    notifier = Notifier(TIMED_OUT, transaction=transaction)
    queued(notifier, now_ms=10)

    notifier.release(500)
    transaction.handed_over(700)
    assert transaction.latest_commit_ms == 500 + TIMEOUT_MS * 9 // 10


@pytest.mark.parametrize("late_ms", [-1, 0, 1])
def test_a_commit_that_can_not_be_in_time_is_not_tried(late_ms: int) -> None:
    transaction = opened()
    transaction.handed_over(0)
    transaction.committing()

    transaction.check_time(TIMEOUT_MS * 9 // 10 + late_ms)

    assert transaction.is_too_late is (late_ms >= 0)
    assert transaction.is_running is (late_ms < 0)


def test_no_time_is_too_late_before_anything_is_handed_over() -> None:
    transaction = opened()
    transaction.check_time(1 << 60)
    assert transaction.is_running


@pytest.mark.parametrize("end", [Transaction.ended, Transaction.aborting])
def test_an_end_forgets_the_clock_and_the_hold(end: Callable[[Transaction], None]) -> None:
    transaction = opened()
    transaction.sealed(0)
    transaction.handed_over(0)
    end(transaction)
    assert (transaction.is_holding, transaction.release_ms) == (False, None)
    transaction.ended()
    assert transaction.latest_commit_ms is None
    transaction.begun()
    assert transaction.release_ms is None


def test_a_commit_delivers_first_then_ends_and_never_after_a_failure() -> None:
    transaction = Transaction(timeout_ms=60_000, hold_ms=1000)
    transaction.begun()
    transaction.committing()

    assert transaction.commit_step(1) is CommitStep.DELIVER
    assert transaction.commit_step(0) is CommitStep.END

    transaction.records_failed("lost", 1)

    assert transaction.commit_step(0) is CommitStep.ABORT


def in_state(state: TransactionState) -> Transaction:
    """A transaction that has come so far by its events."""
    transaction = Transaction(TIMEOUT_MS, HOLD_MS)
    if state is not TransactionState.CLOSED:
        transaction.begun()
    if state in (TransactionState.COMMITTING, TransactionState.ENDING):
        transaction.committing()
    if state is TransactionState.ENDING:
        transaction.ending()
    if state is TransactionState.FAILED:
        transaction.records_failed("lost", 1)
    if state is TransactionState.ABORTING:
        transaction.aborting()
    assert transaction.state is state
    return transaction


@pytest.mark.parametrize(
    ("event", "moves"),
    [
        (Transaction.committing, {S.OPEN: S.COMMITTING}),
        (Transaction.ending, {S.COMMITTING: S.ENDING}),
        (Transaction.end_failed, {S.ENDING: S.FAILED}),
        (
            Transaction.aborting,
            {S.OPEN: S.ABORTING, S.COMMITTING: S.ABORTING, S.FAILED: S.ABORTING},
        ),
        (Transaction.ended, dict.fromkeys(S, S.CLOSED)),
        (lambda t: t.records_failed("lost", 1), {S.OPEN: S.FAILED, S.COMMITTING: S.FAILED}),
        (lambda t: t.check_time(1 << 60), {}),
    ],
)
def test_what_happens_moves_it_from_some_states_only(
    event: Callable[[Transaction], None], moves: dict[TransactionState, TransactionState]
) -> None:
    for state in TransactionState:
        transaction = in_state(state)
        event(transaction)
        assert transaction.state is moves.get(state, state)


def test_an_end_that_is_asked_for_is_neither_running_nor_stopped_nor_too_late() -> None:
    transaction = in_state(TransactionState.COMMITTING)
    transaction.handed_over(0)
    transaction.ending()

    transaction.check_time(1 << 60)

    assert (transaction.is_running, transaction.is_stopped) == (False, False)
    assert (transaction.is_closed, transaction.is_too_late) == (False, False)
    assert transaction.commit_step(0) is CommitStep.ABORT


def test_its_failures_are_counted_and_the_first_error_is_kept_until_its_end() -> None:
    transaction = opened()
    transaction.handed_over(0)
    transaction.records_failed("first", 2)
    transaction.records_failed("second", 3)
    assert (transaction.failed_records, transaction.first_error) == (5, "first")

    transaction.ended()

    assert (transaction.failed_records, transaction.first_error) == (0, None)
    transaction.begun()
    transaction.handed_over(0)
    transaction.check_time(1 << 60)
    assert transaction.is_too_late
    transaction.ended()
    assert not transaction.is_too_late


def test_what_is_handed_over_outside_of_it_starts_no_clock() -> None:
    transaction = Transaction(TIMEOUT_MS, HOLD_MS)

    transaction.handed_over(5)
    transaction.sealed(5)

    assert (transaction.latest_commit_ms, transaction.release_ms) == (None, None)
