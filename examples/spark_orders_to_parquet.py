r"""Orders of the services, as they come, into Parquet; then who spent most, out of those files.

Reads the topic from where its history ends, writes what is there now and stops; with `--every
"1 minute"` it goes on until it is stopped. Start it as often as you like, or kill it: each order is
in the files once.

    BLOBMSG_STORE_URL=s3://bucket/prefix python examples/spark_orders_to_parquet.py \
        --bootstrap broker:9092 --topic orders --checkpoint /tmp/orders-checkpoint
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from blobmsg_spark import history_files, read_history, reconcile_stream

ORDER = "customer string, cents long"


def best_customers(records: DataFrame, count: int) -> DataFrame:
    """Who spent most."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    orders = records.select(order.alias("order")).select("order.*")
    spent = orders.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("cents").alias("c"))
    return spent.orderBy(F.desc("c"), "customer").limit(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default=os.environ.get("BLOBMSG_DEV_BOOTSTRAP"))
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--checkpoint", required=True, help="where the query keeps its offsets")
    parser.add_argument("--every", help='as "1 minute": go on, a file per partition each time')
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("orders to parquet")
        .master(os.environ.get("SPARK_MASTER", "local[2]"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    # The store's settings come from the environment: BLOBMSG_STORE_URL and its kin.
    options = {"kafka.bootstrap.servers": arguments.bootstrap, "subscribe": arguments.topic}
    trigger = {"processingTime": arguments.every} if arguments.every else {"availableNow": True}
    query = reconcile_stream(spark, options, checkpoint=arguments.checkpoint, trigger=trigger)
    query.awaitTermination()

    records = read_history(spark, {}, arguments.topic, columns=["value"])
    for row in best_customers(records, 5).collect():
        print(f"customer {row.customer}: {row.orders} orders, {row.c / 100:.2f}")
    files = history_files({}, arguments.topic)
    print(f"{records.count()} orders in {len(files)} files, the last of them {files[-1]}")
    spark.stop()


if __name__ == "__main__":
    main()
