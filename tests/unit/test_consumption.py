"""Consumption on an inner consumer that is a few lines of Python: nothing is lost by exceptions."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.consumption import Consumption
from blobmsg.fetcher import Fetcher
from blobmsg.kafka_settings import KafkaView
from blobmsg.message import Message
from blobmsg.resources import Stores

TOPIC = "orders"


class Kafka:
    """The inner consumer: plain records of one partition."""

    def __init__(self, count: int) -> None:
        self.records = deque(
            Message(TOPIC, 0, offset, value=b"%d" % offset) for offset in range(count)
        )
        self.failures: deque[BaseException] = deque()
        self.committed_offsets: list[Any] = []

    def poll(self, _timeout: float) -> Message | None:
        return self.records.popleft() if self.records else None

    def consume(self, count: int, _timeout: float) -> list[Message]:
        if self.failures:
            raise self.failures.popleft()
        return [self.records.popleft() for _ in range(min(count, len(self.records)))]

    def assign(self, _partitions: list[TopicPartition]) -> None:
        """Nothing to do."""

    def seek(self, _partition: TopicPartition) -> None:
        """Nothing to do."""

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        assert not asynchronous
        self.committed_offsets += [(o.partition, o.offset) for o in offsets]
        return offsets


def consumption_of(kafka: Kafka) -> Consumption:
    settings, kafka_conf = parse_settings(
        {"blobmsg.store.url": "memory://test-consumption", "auto.commit.interval.ms": 3_600_000}, {}
    )
    clock = SystemClock()
    fetcher = Fetcher(
        Stores(settings), None, clock, threads=1, request_timeout_ms=1000, name="test"
    )
    consumption = Consumption(
        kafka, fetcher, settings, KafkaView.parse(kafka_conf), clock, on_error=None
    )
    consumption.assign([TopicPartition(TOPIC, 0, 0)], is_incremental=False)
    return consumption


def values(messages: list[Message]) -> list[int]:
    return [int(message.value()) for message in messages]


def test_what_was_polled_survives_an_exception_of_the_next_call() -> None:
    kafka = Kafka(5)
    consumption = consumption_of(kafka)
    kafka.failures.append(ValueError("a callback"))

    with pytest.raises(ValueError, match="a callback"):
        consumption.consume(5, 1.0)

    assert values(consumption.consume(5, 1.0)) == [0, 1, 2, 3, 4]


def test_a_callbacks_exception_surfaces_after_what_came_with_it_is_safe() -> None:
    kafka = Kafka(3)
    consumption = consumption_of(kafka)
    consumption.callback_failures.append(ValueError("a callback"))

    with pytest.raises(ValueError, match="a callback"):
        consumption.poll(1.0)

    assert values(consumption.consume(3, 1.0)) == [0, 1, 2]


def test_what_an_interrupted_consume_gathered_is_neither_lost_nor_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka(3)
    consumption = consumption_of(kafka)
    gathered = consumption.consume(2, 1.0)
    consumption.commit_stored(consumption.keys(), asynchronous=False)
    kafka.records.extend(Message(TOPIC, 0, offset, value=b"%d" % offset) for offset in (3, 4))
    # The next service raises when three of the ten wanted are gathered.
    original = consumption._wait

    def interrupted(_deadline: float) -> bool:
        if not kafka.records:
            raise KeyboardInterrupt
        return original(_deadline)

    monkeypatch.setattr(consumption, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        consumption.consume(10, 5.0)
    consumption.commit_stored(consumption.keys(), asynchronous=False)

    assert values(gathered) == [0, 1]
    assert set(kafka.committed_offsets) == {(0, 2)}
    assert values(consumption.consume(3, 1.0)) == [2, 3, 4]
    consumption.commit_stored(consumption.keys(), asynchronous=False)
    assert kafka.committed_offsets[-1] == (0, 5)


def test_progress_before_a_seek_stays_stored() -> None:
    kafka = Kafka(4)
    consumption = consumption_of(kafka)
    consumption.consume(4, 1.0)

    consumption.seek(TopicPartition(TOPIC, 0, 1 << 20))
    consumption.commit_stored(consumption.keys(), asynchronous=False)

    assert kafka.committed_offsets == [(0, 4)]


def test_a_new_assignment_commits_what_it_replaces() -> None:
    kafka = Kafka(4)
    consumption = consumption_of(kafka)
    consumption.consume(4, 1.0)

    consumption.assign([TopicPartition(TOPIC, 0, 4 << 20)], is_incremental=False)

    assert kafka.committed_offsets == [(0, 4)]
