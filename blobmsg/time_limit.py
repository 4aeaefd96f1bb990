"""How long a call may take: its argument, and what is left of that for the next of its steps."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TimeLimit", "seconds"]


class TimeLimit:
    """The time of one call.

    Args:
        timeout_s: Seconds from now on; negative, or no number (NaN), which stock takes for that: no
            limit.
        monotonic_s: Time.

    Threads: any.
    """

    __slots__ = ("_deadline", "_monotonic_s")

    def __init__(self, timeout_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._deadline = monotonic_s() + timeout_s if timeout_s >= 0 else None

    def rest_s(self) -> float:
        """What is left, in seconds; negative: no limit."""
        return -1.0 if self._deadline is None else max(0.0, self._deadline - self._monotonic_s())

    def patience_s(self) -> float | None:
        """What is left, as locks and events take it; None: no limit."""
        return None if self._deadline is None else self.rest_s()

    def slice_s(self, most_s: float) -> float:
        """What is left, but at most so many seconds: to look at something now and then."""
        return most_s if self._deadline is None else min(most_s, self.rest_s())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.rest_s() == 0


def seconds(timeout: Any) -> float:
    """A timeout as a float; anything that the stock client takes for a number.

    Raises:
        TypeError: It has no `__float__` and no `__index__`; with the stock client's text.
    """
    return math.ldexp(timeout, 0)  # its conversion is the stock client's, which `float`'s is not
