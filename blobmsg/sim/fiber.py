"""Callers that wait, in one thread: each has a stack of its own, and waits in virtual time.

So production code that blocks its caller runs unchanged. A fiber runs until it waits; only then
does the world go on. A process that is killed never comes back to its fibers.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from greenlet import getcurrent, greenlet

from blobmsg.reentrant import JobThread, News, Wakeup
from blobmsg.sim.world import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from blobmsg.sim.world import Process

__all__ = [
    "VirtualJobThread",
    "VirtualNews",
    "VirtualWakeup",
    "end_fibers",
    "in_fiber",
    "sleep",
    "start_fiber",
]

_WAITS_ON_THE_WAY_OUT: Final = 10


def start_fiber(process: Process, body: Callable[[], None]) -> None:
    """Have a process call what may wait; what it raises ends the run."""
    assert not in_fiber(), "a fiber starts no other one"  # noqa: S101  (a defect of the simulation)
    fiber = greenlet(body)
    # Who loses its last reference goes on, with an exception: those of the dead are kept.
    process.fibers = [kept for kept in process.fibers if not kept.dead]
    process.fibers.append(fiber)
    fiber.switch()


def end_fibers(processes: Iterable[Process]) -> None:
    """End the fibers that still wait, when the run is over.

    The garbage collector can't see what a suspended one holds, which is its whole world.
    """
    for process in processes:
        for fiber in process.fibers:
            for _ in range(_WAITS_ON_THE_WAY_OUT):
                # Whatever it raises or still waits for on its way out belongs to no run.
                with suppress(Exception, Violation):
                    fiber.throw()  # nothing happens to a dead one
        process.fibers.clear()


def in_fiber() -> bool:
    """Whether whoever asks may wait."""
    return getcurrent().parent is not None


def sleep(process: Process, duration_s: float) -> None:
    """Let time pass in a process, a millisecond at least."""
    process.after(_milliseconds(duration_s), getcurrent().switch)
    _leave()


def _milliseconds(duration_s: float) -> int:
    return max(1, math.ceil(duration_s * 1000 - 1e-6))


def _leave() -> None:
    """Let the world go on, until somebody switches back."""
    world = getcurrent().parent
    assert world is not None, "only a fiber may wait"  # noqa: S101  (a defect of the simulation)
    world.switch()


class VirtualNews(News):
    """`News` for fibers.

    Args:
        process: Whose they are.
    """

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._wakeups: dict[Wakeup, None] = {}  # in order, which a set has not

    def tell(self) -> None:
        """See `News.tell`."""
        for wakeup in tuple(self._wakeups):
            wakeup.set()

    @contextmanager
    def listening(self) -> Generator[Wakeup, None, None]:
        """See `News.listening`."""
        wakeup = VirtualWakeup(self._process)
        self._wakeups[wakeup] = None
        try:
            yield wakeup
        finally:
            del self._wakeups[wakeup]


class VirtualWakeup(Wakeup):
    """`Wakeup` for a fiber."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._is_set = False
        self._waits = 0  # counts them
        self._waiting: greenlet | None = None

    def set(self) -> None:
        """See `Wakeup.set`; the fiber goes on a little later."""
        self._is_set = True
        if self._waiting is not None:
            delay_ms = self._process.world.rng.randint(0, 2)
            self._process.after(delay_ms, partial(self._resume, self._waits))

    def wait(self, timeout_s: float | None) -> bool:
        """See `Wakeup.wait`."""
        if not self._is_set:
            self._waits += 1
            self._waiting = getcurrent()
            if timeout_s is not None:
                resume = partial(self._resume, self._waits)
                self._process.after(_milliseconds(timeout_s), resume)
            _leave()
        was_set, self._is_set = self._is_set, False
        return was_set

    def _resume(self, wait: int) -> None:
        waiting = self._waiting
        if waiting is not None and wait == self._waits:
            self._waiting = None
            waiting.switch()


class VirtualJobThread(JobThread):
    """`JobThread` without a thread: jobs are events, and who waits for one does it at once.

    Args:
        process: Whose it is.
        arguments: As `JobThread`.
    """

    def __init__(self, process: Process, *arguments: object) -> None:
        self._process = process
        self._due: deque[Callable[[], object]] = deque()
        self.put = self._put

    def start(self) -> None:
        """There is no thread."""

    def _put(self, job: Callable[[], object]) -> None:
        self._due.append(job)
        self._process.after(self._process.world.rng.randint(0, 1), self._do_all)

    def put_and_wait(self, job: Callable[[], object]) -> None:
        """See `JobThread.put_and_wait`."""
        self._due.append(job)
        self._do_all()

    def _do_all(self) -> None:
        while self._due:
            self._due.popleft()()
