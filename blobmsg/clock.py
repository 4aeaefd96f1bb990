"""Where time comes from: a small Protocol and the machine's own clock.

Shells take a `Clock` so that tests turn the time instead of sleeping. Ages, deadlines and
back-off use `now_ms` (monotonic, so a stepped wall clock neither ages a batch nor ends a
retry); `timestamp_ms` is for what other machines read: record timestamps and expiry hours.
It never decides anything.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the shells may know about time. Threads: any."""

    def now_ms(self) -> int:
        """Monotonic milliseconds since some fixed moment of this process."""
        ...

    def timestamp_ms(self) -> int:
        """Wall time in milliseconds since 1970 UTC."""
        ...

    def sleep(self, duration_ms: float) -> None:
        """Wait; nothing can shorten it. Prefer `wait` wherever `close` must be quick."""
        ...

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        """Wait until the event is set or the time is over.

        Args:
            event: Set by another thread to end the wait early.
            timeout_ms: At most so long; 0 or less only looks.

        Returns:
            Whether the event is set.
        """
        ...


class SystemClock:
    """The machine's clock. Threads: any."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def timestamp_ms(self) -> int:
        """Wall time in milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def sleep(self, duration_ms: float) -> None:
        """Wait for `duration_ms` milliseconds."""
        time.sleep(max(0.0, duration_ms) / 1000)

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        """Wait until the event is set, at most `timeout_ms`; whether it is set."""
        return event.wait(max(0.0, timeout_ms) / 1000)
