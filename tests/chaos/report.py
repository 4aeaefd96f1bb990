"""What a run came to, for people (markdown) and programs (JSON)."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.chaos.recovery import SLOWER_S, check_recoveries, recovery_medians

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.checker import Violation
    from tests.chaos.conductor import Outcome

_MIB: Final = 1 << 20
_EXAMPLES: Final = 5


def markdown(outcome: Outcome, command: str) -> str:
    """The report.

    Args:
        outcome: Of the run.
        command: Repeats its schedule.
    """
    lines = [
        f"# Chaos, seed {outcome.seed}",
        "",
        f"{outcome.seconds:.0f} s. The same schedule again: `{command}`",
        "",
        "## Violations",
        "",
        *_listed(outcome.violations),
    ]
    if outcome.stock_violations:
        lines += ["", "## The stock client's own, beside ours", ""]
        lines += _listed(outcome.stock_violations)
    lines += ["", "## Counts", "", "| what | how many |", "|---|---|"]
    lines += [f"| {what} | {count} |" for what, count in sorted(outcome.counts.items())]
    lines += [
        f"| requests to the store with {what} | {count} |"
        for what, count in sorted(outcome.store_faults.items())
    ]
    lines += ["", "## Recovery", "", "Seconds from healing to zero lag.", ""]
    medians = recovery_medians(outcome.recoveries)
    if medians is not None:
        ours, stock, copies = medians
        verdict = "NOT within" if check_recoveries(outcome.recoveries) else "within"
        count = len(outcome.recoveries)
        text = f"Medians of {count}: ours {ours:.1f}, stock {stock:.1f}, copies {copies:.1f};"
        lines += [f"{text} ours are {verdict} {SLOWER_S:.0f} s of stock.", ""]
    lines += ["| step | ours | stock | copies |", "|---|---|---|---|"]
    lines += [
        f"| {r.what} | {r.ours_s:.1f} | {r.stock_s:.1f} | {r.copied_s:.1f} |"
        for r in outcome.recoveries
    ]
    lines += ["", "## Memory", "", "The most of each slot, MiB.", ""]
    lines += ["| process | most | when constructed | allowed |", "|---|---|---|---|"]
    largest: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for instance, sizes in outcome.rss.items():
        slot = instance.rpartition(".")[0]
        if slot not in largest or sizes[0] > largest[slot][1][0]:
            largest[slot] = (instance, sizes)
    for instance, sizes in sorted(largest.values()):
        lines.append(f"| {instance} | {' | '.join(str(size // _MIB) for size in sizes)} |")
    return "\n".join(lines) + "\n"


def _listed(violations: list[Violation]) -> list[str]:
    kinds = Counter(violation.kind for violation in violations)
    if not kinds:
        return ["None."]
    lines: list[str] = []
    for kind, count in sorted(kinds.items()):
        lines += ["", f"### {kind}: {count}", ""]
        examples = [v.text for v in violations if v.kind == kind][:_EXAMPLES]
        lines += [f"    {line}" for text in examples for line in text.splitlines()]
    return lines


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The same for programs."""
    medians = recovery_medians(outcome.recoveries)
    return {
        "seed": outcome.seed,
        "seconds": round(outcome.seconds, 1),
        "violations": [[v.kind, v.text] for v in outcome.violations],
        "stock_violations": [[v.kind, v.text] for v in outcome.stock_violations],
        "counts": dict(outcome.counts),
        "store_faults": dict(outcome.store_faults),
        "recovery_medians_s": medians,
        "recoveries": [
            [r.step, r.what, round(r.ours_s, 2), round(r.stock_s, 2), round(r.copied_s, 2)]
            for r in outcome.recoveries
        ],
        "rss_bytes": {name: list(sizes) for name, sizes in outcome.rss.items()},
    }


def write_report(outcome: Outcome, folder: Path, command: str) -> str:
    """Write both into a folder; the text of the one for people."""
    text = markdown(outcome, command)
    (folder / "report.md").write_text(text)
    (folder / "report.json").write_text(json.dumps(as_json(outcome), indent=1))
    return text
