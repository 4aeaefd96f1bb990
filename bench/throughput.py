"""Producing and consuming: blobmsg beside the stock client, same records, same cluster, one run.

    python -m bench.throughput            # or: make bench
    python -m bench.throughput --quick    # a few minutes, rougher

Three brokers and MinIO come from `blobmsg.lab`. Every measured piece is a process of its own, so
that CPU is the client's alone. First sweeps find the best settings of both; then rounds alternate
all variants; the table shows medians. Every record of both sides is read and hashed, outside of
the timed part. At the end each requirement is decided on; exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

_ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by its path
    sys.path[0] = str(_ROOT)

from bench._cluster import open_cluster  # noqa: E402
from bench._plan import (  # noqa: E402
    BATCH_BYTES,
    LINKS_GBIT,
    ProduceVariant,
    blobmsg_sweep_variants,
    judge,
    produce_variants,
    sweep_variants,
)
from bench._records import Workload  # noqa: E402
from bench._report import machine  # noqa: E402
from bench._rounds import Rounds  # noqa: E402
from bench._run import exit_code_of, update_results, write_figures  # noqa: E402
from bench._store_link import why_not_limited  # noqa: E402
from bench._summary import page_section, terminal_text  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench._cluster import Cluster

__all__ = ["main"]

_PARTS = ("sweep", "ceiling", "produce", "links", "consume")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput",
        description="Throughput and CPU of blobmsg beside the stock client, on real servers.",
    )
    parser.add_argument("--mib", type=int, help="payload of each piece (1024; quick: 64)")
    parser.add_argument("--sweep-mib", type=int, help="payload of a cell (128; quick: 32)")
    parser.add_argument("--rounds", type=int, help="measurements of each variant (3; quick: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the records")
    parser.add_argument("--quick", action="store_true", help="short and rough, for a first look")
    parser.add_argument(
        "--only",
        choices=_PARTS,
        action="append",
        help="only this part (may be repeated); without sweep, the best are those that are named",
    )
    for side, cells, cell in (
        ("stock", sweep_variants(), "linger.ms=500 batch.size=4096K produce_batch"),
        ("our", blobmsg_sweep_variants(), "batch.size=64M produce_batch"),
    ):
        parser.add_argument(
            f"--{side}-best",
            choices=[variant.name for variant in cells],
            default=cell,
            metavar="CELL",
            help=f"a cell of the sweep, as its table names it ({cell})",
        )
    parser.add_argument(
        "--update-results", action="store_true", help="write the section in docs/results.md"
    )
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    arguments.mib = arguments.mib or (64 if quick else 1024)
    arguments.sweep_mib = arguments.sweep_mib or (32 if quick else 128)
    arguments.rounds = arguments.rounds or (1 if quick else 3)
    if min(arguments.mib, arguments.sweep_mib, arguments.rounds) < 1:
        parser.error("--mib, --sweep-mib and --rounds must be positive")
    if arguments.update_results and arguments.only:
        parser.error("--update-results needs a whole run: drop --only")
    return arguments


def _named(name: str, variants: Sequence[ProduceVariant]) -> ProduceVariant:
    return next(variant for variant in variants if variant.name == name)


def _measure(cluster: Cluster, arguments: argparse.Namespace) -> dict[str, Any]:
    parts = arguments.only or _PARTS
    obstacle = why_not_limited() if "links" in parts else None
    if obstacle is not None:
        print(f"what gets to the store stays unlimited: {obstacle}", flush=True)
    has_links = "links" in parts and obstacle is None
    workload = Workload(seed=arguments.seed)
    rounds = Rounds(
        cluster,
        records=workload.records_of(arguments.mib),
        workload=workload,
        rounds=arguments.rounds,
        report=lambda line: print(line, flush=True),
    )
    variants = sweep_variants()
    our_variants = blobmsg_sweep_variants()
    best = _named(arguments.stock_best, variants)
    our_best = _named(arguments.our_best, our_variants)
    rounds.warm_up(best)
    if "sweep" in parts:
        best = rounds.sweep(variants, workload.records_of(arguments.sweep_mib))
        our_best = rounds.sweep_blobmsg(our_variants)
    ceilings = [("store", BATCH_BYTES), ("boto3", BATCH_BYTES), ("store", our_best.object_bytes)]
    measured = produce_variants(best, our_best)
    rounds.produce(
        measured if "produce" in parts else (),
        list(dict.fromkeys(ceilings)) if "ceiling" in parts else (),
    )
    if has_links:
        ours = [v for v in measured if v.client == "blobmsg" and not v.with_callback]
        rounds.produce_through_links(ours, LINKS_GBIT)
    if "consume" in parts:
        rounds.consume(best)
    return {
        "stock_best": best.name,
        "our_best": our_best.name,
        "records_verified": rounds.records_verified,
        "runs": rounds.runs,
        "medians": rounds.medians,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench.

    Returns:
        0, 1 when a requirement is missed or a record is wrong, 2 when it could not run, 130 after
        Ctrl-C.
    """
    arguments = _arguments(argv)
    words = [word for word in (sys.argv[1:] if argv is None else argv) if word[:8] != "--update"]
    about = {"command": " ".join(["python -m bench.throughput", *words]), **machine()}
    return exit_code_of(lambda: _run(arguments, about))


def _run(arguments: argparse.Namespace, about: dict[str, str]) -> int:
    started = time.monotonic()
    with open_cluster() as cluster:
        results = _measure(cluster, arguments)
    results["about"] = {**about, "took": f"{(time.monotonic() - started) / 60:.1f} min"}
    results["arguments"] = {
        "mib": arguments.mib,
        "sweep_mib": arguments.sweep_mib,
        "rounds": arguments.rounds,
        "seed": arguments.seed,
    }
    requirements = judge(results["medians"])
    results["requirements"] = [
        {"text": r.text, "measured": r.measured, "limit": r.limit, "verdict": r.verdict}
        for r in requirements
    ]
    print("\n" + terminal_text(results, requirements))
    write_figures("throughput", results)
    if arguments.update_results:
        update_results("throughput", page_section(results, requirements))
    return 1 if any(r.verdict == "FAIL" for r in requirements) else 0


if __name__ == "__main__":
    sys.exit(main())
