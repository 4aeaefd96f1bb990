"""`spark.read.format("blobmsg")` on real Kafka and S3."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import flush, produce, read_to_end, recent_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.timeout(300)


def _load(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    return spark.read.format("blobmsg").options(**{**options, **more}).load()


def _produce(conf: dict[str, Any], topic: str, route: str, count: int, **arguments: Any) -> None:
    """Records of this route: `blob`, `inline` or `plain`; some keys and values are null."""
    with BlobProducer({**conf, "blobmsg.route": route}) as producer:
        for number in range(count):
            value = None if number % 7 == 3 else f"{route}-{number}".encode() * (number % 5)
            key = None if number % 3 == 2 else str(number).encode()
            headers: Any = [("n", str(number).encode()), ("e", None)] if number % 4 == 1 else None
            produce(producer, topic, value, key=key, headers=headers, **arguments)
        flush(producer)


def _expected(group_conf: dict[str, Any], topic: str, partitions: int) -> list[tuple[Any, ...]]:
    """What the consumer reads, in order of partition and offset."""
    consumer = BlobConsumer({**group_conf, "group.id": topic})
    consumer.subscribe([topic])
    messages = read_to_end(consumer, partitions, batch=500).messages
    consumer.close()
    return sorted(
        (
            m.partition(),
            m.offset(),
            m.key(),
            m.value(),
            m.timestamp()[1],
            m.timestamp()[0] - 1,
            m.headers() or None,
        )
        for m in messages
    )


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows: list[Row] = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    return sorted(
        (
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.ms,
            row.timestampType,
            None
            if row.headers is None
            else [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers],
        )
        for row in rows
    )


def test_blob_inline_and_plain_records_of_one_topic_are_those_of_the_consumer(
    spark: SparkSession,
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(3)
    for route in ("plain", "blob", "inline", "blob", "plain"):
        _produce(conf, topic, route, 300, timestamp=recent_ms())

    rows = _rows(_load(spark, source_options, subscribe=topic, includeHeaders="true"))

    assert rows == _expected(group_conf, topic, 3)
    assert len(rows) == 1500


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_segments_are_read(
    spark: SparkSession,
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    compression: str,
) -> None:
    compressed = {**conf, "blobmsg.compression.type": compression}
    _produce(compressed, topic, "blob", 2000)
    _produce(compressed, topic, "inline", 50)

    rows = _rows(_load(spark, source_options, subscribe=topic, includeHeaders="true"))

    assert rows == _expected(group_conf, topic, 1)


def test_offsets_inside_a_notification_are_exact(
    spark: SparkSession,
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
) -> None:
    for _ in range(3):
        _produce(conf, topic, "blob", 100)
    offsets = [found[1] for found in _expected(group_conf, topic, 1)]
    start, end = offsets[130], offsets[270]

    frame = _load(
        spark,
        source_options,
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": start}}),
        endingOffsets=json.dumps({topic: {"0": end}}),
    )

    assert sorted(row.offset for row in frame.select("offset").collect()) == offsets[130:270]


def test_more_tasks_than_partitions_read_each_record_once(
    spark: SparkSession,
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
) -> None:
    for _ in range(10):
        _produce(conf, topic, "blob", 20)

    frame = _load(spark, source_options, subscribe=topic, minPartitions="5")

    assert frame.rdd.getNumPartitions() == 5
    offsets = [row.offset for row in frame.select("offset").collect()]
    assert offsets == [found[1] for found in _expected(group_conf, topic, 1)]


def test_aborted_records_and_those_of_open_transactions_never_appear(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    store_prefix: str,
) -> None:
    transactional = {**conf, "transactional.id": store_prefix, "blobmsg.route": "blob"}
    with BlobProducer(transactional) as producer:
        producer.init_transactions(30)
        for number, ends in enumerate(("commit", "abort", "commit", "abort")):
            producer.begin_transaction()
            for _ in range(10):
                produce(producer, topic, f"{ends}-{number}".encode())
            if ends == "commit":
                producer.commit_transaction(30)
            else:
                flush(producer)
                producer.abort_transaction(30)
        producer.begin_transaction()
        produce(producer, topic, b"open")
        flush(producer)

        values = [
            bytes(row.value) for row in _load(spark, source_options, subscribe=topic).collect()
        ]
        producer.abort_transaction(30)

    assert values == [b"commit-0"] * 10 + [b"commit-2"] * 10


def test_times_are_exact_to_the_record(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
) -> None:
    began = recent_ms()
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(100):
            produce(producer, topic, str(number).encode(), timestamp=began + number)
        flush(producer)

    frame = _load(
        spark,
        source_options,
        subscribe=topic,
        startingTimestamp=str(began + 30),
        endingTimestamp=str(began + 60),
    )

    assert [int(row.value) for row in frame.collect()] == list(range(30, 60))


def test_pattern_and_assign_choose_what_is_read(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    one, two = make_topic(2, name="chosen"), make_topic(2, name="chosen")
    for topic in (one, two):
        for partition in (0, 1):
            _produce(conf, topic, "blob", 5, partition=partition)

    by_pattern = _load(spark, source_options, subscribePattern=f"{one}|{two[:-1]}.")
    by_assign = _load(spark, source_options, assign=json.dumps({one: [1], two: [0]}))

    assert by_pattern.count() == 20
    found = by_assign.select("topic", "partition").distinct().collect()
    assert {tuple(row) for row in found} == {(one, 1), (two, 0)}


def test_an_empty_topic_is_an_empty_frame_with_the_columns(
    spark: SparkSession, source_options: dict[str, str], topic: str
) -> None:
    frame = _load(spark, source_options, subscribe=topic)

    assert frame.collect() == []
    assert frame.columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]


def test_a_limit_ends_a_task_early_and_the_next_is_right(
    spark: SparkSession,
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
) -> None:
    for _ in range(5):
        _produce(conf, topic, "blob", 100)
    offsets = [found[1] for found in _expected(group_conf, topic, 1)]
    frame = _load(spark, source_options, subscribe=topic).select("offset")

    assert len(frame.limit(3).collect()) == 3
    assert frame.count() == 500
    assert [row.offset for row in frame.where(f"offset >= {offsets[250]}").collect()] == (
        offsets[250:]
    )
