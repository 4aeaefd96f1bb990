from __future__ import annotations

import threading

import pytest

from blobmsg.testing import ManualClock


def test_time_stands_still_until_it_is_turned() -> None:
    clock = ManualClock(now_ms=5, timestamp_ms=1000)
    assert (clock.now_ms(), clock.timestamp_ms()) == (5, 1000)
    clock.advance(10)
    assert (clock.now_ms(), clock.timestamp_ms()) == (15, 1010)


def test_time_never_goes_back() -> None:
    with pytest.raises(ValueError, match="go back"):
        ManualClock().advance(-1)


def test_a_stepped_wall_clock_leaves_monotonic_time_alone() -> None:
    clock = ManualClock(now_ms=5, timestamp_ms=1000)
    clock.set_timestamp_ms(99)
    assert (clock.now_ms(), clock.timestamp_ms()) == (5, 99)


def test_waiting_moves_the_time_and_is_remembered() -> None:
    clock = ManualClock(now_ms=0)
    clock.sleep(30)
    assert not clock.wait(threading.Event(), 12)
    assert clock.now_ms() == 42
    assert clock.waits_ms == [30, 12]


def test_waiting_for_a_set_event_takes_no_time() -> None:
    clock = ManualClock(now_ms=0)
    event = threading.Event()
    event.set()
    assert clock.wait(event, 12)
    assert clock.now_ms() == 0


def test_without_auto_advance_a_wait_blocks_until_another_thread_turns_the_clock() -> None:
    clock = ManualClock(now_ms=0, auto_advance=False)
    results: list[bool] = []
    thread = threading.Thread(
        target=lambda: results.append(clock.wait(threading.Event(), 100)), daemon=True
    )
    thread.start()
    clock.wait_for_waiters()
    clock.advance(99)
    assert results == []
    clock.advance(1)
    thread.join(10)
    assert results == [False]


def test_without_auto_advance_a_wait_ends_when_its_event_is_set() -> None:
    clock = ManualClock(now_ms=0, auto_advance=False)
    event = threading.Event()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(clock.wait(event, 100)), daemon=True)
    thread.start()
    clock.wait_for_waiters()
    event.set()
    thread.join(10)
    assert results == [True]
    assert clock.now_ms() == 0


def test_waiting_for_waiters_that_never_come_is_an_error() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        ManualClock(auto_advance=False).wait_for_waiters(timeout_s=0.01)
