"""A Spark job of two stages with a repartition between them: the customers with most orders.

With `--native` by Spark's own shuffle, else through the store that BLOBMSG_STORE_URL names. What
differs between the two is in `place`.

    BLOBMSG_STORE_URL=file:///tmp/blobmsg-spark python examples/spark_two_stages.py --orders 100000
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from blobmsg_spark import Shuffle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

PARTITIONS = 8


def first_stage(spark: SparkSession, orders: int) -> DataFrame:
    """Orders with what they cost."""
    found = spark.range(orders).withColumnRenamed("id", "order")
    return found.select(
        "order",
        F.format_string("customer-%03d", F.pmod(F.hash("order"), F.lit(200))).alias("customer"),
        (F.pmod(F.xxhash64("order"), F.lit(50_000)) / 100).cast("decimal(10, 2)").alias("amount"),
        F.repeat(F.sha2(F.col("order").cast("string"), 256), 8).alias("details"),
    )


def place(orders: DataFrame, shuffle: Shuffle | None) -> DataFrame:
    """All orders of a customer in one partition."""
    if shuffle is None:
        return orders.repartition(PARTITIONS, "customer")
    return shuffle.repartition(orders, PARTITIONS, "customer")


def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The second stage, in Python: a partition's customers with their orders and what they cost."""
    rows = list(batches)
    if not rows:
        return  # a partition without orders
    orders = pa.Table.from_batches(rows)
    sums = orders.group_by("customer").aggregate([("amount", "count"), ("amount", "sum")])
    yield from (
        pa.table(
            {
                "customer": sums["customer"],
                "orders": sums["amount_count"],
                "total": pc.cast(sums["amount_sum"], pa.decimal128(18, 2)),
            }
        ).to_batches()
    )


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=100_000, help="how many there are")
    parser.add_argument("--native", action="store_true", help="by Spark's own shuffle")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("orders")
        .master(os.environ.get("SPARK_MASTER", "local[2]"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with ExitStack() as stack:
        # The store's settings come from the environment: BLOBMSG_STORE_URL and its kin.
        shuffle = None if options.native else stack.enter_context(Shuffle(spark, {}))
        placed = place(first_stage(spark, options.orders), shuffle)
        customers = placed.select("customer", "amount").mapInArrow(
            summed, "customer string, orders long, total decimal(18, 2)"
        )
        best = customers.orderBy(F.desc("total"), "customer").limit(5).collect()
        for row in best:
            print(f"{row.customer}: {row.orders} orders, {row.total}")
        if shuffle is not None:
            shuffle.report()
    spark.stop()


if __name__ == "__main__":
    main()
