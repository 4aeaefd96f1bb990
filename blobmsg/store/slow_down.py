"""Lets fewer requests out at once after a store said "slow down", and more again later.

Decides how many requests may be in flight: no limit until the first slow-down answer, then
half of what was in flight, and about one more per round of successes (AIMD, as TCP does) until
the limit no longer matters. One limiter serves all threads of a store, because the store
counts what the process sends, not what a thread sends: threads that back off one by one
settle far later. It never sends, retries or looks at errors.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from blobmsg.errors import StoreTimeout, StoreUnavailable

if TYPE_CHECKING:
    from blobmsg.clock import Clock

__all__ = ["SlowDownLimiter"]


class SlowDownLimiter:
    """A limit on requests in flight that follows the store's answers.

    Args:
        clock: For deadlines and to tell old requests from new ones.
        ceiling: Requests that the process can have in flight at all; a limit that grows to it
            is dropped.

    Threads: any. `_lock` guards all fields; no thread waits while it holds it.
    """

    def __init__(self, clock: Clock, ceiling: int) -> None:
        self._clock = clock
        self._ceiling = max(1, ceiling)
        self._lock = threading.Lock()
        self._limit: float | None = None
        self._in_flight = 0
        self._waiting: deque[threading.Event] = deque()
        self._decreased_ms = 0
        self._is_closed = False

    @property
    def limit(self) -> int | None:
        """Requests allowed at once now; None when the store never complained of late."""
        with self._lock:
            return None if self._limit is None else int(self._limit)

    def acquire(self, deadline_ms: int) -> int:
        """Wait for a place among the requests in flight; first come, first served.

        Returns:
            When the place was got (monotonic ms); hand it to `release`.

        Raises:
            StoreTimeout: No place until the deadline.
            StoreUnavailable: The limiter was closed.
        """
        with self._lock:
            self._check_open()
            if not self._waiting and self._has_room():
                self._in_flight += 1
                return self._clock.now_ms()
            turn = threading.Event()
            self._waiting.append(turn)
        try:
            self._clock.wait(turn, deadline_ms - self._clock.now_ms())
        except BaseException:  # Ctrl-C in the waiting thread: a place it got goes on
            with self._lock:
                self._give_up_turn(turn)
            raise
        with self._lock:
            if self._is_closed:
                self._check_open()
            if not turn.is_set():
                self._give_up_turn(turn)
                raise StoreTimeout(
                    "no request could be sent before the deadline: the store asked to slow down "
                    f"and {self._in_flight} requests are in flight already"
                )
            return self._clock.now_ms()

    def release(self, started_ms: int, *, slow_down: bool, ok: bool) -> None:
        """Give the place back and learn from the answer.

        Args:
            started_ms: From `acquire`.
            slow_down: The store answered that it gets too many requests.
            ok: The request succeeded. Other errors say nothing about load.
        """
        with self._lock:
            if slow_down:
                # All requests in flight get the same answer to one overload: only those
                # started after the last decrease are news.
                if self._limit is None or started_ms > self._decreased_ms:
                    self._limit = max(1.0, self._in_flight / 2)
                    self._decreased_ms = self._clock.now_ms()
            elif ok and self._limit is not None:
                self._limit += 1 / self._limit
                if self._limit >= self._ceiling:
                    self._limit = None
            self._in_flight -= 1
            self._wake()

    def close(self) -> None:
        """End all waits with an error."""
        with self._lock:
            self._is_closed = True
            for turn in self._waiting:
                turn.set()
            self._waiting.clear()

    def _has_room(self) -> bool:
        return self._limit is None or self._in_flight < int(self._limit)

    def _wake(self) -> None:
        while self._waiting and self._has_room():
            self._in_flight += 1
            self._waiting.popleft().set()

    def _give_up_turn(self, turn: threading.Event) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
        elif not self._is_closed:
            self._in_flight -= 1
            self._wake()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store was closed while a request waited to be sent")
