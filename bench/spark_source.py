"""`spark.read.format("blobmsg")` beside spark-sql-kafka, on the same records, in one run.

    python -m bench.spark_source           # about 10 minutes
    python -m bench.spark_source --quick   # a first look

The same records lie in a topic of plain Kafka and in one of ours, verified. Each source has a
session in a process of its own, which stays warm; rounds alternate them. spark-sql-kafka is that of
Spark 4.2: none is published for 4.3. Exit code 1 if a requirement is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

_ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by its path
    sys.path[0] = str(_ROOT)

import numpy as np  # noqa: E402

from bench._cluster import open_cluster  # noqa: E402
from bench._plan import (  # noqa: E402
    MEBIBYTE,
    OURS,
    ProduceVariant,
    Requirement,
    median,
    stock_settings,
)
from bench._records import Workload  # noqa: E402
from bench._report import fact_list, machine, markdown_table, table  # noqa: E402
from bench._rounds import Rounds, WrongRecords  # noqa: E402
from bench._run import exit_code_of, update_results, write_figures  # noqa: E402
from bench._spark_parts import kafka_source_jars  # noqa: E402
from bench._spark_plan import difference  # noqa: E402
from bench._spark_sides import RunningSide, spark_conf  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench._cluster import Cluster
    from bench._plan import Figures

__all__ = ["judge", "main"]

_SESSION = "bench._spark_source_session"
_KAFKA, _BLOBMSG = "kafka", "blobmsg"
_ACTIONS = {"count": "as far as the source brings them", "rows": "on, as rows of Spark"}
_STOCK = ProduceVariant("stock", "stock", "produce_batch", settings=stock_settings(500, 4 << 20))
_HEADERS = (
    *("source, records", "MiB/s", "min..max", "MiB/CPU-s", "client CPU s"),
    *("brokers' CPU s", "store's CPU s"),
)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_source",
        description="The source beside spark-sql-kafka, on real servers.",
    )
    parser.add_argument("--mib", type=int, help="payload (1024; quick: 64)")
    parser.add_argument("--rounds", type=int, help="measurements of each source (5; quick: 2)")
    parser.add_argument("--value-bytes", type=int, default=1024, help="of a record (1024)")
    parser.add_argument("--quick", action="store_true", help="short and rough, for a first look")
    parser.add_argument(
        "--update-results", action="store_true", help="write the section in docs/results.md"
    )
    arguments = parser.parse_args(argv)
    arguments.mib = arguments.mib or (64 if arguments.quick else 1024)
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 5)
    if min(arguments.mib, arguments.rounds, arguments.value_bytes) < 1:
        parser.error("--mib, --rounds and --value-bytes must be positive")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench.

    Returns:
        0, 1 when a requirement is missed or a record is wrong, 2 when it could not run, 130 after
        Ctrl-C.
    """
    arguments = _arguments(argv)
    words = [word for word in (sys.argv[1:] if argv is None else argv) if word[:8] != "--update"]
    about = {"command": " ".join(["python -m bench.spark_source", *words]), **machine("pyspark")}
    return exit_code_of(lambda: _run(arguments, about))


def _run(arguments: argparse.Namespace, about: dict[str, str]) -> int:
    started = time.monotonic()
    jars = kafka_source_jars(print)
    with open_cluster() as cluster:
        runs, records = _measure(cluster, arguments, jars)
    results: dict[str, Any] = {
        "about": {**about, "took": f"{(time.monotonic() - started) / 60:.1f} min"},
        "arguments": {"mib": arguments.mib, "rounds": arguments.rounds},
        "value_bytes": arguments.value_bytes,
        "records": records,
        "runs": runs,
    }
    requirements = judge(runs)
    rows = _rows(runs)
    print("\n" + table(_HEADERS, rows))
    print("\n" + "\n".join(requirement.line() for requirement in requirements))
    write_figures("spark-source", results)
    if arguments.update_results:
        update_results("spark_source", _page_section(results, requirements, rows))
    return 1 if any(r.verdict == "FAIL" for r in requirements) else 0


def _measure(
    cluster: Cluster, arguments: argparse.Namespace, jars: Sequence[Path]
) -> tuple[dict[str, list[Figures]], int]:
    workload = Workload(arguments.value_bytes)
    records = workload.records_of(arguments.mib)
    rounds = Rounds(cluster, records=records, workload=workload, rounds=1, report=print)
    topics = {_KAFKA: rounds.fill(_STOCK, records), _BLOBMSG: rounds.fill(OURS, records)}
    runs: dict[str, list[Figures]] = {}
    payload_mib = records * workload.value_bytes / MEBIBYTE
    with _sides(cluster, jars) as sides, tempfile.TemporaryDirectory() as folder:
        _compare(sides, topics, records, Path(folder))
        order = [(name, action) for action in _ACTIONS for name in sides]
        for number in range(arguments.rounds + 1):  # the first one only warms up
            for name, action in order if number % 2 == 0 else order[::-1]:
                figures = sides[name].ask("run", topic=topics[name], action=action)
                figures["mib_per_s"] = payload_mib / figures["wall_s"]
                figures["mib_per_cpu_s"] = payload_mib / figures["cpu_s"]
                if number:
                    runs.setdefault(f"{name}, {action}", []).append(figures)
                print(
                    f"{name:8} {action:6} {figures['mib_per_s']:8.1f} MiB/s "
                    f"{figures['mib_per_cpu_s']:8.1f} MiB/CPU-s",
                    flush=True,
                )
    return runs, records


def _compare(
    sides: Mapping[str, RunningSide], topics: Mapping[str, str], records: int, folder: Path
) -> None:
    found = {}
    for name, side in sides.items():
        path = folder / f"{name}.npy"
        side.ask("rows", topic=topics[name], path=str(path))
        found[name] = np.load(path)
    wrong = difference(found[_KAFKA], found[_BLOBMSG])
    if wrong or len(found[_KAFKA]) != records:
        raise WrongRecords(f"{wrong} records differ, and {len(found[_KAFKA])} of {records} came")


@contextlib.contextmanager
def _sides(cluster: Cluster, jars: Sequence[Path]) -> Iterator[dict[str, RunningSide]]:
    conf = cluster.conf("blobmsg")
    brokers = {"kafka.bootstrap.servers": conf["bootstrap.servers"]}
    stores = {name: str(value) for name, value in conf.items() if name.startswith("blobmsg.")}
    options = {_KAFKA: {**brokers, "startingOffsets": "earliest"}}
    options[_BLOBMSG] = {**options[_KAFKA], **stores}
    with contextlib.ExitStack() as exits:
        running: dict[str, RunningSide] = {}
        for name, given in options.items():
            folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
            more = {"spark.driver.extraClassPath": ":".join(map(str, jars))}
            running[name] = exits.enter_context(
                RunningSide(
                    _SESSION,
                    name,
                    folder / "stderr.log",
                    conf=spark_conf(
                        name, "local[2]", folder, store={}, more=more if name == _KAFKA else None
                    ),
                    source=name,
                    options=given,
                    servers=cluster.servers,
                )
            )
        yield running


def judge(runs: Mapping[str, Sequence[Figures]]) -> list[Requirement]:
    """Decide on what must be reached.

    Args:
        runs: By source and action.
    """

    def times(action: str, figure: str) -> float | None:
        ours, its = runs.get(f"{_BLOBMSG}, {action}"), runs.get(f"{_KAFKA}, {action}")
        if not ours or not its:
            return None
        pairs = zip(ours, its, strict=True)
        return float(np.median([one[figure] / other[figure] for one, other in pairs]))

    def rate(action: str) -> float | None:
        ours = runs.get(f"{_BLOBMSG}, {action}")
        return median(ours, "mib_per_cpu_s") if ours else None

    found = [
        Requirement("MiB per CPU-second, to Arrow in Spark", 150, rate("count"), True, "{:.0f}"),
        Requirement("MiB per CPU-second, to rows of Spark", None, rate("rows"), True, "{:.0f}"),
    ]
    for action in _ACTIONS:
        for figure, what in (("mib_per_cpu_s", "MiB per CPU-second"), ("mib_per_s", "MiB/s")):
            text = f"{what}, times spark-sql-kafka's ({action})"
            found.append(Requirement(text, 1.5, times(action, figure), True))
    return found


def _rows(runs: Mapping[str, Sequence[Figures]]) -> list[list[str]]:
    return [
        [
            name,
            f"{median(found, 'mib_per_s'):.1f}",
            f"{min(f['mib_per_s'] for f in found):.0f}..{max(f['mib_per_s'] for f in found):.0f}",
            f"{median(found, 'mib_per_cpu_s'):.1f}",
            f"{median(found, 'cpu_s'):.1f}",
            *(
                f"{median(found, figure):.1f}" if figure in found[0] else "-"
                for figure in ("brokers_cpu_s", "store_cpu_s")
            ),
        ]
        for name, found in runs.items()
    ]


def _page_section(
    results: Mapping[str, Any], requirements: Sequence[Requirement], rows: list[list[str]]
) -> str:
    arguments = results["arguments"]
    actions = "; ".join(f"*{name}*: {text}" for name, text in _ACTIONS.items())
    conditions = (
        f"{results['records']:,} records of {results['value_bytes']} random bytes in 12 "
        f"partitions ({arguments['mib']} MiB), local[2], medians of {arguments['rounds']} warm "
        "rounds that alternate the sources; ratios round by round. Client CPU is that of driver, "
        f"JVM and Python workers. {actions}. spark-sql-kafka is 4.2's. Both gave the same records, "
        "compared by hashes of partition, key and value. Brokers and store share the machine's "
        "cores."
    )
    verdicts = markdown_table(
        ["must reach", "measured", "limit", "verdict"],
        [[r.text, r.reached, r.border, r.verdict] for r in requirements],
    )
    about = fact_list(results["about"])
    return "\n\n".join(
        ["## Spark's source", conditions, about, verdicts, markdown_table(_HEADERS, rows)]
    )


if __name__ == "__main__":
    sys.exit(main())
