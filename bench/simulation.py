"""What a schedule of the simulation costs: CPU per seed, with faults and without.

    python -m bench.simulation [--seeds 200] [--records 1000] [--times 3]

A schedule of 1,000 records is one of 100 made ten times as dense: the same steps, more records in
each (`blobmsg.sim.plan.dense`). Prints ms of CPU, the collection of garbage included: of each
schedule the least of some runs, for what other guests of the machine add is not the schedule's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

from blobmsg.sim.plan import Plan, dense, draw_plan
from blobmsg.sim.simulation import run_plan

_ABOUT = "CPU that a schedule of the simulation takes, with faults and without."
_THIN = 100


def cpu_ms(plan: Plan, times: int) -> float:
    """What a run takes, the least of so many.

    Raises:
        RuntimeError: A rule was broken.
    """
    return min(_cpu_ms_once(plan) for _ in range(times))


def _cpu_ms_once(plan: Plan) -> float:
    begun_s = time.process_time()
    outcome = run_plan(plan)
    if outcome.violation:
        raise RuntimeError(f"seed {plan.seed}: {outcome.violation}")
    return 1000 * (time.process_time() - begun_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulation", description=_ABOUT)
    parser.add_argument("--seeds", type=int, default=200, help="how many schedules")
    parser.add_argument("--records", type=int, default=1000, help="of each schedule")
    parser.add_argument("--times", type=int, default=3, help="runs of each, the least counts")
    arguments = parser.parse_args()
    density = max(1, arguments.records // _THIN)
    plans = [
        # Without transformers, which make of a thousand records two thousand.
        replace(dense(draw_plan(seed, arguments.records // density), density), transformers=0)
        for seed in range(arguments.seeds)
    ]
    for what, some in (
        ("with faults", plans),
        ("without", [replace(plan, faults=()) for plan in plans]),
    ):
        cpu = sorted(cpu_ms(plan, max(1, arguments.times)) for plan in some)
        quarters = statistics.quantiles(cpu, n=4)
        print(
            f"{what:12} least {cpu[0]:.0f}, quarters {quarters[0]:.0f} {quarters[1]:.0f} "
            f"{quarters[2]:.0f}, most {cpu[-1]:.0f}, mean {statistics.mean(cpu):.0f} ms"
        )


if __name__ == "__main__":
    main()
