"""`python -m blobmsg.sim`: runs seeds, repeats one, shrinks what fails.

Exit codes: 0 all rules hold, 1 one is broken, 2 a mistake in what was asked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import blobmsg
from blobmsg.lab.cache_folder import cache_folder
from blobmsg.sim.plan import draw_plan
from blobmsg.sim.shrink import command_of, shrink, with_changes
from blobmsg.sim.simulation import run_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blobmsg.sim.plan import Plan

# So many seeds between two writes of the state file.
_AT_ONCE: Final = 50
_HELP: Final = """examples:
  python -m blobmsg.sim --seeds 0:1000
  python -m blobmsg.sim --seeds 0:100000 --jobs 2
  python -m blobmsg.sim --seed 42 --trace
  python -m blobmsg.sim --seed 42 --without 0,3 --set records=20
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m blobmsg.sim",
        description="The whole system on virtual time, driven by seeds; see docs/simulation.md.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", help="FIRST:END; resumes where it was interrupted")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--without", default="", help="leave out these faults: 0,3")
    parser.add_argument("--set", action="append", default=[], help="change the plan: NAME=VALUE")
    parser.add_argument("--state", type=Path, help="where progress is kept; default: user's cache")
    parser.add_argument("--anew", action="store_true", help="forget what was run before")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--no-shrink", action="store_true", help="leave failing plans as they are")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    arguments = parser.parse_args(argv)
    try:
        changes = dict(change.split("=", 1) for change in arguments.set)
        without = [int(number) for number in arguments.without.split(",") if number]
        if arguments.seed is not None:
            plan = with_changes(draw_plan(arguments.seed), without, changes)
            return _run_one(plan, shows_trace=arguments.trace)
        first, end = (int(number) for number in (arguments.seeds or "0:1000").split(":"))
    except ValueError as mistake:
        print(f"blobmsg.sim: {mistake}", file=sys.stderr)
        return 2
    state = arguments.state or cache_folder() / "sim" / f"{first}-{end}.json"
    return _run_many(
        range(first, end),
        changes,
        state,
        anew=arguments.anew,
        jobs=arguments.jobs,
        failures=arguments.failures,
        shrinks=not arguments.no_shrink,
    )


def _run_one(plan: Plan, *, shows_trace: bool) -> int:
    outcome = run_plan(plan)
    if shows_trace:
        for line in outcome.trace:
            print(*line)
    print(f"plan: {plan}")
    print(
        f"seed {plan.seed}: {outcome.records} records, {len(outcome.trace)} lines, "
        f"{outcome.virtual_ms} virtual ms, digest {outcome.digest}"
    )
    if outcome.violation:
        print(f"VIOLATION: {outcome.violation}")
        return 1
    print("all rules hold")
    return 0


def _violation_of(seed: int, changes: dict[str, str]) -> tuple[int, int, str]:
    outcome = run_plan(with_changes(draw_plan(seed), [], changes))
    return seed, outcome.records, outcome.violation


def _run_many(
    seeds: range,
    changes: dict[str, str],
    state: Path,
    *,
    anew: bool,
    jobs: int,
    failures: int,
    shrinks: bool,
) -> int:
    sources = _digest_of_sources()
    next_seed, failed = seeds.start, 0
    if not anew:
        next_seed = _resumed(state, sources, changes, seeds)
    if next_seed > seeds.start:
        print(f"goes on at seed {next_seed} ({state})")
    begun_s = time.monotonic()
    count = records = 0
    with ProcessPoolExecutor(jobs) as pool:
        while next_seed < seeds.stop and failed < failures:
            batch = range(next_seed, min(seeds.stop, next_seed + _AT_ONCE * jobs))
            run = partial(_violation_of, changes=changes)
            found: Iterable[tuple[int, int, str]] = (
                map(run, batch) if jobs == 1 else pool.map(run, batch, chunksize=_AT_ONCE)
            )
            for seed, taken, violation in found:
                count += 1
                records += taken
                if violation:
                    failed += 1
                    _tell(seed, violation, changes, shrinks=shrinks)
                    if failed >= failures:
                        break
                next_seed = seed + 1
            _keep(state, sources, changes, next_seed)
    elapsed_s = time.monotonic() - begun_s
    print(
        f"{count} seeds, {records} records, {failed} failed, {elapsed_s:.1f} s, "
        f"{1000 * elapsed_s / max(1, count):.1f} ms each"
    )
    return 1 if failed else 0


def _tell(seed: int, violation: str, changes: dict[str, str], *, shrinks: bool) -> None:
    plan = with_changes(draw_plan(seed), [], changes)
    print(f"seed {seed}: {violation}")
    print(f"  repeat: {command_of(plan)}", flush=True)
    if not shrinks:
        return
    smaller = shrink(plan, lambda tried: bool(run_plan(tried).violation))
    print(f"  smaller: {command_of(smaller)}")
    print(f"  which says: {run_plan(smaller).violation}", flush=True)


def _resumed(state: Path, sources: str, changes: dict[str, str], seeds: range) -> int:
    """The first seed that was not run with this code."""
    try:
        kept = json.loads(state.read_text())
    except (OSError, ValueError):
        return seeds.start
    if kept.get("sources") != sources or kept.get("changes") != changes:
        return seeds.start
    return max(seeds.start, min(int(kept["next"]), seeds.stop))


def _keep(state: Path, sources: str, changes: dict[str, str], next_seed: int) -> None:
    state.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"sources": sources, "changes": changes, "next": next_seed})
    new = state.with_suffix(".new")
    new.write_text(text)
    new.replace(state)


def _digest_of_sources() -> str:
    """Of all code: what was run with other code is run again."""
    found = blake2b(digest_size=8)
    folder = Path(blobmsg.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
