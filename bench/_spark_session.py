"""One side of the Spark bench: a session that stays, and runs a case when it is told to.

A process of its own, so that its CPU and that of its JVM, executors and workers is that side's
alone. Commands come as lines of JSON on stdin; answers leave likewise, each behind a mark, because
Spark writes to the same stream.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench._clock import Stopwatch
from bench._process_tree import processes_below, tree_cpu_seconds
from bench._spark_cases import CASES
from bench._spark_sides import answer_commands
from bench._store_requests import StoreRequests
from blobmsg_spark import Shuffle

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

__all__: list[str] = []

_CASES = {case.name: case for case in CASES}
# What spark-s3-shuffle deletes it deletes when the JVM has found nobody to need it.
_CLEAN_S, _QUIET_S = 15.0, 1.5
_HASHES = (("first", 11), ("second", 12))


class _Side:
    """A session and how it repartitions. Threads: the main one."""

    def __init__(
        self,
        *,
        conf: dict[str, str],
        shuffle: dict[str, Any] | None,
        store: dict[str, str],
        servers: dict[str, list[int]],
    ) -> None:
        self._shuffle_settings = shuffle
        self._servers = servers
        self._requests = StoreRequests(**store)
        self._figures: dict[str, Any] = {}
        builder = SparkSession.builder
        for name, text in conf.items():
            builder = builder.config(name, text)
        self._spark = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")
        self._jvm: Any = self._spark._jvm  # noqa: SLF001  (metrics are nowhere else)

    def run(self, *, case: str, mib: int) -> dict[str, Any]:
        """Run a case once, timed."""
        stages = self._last_stage()
        requests = self._requests.read()
        cpu_s = tree_cpu_seconds(os.getpid())
        watch = Stopwatch(self._servers)

        def write(df: DataFrame) -> None:
            df.write.format("noop").mode("overwrite").save()

        usd = self._with_shuffle(case, mib, write, lambda: self._stop(watch, cpu_s))
        figures = {**self._figures, **self._shuffle_bytes(stages), "usage_usd": usd}
        if self._shuffle_settings is None:
            self._clean()
        figures["requests"] = dict(self._requests.read() - requests)
        return figures

    def _stop(self, watch: Stopwatch, cpu_s: float) -> None:
        figures: dict[str, Any] = watch.read()
        figures["cpu_s"] = tree_cpu_seconds(os.getpid()) - cpu_s
        self._figures = figures

    def rows(self, *, case: str, mib: int, path: str) -> dict[str, Any]:
        """Save two hashes of every row, and its partition, sorted: what the others must have."""

        def save(df: DataFrame) -> None:
            by_partition = _CASES[case].is_by_partition
            place = F.spark_partition_id() if by_partition else F.lit(0)
            names = [f"c{number}" for number in range(len(df.columns))]
            unique = df.toDF(*names)
            hashes = [F.xxhash64(F.lit(seed), *names).alias(name) for name, seed in _HASHES]
            table = unique.select(place.cast("long").alias("partition"), *hashes).toArrow()
            columns = [table.column(name).to_numpy() for name in table.column_names]
            np.save(path, np.stack(columns, axis=1))

        self._with_shuffle(case, mib, save, lambda: None)
        return {}

    def memory(self, *, case: str, mib: int) -> dict[str, Any]:
        """The most memory of a worker that only reduces: what a map task takes is not in it."""
        if self._shuffle_settings is None:
            raise AssertionError("only ours has workers that reduce")
        # Workers that ran map tasks are gone by then (`spark.python.worker.reuse` is off here).
        watcher = _WorkerMemory(os.getpid())
        with Shuffle(self._spark, **self._shuffle_settings) as shuffle:

            def place(df: DataFrame, n: int, *columns: str, keep: bool = False) -> DataFrame:
                del keep
                # Runs the map stage now, with adaptive execution: every action on what it gives
                # runs the reduce stage alone. Without it an action would run both.
                return shuffle.repartition(df, n, *columns, keep_partitioning=True)

            placed = _CASES[case].build(self._spark, mib, place)
            with watcher:
                placed.write.format("noop").mode("overwrite").save()
        return {"most_bytes": watcher.most_bytes}

    def stop(self) -> dict[str, Any]:
        """End the session."""
        self._spark.stop()
        return {}

    def _with_shuffle(
        self, case: str, mib: int, action: Callable[[DataFrame], None], done: Callable[[], None]
    ) -> float | None:
        """Do it, tell when it is done, then delete what it has left."""
        build = _CASES[case].build
        if self._shuffle_settings is None:
            action(build(self._spark, mib, _native))
            done()
            return None
        with Shuffle(self._spark, **self._shuffle_settings) as shuffle:

            def place(df: DataFrame, n: int, *columns: str, keep: bool = False) -> DataFrame:
                return shuffle.repartition(df, n, *columns, keep_partitioning=keep)

            action(build(self._spark, mib, place))
            done()
            prices = shuffle._settings.price_table  # noqa: SLF001  (those of its report)
            return sum(usage.total.usd(prices) for usage in shuffle.usage().values())

    def _last_stage(self) -> int:
        return max((stage.stageId() for stage in self._stages()), default=-1)

    def _stages(self) -> list[Any]:
        context = self._spark.sparkContext._jsc.sc()  # noqa: SLF001
        context.listenerBus().waitUntilEmpty()
        empty = self._jvm.java.util.ArrayList()
        quantiles = self._spark.sparkContext._gateway.new_array(self._jvm.double, 0)  # type: ignore[union-attr]  # noqa: SLF001
        found = context.statusStore().stageList(empty, False, False, quantiles, empty)
        return [found.apply(number) for number in range(found.size())]

    def _shuffle_bytes(self, behind: int) -> dict[str, int]:
        stages = [stage for stage in self._stages() if stage.stageId() > behind]
        return {
            "shuffle_bytes": sum(stage.shuffleWriteBytes() for stage in stages),
            "remote_bytes": sum(stage.shuffleRemoteBytesRead() for stage in stages),
        }

    def _clean(self) -> None:
        """Let Spark forget its shuffles, and wait until the store hears no more of it."""
        deadline = time.monotonic() + _CLEAN_S
        before = self._requests.read()
        self._jvm.System.gc()
        quiet_since = time.monotonic()
        while time.monotonic() < min(deadline, quiet_since + _QUIET_S):
            time.sleep(0.2)
            now = self._requests.read()
            if now != before:
                before, quiet_since = now, time.monotonic()


def _native(df: DataFrame, n: int, *columns: str, keep: bool = False) -> DataFrame:
    del keep  # Spark knows it of its own
    return df.repartition(n, *columns)


class _WorkerMemory:
    """Looks at the Python workers of this process' executors while it is entered.

    Workers come and go, so the most that each ever had is read again and again.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most_bytes = 0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            for pid, command in processes_below(self._root).items():
                if "pyspark.daemon" in command:
                    self.most_bytes = max(self.most_bytes, _most_rss_bytes(pid))


def _most_rss_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0  # it has ended
    found = status.partition("VmHWM:")[2].split()
    return int(found[0]) * 1024 if found else 0


if __name__ == "__main__":
    answer_commands(_Side)
