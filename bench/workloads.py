"""Records of other sizes, more partitions, compression: blobmsg beside the stock client.

    python -m bench.workloads            # or: make bench-workloads
    python -m bench.workloads --only 100

As `bench.throughput` measures, without its sweeps: stock with batches of 1 MiB, the best of that
bench's sweeps, and of 4 MiB, which compress better, with room for small records; ours at its
defaults and with batches of 64 MiB, all by `produce_batch`. The faster of each two counts.
Consuming is `consume(1000)`. Every record is read back, hashed and compared.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

_ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by its path
    sys.path[0] = str(_ROOT)

from bench._cluster import open_cluster  # noqa: E402
from bench._plan import (  # noqa: E402
    CONSUMERS,
    DURABLE,
    MEBIBYTE,
    ProduceVariant,
    stock_settings,
)
from bench._records import Workload  # noqa: E402
from bench._report import fact_list, machine, markdown_table, table  # noqa: E402
from bench._rounds import Rounds  # noqa: E402
from bench._run import exit_code_of, update_results, write_figures  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench._cluster import Cluster

__all__ = ["CASES", "Case", "main"]

# A queue of 100,000 records of 100 bytes would be 10 MB, and a batch of 10,000 one.
_MANY_RECORDS = {"queue.buffering.max.messages": 2_000_000}
_BY_BATCH = [consumer for consumer in CONSUMERS if consumer.call == "consume"]
_HEADERS = (
    *("workload", "stock, 1 MiB batches, MiB/s", "stock, 4 MiB", "blobmsg", "blobmsg, 64 MiB"),
    "MiB/s, ours / stock",
    *("producer CPU, stock / ours", "brokers' CPU, stock / ours", "tx_bytes / payload"),
    "consumer CPU, ours / stock",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of records.

    Attributes:
        name: In tables.
        workload: The records.
        codec: `compression.type` of both clients.
    """

    name: str
    workload: Workload
    codec: str = "none"

    def producers(self) -> tuple[ProduceVariant, ...]:
        """Stock with small and with larger batches, our defaults, and ours with larger batches."""
        common = {**DURABLE, **_MANY_RECORDS, "compression.type": self.codec}
        many = {"batch.num.messages": 1_000_000}
        small = {**stock_settings(50, MEBIBYTE), **many}
        stock = {**stock_settings(500, 4 * MEBIBYTE), **many}
        large = {"blobmsg.batch.size.bytes": 64 * MEBIBYTE}
        return (
            ProduceVariant("stock", "stock", "produce_batch", settings={**small, **common}),
            ProduceVariant("stock, 4 MiB", "stock", "produce_batch", settings={**stock, **common}),
            ProduceVariant("blobmsg", "blobmsg", "produce_batch", settings=common),
            ProduceVariant("64 MiB", "blobmsg", "produce_batch", settings={**common, **large}),
        )


CASES = (
    Case("100 B", Workload(100)),
    Case("1 KiB", Workload()),
    Case("10 KiB", Workload(10 << 10)),
    Case("1 MiB", Workload(MEBIBYTE)),
    Case("1 KiB, 120 partitions", Workload(partitions=120)),
    Case("1 KiB of JSON", Workload(is_text=True)),
    Case("1 KiB of JSON, lz4", Workload(is_text=True), "lz4"),
    Case("1 KiB of JSON, zstd", Workload(is_text=True), "zstd"),
)


def _measure(cluster: Cluster, case: Case, mebibytes: int, number_of_rounds: int) -> Rounds:
    rounds = Rounds(
        cluster,
        records=case.workload.records_of(mebibytes),
        workload=case.workload,
        rounds=number_of_rounds,
        report=lambda line: print(f"{case.name:22} {line}", flush=True),
    )
    producers = case.producers()
    stock, _, ours, _ = producers
    rounds.warm_up(stock)
    rounds.produce(producers)
    rounds.consume(stock, ours, _BY_BATCH)
    return rounds


def _row(case: Case, rounds: Rounds) -> list[str]:
    medians = rounds.medians
    produce, consume = medians["produce"], medians["consume"]
    names = ("stock", "stock, 4 MiB", "blobmsg", "64 MiB")
    figures = [produce[name] for name in names]
    stock, best = (
        max(some, key=lambda found: found["mib_per_s"]) for some in (figures[:2], figures[2:])
    )

    def saved(figure: str) -> str:
        return f"{stock[figure] / best[figure]:.1f}" if best.get(figure) else "-"

    read = {name.split(",")[0]: found for name, found in consume.items()}
    return [
        case.name,
        *(f"{found['mib_per_s']:.0f}" for found in figures),
        f"{best['mib_per_s'] / stock['mib_per_s']:.1f}",
        saved("cpu_us_per_record"),
        saved("brokers_cpu_s_per_gib"),
        f"1/{1 / best['tx_share']:.0f}",
        f"{read['blobmsg']['cpu_us_per_record'] / read['stock']['cpu_us_per_record']:.2f}",
    ]


def _section(about: dict[str, str], mebibytes: int, rounds: int, rows: list[list[str]]) -> str:
    return (
        "## Other records, more partitions, compression\n\n"
        f"{mebibytes} MiB per piece, medians of {rounds} alternating rounds. The ratios are of "
        f"the faster of each two.\n\n{fact_list(about)}\n\n{markdown_table(_HEADERS, rows)}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print the table.

    Returns:
        0, 1 when a record is wrong, 2 when it could not run, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench.workloads",
        description="Record sizes, partitions and codecs: blobmsg beside the stock client.",
    )
    parser.add_argument("--mib", type=int, default=256, help="payload of each piece (256)")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each variant (2)")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose name has this in it")
    parser.add_argument("--update-results", action="store_true", help="write docs/results.md")
    arguments = parser.parse_args(argv)
    cases = [case for case in CASES if (arguments.only or "") in case.name]
    if not cases or min(arguments.mib, arguments.rounds) < 1:
        parser.error(f"--mib and --rounds are positive, --only is of {[c.name for c in CASES]}")
    if arguments.update_results and arguments.only:
        parser.error("--update-results needs a whole run: drop --only")
    about = {
        "command": f"python -m bench.workloads --mib {arguments.mib} --rounds {arguments.rounds}",
        **machine(),
    }

    def measure() -> int:
        rows: list[list[str]] = []
        results: dict[str, Any] = {"about": about}
        with open_cluster() as cluster:
            for case in cases:
                rounds = _measure(cluster, case, arguments.mib, arguments.rounds)
                results[case.name] = rounds.runs
                rows.append(_row(case, rounds))
                print(table(_HEADERS, rows), flush=True)
        write_figures("workloads", results)
        if arguments.update_results:
            section = _section(about, arguments.mib, arguments.rounds, rows)
            update_results("workloads", section)
        return 0

    return exit_code_of(measure)


if __name__ == "__main__":
    sys.exit(main())
