"""The time that `close` takes while calls of its threads hang, and what it leaves behind."""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobProducer
from blobmsg.testing import Fault, FaultStore, MockKafka
from tests.helpers.living_clients import CAN_TELL, living_clients
from tests.helpers.records import Reports, flush, produce, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE_TIMEOUT_S = 2

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as kafka:
        kafka.create_topic("t")
        yield kafka


@pytest.fixture
def store() -> Iterator[FaultStore]:
    store = FaultStore()
    yield store
    store.close()


@pytest.fixture
def conf(kafka: MockKafka, store: FaultStore) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "log_level": 0,
        "message.timeout.ms": MESSAGE_TIMEOUT_S * 1000,
        "blobmsg.store.url": store.url,
        "blobmsg.route": "blob",
        "blobmsg.retention.ms": 3_600_000,
    }


def _close(producer: BlobProducer) -> float:
    started = time.monotonic()
    producer.close()
    return time.monotonic() - started


def test_it_ends_in_time_though_the_topic_is_asked_for_where_no_broker_answers(
    conf: dict[str, Any], kafka: MockKafka
) -> None:
    kafka.go_away()
    reports = Reports()
    producer = BlobProducer(conf)
    produce(producer, "t", b"v", on_delivery=reports)

    took_s = _close(producer)

    assert took_s < MESSAGE_TIMEOUT_S + 1
    assert reports.codes == [KafkaError._MSG_TIMED_OUT]


def test_it_ends_in_time_though_kafka_is_away_and_uploads_hang(
    conf: dict[str, Any], kafka: MockKafka, store: FaultStore
) -> None:
    never = threading.Event()
    reports = Reports()
    producer = BlobProducer({**conf, "blobmsg.batch.interval.ms": 10})

    def produce_again(*_report: object) -> None:
        """While it closes: uploads that begin so late are still wanted at its end."""
        for _ in range(20):
            producer.produce("t", b"too late")
            producer.poll(0.05)

    produce(producer, "t", b"stored", on_delivery=reports)
    flush(producer)
    store.add(Fault("put", times=None, gate=never))
    kafka.go_away()
    produce(producer, "t", b"v", on_delivery=produce_again)
    try:
        took_s = _close(producer)
    finally:
        never.set()

    assert took_s < MESSAGE_TIMEOUT_S + 1
    assert reports.codes == [None]


@pytest.mark.skipif(not CAN_TELL, reason="not Linux")
def test_what_hangs_lets_go_of_kafka_when_it_ends_though_the_producer_lives_on(
    conf: dict[str, Any], kafka: MockKafka
) -> None:
    gc.collect()
    of_others = living_clients()
    kafka.go_away()
    producer = BlobProducer(conf)
    produce(producer, "t", b"v")
    its_own = living_clients() - of_others
    producer.close()

    kafka.come_back()
    wait_until(lambda: not its_own & living_clients(), "its clients have ended")

    assert its_own
    assert len(producer) == 0
