from __future__ import annotations

import logging
import time
from contextlib import closing
from itertools import product
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._metadata import ClusterMetadata, PartitionMetadata, TopicMetadata

from blobmsg.errors import BlobmsgError
from blobmsg.testing import MockKafka
from blobmsg_spark import kafka_ranges
from blobmsg_spark.kafka_ranges import KafkaRanges
from blobmsg_spark.read_session import open_consumer

KEY = ("t", 0)


class Event:
    def __init__(
        self,
        offset: int,
        code: int | None = None,
        *,
        topic: str | None = "t",
        partition: int = 0,
    ) -> None:
        self._partition = partition
        self._offset = offset
        self._error = None if code is None else KafkaError(code, "broker says so")
        self._topic = topic

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str | None:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset


class Consumer:
    """Gives what it was told; time passes in `poll`."""

    def __init__(
        self,
        *events: Event,
        low: int = 0,
        high: int = 100,
        is_gone: bool = False,
        is_listed: bool = False,
        look_up_error: int = KafkaError._UNKNOWN_PARTITION,
    ) -> None:
        self.events = list(events)
        self.assigned: dict[tuple[str, int], int] = {}
        self.now_s = 0.0
        self.times_listed = 0
        self._low = low
        self._high = high
        self.is_gone = is_gone
        self.is_listed = is_listed
        self.is_back_at_s = float("inf")
        self._look_up_error = look_up_error

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = {(found.topic, found.partition): found.offset for found in partitions}

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned |= {(found.topic, found.partition): found.offset for found in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for found in partitions:
            del self.assigned[found.topic, found.partition]

    def poll(self, timeout: float) -> Event | None:
        if self.events:
            return self.events.pop(0)
        self.now_s += timeout
        return None

    def consume(self, count: int, _timeout: float) -> list[Event]:
        taken, self.events = self.events[:count], self.events[count:]
        return taken

    def get_watermark_offsets(self, _partition: TopicPartition, _timeout: float) -> Any:
        if self.is_gone and self.now_s < self.is_back_at_s:
            raise KafkaException(KafkaError(self._look_up_error))
        return self._low, self._high

    def list_topics(self, topic: str, _timeout: float) -> Any:
        self.times_listed += 1
        metadata = TopicMetadata()
        metadata.topic = topic
        if self.is_listed:
            metadata.partitions = {0: PartitionMetadata()}
        elif self.is_gone:
            metadata.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        found = ClusterMetadata()
        found.topics = {topic: metadata}
        return found

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def _ranges(consumer: Consumer, start: int, stop: int, *, fails: bool = True) -> KafkaRanges:
    return KafkaRanges(
        consumer,
        {KEY: (start, stop)},
        fail_on_data_loss=fails,
        poll_timeout_ms=60_000,
        monotonic_s=lambda: consumer.now_s,
        sleep_s=consumer.sleep,
    )


def _read(ranges: KafkaRanges) -> list[int]:
    offsets: list[int] = []
    while ranges.open_keys:
        offsets += [message.offset() for message in ranges.receive(100, 1.0)]
    return offsets


def test_a_range_ends_with_its_last_record() -> None:
    consumer = Consumer(*map(Event, range(5, 12)))

    assert _read(_ranges(consumer, 5, 8)) == [5, 6, 7]
    assert consumer.assigned == {}


def test_a_range_whose_end_nobody_sees_ends_with_a_record_behind_it() -> None:
    assert _read(_ranges(Consumer(Event(5), Event(9)), 5, 8)) == [5]


def test_a_range_whose_end_nobody_sees_ends_at_the_end_of_the_log() -> None:
    end = Event(8, KafkaError._PARTITION_EOF)

    assert _read(_ranges(Consumer(Event(5), end), 5, 8)) == [5]


def test_an_empty_range_is_not_assigned() -> None:
    consumer = Consumer()

    assert _ranges(consumer, 5, 5).receive(10, 1.0) == []
    assert consumer.assigned == {}


def test_a_log_that_ends_too_early_for_a_moment_is_waited_for() -> None:
    end = Event(6, KafkaError._PARTITION_EOF)

    assert _read(_ranges(Consumer(Event(5), end, Event(6), Event(7)), 5, 8)) == [5, 6, 7]


def test_a_log_that_stays_too_short_is_data_loss() -> None:
    end = Event(6, KafkaError._PARTITION_EOF)

    with pytest.raises(BlobmsgError, match=r"offsets 6 to 7 can't be read: the log ends at 6"):
        _read(_ranges(Consumer(Event(5), end, high=6), 5, 8))


def test_lost_records_are_passed_over_and_logged_on_demand(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = Event(5, KafkaError._AUTO_OFFSET_RESET)
    consumer = Consumer(lost, low=7)

    with caplog.at_level(logging.WARNING, "blobmsg.spark"):
        ranges = _ranges(consumer, 5, 9, fails=False)
        assert ranges.receive(1, 1.0) == []
    assert consumer.assigned == {KEY: 7}
    consumer.events += [Event(7), Event(8)]
    assert _read(ranges) == [7, 8]
    assert caplog.text.count("going on without them") == 1


def test_records_that_are_there_are_asked_for_again() -> None:
    codes = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.OFFSET_OUT_OF_RANGE)
    for code, fails in product(codes, (False, True)):
        consumer = Consumer(Event(5), Event(-1, code), low=6)
        ranges = _ranges(consumer, 5, 9, fails=fails)

        assert [message.offset() for message in ranges.receive(2, 1.0)] == [5]
        assert consumer.assigned == {KEY: 6}
        consumer.events += map(Event, (6, 7, 8))
        assert _read(ranges) == [6, 7, 8]


def test_records_that_are_there_and_never_come_are_an_error() -> None:
    lost = Event(-1, KafkaError.UNKNOWN_TOPIC_OR_PART)

    with pytest.raises(BlobmsgError, match="the log does not seem to lack them, 6 times"):
        _read(_ranges(Consumer(*[lost] * 9), 5, 9, fails=False))


def test_a_record_that_comes_counts_as_an_answer() -> None:
    lost = Event(-1, KafkaError.UNKNOWN_TOPIC_OR_PART)
    consumer = Consumer(*[lost] * 5, Event(5), *[lost] * 5, Event(6))

    assert _read(_ranges(consumer, 5, 7, fails=False)) == [5, 6]


def test_a_broker_that_does_not_answer_does_not_make_records_lost() -> None:
    lost = Event(5, KafkaError._AUTO_OFFSET_RESET)
    consumer = Consumer(lost, Event(5), Event(6), is_gone=True, look_up_error=KafkaError._TIMED_OUT)

    assert _read(_ranges(consumer, 5, 7, fails=False)) == [5, 6]


def test_what_lies_behind_the_end_of_the_log_is_passed_over() -> None:
    lost = Event(5, KafkaError._AUTO_OFFSET_RESET)

    assert _read(_ranges(Consumer(lost, high=4), 5, 9, fails=False)) == []
    assert _read(_ranges(Consumer(lost, low=7, high=7), 5, 9, fails=False)) == []


def test_a_deleted_topic_is_data_loss() -> None:
    gone = Event(-1, KafkaError.UNKNOWN_TOPIC_OR_PART)

    with pytest.raises(BlobmsgError, match="failOnDataLoss=false"):
        _read(_ranges(Consumer(gone, is_gone=True), 5, 9))
    consumer = Consumer(gone, is_gone=True)
    assert _read(_ranges(consumer, 5, 9, fails=False)) == []
    assert consumer.times_listed == 6
    assert consumer.now_s == pytest.approx(6.2)


def test_a_refusal_is_told_at_once() -> None:
    refused = Event(-1, KafkaError.TOPIC_AUTHORIZATION_FAILED)

    with pytest.raises(BlobmsgError, match="permission to read the topic"):
        _read(_ranges(Consumer(refused), 5, 9))


def test_silence_is_an_error_that_tells_the_last_one() -> None:
    away = Event(-1, KafkaError._ALL_BROKERS_DOWN, topic=None)
    consumer = Consumer(away)

    with pytest.raises(BlobmsgError, match=r"no record of t \[0\] came for 60 s \(broker says so"):
        _read(_ranges(consumer, 5, 9))
    assert consumer.now_s >= 60


def test_time_between_calls_does_not_count() -> None:
    consumer = Consumer()
    ranges = _ranges(consumer, 5, 9)
    for _ in range(10):
        assert ranges.receive(10, 1.0) == []
        consumer.now_s += 1000


def test_a_partition_without_a_leader_has_lost_nothing() -> None:
    lost = Event(5, KafkaError._AUTO_OFFSET_RESET)
    consumer = Consumer(lost, Event(5), Event(6), is_gone=True, is_listed=True)

    assert _read(_ranges(consumer, 5, 7, fails=False)) == [5, 6]


def test_partitions_of_a_deleted_topic_are_waited_for_once() -> None:
    events = [Event(-1, KafkaError.UNKNOWN_TOPIC_OR_PART, partition=number) for number in range(3)]
    consumer = Consumer(*events, is_gone=True)
    ranges = KafkaRanges(
        consumer,
        {("t", number): (5, 9) for number in range(3)},
        fail_on_data_loss=False,
        poll_timeout_ms=60_000,
        monotonic_s=lambda: consumer.now_s,
        sleep_s=consumer.sleep,
    )

    assert _read(ranges) == []
    assert consumer.times_listed == 6 + 1 + 1


def test_a_partition_that_is_gone_says_nothing_of_others() -> None:
    consumer = Consumer(high=8)
    ranges = _ranges(consumer, 0, 8, fails=False)
    consumer.is_gone = True
    consumer.is_listed = True
    assert ranges._bounds(("t", 7)) == (0, 0)
    consumer.is_listed = False
    consumer.is_back_at_s = consumer.now_s + 1

    assert ranges._bounds(KEY) == (0, 8)


def test_librdkafka_and_a_broker_say_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with MockKafka(["a"]) as kafka:
        kafka.create_topic("t")
        conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0}
        with closing(open_consumer(conf, 0)) as consumer:
            ranges = KafkaRanges(
                consumer,
                {},
                fail_on_data_loss=False,
                poll_timeout_ms=20_000,
                sleep_s=lambda seconds: time.sleep(seconds / 20),
            )
            assert ranges._bounds(("t", 7)) == (0, 0)
            kafka._lead("t", 0, -1)
            consumer.list_topics("t", 10)
            assert ranges._bounds(KEY) is None
            kafka.elect("t", 0, "a")
            consumer.list_topics("t", 10)
            assert ranges._bounds(KEY) == (0, 0)
            monkeypatch.setattr(kafka_ranges, "_LOOK_UP_S", 1.0)
            kafka.go_away()
            assert ranges._bounds(KEY) is None
