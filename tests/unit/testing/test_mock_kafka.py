from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from blobmsg.testing import MockKafka
from tests.helpers.records import Reports, partition, produce, read, wait_until
from tests.helpers.stock import StockConsumer

if TYPE_CHECKING:
    from collections.abc import Iterator

_OFFSET_FETCH = 9


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka(["a", "b"]) as kafka:
        yield kafka


def _topics(kafka: MockKafka) -> Any:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10)


def test_it_has_a_broker_for_each_zone(kafka: MockKafka) -> None:
    assert len(_topics(kafka).brokers) == 2
    assert len(kafka.bootstrap_servers.split(",")) == 2


def test_leaders_of_a_topic_go_round_the_brokers(kafka: MockKafka) -> None:
    kafka.create_topic("t", 5)

    partitions = _topics(kafka).topics["t"].partitions

    assert [partitions[number].leader for number in range(5)] == [1, 2, 1, 2, 1]


@pytest.mark.timeout(40)
def test_hundreds_of_partitions_take_no_second_each(kafka: MockKafka) -> None:
    kafka.create_topic("t", 400)

    assert len(_topics(kafka).topics["t"].partitions) == 400


def test_leaders_are_elected(kafka: MockKafka) -> None:
    kafka.create_topic("t", 2)
    kafka.elect("t", 0, "b")
    kafka.elect("t", 1, "a")

    partitions = _topics(kafka).topics["t"].partitions

    assert [partitions[number].leader for number in range(2)] == [2, 1]
    with pytest.raises(RuntimeError, match=r"no partition t \[2\]"):
        kafka.elect("t", 2, "a")
    with pytest.raises(ValueError, match="zone 'c'; there are a, b"):
        kafka.elect("t", 0, "c")


def test_clients_of_it_share_their_records(kafka: MockKafka) -> None:
    kafka.create_topic("t")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    produce(producer, "t", b"v")
    assert producer.flush(10) == 0

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
    consumer.assign([partition("t", 0, 0)])

    assert [message.value() for message in read(consumer, 1)] == [b"v"]
    consumer.close()


def test_a_topic_that_is_there_is_refused(kafka: MockKafka) -> None:
    kafka.create_topic("t")

    with pytest.raises(RuntimeError, match="refuses topic 't'"):
        kafka.create_topic("t")


def test_while_it_is_away_records_wait(kafka: MockKafka) -> None:
    kafka.create_topic("t")
    heard: list[Any] = []
    conf = {"bootstrap.servers": kafka.bootstrap_servers, "reconnect.backoff.max.ms": 100}
    producer = Producer({**conf, "error_cb": heard.append})
    reports = Reports()
    kafka.go_away()
    produce(producer, "t", b"v", on_delivery=reports)
    wait_until(lambda: bool(heard), "an error", serve=lambda: producer.poll(0.1))
    assert reports.outcomes == []

    kafka.come_back()

    assert producer.flush(60) == 0
    assert reports.codes == [None]


def test_what_is_refused_comes_through_when_it_is_asked_again(kafka: MockKafka) -> None:
    kafka.create_topic("t")
    conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}
    with StockConsumer(conf) as consumer:
        consumer.commit(offsets=[partition("t", 0, 5)], asynchronous=False)
        kafka.refuse_next(_OFFSET_FETCH, KafkaError.GROUP_AUTHORIZATION_FAILED)

        with pytest.raises(KafkaException, match="Group authorization failed"):
            consumer.committed([partition("t", 0)], timeout=10)
        (place,) = consumer.committed([partition("t", 0)], timeout=10)
        assert place.offset == 5


def test_two_clusters_are_two(kafka: MockKafka) -> None:
    kafka.create_topic("mine")

    with MockKafka() as other:
        assert len(_topics(other).brokers) == 3
        assert "mine" not in _topics(other).topics


def test_after_close_it_refuses(kafka: MockKafka) -> None:
    kafka.close()
    kafka.close()

    with pytest.raises(RuntimeError, match="closed"):
        kafka.create_topic("t")
    with pytest.raises(RuntimeError, match="closed"):
        kafka.refuse_next(_OFFSET_FETCH, 16)
    with pytest.raises(RuntimeError, match="closed"):
        _ = kafka.bootstrap_servers


def test_a_cluster_without_brokers_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        MockKafka([])
