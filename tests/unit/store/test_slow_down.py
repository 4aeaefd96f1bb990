from __future__ import annotations

import threading

import pytest

from blobmsg.errors import StoreTimeout, StoreUnavailable
from blobmsg.store.slow_down import SlowDownLimiter
from blobmsg.testing import ManualClock

LATER_MS = 100_000_000


def acquire(limiter: SlowDownLimiter, count: int) -> list[int]:
    return [limiter.acquire(LATER_MS) for _ in range(count)]


def slow_down(limiter: SlowDownLimiter, places: list[int]) -> None:
    for place in places:
        limiter.release(place, slow_down=True, ok=False)


def test_there_is_no_limit_before_the_store_complains() -> None:
    limiter = SlowDownLimiter(ManualClock(), 4)
    acquire(limiter, 100)
    assert limiter.limit is None


def test_a_slow_down_answer_halves_what_was_in_flight() -> None:
    limiter = SlowDownLimiter(ManualClock(), 16)
    places = acquire(limiter, 8)
    slow_down(limiter, places[:1])
    assert limiter.limit == 4


def test_answers_to_requests_of_the_same_overload_count_once() -> None:
    limiter = SlowDownLimiter(ManualClock(), 16)
    slow_down(limiter, acquire(limiter, 8))
    assert limiter.limit == 4


def test_a_newer_request_that_is_slowed_down_halves_again_but_not_below_one() -> None:
    clock = ManualClock()
    limiter = SlowDownLimiter(clock, 16)
    slow_down(limiter, acquire(limiter, 8))
    for expected in (2, 1, 1):
        clock.advance(10)
        slow_down(limiter, acquire(limiter, limiter.limit or 0))
        assert limiter.limit == expected


def test_successes_raise_the_limit_by_one_a_round_until_it_no_longer_matters() -> None:
    limiter = SlowDownLimiter(ManualClock(), 4)
    slow_down(limiter, acquire(limiter, 4))
    assert limiter.limit == 2
    for expected in (2, 2, 3):
        limiter.release(limiter.acquire(LATER_MS), slow_down=False, ok=True)
        assert limiter.limit == expected
    for _ in range(4):
        limiter.release(limiter.acquire(LATER_MS), slow_down=False, ok=True)
    assert limiter.limit is None


def test_other_errors_change_nothing() -> None:
    limiter = SlowDownLimiter(ManualClock(), 4)
    slow_down(limiter, acquire(limiter, 4))
    for _ in range(10):
        limiter.release(limiter.acquire(LATER_MS), slow_down=False, ok=False)
    assert limiter.limit == 2


def test_who_finds_no_place_until_the_deadline_gets_a_timeout() -> None:
    clock = ManualClock(now_ms=0)
    limiter = SlowDownLimiter(clock, 4)
    slow_down(limiter, acquire(limiter, 2))
    acquire(limiter, 1)
    with pytest.raises(StoreTimeout, match="slow down"):
        limiter.acquire(500)
    assert clock.now_ms() == 500


def test_a_place_that_timed_out_is_not_lost() -> None:
    limiter = SlowDownLimiter(ManualClock(now_ms=0), 4)
    slow_down(limiter, acquire(limiter, 2))
    place = limiter.acquire(LATER_MS)
    with pytest.raises(StoreTimeout):
        limiter.acquire(500)
    limiter.release(place, slow_down=False, ok=False)
    limiter.acquire(LATER_MS)


def waiting_thread(limiter: SlowDownLimiter, results: list[object]) -> threading.Thread:
    def work() -> None:
        try:
            results.append(limiter.acquire(LATER_MS))
        except StoreUnavailable as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_returned_place_goes_to_who_waits() -> None:
    clock = ManualClock(auto_advance=False)
    limiter = SlowDownLimiter(clock, 4)
    slow_down(limiter, acquire(limiter, 2))
    place = limiter.acquire(LATER_MS)
    results: list[object] = []
    thread = waiting_thread(limiter, results)
    clock.wait_for_waiters()
    assert results == []
    limiter.release(place, slow_down=False, ok=False)
    thread.join(10)
    assert results == [clock.now_ms()]


def test_closing_ends_all_waits_with_an_error() -> None:
    clock = ManualClock(auto_advance=False)
    limiter = SlowDownLimiter(clock, 4)
    slow_down(limiter, acquire(limiter, 2))
    limiter.acquire(LATER_MS)
    results: list[object] = []
    threads = [waiting_thread(limiter, results) for _ in range(3)]
    clock.wait_for_waiters(3)
    limiter.close()
    for thread in threads:
        thread.join(10)
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    with pytest.raises(StoreUnavailable, match="closed"):
        limiter.acquire(LATER_MS)


def test_a_wait_that_ctrl_c_ends_leaves_its_place_to_others() -> None:
    class InterruptedClock(ManualClock):
        def wait(self, event: threading.Event, timeout_ms: float) -> bool:
            raise KeyboardInterrupt

    limiter = SlowDownLimiter(InterruptedClock(), 4)
    slow_down(limiter, acquire(limiter, 2))
    place = limiter.acquire(LATER_MS)
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire(LATER_MS)
    limiter.release(place, slow_down=False, ok=False)
    limiter.acquire(LATER_MS)


def test_a_place_granted_while_ctrl_c_ends_the_wait_goes_to_the_next() -> None:
    class GrantedThenInterrupted(ManualClock):
        def wait(self, event: threading.Event, timeout_ms: float) -> bool:
            limiter.release(place, slow_down=False, ok=False)  # the place comes just now
            assert event.is_set()
            raise KeyboardInterrupt

    limiter = SlowDownLimiter(GrantedThenInterrupted(), 4)
    slow_down(limiter, acquire(limiter, 2))
    place = limiter.acquire(LATER_MS)
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire(LATER_MS)
    assert limiter.acquire(LATER_MS)
