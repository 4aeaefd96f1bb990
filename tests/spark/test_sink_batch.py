"""`df.write.format("blobmsg")` on real Kafka and S3."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer
from tests.helpers.records import read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def _write(frame: DataFrame, options: dict[str, str], **more: str) -> None:
    frame.write.format("blobmsg").options(**{**options, **more}).mode("append").save()


def _read(group_conf: dict[str, Any], topic: str, partitions: int) -> list[Any]:
    consumer = BlobConsumer({**group_conf, "group.id": topic})
    consumer.subscribe([topic])
    messages = read_to_end(consumer, partitions, batch=500).messages
    consumer.close()
    return messages


def test_keys_values_headers_and_times_come_back_as_they_were(
    spark: SparkSession,
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(3)
    moment = datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=timezone.utc)
    rows = [
        (b"key", b"value", [("a", b"1"), ("b", None)], moment),
        (b"", b"", None, moment),
        (None, None, [], moment),
        (b"key", None, None, moment),
    ]
    frame = spark.createDataFrame(
        rows,
        "key binary, value binary, headers array<struct<key:string,value:binary>>, "
        "timestamp timestamp",
    )
    before = spark.range(1).count()
    assert before == 1

    _write(frame, source_options, topic=topic)

    found = sorted(
        ((m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in _read(group_conf, topic, 3)),
        key=repr,
    )
    ms = int(moment.timestamp() * 1000)
    assert found == sorted(
        [
            (b"key", b"value", [("a", b"1"), ("b", None)], ms),
            (b"", b"", None, ms),
            (None, None, None, ms),
            (b"key", None, None, ms),
        ],
        key=repr,
    )
