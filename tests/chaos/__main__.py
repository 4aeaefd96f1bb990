"""The command line: `python -m tests.chaos --minutes 10 --seed 1`; see docs/chaos.md."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path

from tests.chaos.conductor import Conductor
from tests.chaos.report import write_report
from tests.chaos.schedule import schedule, short_schedule

_SECONDS_OF_A_MINUTE = 60


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run; 1 if something was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="no step begins later")
    parser.add_argument("--seed", type=int, default=None, help="of the schedule; else by chance")
    parser.add_argument("--rate", type=float, default=600.0, help="records/s of each writer")
    parser.add_argument("--short", action="store_true", help="the schedule of `make test`")
    parser.add_argument("--out", type=Path, default=None, help="folder of journals and report")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end servers and children, too
    seed: int = random.randrange(1 << 31) if options.seed is None else options.seed
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder: Path = options.out or Path("bench/out") / f"chaos-{stamp}-{seed}"
    folder.mkdir(parents=True)
    steps = short_schedule(seed) if options.short else schedule(seed)
    seconds = None if options.short else options.minutes * _SECONDS_OF_A_MINUTE
    conductor = Conductor(seed, steps, folder, seconds=seconds, rate=options.rate, say=_say)
    outcome = conductor.run()
    again = "--short" if options.short else f"--minutes {options.minutes:g}"
    command = f"python -m tests.chaos {again} --seed {seed} --rate {options.rate:g}"
    _say(write_report(outcome, folder, command))
    _say(f"report and journals: {folder}")
    if outcome.violations:
        _say(f"{len(outcome.violations)} violations; the same schedule again: {command}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
