"""Committed offsets that a former coordinator was asked for: on librdkafka's mock cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_STORED, KafkaError

from blobmsg import BlobConsumer
from blobmsg.testing import MockKafka
from tests.helpers.records import flush, partition, produce, wait_until
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OFFSET_FETCH = 9
# The first is answered to us, the next to librdkafka, which then never reads these partitions.
_REFUSALS = [KafkaError.NOT_COORDINATOR] * 2

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka(["a"]) as kafka:
        kafka.create_topic("t", 3)
        yield kafka


@pytest.fixture
def conf(kafka: MockKafka, tmp_path: Path) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "blobmsg.store.url": f"file://{tmp_path}",
    }


@pytest.fixture
def producer(kafka: MockKafka) -> Iterator[Any]:
    with StockProducer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
        for number in range(30):
            produce(producer, "t", b"%d" % (number // 3), partition=number % 3)
        flush(producer)
        yield producer


@pytest.fixture(autouse=True)
def _commits(conf: dict[str, Any], producer: Any) -> None:
    del producer
    own = {key: value for key, value in conf.items() if not key.startswith("blobmsg.")}
    with StockConsumer(own) as committer:
        offsets = [partition("t", number, number + 1) for number in range(3)]
        committer.commit(offsets=offsets, asynchronous=False)


def _take(consumer: BlobConsumer, found: dict[int, list[int]]) -> None:
    message = consumer.poll(0.1)
    if message is None:
        return
    error, number, offset = message.error(), message.partition(), message.offset()
    if error is not None:
        assert error.code() == KafkaError.NOT_COORDINATOR
        return
    assert number is not None
    assert offset is not None
    found[number].append(offset >> 20)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_reads_on_where_it_has_committed(
    kafka: MockKafka, conf: dict[str, Any], strategy: str
) -> None:
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    expected = {number: list(range(number + 1, 10)) for number in range(3)}
    with BlobConsumer({**conf, "partition.assignment.strategy": strategy}) as consumer:
        kafka.refuse_next(_OFFSET_FETCH, *_REFUSALS)
        consumer.subscribe(["t"])
        wait_until(lambda: found == expected, "all is read", serve=lambda: _take(consumer, found))


def test_a_group_that_has_committed_nothing_reads_all(
    kafka: MockKafka, conf: dict[str, Any]
) -> None:
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    expected = {number: list(range(10)) for number in range(3)}
    with BlobConsumer({**conf, "group.id": "new"}) as consumer:
        kafka.refuse_next(_OFFSET_FETCH, *_REFUSALS)
        consumer.subscribe(["t"])
        wait_until(lambda: found == expected, "all is read", serve=lambda: _take(consumer, found))


def test_what_is_read_meanwhile_comes_once(
    kafka: MockKafka, conf: dict[str, Any], producer: Any
) -> None:
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    sent = 10

    def serve() -> None:
        nonlocal sent
        if sent < 300:
            produce(producer, "t", b"more", partition=0)
            producer.flush(10)
            sent += 1
        _take(consumer, found)

    with BlobConsumer(conf) as consumer:
        kafka.refuse_next(_OFFSET_FETCH, *_REFUSALS)
        consumer.assign([partition("t", 0, 0), *(partition("t", n, OFFSET_STORED) for n in (1, 2))])
        wait_until(
            lambda: sent == 300 and [len(found[n]) for n in range(3)] == [sent, 8, 7],
            "all is read",
            serve=serve,
        )

    assert found == {0: list(range(300)), 1: list(range(2, 10)), 2: list(range(3, 10))}
