"""How long everybody needs, once all is healed, to have caught up; beside the stock client."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from tests.chaos.checker import Violation

# What the median of recoveries may be slower than stock's in the same run.
SLOWER_S: Final = 5.0
_ENOUGH: Final = 5


@dataclass(slots=True)
class Recovery:
    """How long after healing everybody had caught up.

    Attributes:
        step: After which.
        what: Its faults.
        ours_s: blobmsg's writers and readers.
        stock_s: The stock client's beside them.
        copied_s: The transformers.
    """

    step: int
    what: str
    ours_s: float = 0.0
    stock_s: float = 0.0
    copied_s: float = 0.0


def recovery_medians(recoveries: list[Recovery]) -> tuple[float, float, float] | None:
    """Medians of ours, of stock's, of the transformers'; None if there are too few to say."""
    if len(recoveries) < _ENOUGH:
        return None
    return (
        statistics.median(recovery.ours_s for recovery in recoveries),
        statistics.median(recovery.stock_s for recovery in recoveries),
        statistics.median(recovery.copied_s for recovery in recoveries),
    )


def check_recoveries(recoveries: list[Recovery]) -> list[Violation]:
    """Whether ours are slower than stock's by more than they may."""
    medians = recovery_medians(recoveries)
    if medians is None or medians[0] <= medians[1] + SLOWER_S:
        return []
    text = f"the median of {len(recoveries)} is {medians[0]:.1f} s, stock's {medians[1]:.1f} s"
    return [Violation("slow", text)]
