"""A task that is slow is run a second time on another host, and Spark takes what ends first.

Spark speculates only across hosts: two workers of a standalone cluster, each with an address.
Prints whether the rows differ from those of Spark's own shuffle, and what the attempts did.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from blobmsg_spark import Shuffle
from tests.helpers.fault_proxy import free_port
from tests.helpers.spark_rows import rows_by_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ROWS, _TASKS, _SLOW = 20_000, 4, 1
_MOST_S = 90


def _slow_at_first(marker: str) -> Task:
    """One task's first attempt gives its rows, and ends when the second one has given them, too.

    So both have written, and either may be the first.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == _SLOW:
            if context.attemptNumber() > 0:
                Path(marker).touch()
            else:
                deadline = time.monotonic() + _MOST_S
                while not Path(marker).exists() and time.monotonic() < deadline:
                    time.sleep(0.05)

    return task


def _start(stack: ExitStack, folder: str, name: str, *arguments: str) -> None:
    """A process of the cluster, until the program ends."""
    command = [
        f"{Path(pyspark.__file__).parent}/bin/spark-class",
        f"org.apache.spark.deploy.{name}",
        *arguments,
    ]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": folder, "SPARK_DAEMON_MEMORY": "256m"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def main() -> None:
    """Run it."""
    store, folder = sys.argv[1:]
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        _start(
            stack, folder, "master.Master",
            "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0",
        )  # fmt: skip
        for number in (2, 3):
            _start(
                stack, folder, "worker.Worker", "--host", f"127.0.0.{number}", "--webui-port", "0",
                "--cores", "2", "--memory", "1g", "--work-dir", f"{folder}/work", master,
            )  # fmt: skip
        spark = (
            SparkSession.builder.master(master)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
            .config("spark.speculation", "true")
            .config("spark.speculation.quantile", "0.5")
            .config("spark.speculation.minTaskRuntime", "100ms")
            .config("spark.sql.shuffle.partitions", "3")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        rows = spark.range(0, _ROWS, 1, _TASKS).select(
            "id", (F.col("id") % 37).alias("key"), F.repeat(F.lit("x"), 100).alias("text")
        )
        marker = f"{folder}/second"
        with Shuffle(spark, store, batch_bytes=200_000) as shuffle:
            ours = shuffle.repartition(
                rows.mapInArrow(_slow_at_first(marker), rows.schema), 5, "key"
            )
            differ = rows_by_partition(ours) != rows_by_partition(rows.repartition(5, "key"))
        left = sum(path.is_file() for path in Path(store[len("file://") :]).rglob("*"))
        print(f"rows differ: {differ}")
        print(f"second attempt: {Path(marker).exists()}")
        print(f"objects left: {left}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
