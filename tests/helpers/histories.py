"""Topics to be written to histories, and what must be in there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from blobmsg import BlobProducer
from tests.helpers.records import flush, produce, recent_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

__all__ = ["ROUTES", "fill", "live", "rows_of_files"]

ROUTES = ("plain", "blob", "inline", "blob", "plain")


def fill(
    conf: dict[str, Any],
    topic: str,
    count: int,
    *,
    routes: Sequence[str] = ROUTES,
    **arguments: Any,
) -> None:
    """So many records of each route; some keys and values are null, some have headers."""
    for route in routes:
        with BlobProducer({**conf, "blobmsg.route": route}) as producer:
            for number in range(count):
                value = None if number % 7 == 3 else f"{route}-{number}".encode() * (number % 5)
                key = None if number % 3 == 2 else str(number).encode()
                headers: Any = [("n", b"%d" % number), ("e", None)] if number % 4 == 1 else None
                more = {"timestamp": recent_ms() + number, **arguments}
                produce(producer, topic, value, key=key, headers=headers, **more)
            flush(producer)


def live(spark: SparkSession, options: dict[str, str], topic: str) -> pa.Table:
    """What the source reads of a topic now, in order of partition and offset."""
    reader = spark.read.format("blobmsg").options(**options)
    frame = reader.options(subscribe=topic, includeHeaders="true").load()
    return frame.orderBy("partition", "offset").toArrow()


def rows_of_files(paths: Sequence[str], conf: dict[str, Any]) -> pa.Table:
    """All rows in the order of the files, as any program that knows S3 and Parquet reads them."""
    s3 = pyarrow.fs.S3FileSystem(
        access_key=conf["blobmsg.s3.access.key.id"],
        secret_key=conf["blobmsg.s3.secret.access.key"],
        endpoint_override=conf["blobmsg.s3.endpoint.url"],
        region="us-east-1",
    )
    return pa.concat_tables(
        pq.read_table(path.removeprefix("s3://"), filesystem=s3) for path in paths
    )
