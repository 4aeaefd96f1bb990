"""The one thread in which an asyncio client makes the calls that wait.

Calls are made one after the other. A callback of the user's that comes up in one of them runs in
the event loop, while the thread waits for it; the calls that the callback makes are made by the
waiting thread, for it has what they need, the locks and the state of a rebalance. So a callback may
be a coroutine function that awaits calls of its own client.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from blobmsg.time_limit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ClientThread", "awaited"]

_T = TypeVar("_T")
_Job: TypeAlias = "Callable[[], object]"

# How long a thread waits before it looks whether the loop, from which alone jobs come, is gone.
_LOOK_S: Final = 0.5
# How long beyond its time a call waits for its turn; a thread that is free takes it at once.
_LATE_S: Final = 0.25


class _CallbackCalls:
    """The calls that one run of a callback makes."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.task: asyncio.Task[Any] | None = None  # the callback's own
        self.is_over = False  # changed in the loop, where jobs are put


# Of the running task: in which callback it is.
_callback: Final[contextvars.ContextVar[_CallbackCalls | None]] = contextvars.ContextVar(
    "blobmsg_callback", default=None
)


class ClientThread:
    """A daemon thread that makes calls for coroutines.

    Args:
        loop: Of the client.
        name: The thread's.

    Threads: those of its coroutines in the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._is_stopped = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, args=(self._jobs,), name=name, daemon=True
        )
        self._thread.start()

    async def call(self, function: Callable[..., _T], *arguments: Any, **names: Any) -> _T:
        """Make a call in the thread; one that is cancelled when it has begun goes on unheard.

        Raises:
            BaseException: What it raises.
            RuntimeError: The thread has been stopped.
        """
        return await self._begin(partial(function, *arguments, **names), _callback.get())

    async def call_in_time(self, function: Callable[[float], _T], timeout_s: float) -> _T | None:
        """Make a call that takes a time limit, with what is left of it when its turn comes.

        Args:
            function: What to call with seconds; negative: no limit.
            timeout_s: Seconds from now on; negative: no limit.

        Returns:
            None: other calls took all of the time, this one was not made.
        """
        return await self._call_in_time(function, timeout_s, _callback.get())

    async def call_outside_in_time(
        self, function: Callable[[float], _T], timeout_s: float
    ) -> _T | None:
        """As `call_in_time`, not while a callback is waited for, unless the callback itself calls.

        For what would serve Kafka: a task that a callback has started goes on when that is over.
        """
        calls = _callback.get()
        is_callback = calls is not None and calls.task is asyncio.current_task()
        return await self._call_in_time(function, timeout_s, calls if is_callback else None)

    async def _call_in_time(
        self, function: Callable[[float], _T], timeout_s: float, calls: _CallbackCalls | None
    ) -> _T | None:
        limit = TimeLimit(timeout_s)
        turn = [function]  # taken by the thread or by the timer, whoever is first

        def call() -> _T | None:
            try:
                taken = turn.pop()
            except IndexError:
                return None
            return taken(limit.rest_s())

        def give_up() -> None:
            with suppress(IndexError):
                turn.pop()
                _succeed(outcome, None)

        outcome = self._begin(call, calls)
        if timeout_s < 0:
            return await outcome
        timer = self._loop.call_later(timeout_s + _LATE_S, give_up)
        try:
            return await outcome
        finally:
            timer.cancel()

    def _begin(
        self, function: Callable[[], _T], calls: _CallbackCalls | None
    ) -> asyncio.Future[_T]:
        if self._is_stopped:
            raise RuntimeError("this client has been closed")
        outcome: asyncio.Future[_T] = self._loop.create_future()

        def job() -> None:
            if outcome.cancelled():
                return
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001  (the caller's)
                self.tell_loop(_fail, outcome, error)
            else:
                self.tell_loop(_succeed, outcome, result)

        if calls is None or calls.is_over:
            self._jobs.put(job)
        else:
            calls.jobs.put(job)
        return outcome

    def stop(self) -> None:
        """Let the thread end behind what it was given. Threads: any."""
        self._is_stopped = True
        self._jobs.put(None)

    def tell_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have something called in the loop, unless that is gone. Threads: any."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def run_callback(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function or a coroutine function in the loop; its result.

        Threads: any but the loop's; the calls that the callback makes are made in this one.
        """
        calls = _CallbackCalls()
        outcome: list[asyncio.Future[Any]] = []

        def finish(future: asyncio.Future[Any]) -> None:
            calls.is_over = True
            outcome.append(future)
            calls.jobs.put(None)

        def begin() -> None:
            _callback.set(calls)
            calls.task = self._loop.create_task(awaited(callback, *arguments))
            calls.task.add_done_callback(finish)

        context = contextvars.copy_context()
        self.tell_loop(partial(context.run, begin))
        self._work(calls.jobs)
        if not outcome:
            raise RuntimeError("the event loop of this client is closed")
        return outcome[0].result()

    def _work(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        """Do jobs until there will be none."""
        while (job := self._next(jobs)) is not None:
            job()
            del job  # a thread that waits must not keep a call, and its outcome, alive

    def _next(self, jobs: queue.SimpleQueue[_Job | None]) -> _Job | None:
        """The next job; None when there will be none."""
        while not self._loop.is_closed():
            with suppress(queue.Empty):
                return jobs.get(timeout=_LOOK_S)
        return None


async def awaited(callback: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function or a coroutine function."""
    result = callback(*arguments)
    return await result if inspect.isawaitable(result) else result


def _succeed(outcome: asyncio.Future[_T], result: _T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[Any], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
