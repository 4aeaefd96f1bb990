"""A query into `format("blobmsg")` whose driver is killed in its second micro-batch.

Either when all tasks have stored their records and nothing is visible, or when Kafka has committed
and Spark has not written down that the micro-batch is done. The driver is this process, its JVM and
what else is in their process group.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from blobmsg_spark import BlobmsgSource
from blobmsg_spark.sink import StreamSink
from blobmsg_spark.sink_options import parse_sink_options
from tests.helpers.sink import lines_to_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

_DIES_IN = 1


def _kill_the_driver() -> None:
    os.killpg(int(os.environ["TEST_DRIVER_GROUP"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # Spark's Python workers have a group of their own


class DyingSink(StreamSink):
    """Kills the driver around its commit."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """As the sink, but for one micro-batch."""
        if batchId == _DIES_IN and os.environ["TEST_DIES"] == "before":
            _kill_the_driver()
        super().commit(messages, batchId)
        if batchId == _DIES_IN:
            _kill_the_driver()


class DyingSource(BlobmsgSource):
    """With that sink."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """As the sink's."""
        return DyingSink(parse_sink_options(self.options), schema)


def main() -> None:
    """Run the query; it does not come back."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    os.environ["TEST_DRIVER_GROUP"] = str(os.getpgrp())
    os.environ["TEST_DIES"] = plan["dies"]
    spark = (
        SparkSession.builder.master(plan["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", plan["folder"])
        .getOrCreate()
    )
    spark.dataSource.register(DyingSource)
    query = lines_to_topic(spark, Path(plan["folder"]), plan["options"]).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
