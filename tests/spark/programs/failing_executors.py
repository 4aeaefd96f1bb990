"""Executors in JVMs of their own that fail: a worker and a whole executor are killed.

Prints a line for each case: its name, and how the rows differ from those of Spark's own shuffle.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from blobmsg_spark import Shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ROWS, _TASKS = 20_000, 4


def _context() -> TaskContext:
    found = TaskContext.get()
    assert found is not None
    return found


def _dies_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In one map task's first attempt the Python worker is killed after some rows."""
    for batch in batches:
        yield batch
        if _context().partitionId() == 1 and _context().attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _kills_an_executor(marker: str) -> Task:
    """The first reduce task kills the executor that it does not run in, with its map outputs."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            mine = _ancestors(os.getpid())
            others = _executors_of(os.environ["TEST_FOLDER"]) - mine
            os.kill(others.pop(), signal.SIGKILL)
        yield from batches

    return task


def _executors_of(folder: str) -> set[int]:
    """The processes of the JVMs of this test."""
    found = subprocess.run(
        ["pgrep", "-f", "--", f"-Dtest.folder={folder} .*CoarseGrainedExecutorBackend"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {int(pid) for pid in found.stdout.split()}


def _ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 1:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def _rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, _ROWS, 1, _TASKS).select(
        "id", (F.col("id") % 37).alias("key"), F.repeat(F.lit("x"), 100).alias("text")
    )


def _difference(ours: DataFrame, native: DataFrame) -> int:
    """How many rows are in one of them more often than in the other, partition by partition."""
    both = [
        df.groupBy(F.spark_partition_id().alias("partition"), "id", "key", "text").count()
        for df in (ours, native)
    ]
    one, other = (set(map(tuple, df.collect())) for df in both)
    return len(one ^ other)


def main() -> None:
    """Run the cases."""
    store, folder = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", folder)
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.executorEnv.TEST_FOLDER", folder)
        .config("spark.executor.extraJavaOptions", f"-Dtest.folder={folder}")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rows = _rows(spark)
    native = rows.repartition(5, "key")
    with Shuffle(spark, store, batch_bytes=200_000) as shuffle:
        dying = rows.mapInArrow(_dies_at_first, rows.schema)
        say("worker killed", _difference(shuffle.repartition(dying, 5, "key"), native))
        executors = _executors_of(folder)
        ours = shuffle.repartition(rows, 5, "key")
        killing = ours.mapInArrow(_kills_an_executor(f"{folder}/killed"), rows.schema)
        say("executor killed", _difference(killing, native))
        say("executors that ended", 2 - len(_executors_of(folder) & executors))
    say("objects left", sum(path.is_file() for path in Path(store[len("file://") :]).rglob("*")))
    spark.stop()


def say(case: str, result: int) -> None:
    """Print a case's result."""
    print(f"{case}: {result}", flush=True)


if __name__ == "__main__":
    main()
