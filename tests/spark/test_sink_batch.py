"""`df.write.format("blobmsg")` on real Kafka and S3."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tests.helpers.either import Either
from tests.helpers.records import recent_ms, values_by_partition
from tests.helpers.sink import read_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from blobmsg import lab

pytestmark = pytest.mark.timeout(300)

MOMENT_MS = recent_ms()
MOMENT = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=MOMENT_MS)
_HEADERS = "headers array<struct<key:string,value:binary>>"


def _write(frame: DataFrame, options: dict[str, str], **more: str) -> None:
    frame.write.format("blobmsg").options(**{**options, **more}).mode("append").save()


@pytest.mark.parametrize("route", ["blob", "inline"])
def test_records_come_back_as_they_were_from_the_consumer_and_the_source(
    route: str,
    spark: SparkSession,
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(3)
    rows = [
        (b"key", b"value", [("a", b"1"), ("b", None), ("a", b"")], MOMENT),
        (b"", b"", None, MOMENT),
        (None, None, [], MOMENT),
        (b"key", None, None, MOMENT),
    ]
    frame = spark.createDataFrame(
        rows, f"key binary, value binary, {_HEADERS}, timestamp timestamp"
    )

    _write(frame, source_options, topic=topic, **{"blobmsg.route": route})

    expected = sorted(((k, v, h or None, MOMENT_MS) for k, v, h, _ in rows), key=repr)
    consumed = [(m.key(), m.value(), m.headers(), m.timestamp()[1])
        for m in read_topic(group_conf, topic, 3)]  # fmt: skip
    assert sorted(consumed, key=repr) == expected
    source = spark.read.format("blobmsg").options(**source_options, subscribe=topic)
    read = [
        (
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.headers and [(h.key, h.value and bytes(h.value)) for h in row.headers],
            row.ms,
        )
        for row in source.option("includeHeaders", "true")
        .load()
        .selectExpr("*", "unix_millis(timestamp) AS ms")
        .collect()
    ]
    assert sorted(read, key=repr) == expected


def test_order_of_one_task_holds_over_many_objects(
    spark: SparkSession,
    stack: lab.Stack,
    store_prefix: str,
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(3)
    frame = spark.range(0, 5000, 1, 1).selectExpr(
        "cast(id % 11 AS string) AS key", "concat(id, ' ', repeat('x', 200)) AS value"
    )
    sizes = {"blobmsg.batch.size.bytes": "65536", "blobmsg.compression.type": "lz4"}

    _write(frame, source_options, topic=topic, **sizes, **{"blobmsg.route": "blob"})

    by_partition = values_by_partition(read_topic(group_conf, topic, 3))
    numbers = {p: [int(value.split()[0]) for value in found] for p, found in by_partition.items()}
    assert len(numbers) == 3
    assert all(found == sorted(found) for found in numbers.values())
    assert sorted(number for found in numbers.values() for number in found) == list(range(5000))
    either = Either(True, stack, store_prefix)
    assert either.stored_objects() >= 5
    either.check_route(topic, 3, b"xxx")


def test_rows_say_their_topic_and_partition(
    spark: SparkSession,
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    one, other = make_topic(3), make_topic(3)
    rows = [(one, 2, "a"), (other, 0, "b"), (one, 1, "c"), (one, 2, "d")]
    frame = spark.createDataFrame(rows, "topic string, partition int, value string").coalesce(1)

    _write(frame, source_options)

    assert values_by_partition(read_topic(group_conf, one, 3)) == {2: [b"a", b"d"], 1: [b"c"]}
    assert values_by_partition(read_topic(group_conf, other, 3)) == {0: [b"b"]}


def test_lanes_follow_the_zones_where_partitions_are_read(
    spark: SparkSession,
    stack: lab.Stack,
    store_prefix: str,
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(4)
    frame = spark.range(0, 400, 1, 1).selectExpr(
        "cast(id % 4 AS int) AS partition", "string(id) AS value"
    )
    zones = {"blobmsg.destination": "static:az1,az2", "blobmsg.route": "blob"}

    _write(frame, source_options, topic=topic, **zones)

    assert Either(True, stack, store_prefix).stored_objects() == 2
    by_partition = values_by_partition(read_topic(group_conf, topic, 4))
    expected = {p: [str(number).encode() for number in range(p, 400, 4)] for p in range(4)}
    assert by_partition == expected


def test_a_small_batch_travels_in_its_notifications(
    spark: SparkSession,
    stack: lab.Stack,
    store_prefix: str,
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
) -> None:
    _write(spark.range(5).selectExpr("string(id) AS value"), source_options, topic=topic)

    assert Either(True, stack, store_prefix).stored_objects() == 0
    assert sorted(m.value() for m in read_topic(group_conf, topic)) == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]


def test_without_a_time_it_is_now_and_topics_may_have_their_own(
    spark: SparkSession,
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    appended = make_topic(1, {"message.timestamp.type": "LogAppendTime"})
    frame = spark.createDataFrame([("a", MOMENT), ("b", None)], "value string, timestamp timestamp")
    begun_ms = time.time() * 1000

    _write(frame, source_options, topic=topic)
    _write(frame, source_options, topic=appended)

    ended_ms = time.time() * 1000
    times = {m.value(): m.timestamp()[1] for m in read_topic(group_conf, topic)}
    assert times[b"a"] == MOMENT_MS
    assert int(begun_ms) <= times[b"b"] <= ended_ms
    kinds = [m.timestamp()[0] for m in read_topic(group_conf, appended)]
    assert kinds == [TIMESTAMP_LOG_APPEND_TIME] * 2


def test_one_failing_task_keeps_all_back(
    spark: SparkSession, group_conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    # The last row of the last task has no topic.
    frame = spark.range(0, 100, 1, 4).select(
        F.when(F.col("id") < 99, topic).alias("topic"), F.col("id").cast("string").alias("value")
    )

    with pytest.raises(PySparkException, match=r"ConfigError.* rows of .* have no topic"):
        _write(frame, source_options)

    assert read_topic(group_conf, topic) == []


def test_what_can_not_be_written_is_said_before_any_task(
    spark: SparkSession, source_options: dict[str, str], topic: str
) -> None:
    value = F.raise_error(F.lit("a task has begun")).cast("string").alias("value")
    frame = spark.range(1).select(value)

    with pytest.raises(PySparkException, match="column offset is no part of a record"):
        _write(
            spark.range(1).select(value, F.col("id").alias("offset")), source_options, topic=topic
        )
    with pytest.raises(PySparkException, match="set the option topic, or make a column topic"):
        _write(frame, source_options)
    with pytest.raises(PySparkException, match=r"blobmsg\.batch\.size\.bytes"):
        _write(frame, source_options, topic=topic, **{"blobmsg.batch.size": "1"})
    with pytest.raises(PySparkException, match=r'use mode\("append"\)'):
        frame.write.format("blobmsg").options(**source_options, topic=topic).mode(
            "overwrite"
        ).save()


def test_a_frame_without_rows_writes_nothing(
    spark: SparkSession, group_conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    _write(spark.range(0).selectExpr("string(id) AS value"), source_options, topic=topic)

    assert read_topic(group_conf, topic) == []
