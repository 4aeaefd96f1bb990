from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.chaos.checker import Violation
from tests.chaos.conductor import Outcome
from tests.chaos.recovery import Recovery, check_recoveries
from tests.chaos.report import write_report

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = "python -m tests.chaos --seed 7"


def test_a_report_names_violations_with_examples_and_how_to_repeat_them(tmp_path: Path) -> None:
    outcome = Outcome(7)
    outcome.violations = [Violation("lost", f"record {n}") for n in range(9)]

    text = write_report(outcome, tmp_path, COMMAND)

    assert "### lost: 9" in text
    assert text.count("    record ") == 5
    assert COMMAND in text
    assert (tmp_path / "report.md").read_text() == text
    assert len(json.loads((tmp_path / "report.json").read_text())["violations"]) == 9


def test_what_stock_does_is_listed_apart(tmp_path: Path) -> None:
    outcome = Outcome(7)
    assert "stock client's own" not in write_report(outcome, tmp_path, COMMAND)

    outcome.stock_violations = [Violation("duplicated", "a record")]

    ours, _, stock = write_report(outcome, tmp_path, COMMAND).partition("stock client's own")
    assert "None." in ours
    assert "### duplicated: 1" in stock


def test_recovery_is_judged_by_medians_of_five_or_more(tmp_path: Path) -> None:
    outcome = Outcome(7)
    outcome.recoveries = [Recovery(n, f"step {n}", 3.0 + n, 1.0, 9.0) for n in range(5)]
    assert "ours 5.0, stock 1.0, copies 9.0; ours are within 5 s" in write_report(
        outcome, tmp_path, COMMAND
    )

    outcome.recoveries[1:3] = [Recovery(n, f"step {n}", 99.0, 1.0, 99.0) for n in (1, 2)]
    text = write_report(outcome, tmp_path, COMMAND)
    assert "ours 7.0, stock 1.0, copies 9.0; ours are NOT within 5 s" in text
    assert [v.kind for v in check_recoveries(outcome.recoveries)] == ["slow"]

    del outcome.recoveries[0]
    assert check_recoveries(outcome.recoveries) == []
    assert "Medians" not in write_report(outcome, tmp_path, COMMAND)


def test_a_report_has_the_largest_process_of_each_slot(tmp_path: Path) -> None:
    outcome = Outcome(7)
    mib = 1 << 20
    outcome.rss = {
        "writer-0.1": (80 * mib, 60 * mib, 126 * mib),
        "writer-0.2": (90 * mib, 60 * mib, 126 * mib),
        "reader-0.1": (70 * mib, 60 * mib, 126 * mib),
    }

    text = write_report(outcome, tmp_path, COMMAND)

    assert "| writer-0.2 | 90 | 60 | 126 |" in text
    assert "writer-0.1" not in text
    assert "| reader-0.1 | 70 | 60 | 126 |" in text
