"""What the source says of bad options, missing topics and objects, servers that are away."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from blobmsg import BlobProducer
from blobmsg.format import ObjectKey, encode_notification
from blobmsg.format.notification import NOTIFICATION_MAGIC
from tests.helpers.consuming import notification, part
from tests.helpers.records import flush, produce, send
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from blobmsg import lab

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _quiet(spark: SparkSession) -> Iterator[None]:
    """Errors are what is wanted here."""
    spark.sparkContext.setLogLevel("OFF")
    yield
    spark.sparkContext.setLogLevel("WARN")


def _load(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    return spark.read.format("blobmsg").options(**{**options, **more}).load()


def _error_of(frame: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        frame()
    return str(caught.value)


@pytest.fixture
def filled(conf: dict[str, Any], topic: str) -> str:
    """A topic with 20 records in one object."""
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(20):
            produce(producer, topic, str(number).encode() * 100)
        flush(producer)
    return topic


def _objects(stack: lab.Stack, store_prefix: str) -> list[str]:
    with closing(stack.s3_client()) as s3:
        found = s3.list_objects_v2(Bucket=stack.bucket, Prefix=store_prefix)
    return [item["Key"] for item in found["Contents"]]


def test_an_unknown_option_names_the_nearest_one(
    spark: SparkSession, source_options: dict[str, str]
) -> None:
    text = _error_of(lambda: _load(spark, source_options, subscribe="t", startingOffset="x"))

    assert 'ConfigError: No such option of format("blobmsg"): "startingoffset"' in text
    assert 'Did you mean "startingOffsets"?' in text


def test_an_unknown_setting_names_the_nearest_one(
    spark: SparkSession, source_options: dict[str, str], topic: str
) -> None:
    more = {"blobmsg.prefetch.max.byte": "1"}
    text = _error_of(lambda: _load(spark, source_options, subscribe=topic, **more).collect())

    assert 'Did you mean "blobmsg.prefetch.max.bytes"?' in text


def test_a_topic_that_is_not_there_is_named(
    spark: SparkSession, source_options: dict[str, str], topic: str
) -> None:
    text = _error_of(lambda: _load(spark, source_options, subscribe=f"{topic}x").collect())

    assert f"Kafka has no topic {topic}x" in text
    assert f"Did you mean {topic}?" in text


def test_offsets_outside_of_the_log_are_data_loss(
    spark: SparkSession, source_options: dict[str, str], filled: str
) -> None:
    options = {
        **source_options,
        "subscribe": filled,
        "endingOffsets": json.dumps({filled: {"0": 900 << 20}}),
    }

    text = _error_of(lambda: _load(spark, options).collect())
    rest = _load(spark, options, failOnDataLoss="false")

    assert f"{filled} [0], virtual offsets 0 to {900 << 20}: the log ends at" in text
    assert "failOnDataLoss=false" in text
    assert rest.count() == 20


def test_a_missing_object_is_named_and_skipped_only_on_demand(
    spark: SparkSession,
    source_options: dict[str, str],
    filled: str,
    stack: lab.Stack,
    store_prefix: str,
) -> None:
    with closing(stack.s3_client()) as s3:
        for key in _objects(stack, store_prefix):
            s3.delete_object(Bucket=stack.bucket, Key=key)
    options = {**source_options, "subscribe": filled}

    text = _error_of(lambda: _load(spark, options).collect())
    rest = _load(spark, options, **{"blobmsg.on.missing": "skip"})

    assert f"ObjectMissing: {filled} [0] at Kafka offset 0: object " in text
    assert rest.count() == 0


def test_a_corrupt_object_is_never_delivered(
    spark: SparkSession,
    source_options: dict[str, str],
    filled: str,
    stack: lab.Stack,
    store_prefix: str,
) -> None:
    with closing(stack.s3_client()) as s3:
        for key in _objects(stack, store_prefix):
            data = bytearray(s3.get_object(Bucket=stack.bucket, Key=key)["Body"].read())
            data[100] ^= 1
            s3.put_object(Bucket=stack.bucket, Key=key, Body=bytes(data))

    text = _error_of(lambda: _load(spark, source_options, subscribe=filled).collect())

    assert f"CorruptSegment: {filled} [0] at Kafka offset 0: object " in text
    assert "checksum" in text


def test_expired_records_are_data_loss(
    spark: SparkSession, conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    key = ObjectKey("shared", "0", "2020010203", "az1", "ab" * 16, 0).encode()
    gone = encode_notification(notification(part(5), key=key))
    _notify(conf, topic, gone)
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        produce(producer, topic, b"alive")
        flush(producer)
    options = {**source_options, "subscribe": topic}

    text = _error_of(lambda: _load(spark, options).collect())
    rest = _load(spark, options, failOnDataLoss="false").collect()

    assert f"ObjectExpired: {topic} [0] at Kafka offset 0: object {key}" in text
    assert "failOnDataLoss=false" in text
    assert [bytes(row.value) for row in rest] == [b"alive"]


@pytest.mark.parametrize("rest", [b"\x01\xff\xff\xff", b"\x09" + bytes(50)], ids=["junk", "newer"])
def test_a_damaged_notification_is_an_error_that_says_where(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    rest: bytes,
) -> None:
    _notify(conf, topic, NOTIFICATION_MAGIC + rest)

    text = _error_of(lambda: _load(spark, source_options, subscribe=topic).collect())

    assert f"{topic} [0] at Kafka offset 0" in text
    assert "CorruptSegment" in text or "UnsupportedFormat" in text


def _notify(conf: dict[str, Any], topic: str, value: bytes) -> None:
    """Write something with the mark of a notification."""
    with StockProducer({"bootstrap.servers": conf["bootstrap.servers"]}) as kafka:
        send(kafka, topic, [value], partition=0, headers=[("blobmsg", b"1")])


def test_a_store_without_permission_is_denied_at_once(
    spark: SparkSession, source_options: dict[str, str], filled: str
) -> None:
    wrong = {**source_options, "blobmsg.s3.secret.access.key": "wrong-secret"}

    text = _error_of(lambda: _load(spark, wrong, subscribe=filled).collect())

    assert f"StoreDenied: {filled} [0] at Kafka offset 0: object " in text


def test_a_store_that_is_away_ends_the_task_with_its_name(
    spark: SparkSession, source_options: dict[str, str], filled: str
) -> None:
    away = {
        **source_options,
        "blobmsg.s3.endpoint.url": "http://127.0.0.1:9",
        "blobmsg.request.timeout.ms": "2000",
    }

    text = _error_of(lambda: _load(spark, away, subscribe=filled).collect())

    assert "StoreUnavailable" in text or "StoreTimeout" in text


def test_brokers_that_are_away_are_named(
    spark: SparkSession, source_options: dict[str, str]
) -> None:
    away = {**source_options, "kafka.bootstrap.servers": "127.0.0.1:9"}

    text = _error_of(lambda: _load(spark, away, subscribe="t").collect())

    assert "BlobmsgError: Kafka at 127.0.0.1:9 does not answer" in text
    assert "kafka.bootstrap.servers" in text


def test_columns_of_the_users_own_are_refused(
    spark: SparkSession, source_options: dict[str, str], topic: str
) -> None:
    reader = spark.read.format("blobmsg").schema("value string")

    text = _error_of(lambda: reader.options(**source_options, subscribe=topic).load().collect())

    assert "has columns of its own" in text


def test_raw_kafka_offsets_are_refused_by_name(
    spark: SparkSession, conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(20):
            produce(producer, topic, str(number).encode())
        flush(producer)
    options = {**source_options, "subscribe": topic}

    text = _error_of(
        lambda: _load(spark, options, startingOffsets=json.dumps({topic: {"0": 7}})).collect()
    )

    assert "looks like a Kafka offset" in text
    assert "blobmsg.offsets.to_virtual" in text
