"""What is looked at all the time, beside what the conductor does."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.chaos.children import ChildProcess

__all__ = ["Watch"]

_LOOK_EVERY_S: Final = 0.1
_RSS_EVERY_S: Final = 1.0
_STALL_S: Final = 0.4


class Watch(threading.Thread):
    """Looks at the children's memory, and at whether the machine itself stands still.

    Threads: its own; `rss_bytes` and `stalls` are read when it has ended.
    """

    def __init__(self) -> None:
        super().__init__(name="chaos-watch", daemon=True)
        self.children: tuple[ChildProcess, ...] = ()
        self.rss_bytes: dict[str, int] = {}
        self.stalls: list[tuple[float, float]] = []
        self._ended = threading.Event()

    def run(self) -> None:
        """Until `end`."""
        look_at = last = time.monotonic()
        while not self._ended.wait(_LOOK_EVERY_S):
            now = time.monotonic()
            if now - last > _LOOK_EVERY_S + _STALL_S:
                self.stalls.append((last, now))
            last = now
            if now < look_at:
                continue
            look_at = now + _RSS_EVERY_S
            for child in self.children:
                most = max(self.rss_bytes.get(child.instance, 0), child.rss_bytes())
                self.rss_bytes[child.instance] = most

    def end(self) -> None:
        """Stop; returns when it has."""
        self._ended.set()
        self.join()
