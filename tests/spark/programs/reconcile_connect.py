"""Spark Connect: a job, a query behind it, and the history read back.

Prints how many records the history has after each, and whether they are those of the source.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from blobmsg import BlobProducer
from blobmsg_spark import read_history, reconcile, reconcile_stream, register_source
from tests.helpers.histories import live


def main() -> None:
    """Run the cases."""
    plan = json.loads(sys.argv[1])
    topic, options, conf = plan["topic"], plan["options"], plan["conf"]
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    register_source(spark)
    added = reconcile(spark, {**options, "subscribe": topic})
    print("job", sum(one.records for one in added), flush=True)
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(50):
            producer.produce(topic, b"%d" % number)
        producer.flush(60)
    query = reconcile_stream(
        spark,
        {**options, "subscribe": topic},
        checkpoint=plan["checkpoint"],
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    found = read_history(spark, conf, topic).orderBy("partition", "offset").toArrow()
    print("query", found.num_rows, found == live(spark, options, topic), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
