"""A short run on real parts; `make chaos` is the long one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.conductor import Conductor
from tests.chaos.report import markdown
from tests.chaos.schedule import short_schedule

if TYPE_CHECKING:
    from pathlib import Path

    from blobmsg import lab

# It takes a minute or two; what gets stuck is told by the run itself, with every thread's stack.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SEED = 1
RATE = 200.0
REPEAT = f"python -m tests.chaos --short --seed {SEED} --rate {RATE:g}"


def test_a_short_run_loses_doubles_and_damages_nothing(stack: lab.Stack, tmp_path: Path) -> None:
    del stack  # asked for because it skips where there can be none: the run has its own
    outcome = Conductor(SEED, short_schedule(SEED), tmp_path, rate=RATE).run()

    assert outcome.violations == [], markdown(outcome, REPEAT)
    counts = outcome.counts
    assert counts["records in the log"] == counts["records copied exactly once"] > 0
    assert min(counts[f"kill {role}"] for role in ("writer", "reader", "transformer")) >= 1
    assert counts["zombie"] == 1
    assert sum(outcome.store_faults.values()) > 0
