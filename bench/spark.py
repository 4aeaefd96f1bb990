"""Spark's shuffle: native, spark-s3-shuffle and ours, on the same rows, in one run.

    python -m bench.spark                 # or: make bench-spark; about 20 minutes
    python -m bench.spark --quick         # a few minutes, rougher
    python -m bench.spark --resume        # goes on where a run with these options was stopped

Each side has a session in a process of its own, which stays warm; rounds alternate the sides. What
every side gives is compared row by row with native's, outside of the timed part. spark-s3-shuffle
is built from its source (`--s3-shuffle-source`); where it can't be had the rest is measured, and
the result says so. Exit code 1 if a requirement is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
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
from bench._plan import MEBIBYTE  # noqa: E402
from bench._report import machine  # noqa: E402
from bench._rounds import WrongRecords  # noqa: E402
from bench._run import exit_code_of, update_results, write_figures  # noqa: E402
from bench._spark_cases import CASES  # noqa: E402
from bench._spark_parts import S3_SHUFFLE_SOURCE, s3_shuffle_jars  # noqa: E402
from bench._spark_plan import difference, judge, page_section, terminal_text  # noqa: E402
from bench._spark_sides import (  # noqa: E402
    MODES,
    NATIVE,
    OURS,
    S3_SHUFFLE,
    RunningSide,
    SideSettings,
    spark_conf,
)
from blobmsg.lab import LabError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench._cluster import Cluster
    from bench._spark_cases import Case

__all__ = ["main"]

_SESSION = "bench._spark_session"
_STATE = _ROOT / "bench" / "out" / "spark-state.json"
_DEFAULT_PREFETCH_BYTES = 64 * MEBIBYTE
_MEMORY_CASES = ("random", "skew")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description="Spark's native shuffle, spark-s3-shuffle and ours, on a real store.",
    )
    names = [case.name for case in CASES]
    parser.add_argument("--mib", type=int, help="payload of the plain case (1024; quick: 128)")
    parser.add_argument("--rounds", type=int, help="measurements of each side (3; quick: 1)")
    parser.add_argument("--quick", action="store_true", help="short and rough, for a first look")
    parser.add_argument("--only", choices=names, action="append", help="only this case")
    parser.add_argument("--mode", choices=list(MODES), action="append", help="only this master")
    parser.add_argument("--no-memory", action="store_true", help="without the reducers' memory")
    parser.add_argument("--compression", help="of ours; by default what it is by default")
    parser.add_argument("--resume", action="store_true", help="keep the cases of a stopped run")
    parser.add_argument(
        "--s3-shuffle-source",
        default=os.environ.get("BLOBMSG_BENCH_S3_SHUFFLE", S3_SHUFFLE_SOURCE),
        help=f"git url or folder; `none` leaves it out ({S3_SHUFFLE_SOURCE})",
    )
    parser.add_argument(
        "--update-results", action="store_true", help="write the section in docs/results.md"
    )
    arguments = parser.parse_args(argv)
    arguments.mib = arguments.mib or (128 if arguments.quick else 1024)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    if min(arguments.mib, arguments.rounds) < 1:
        parser.error("--mib and --rounds must be positive")
    arguments.only = arguments.only or names
    arguments.mode = arguments.mode or list(MODES)
    if arguments.update_results and (arguments.only != names or arguments.mode != list(MODES)):
        parser.error("--update-results needs a whole run: drop --only and --mode")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench.

    Returns:
        0, 1 when a requirement is missed or a row is wrong, 2 when it could not run, 130 after
        Ctrl-C.
    """
    arguments = _arguments(argv)
    words = [
        word
        for word in (sys.argv[1:] if argv is None else argv)
        if word[:8] not in ("--update", "--resume")
    ]
    about = {"command": " ".join(["python -m bench.spark", *words]), **machine("pyspark")}
    return exit_code_of(lambda: _run(arguments, about))


def _run(arguments: argparse.Namespace, about: dict[str, str]) -> int:
    started = time.monotonic()
    skipped: list[str] = []
    jars = _s3_shuffle(arguments.s3_shuffle_source, skipped)
    bench = _Bench(arguments, about["commit"], jars)
    with open_cluster() as cluster:
        for mode in arguments.mode:
            bench.measure(cluster, mode)
        if not arguments.no_memory:
            bench.measure_memory(cluster)
    results: dict[str, Any] = {
        "about": {**about, "took": f"{(time.monotonic() - started) / 60:.1f} min"},
        "arguments": {"mib": arguments.mib, "rounds": arguments.rounds},
        "what": {case.name: case.what for case in CASES},
        "skipped": skipped,
        **bench.state,
    }
    requirements = judge(results["cases"], results["differences"], results["memory"])
    results["requirements"] = [
        {"text": r.text, "measured": r.measured, "limit": r.limit, "verdict": r.verdict}
        for r in requirements
    ]
    print("\n" + terminal_text(results, requirements))
    write_figures("spark", results)
    _STATE.unlink(missing_ok=True)
    if arguments.update_results:
        update_results("spark", page_section(results, requirements))
    return 1 if any(r.verdict == "FAIL" for r in requirements) else 0


def _s3_shuffle(source: str, skipped: list[str]) -> list[Path]:
    """The jars of spark-s3-shuffle; none, and loudly, when they can't be had."""
    if source == "none":
        skipped.append("spark-s3-shuffle was left out by --s3-shuffle-source none")
        return []
    try:
        return s3_shuffle_jars(source, print)
    except LabError as error:
        public = source == S3_SHUFFLE_SOURCE
        name = "its public repository" if public else "the given source"
        skipped.append(f"spark-s3-shuffle could not be built from {name}")
        print(f"\nSKIPPED: {skipped[-1]}: {error}\n", file=sys.stderr)
        return []


class _Bench:
    """The cases of all modes, and what was found so far; kept in a file after each of them.

    Threads: one.
    """

    def __init__(self, arguments: argparse.Namespace, commit: str, jars: Sequence[Path]) -> None:
        self._arguments = arguments
        self._jars = jars
        self._identity = {
            "commit": commit,
            "mib": arguments.mib,
            "rounds": arguments.rounds,
            "compression": arguments.compression,
            "s3_shuffle": bool(jars),
        }
        self.state: dict[str, Any] = {"cases": {}, "differences": {}, "memory": {}}
        if arguments.resume and _STATE.exists():
            kept = json.loads(_STATE.read_text(encoding="utf-8"))
            if kept["identity"] == self._identity:
                self.state = kept["state"]
            else:
                print("nothing to resume: the stopped run had another commit or other options")

    def measure(self, cluster: Cluster, mode: str) -> None:
        """Run what is left of the cases of a mode."""
        done = self.state["cases"].setdefault(mode, {})
        left = [case for case in CASES if case.name in self._arguments.only]
        left = [case for case in left if case.name not in done]
        if not left:
            return
        with self._sides(cluster, mode) as sides, tempfile.TemporaryDirectory() as folder:
            for case in left:
                mib = max(1, int(self._arguments.mib * case.share))
                done[case.name] = self._measure_case(sides, mode, case, mib, Path(folder))
                self._keep()

    def _measure_case(
        self, sides: Mapping[str, RunningSide], mode: str, case: Case, mib: int, folder: Path
    ) -> dict[str, Any]:
        # Also what warms the case up.
        found = {}
        for name, side in sides.items():
            path = folder / f"{name}.npy"
            side.ask("rows", case=case.name, mib=mib, path=str(path))
            found[name] = np.load(path)
        for name, rows in found.items():
            if name != NATIVE:
                wrong = difference(found[NATIVE], rows)
                self.state["differences"][f"{mode}, {case.name}, {name}"] = wrong
                if wrong:
                    raise WrongRecords(f"{name}, {mode}, {case.name}: {wrong} rows differ")
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for number in range(self._arguments.rounds):
            # Every other round goes backwards: nobody always runs behind the same neighbour.
            names = list(sides) if number % 2 == 0 else list(sides)[::-1]
            for name in names:
                os.sync()  # what the run before left for the disk is not this one's to pay
                figures = sides[name].ask("run", case=case.name, mib=mib)
                runs[name].append(figures)
                print(
                    f"{mode:14} {case.name:12} {name:16} {figures['wall_s']:7.1f} s wall "
                    f"{figures['cpu_s']:7.1f} s CPU",
                    flush=True,
                )
        return {"runs": runs, "payload_bytes": mib * MEBIBYTE, "rows": len(found[NATIVE])}

    @contextlib.contextmanager
    def _sides(
        self, cluster: Cluster, mode: str, more: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, RunningSide]]:
        """A running session for each side, or for ours alone with further settings."""
        store = {
            name: value
            for name, value in cluster.conf("blobmsg", "spark").items()
            if name.startswith("blobmsg.")
        }
        bucket_and_prefix = store["blobmsg.store.url"].removeprefix("s3://")
        names = (
            [OURS] if more is not None else [NATIVE, OURS, *([S3_SHUFFLE] if self._jars else [])]
        )
        shuffle = {"store": store, "compression": self._arguments.compression}
        with contextlib.ExitStack() as exits:
            running: dict[str, RunningSide] = {}
            for name in names:
                folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
                settings = SideSettings(
                    name,
                    spark_conf(
                        name,
                        mode,
                        folder,
                        store=store,
                        root=f"{bucket_and_prefix}/s3-shuffle",
                        jars=self._jars,
                        more=more,
                    ),
                    shuffle if name == OURS else None,
                )
                running[name] = exits.enter_context(
                    RunningSide(
                        _SESSION,
                        name,
                        folder / "stderr.log",
                        conf=settings.conf,
                        shuffle=settings.shuffle,
                        store={
                            "endpoint_url": store["blobmsg.s3.endpoint.url"],
                            "access_key_id": store["blobmsg.s3.access.key.id"],
                            "secret_access_key": store["blobmsg.s3.secret.access.key"],
                        },
                        servers={"store": cluster.servers.get("store", [])},
                    )
                )
            yield running
        cluster.delete_objects("spark")

    def measure_memory(self, cluster: Cluster) -> None:
        """What a worker takes that only reduces, with even and with skewed rows."""
        if self.state["memory"]:
            return
        # A worker for each task: what tasks before have left is in none.
        more = {"spark.python.worker.reuse": "false"}
        with self._sides(cluster, "local[2]", more) as sides:
            ours = sides[OURS]
            for name in _MEMORY_CASES:
                case = next(case for case in CASES if case.name == name)
                base = ours.ask("memory", case=name, mib=1)
                most = ours.ask("memory", case=name, mib=int(self._arguments.mib * case.share))
                self.state["memory"][name] = {
                    "base_bytes": base["most_bytes"],
                    "most_bytes": most["most_bytes"],
                    "prefetch_bytes": _DEFAULT_PREFETCH_BYTES,
                }
                print(f"memory of a reduce task, {name}: {self.state['memory'][name]}", flush=True)
        self._keep()

    def _keep(self) -> None:
        _STATE.parent.mkdir(exist_ok=True)
        kept = {"identity": self._identity, "state": self.state}
        _STATE.write_text(json.dumps(kept), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
