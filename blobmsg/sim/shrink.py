"""Makes a failing plan smaller: fewer faults, fewer records, fewer processes.

Decides by running: what still breaks a rule, any rule, is kept.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from blobmsg.sim.plan import draw_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.sim.plan import Plan

__all__ = ["command_of", "shrink", "with_changes"]

# The smallest value of what is tried smaller.
_SMALLEST: Final = {"records": 1, "producers": 1, "consumers": 1, "groups": 1, "topics": 1,
                    "partitions": 1, "transformers": 0, "density": 1}  # fmt: skip
# Single values that make a plan simpler.
_SIMPLEST: Final = {
    "seek_share": 0.0,
    "pause_share": 0.0,
    "compression": "none",
    "on_missing": "fail",
    "commits": "auto",
    "route": "blob",
}


def shrink(plan: Plan, fails: Callable[[Plan], bool], most_runs: int = 150) -> Plan:
    """The smallest plan that was found to fail.

    Args:
        plan: One that fails.
        fails: Runs a plan.
        most_runs: So many runs at most.
    """
    runs = 0

    def still(smaller: Plan) -> bool:
        nonlocal runs
        runs += 1
        return runs <= most_runs and fails(smaller)

    is_smaller = True
    while is_smaller and runs < most_runs:
        is_smaller = False
        for fault in plan.faults:
            smaller = replace(plan, faults=tuple(f for f in plan.faults if f is not fault))
            if still(smaller):
                plan, is_smaller = smaller, True
        for name, least in _SMALLEST.items():
            value = getattr(plan, name)
            for less in (least, value // 2, value - 1):
                if least <= less < value and still(smaller := _with(plan, name, less)):
                    plan, is_smaller = smaller, True
                    break
        for name, simple in _SIMPLEST.items():
            if getattr(plan, name) != simple and still(smaller := _with(plan, name, simple)):
                plan, is_smaller = smaller, True
    return plan


def _with(plan: Plan, name: str, value: object) -> Plan:
    changes: dict[str, object] = {name: value}
    return replace(plan, **changes)  # type: ignore[arg-type]


def command_of(plan: Plan) -> str:
    """The command that repeats a plan."""
    whole = draw_plan(plan.seed)
    words = [f"python -m blobmsg.sim --seed {plan.seed}"]
    without = [str(n) for n, fault in enumerate(whole.faults) if fault not in plan.faults]
    if without:
        words.append(f"--without {','.join(without)}")
    for field in fields(plan):
        value = getattr(plan, field.name)
        if field.name != "faults" and value != getattr(whole, field.name):
            words.append(f"--set {field.name}={value}")
    return " ".join(words)


def with_changes(plan: Plan, without: list[int], changes: dict[str, str]) -> Plan:
    """A plan with faults left out and values changed, as a command says it.

    Args:
        plan: As its seed has it.
        without: Which faults to leave out.
        changes: Values by the names of `Plan`.

    Raises:
        ValueError: There is no such name, or it takes no such value.
    """
    faults = tuple(fault for n, fault in enumerate(plan.faults) if n not in without)
    plan = replace(plan, faults=faults)
    for name, text in changes.items():
        if name in ("faults", "seed") or name not in {field.name for field in fields(plan)}:
            raise ValueError(f"a plan has no {name!r}")
        before = getattr(plan, name)
        value: object = text
        if isinstance(before, bool):
            value = text == "True"
        elif isinstance(before, (int, float)):
            value = type(before)(text)
        plan = _with(plan, name, value)
    return plan
