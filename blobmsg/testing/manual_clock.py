"""A clock that moves only when a test says so.

By default a wait moves the time itself, at once, to its end: right for a test with one thread,
where nobody else could move it. With `auto_advance=False` waits block until another thread calls
`advance`, as they would on a real clock.
"""

from __future__ import annotations

import threading

__all__ = ["ManualClock"]

_NOTICE_S = 0.005  # how soon a blocked wait sees that its event was set


class ManualClock:
    """Time in a test's hands; satisfies `blobmsg.clock.Clock`.

    Args:
        now_ms: Monotonic time at the start.
        timestamp_ms: Wall time at the start (2026-01-01 UTC by default).
        auto_advance: Waits move the time instead of blocking.

    Attributes:
        waits_ms: How long each `sleep` and `wait` was meant to take, in order.

    Threads: any. `_changed` guards all fields.
    """

    def __init__(
        self,
        now_ms: int = 1_000_000,
        timestamp_ms: int = 1_767_225_600_000,
        *,
        auto_advance: bool = True,
    ) -> None:
        self._changed = threading.Condition()
        self._now_ms = float(now_ms)
        self._wall_minus_monotonic_ms = timestamp_ms - now_ms
        self._auto_advance = auto_advance
        self._waiting = 0
        self.waits_ms: list[float] = []

    def now_ms(self) -> int:
        """Monotonic time."""
        with self._changed:
            return int(self._now_ms)

    def timestamp_ms(self) -> int:
        """Wall time; moves with the monotonic one."""
        with self._changed:
            return int(self._now_ms) + self._wall_minus_monotonic_ms

    def set_timestamp_ms(self, timestamp_ms: int) -> None:
        """Step the wall clock, as NTP or an operator does; monotonic time stays."""
        with self._changed:
            self._wall_minus_monotonic_ms = timestamp_ms - int(self._now_ms)

    def advance(self, duration_ms: float) -> None:
        """Let time pass; waits whose end it reaches return.

        Raises:
            ValueError: Monotonic time never goes back.
        """
        if duration_ms < 0:
            raise ValueError(f"time can't go back by {-duration_ms} ms")
        with self._changed:
            self._now_ms += duration_ms
            self._changed.notify_all()

    def sleep(self, duration_ms: float) -> None:
        """Wait for `duration_ms` of this clock."""
        self.wait(threading.Event(), duration_ms)

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        """Wait until the event is set or this clock has moved on by `timeout_ms`."""
        with self._changed:
            self.waits_ms.append(timeout_ms)
            if event.is_set():
                return True
            end_ms = self._now_ms + max(0.0, timeout_ms)
            if self._auto_advance:
                self._now_ms = end_ms
                self._changed.notify_all()
                return event.is_set()
            self._waiting += 1
            self._changed.notify_all()
            try:
                while not event.is_set() and self._now_ms < end_ms:
                    self._changed.wait(_NOTICE_S)
            finally:
                self._waiting -= 1
        return event.is_set()

    def wait_for_waiters(self, count: int = 1, timeout_s: float = 10.0) -> None:
        """Block until so many threads wait on this clock; then it makes sense to `advance`.

        Args:
            count: Threads in `sleep` or `wait`.
            timeout_s: Real seconds before this gives up.

        Raises:
            TimeoutError: They did not come.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting >= count, timeout_s):
                raise TimeoutError(f"{self._waiting} of {count} threads wait after {timeout_s} s")
