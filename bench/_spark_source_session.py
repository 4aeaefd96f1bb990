"""One side of the source bench: a session that stays, and reads a topic when it is told to.

As `_spark_session`, for `spark.read.format(…)`: a process of its own, commands on stdin, answers on
stdout.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench._clock import Stopwatch
from bench._process_tree import tree_cpu_seconds
from bench._spark_sides import answer_commands
from blobmsg_spark import register_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__: list[str] = []


class _Side:
    """A session and the source that it reads with. Threads: the main one."""

    def __init__(
        self, *, conf: dict[str, str], source: str, options: dict[str, str],
        servers: dict[str, list[int]],
    ) -> None:  # fmt: skip
        self._source = source
        self._options = options
        self._servers = servers
        builder = SparkSession.builder
        for name, text in conf.items():
            builder = builder.config(name, text)
        self._spark = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")
        register_source(self._spark)

    def run(self, *, topic: str, action: str) -> dict[str, Any]:
        """Read a topic once, timed.

        Args:
            topic: From its beginning to its end.
            action: `count`: records come as far as the source brings them, for ours as Arrow into
                the JVM; `rows`: all their columns go on as rows of Spark, to its noop sink.
        """
        cpu_s = tree_cpu_seconds(os.getpid())
        watch = Stopwatch(self._servers)
        df = self._load(topic)
        if action == "count":
            df.count()
        else:
            df.write.format("noop").mode("overwrite").save()
        figures: dict[str, Any] = watch.read()
        figures["cpu_s"] = tree_cpu_seconds(os.getpid()) - cpu_s
        return figures

    def rows(self, *, topic: str, path: str) -> dict[str, Any]:
        """Save two hashes of every record and its partition: what the other must have, too."""
        record = ("partition", "key", "value")
        hashes = [F.xxhash64(F.lit(seed), *record).alias(f"h{seed}") for seed in (11, 12)]
        table = self._load(topic).select(F.col("partition").cast("long"), *hashes).toArrow()
        columns = [table.column(name).to_numpy() for name in table.column_names]
        np.save(path, np.stack(columns, axis=1))
        return {"rows": len(columns[0])}

    def stop(self) -> dict[str, Any]:
        """End the session."""
        self._spark.stop()
        return {}

    def _load(self, topic: str) -> DataFrame:
        reader = self._spark.read.format(self._source).options(**self._options)
        return reader.option("subscribe", topic).load()


if __name__ == "__main__":
    answer_commands(_Side)
