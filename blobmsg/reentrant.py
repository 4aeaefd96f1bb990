"""What a thread may use although it was interrupted in the middle of using it.

A signal handler, or the finalizer of an object that is collected, runs in the middle of whatever
the thread was doing, and may well call `produce` or `flush`. `threading.Event`, `Queue` and
`Condition` have locks in them that such a call finds held by the very code it has interrupted, and
waits for ever. `queue.SimpleQueue` and a bare lock do not; everything here is made of them.
Whoever a signal can interrupt waits by `Wakeup`: before Python 3.13 a `SimpleQueue.get` whose time
runs out while a handler runs waits without end.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from blobmsg.core.step_fields import CoreFields

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["CoreLock", "JobThread", "News", "Waiting", "Wakeup", "wait_done", "wait_without"]

# How long somebody waits for a job before looking whether the thread still runs.
_LOOK_S: Final = 0.5


class CoreLock(CoreFields):
    """The lock of a core that our own threads decide in: `with core_lock:` enters it.

    Reentrant, for a signal handler may call in the middle of what its thread does. The core is
    not: only threads of ours, which no signal interrupts, may enter it.
    """

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.RLock()  # for looking, or for what a handler may interrupt
        self.is_deciding = False

    def __enter__(self) -> None:
        self.lock.acquire()
        self.is_deciding = True

    def __exit__(self, *_: object) -> None:
        self.is_deciding = False
        self.lock.release()


class Wakeup:
    """An event that one thread waits for.

    Threads: `set` any, `wait` one.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()  # held until it is set
        self._unset.acquire()

    def set(self) -> None:
        """End the wait, or the next one if there is none now."""
        with suppress(RuntimeError):  # it is set already
            self._unset.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is set, at most `timeout_s`; None: no limit.

        Returns:
            Whether it was set; it is not any more.
        """
        return self._unset.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


class News:
    """Wakes whoever waits for something to change.

    Threads: any.
    """

    def __init__(self) -> None:
        self._listening: set[Wakeup] = set()

    def tell(self) -> None:
        """Something has changed."""
        for wakeup in tuple(self._listening):
            wakeup.set()

    @contextmanager
    def listening(self) -> Generator[Wakeup, None, None]:
        """Hear of all that changes from here on; look at the state before each wait."""
        wakeup = Wakeup()
        self._listening.add(wakeup)
        try:
            yield wakeup
        finally:
            self._listening.discard(wakeup)


class JobThread:
    """A daemon thread that does jobs one after the other, and so is never interrupted in one.

    Args:
        run: Runs the thread's loop and reports its defects.
        name: The thread's name.

    Threads: any.
    """

    def __init__(self, run: Callable[[Callable[[], None]], None], name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        #: Let it do a job, after those it was given before. C's own method: nothing can come
        #: between what the caller did just before and this.
        self.put: Callable[[Callable[[], object]], None] = self._jobs.put
        self._thread = threading.Thread(target=run, args=(self._loop,), name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put_and_wait(self, job: Callable[[], object]) -> None:
        """Let it do a job, and wait until it is done or the thread has ended."""
        if self._thread is threading.current_thread():
            self.put(job)  # asked by a finalizer; waiting for itself would never end
            return
        done = Wakeup()
        self._jobs.put(job)
        self._jobs.put(done.set)
        wait_done(done, self._thread)

    def stop(self) -> None:
        """Let it end after the jobs it was given."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for it to end."""
        self._thread.join(timeout_s)

    def _loop(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the threads and callers of one producer wait for, and in which time.

    Attributes:
        news: What callers wait for.
        wake: What the notifier thread waits for.
        make_job_thread: Takes `JobThread`'s arguments.
        monotonic_s: The time.
    """

    news: News = field(default_factory=News)
    wake: Wakeup = field(default_factory=Wakeup)
    make_job_thread: Callable[..., JobThread] = JobThread
    monotonic_s: Callable[[], float] = time.monotonic


def wait_done(done: Wakeup, thread: threading.Thread) -> None:
    """Wait until a thread has set that, or has ended."""
    while thread.is_alive() and not done.wait(_LOOK_S):
        pass


def wait_without(lock: threading.RLock, wait: Callable[[], object]) -> None:
    """Wait without a lock, also in a handler that has interrupted the code that holds it.

    What that code guards must be whole wherever a handler can come in.
    """
    # `threading.Condition` releases a reentrant lock by the same methods.
    if not lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
        wait()
        return
    held = lock._release_save()  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        wait()
    finally:
        lock._acquire_restore(held)  # type: ignore[attr-defined]  # noqa: SLF001
