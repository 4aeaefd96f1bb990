"""`spark.readStream.format("blobmsg")` on real Kafka and S3: checkpoints, limits, what appears."""

from __future__ import annotations

import json
import time
import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    NewPartitions,
    NewTopic,
)
from pyspark.errors import StreamingQueryException

from blobmsg import BlobProducer
from tests.helpers.metadata import wait_until_all_know
from tests.helpers.records import flush, produce, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.timeout(400)


class Stream:
    """A query from the source into a Parquet folder, which can be started again and again."""

    def __init__(self, spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._folder = folder
        self._options = options

    def start(self, *, available_now: bool = True, **more: Any) -> StreamingQuery:
        writer = self._writer(**more).format("parquet").option("path", str(self._folder / "out"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _writer(self, **more: Any) -> DataStreamWriter:
        frame = (
            self._spark.readStream.format("blobmsg")
            .options(**{"startingOffsets": "earliest", **self._options, **more})
            .load()
        )
        return frame.writeStream.option("checkpointLocation", str(self._folder / "checkpoint"))

    def run_batches(self, **more: Any) -> dict[int, list[bytes]]:
        """Read what is there now; the records of each micro-batch, however often it comes."""
        found: dict[int, list[bytes]] = {}

        def take(batch: DataFrame, number: int) -> None:
            found[number] = sorted(bytes(row.value) for row in batch.collect())

        query = self._writer(**more).foreachBatch(take).trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        return found

    def tasks(self, **more: Any) -> list[int]:
        """How many tasks read each micro-batch of what is there; a query of its own."""
        counts: list[int] = []

        def count(batch: DataFrame, _number: int) -> None:
            counts.append(batch.rdd.getNumPartitions())

        folder = self._folder / f"tasks-{uuid.uuid4().hex}"
        writer = self._writer(**more).option("checkpointLocation", str(folder))
        assert writer.foreachBatch(count).trigger(availableNow=True).start().awaitTermination(240)
        return counts

    def forget_last_commit(self) -> None:
        """As if the driver had been killed before it wrote down that the last batch was done."""
        last = max(
            (self._folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda f: int(f.name)
        )
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink()

    def run(self, **more: Any) -> list[int]:
        """Read what is there now; how many records each micro-batch had."""
        query = self.start(**more)
        assert query.awaitTermination(240)
        return [progress["numInputRows"] for progress in query.recentProgress]

    def values(self) -> list[bytes]:
        """All that was written; a query that wrote something is needed."""
        return [bytes(row.value) for row in self.rows()]

    def offsets(self) -> list[int]:
        return sorted(row.offset for row in self.rows())

    def rows(self) -> list[Any]:
        return self._spark.read.parquet(str(self._folder / "out")).collect()


@pytest.fixture
def stream(
    spark: SparkSession, tmp_path: Path, source_options: dict[str, str], topic: str
) -> Stream:
    return Stream(spark, tmp_path, {**source_options, "subscribe": topic})


def _produce(
    conf: dict[str, Any], topic: str, numbers: range, route: str = "blob", **arguments: Any
) -> None:
    with BlobProducer({**conf, "blobmsg.route": route}) as producer:
        for number in numbers:
            produce(producer, topic, str(number).encode(), **arguments)
        flush(producer)


def _sorted(numbers: range) -> list[bytes]:
    return sorted(str(number).encode() for number in numbers)


def test_a_query_goes_on_where_its_checkpoint_says(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    _produce(conf, topic, range(100))
    stream.run()
    _produce(conf, topic, range(100, 150), "plain")
    _produce(conf, topic, range(150, 200), "inline")
    stream.run()
    stream.run()

    assert sorted(stream.values()) == _sorted(range(200))


def test_max_offsets_per_trigger_limits_records_inside_notifications(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    _produce(conf, topic, range(100))
    _produce(conf, topic, range(100, 120), "plain")

    batches = stream.run(maxOffsetsPerTrigger="35")

    assert [count for count in batches if count] == [35, 35, 35, 15]
    assert sorted(stream.values()) == _sorted(range(120))


def test_max_bytes_per_trigger_limits_by_whole_notifications(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    for number in range(4):
        with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
            produce(producer, topic, bytes([number]) * 60_000)
            flush(producer)

    batches = stream.run(maxBytesPerTrigger="130k")

    assert [count for count in batches if count] == [2, 2]


def test_a_limit_is_shared_by_partitions(
    spark: SparkSession,
    tmp_path: Path,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(3)
    stream = Stream(spark, tmp_path, {**source_options, "subscribe": topic})
    for partition, count in ((0, 90), (1, 30), (2, 3)):
        _produce(conf, topic, range(count), partition=partition)

    batches = stream.run(maxOffsetsPerTrigger="60")

    assert [count for count in batches if count] == [60, 60, 3]
    assert len(stream.values()) == 123


def test_partitions_that_appear_are_read_from_their_beginning(
    spark: SparkSession,
    tmp_path: Path,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(1)
    stream = Stream(spark, tmp_path, {**source_options, "subscribe": topic})
    _produce(conf, topic, range(10))
    query = stream.start(available_now=False)
    try:
        wait_until(lambda: _rows_read(query) >= 10, "the first partition", timeout_s=120)
        admin = AdminClient({"bootstrap.servers": conf["bootstrap.servers"]})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        _produce(conf, topic, range(10, 30), partition=1)
        wait_until(lambda: _rows_read(query) >= 30, "the second partition", timeout_s=120)
    finally:
        query.stop()

    assert sorted(stream.values()) == _sorted(range(30))


def test_topics_of_a_pattern_that_appear_are_read_from_their_beginning(
    spark: SparkSession,
    tmp_path: Path,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    name = f"pattern-{uuid.uuid4().hex[:8]}"
    first = make_topic(name=name)
    stream = Stream(spark, tmp_path, {**source_options, "subscribePattern": f"{name}-.*"})
    _produce(conf, first, range(10))
    query = stream.start(available_now=False)
    try:
        wait_until(lambda: _rows_read(query) >= 10, "the first topic", timeout_s=120)
        second = make_topic(2, name=name)
        _produce(conf, second, range(10, 20), partition=0)
        _produce(conf, second, range(20, 30), "plain", partition=1)
        wait_until(lambda: _rows_read(query) >= 30, "the second topic", timeout_s=120)
    finally:
        query.stop()

    assert sorted(stream.values()) == _sorted(range(30))


def test_a_topic_made_anew_is_an_error_or_read_from_where_it_is(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    _produce(conf, topic, range(10), "plain")
    stream.run()
    admin = AdminClient({"bootstrap.servers": conf["bootstrap.servers"]})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    _make_again(conf["bootstrap.servers"], topic)
    _produce(conf, topic, range(10, 12), "plain")

    with pytest.raises(StreamingQueryException, match="the topic was made anew") as caught:
        stream.run()
    assert "failOnDataLoss=false" in str(caught.value)
    stream.run(failOnDataLoss="false")
    _produce(conf, topic, range(12, 15), "plain")
    stream.run(failOnDataLoss="false")

    # What was before the query's place in the new log can't be told from what it has read.
    assert sorted(stream.values()) == sorted(_sorted(range(10)) + _sorted(range(12, 15)))


def _make_again(bootstrap: str, topic: str) -> None:
    """Make a topic of this name as soon as brokers have forgotten the one before."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def is_made() -> bool:
        made = admin.create_topics([NewTopic(topic, 1, 3)], operation_timeout=20)[topic]
        error = made.exception(30)
        assert error is None or error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, error
        return error is None

    wait_until(is_made, "the topic is gone", timeout_s=60)
    wait_until_all_know(bootstrap, topic, 1)


def test_min_partitions_makes_more_tasks_of_a_micro_batch(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    for number in range(6):  # each a notification: a task reads whole ones
        _produce(conf, topic, range(number * 10, number * 10 + 10))

    assert stream.tasks() == [1]
    assert stream.tasks(minPartitions="4") == [4]


def test_a_starting_time_after_the_last_record_is_an_error_or_the_end(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    _produce(conf, topic, range(10))
    late = str(int((time.time() + 3600) * 1000))

    with pytest.raises(StreamingQueryException, match="startingOffsetsByTimestampStrategy"):
        stream.run(startingTimestamp=late)
    at_end = {"startingTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert sum(stream.run(**at_end)) == 0
    _produce(conf, topic, range(10, 15))
    stream.run(**at_end)

    assert sorted(stream.values()) == _sorted(range(10, 15))


def test_times_of_a_log_append_time_topic_are_the_brokers(
    spark: SparkSession,
    tmp_path: Path,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    stream = Stream(spark, tmp_path, {**source_options, "subscribe": topic})
    before = datetime.now() - timedelta(seconds=5)  # noqa: DTZ005  (as Spark's rows have it)
    for route in ("blob", "plain", "inline"):
        _produce(conf, topic, range(3), route, timestamp=1_000)

    stream.run()

    rows = stream.rows()
    assert len(rows) == 9
    assert {row.timestampType for row in rows} == {1}
    assert all(row.timestamp > before for row in rows)


def _rows_read(query: StreamingQuery) -> int:
    if query.exception() is not None:
        raise AssertionError(str(query.exception()))
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def test_a_batch_without_its_commit_is_run_again_with_the_same_records(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    _produce(conf, topic, range(50))
    first = stream.run_batches(maxOffsetsPerTrigger="20")
    stream.forget_last_commit()
    _produce(conf, topic, range(50, 60))

    second = stream.run_batches()

    assert list(map(len, first.values())) == [20, 20, 10]
    assert second == {2: first[2], 3: _sorted(range(50, 60))}


def test_the_first_batch_at_the_end_of_the_log_is_run_again_from_the_same_place(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    _produce(conf, topic, range(10))
    first = stream.run_batches(startingOffsets="latest")
    stream.forget_last_commit()
    _produce(conf, topic, range(10, 15))

    second = stream.run_batches(startingOffsets="latest")

    assert first == {0: []}
    assert second == {0: [], 1: _sorted(range(10, 15))}


def test_a_checkpoint_of_another_topic_is_refused(
    stream: Stream, conf: dict[str, Any], topic: str, make_topic: Callable[..., str]
) -> None:
    _produce(conf, topic, range(5))
    stream.run()
    other = make_topic()
    _produce(conf, other, range(5))

    with pytest.raises(StreamingQueryException, match="the checkpoint of another query"):
        stream.run(subscribe=other)


def test_what_kafka_deleted_is_an_error_or_passed_over(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    _produce(conf, topic, range(20), "plain")
    stream.run()
    _purge(conf, topic, 20)
    _produce(conf, topic, range(20, 40), "plain")
    _purge(conf, topic, 30)

    with pytest.raises(StreamingQueryException, match="failOnDataLoss=false") as caught:
        stream.run()
    assert topic in str(caught.value)
    stream.run(failOnDataLoss="false")

    assert sorted(stream.values()) == sorted(_sorted(range(20)) + _sorted(range(30, 40)))


def _purge(conf: dict[str, Any], topic: str, before: int) -> None:
    """Delete the records before this Kafka offset, as retention does."""
    from confluent_kafka import TopicPartition

    admin = AdminClient({"bootstrap.servers": conf["bootstrap.servers"]})
    for deleted in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        deleted.result(30)


def test_latest_is_where_a_query_without_starting_offsets_begins(
    stream: Stream, conf: dict[str, Any], topic: str
) -> None:
    _produce(conf, topic, range(10))
    stream.run(startingOffsets="latest")
    _produce(conf, topic, range(10, 20))
    stream.run()

    assert sorted(stream.values()) == _sorted(range(10, 20))


def test_the_checkpoint_holds_virtual_offsets_by_topic_and_partition(
    stream: Stream, conf: dict[str, Any], topic: str, tmp_path: Path
) -> None:
    _produce(conf, topic, range(10))
    stream.run(maxOffsetsPerTrigger="4")

    first = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    offsets = json.loads(first)
    assert offsets == {topic: {"0": min(stream.offsets()) + 4}}
