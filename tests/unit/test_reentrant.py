"""Waits that a signal interrupts end in their time."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.clock import SystemClock
from blobmsg.fetcher import Fetcher
from blobmsg.reentrant import Wakeup, wait_done

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_TIME_S = 0.05


@pytest.fixture
def _a_handler_outlasts_the_wait() -> Generator[None]:
    """A signal comes amid the wait, and its time is over when the handler is."""
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: time.sleep(2 * _TIME_S))
    signal.setitimer(signal.ITIMER_REAL, _TIME_S / 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fetcher_without_work() -> Fetcher:
    stores: Any = None  # nothing is fetched
    return Fetcher(
        stores,
        None,
        SystemClock(),
        threads=1,
        request_timeout_ms=1000,
        keep_bytes=0,
        name="test",
    )


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("_a_handler_outlasts_the_wait")
@pytest.mark.parametrize(
    "wait",
    [lambda: Wakeup().wait(_TIME_S), lambda: fetcher_without_work().wait(_TIME_S)],
    ids=["wakeup", "fetcher"],
)
def test_a_wait_ends_though_a_signals_handler_outlasts_it(wait: Callable[[], object]) -> None:
    begun_s = time.monotonic()

    wait()

    assert time.monotonic() - begun_s < 3 * _TIME_S + 1


def test_a_wakeup_that_is_set_ends_one_wait() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()

    assert wakeup.wait(None)
    assert not wakeup.wait(0)


def test_a_wakeup_ends_the_wait_of_another_thread() -> None:
    wakeup = Wakeup()
    setter = threading.Timer(_TIME_S, wakeup.set)
    setter.start()

    assert wakeup.wait(30)
    setter.join()


def test_who_waits_for_a_job_hears_that_its_thread_has_ended() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()

    wait_done(Wakeup(), thread)
