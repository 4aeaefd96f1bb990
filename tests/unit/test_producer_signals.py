"""A signal handler that produces, flushes or raises in the middle of produce, flush and poll.

The timer of the process strikes some thousand times a second, so that over a run a handler hits
every place of the record path; what arrives is read back from the store and counted.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.pipeline import RunningPipeline, RunningProducer, check_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STRIKE_S = 0.0003
RUN_S = 3.0

# pytest-timeout's usual alarm is the timer that strikes here.
pytestmark = pytest.mark.timeout(method="thread")


class Struck(Exception):
    """What a handler raises, as Ctrl-C does."""


@pytest.fixture(params=["usual records", "records of any kind"])
def running(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningPipeline | RunningProducer]:
    name = f"signals-{abs(hash(request.node.name))}"
    made: RunningPipeline | RunningProducer
    if request.param == "usual records":
        made = RunningProducer(name, monkeypatch)
    else:
        made = RunningPipeline(name)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """The test's own SIGALRM; what was set before it returns when no strike can come any more."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # drops one that is on its way
    signal.signal(signal.SIGALRM, before)


@contextmanager
def struck(handler: Callable[[], object]) -> Iterator[None]:
    """The handler runs in the main thread every STRIKE_S, but not inside of itself.

    A handler that raises has struck for the last time: on the way out nothing may raise again,
    not even before the first line of a `finally`. Nor does one strike behind the block: the kernel
    may have given the last alarm to another thread, which takes it when it runs next.
    """
    is_quiet = False

    def strike(_number: int, _frame: object) -> None:
        nonlocal is_quiet
        if not is_quiet:
            is_quiet = True
            try:
                handler()
            except BaseException:
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise
            is_quiet = False

    signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, STRIKE_S, STRIKE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        is_quiet = True


@pytest.mark.parametrize("flushes", [False, True], ids=["produces", "produces and flushes"])
def test_a_handler_may_use_the_producer_that_it_interrupts(
    running: RunningPipeline | RunningProducer, flushes: bool
) -> None:
    produced: Counter[bytes] = Counter()
    told: Counter[bytes] = Counter()
    numbers = itertools.count()

    def on_delivery(error: object, message: Any) -> None:
        assert error is None
        told[message.value()] += 1

    def handler() -> None:
        number = next(numbers)
        value = b"h%08d" % number + bytes(100)
        headers = [("n", b"1")] if number % 3 == 0 else None
        with suppress(BufferError):
            running.produce(value, headers, on_delivery if number % 2 else None)
            produced[value] += 1
        if flushes and number % 50 == 0:
            running.flush(0.05)
        elif number % 10 == 0:
            running.serve(0)

    with struck(handler):
        end = time.monotonic() + RUN_S
        number = 0
        while time.monotonic() < end:
            value = b"m%08d" % number + bytes(100)
            try:
                running.produce(value, None, on_delivery if number % 7 == 0 else None)
            except BufferError:
                running.serve(0.01)
                continue
            produced[value] += 1
            number += 1
            if number % 1000 == 0:
                running.serve(0)
            if number % 20_000 == 0:
                running.flush(1)

    assert running.flush(20) == 0
    arrived = running.arrived()
    assert Counter(value for _, value in arrived) == produced
    assert running.pipeline._memory.held_bytes == 0
    assert all(count == 1 for count in told.values())
    check_order([pair for pair in arrived if pair[1].startswith(b"m")])


def test_a_handler_that_raises_loses_nothing_and_doubles_nothing(
    running: RunningPipeline | RunningProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it raises inside of a finalizer goes there, and is no matter of ours.
    monkeypatch.setattr(sys, "unraisablehook", lambda _unraisable: None)
    returned: list[bytes] = []
    raised: list[bytes] = []
    told: Counter[bytes] = Counter()

    def on_delivery(error: object, message: Any) -> None:
        assert error is None
        told[message.value()] += 1

    def handler() -> None:
        raise Struck

    end = time.monotonic() + RUN_S
    number = 0
    strikes = 0
    while time.monotonic() < end:
        value = b"m%08d" % number + bytes(100)
        number += 1
        is_in_call = False
        try:
            with struck(handler):
                for _ in range(2000):
                    value = b"m%08d" % number + bytes(100)
                    number += 1
                    is_in_call = True
                    with suppress(BufferError):
                        running.produce(value, None, on_delivery)
                        returned.append(value)
                    is_in_call = False
                    if number % 100 == 0:
                        running.serve(0)
                    if number % 1500 == 0:
                        running.flush(0.5)
        except Struck:
            strikes += 1
            if is_in_call and (not returned or returned[-1] != value):
                raised.append(value)

    assert strikes > 100
    assert running.flush(20) == 0
    arrived = Counter(value for _, value in running.arrived())
    assert set(arrived) >= set(returned)
    assert set(arrived) <= {*returned, *raised}
    assert set(arrived.values()) == {1}
    assert running.pipeline._memory.held_bytes == 0
    # A callback that was interrupted before its first line is not called again.
    assert len(told) >= len(arrived) - strikes
    assert all(count == 1 for count in told.values())
