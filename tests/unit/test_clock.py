from __future__ import annotations

import threading
import time

from blobmsg.clock import Clock, SystemClock
from blobmsg.testing import ManualClock


def test_both_clocks_satisfy_the_protocol() -> None:
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    assert all(isinstance(clock.now_ms(), int) for clock in clocks)


def test_system_clock_tells_the_machines_times_in_ms() -> None:
    before_s, before_monotonic_s = time.time(), time.monotonic()
    clock = SystemClock()
    timestamp_ms, now_ms = clock.timestamp_ms(), clock.now_ms()
    assert before_s * 1000 - 1 <= timestamp_ms <= time.time() * 1000
    assert before_monotonic_s * 1000 - 1 <= now_ms <= time.monotonic() * 1000


def test_system_clock_sleeps_at_least_the_given_time() -> None:
    clock = SystemClock()
    started = time.monotonic()
    clock.sleep(20)
    assert time.monotonic() - started >= 0.019


def test_system_clock_takes_a_negative_time_as_none() -> None:
    SystemClock().sleep(-5)
    assert not SystemClock().wait(threading.Event(), -5)


def test_system_clock_wait_ends_when_the_event_is_set() -> None:
    event = threading.Event()
    threading.Timer(0.01, event.set).start()
    started = time.monotonic()
    assert SystemClock().wait(event, 20_000)
    assert time.monotonic() - started < 10
