"""Spark Connect: all ways of repartitioning, each compared with Spark's own rows."""

from __future__ import annotations

import sys
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from blobmsg_spark import Shuffle
from tests.helpers.spark_rows import rows_by_partition, rows_of


def _newest(group: pa.Table) -> pa.Table:
    newest = pc.max(group.column("id"))
    return pa.table({"key": group.column("key").slice(0, 1), "id": pa.array([newest.as_py()])})


def main() -> None:
    """Run the cases; the exit code says whether all is well."""
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    rows = spark.range(0, 500, 1, 2).select("id", (F.col("id") % 7).alias("key"))
    with Shuffle(spark, sys.argv[1]) as shuffle:
        hashed = shuffle.repartition(rows, 4, "key")
        assert rows_by_partition(hashed) == rows_by_partition(rows.repartition(4, "key"))
        assert rows_of(shuffle.repartition(rows, 3)) == rows_of(rows)
        ranged = shuffle.repartition_by_range(rows, 3, F.col("id").desc(), "key")
        assert rows_of(ranged) == rows_of(rows)
        bounds = ranged.groupBy(F.spark_partition_id().alias("p")).agg(F.min("id"), F.max("id"))
        found = sorted(tuple(row) for row in bounds.collect())
        assert all(one[1] > other[2] for one, other in pairwise(found)), found
        grouped = shuffle.grouped(rows, 3, "key", func=_newest, schema="key long, id long")
        assert rows_of(grouped) == rows_of(rows.groupBy("key").agg(F.max("id").alias("id")))
        assert "no accumulators" in shuffle.report()
        with pytest.raises(NotImplementedError, match="Spark Connect"):
            shuffle.repartition(rows, 4, "key", keep_partitioning=True)
    spark.stop()
    print("all is well", flush=True)


if __name__ == "__main__":
    main()
