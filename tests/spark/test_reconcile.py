"""`reconcile`: topics of real Kafka into sorted Parquet in real S3, again and again."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from blobmsg import BlobProducer
from blobmsg.collector import ExpiredObjects
from blobmsg.config import parse_settings
from blobmsg.core.offsets import to_virtual
from blobmsg.store import open_store
from blobmsg_spark import Addition, clean_history, history_files, read_history, reconcile
from tests.helpers.records import flush, produce, recent_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from blobmsg import lab

pytestmark = pytest.mark.timeout(300)

ROUTES = ("plain", "blob", "inline", "blob", "plain")


def fill(
    conf: dict[str, Any], topic: str, count: int, routes: tuple[str, ...] = ROUTES, **more: Any
) -> None:
    """So many records of each route; some keys and values are null, some have headers."""
    for route in routes:
        with BlobProducer({**conf, "blobmsg.route": route}) as producer:
            for number in range(count):
                value = None if number % 7 == 3 else f"{route}-{number}".encode() * (number % 5)
                key = None if number % 3 == 2 else str(number).encode()
                headers: Any = [("n", b"%d" % number), ("e", None)] if number % 4 == 1 else None
                produce(producer, topic, value, key=key, headers=headers, **more)
            flush(producer)


def live(spark: SparkSession, options: dict[str, str], topic: str) -> pa.Table:
    """What the source reads now, in order of partition and offset."""
    frame = spark.read.format("blobmsg").options(
        **{**options, "subscribe": topic, "includeHeaders": "true"}
    )
    return frame.load().orderBy("partition", "offset").toArrow()


def in_order(frame: DataFrame) -> pa.Table:
    return frame.orderBy("partition", "offset").toArrow()


def read_file(path: str, conf: dict[str, Any]) -> pa.Table:
    """A file of a history, as any program that knows S3 and Parquet reads it."""
    if not path.startswith("s3://"):
        return pq.read_table(path)
    s3 = pyarrow.fs.S3FileSystem(
        access_key=conf["blobmsg.s3.access.key.id"],
        secret_key=conf["blobmsg.s3.secret.access.key"],
        endpoint_override=conf["blobmsg.s3.endpoint.url"],
        region="us-east-1",
    )
    return pq.read_table(path.removeprefix("s3://"), filesystem=s3)


def test_a_history_has_what_the_source_reads_sorted_and_as_plain_parquet(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(3)
    fill(conf, topic, 300, timestamp=recent_ms())

    added = reconcile(spark, {**source_options, "subscribe": topic}, file_bytes=2000)

    expected = live(spark, source_options, topic)
    assert expected.num_rows == 1500
    assert in_order(read_history(spark, conf, topic)) == expected
    files = history_files(conf, topic)
    tables = [read_file(path, conf) for path in files]
    assert pa.concat_tables(tables).cast(expected.schema) == expected
    assert len(files) > 3
    assert [(one.topic, one.manifest, one.files, one.records) for one in added] == [
        (topic, 1, len(files), 1500)
    ]
