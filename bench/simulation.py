"""What a schedule of the simulation costs: CPU per seed, with faults and without.

    python -m bench.simulation [--seeds 200] [--records 1000]

A schedule of 1,000 records is one of 100 made ten times as dense: the same steps, more records in
each (`blobmsg.sim.plan.dense`). Prints ms of CPU, the collection of garbage included.
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


def cpu_ms(plan: Plan) -> float:
    """What one run takes.

    Raises:
        RuntimeError: A rule was broken.
    """
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
    arguments = parser.parse_args()
    times = max(1, arguments.records // _THIN)
    plans = [
        # Without transformers, which make of a thousand records two thousand.
        replace(dense(draw_plan(seed, arguments.records // times), times), transformers=0)
        for seed in range(arguments.seeds)
    ]
    for what, some in (
        ("with faults", plans),
        ("without", [replace(plan, faults=()) for plan in plans]),
    ):
        cpu = sorted(cpu_ms(plan) for plan in some)
        quarters = statistics.quantiles(cpu, n=4)
        print(
            f"{what:12} least {cpu[0]:.0f}, quarters {quarters[0]:.0f} {quarters[1]:.0f} "
            f"{quarters[2]:.0f}, most {cpu[-1]:.0f}, mean {statistics.mean(cpu):.0f} ms"
        )


if __name__ == "__main__":
    main()
