"""Log lines that could come thousands of times, each cause once a minute."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RareLog"]

_EVERY_S: Final = 60.0


class RareLog:
    """Passes on the first line of a cause, and further ones a minute apart.

    Args:
        log: Takes what is passed on, as `logging.Logger.warning`.

    Threads: any; two at once may both be logged.
    """

    def __init__(self, log: Callable[..., object]) -> None:
        self._log = log
        self._logged_at: dict[str, float] = {}  # by cause, monotonic

    def __call__(self, text: str, *, cause: str) -> bool:
        """Log a line, unless there was one of this cause lately; whether it was logged."""
        now = time.monotonic()
        if now - self._logged_at.get(cause, -_EVERY_S) < _EVERY_S:
            return False
        self._logged_at[cause] = now
        self._log("%s", text)
        return True
