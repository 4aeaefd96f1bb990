from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from blobmsg.errors import BlobmsgError
from blobmsg.testing import MockKafka
from blobmsg_spark.sink_commit import SinkTransaction, batch_number, marker_metadata
from tests.helpers.stock import StockConsumer

if TYPE_CHECKING:
    from collections.abc import Iterator

_OFFSET_FETCH, _FIND_COORDINATOR = 9, 10


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka(["a"]) as kafka:
        for topic in ("a", "b", "c"):
            kafka.create_topic(topic, 2)
        yield kafka


@pytest.fixture
def transaction(kafka: MockKafka) -> SinkTransaction:
    return SinkTransaction({"bootstrap.servers": kafka.bootstrap_servers}, "name")


@pytest.fixture
def marked(kafka: MockKafka) -> None:
    """Markers as three micro-batches leave them."""
    conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "name"}
    with StockConsumer(conf) as group:
        group.commit(
            offsets=[
                TopicPartition(topic, 0, batch, metadata=marker_metadata(batch))
                for topic, batch in (("a", 3), ("b", 12), ("c", 7))
            ],
            asynchronous=False,
        )


def test_a_marker_is_read_as_it_was_written() -> None:
    assert [batch_number(marker_metadata(batch)) for batch in (0, 7, 1 << 40)] == [0, 7, 1 << 40]


@pytest.mark.parametrize("metadata", [None, "", "blobmsg1:3", "blobmsg-spark1:batch=", "x7"])
def test_what_others_committed_is_no_marker(metadata: str | None) -> None:
    assert batch_number(metadata) == -1


@pytest.mark.usefixtures("marked")
def test_the_last_of_several_topics_counts(transaction: SinkTransaction) -> None:
    assert transaction._find_last_batch(set()) == 12


@pytest.mark.usefixtures("marked")
def test_a_topic_that_the_broker_does_not_know_yet_counts(
    transaction: SinkTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Behind(Consumer):
        def list_topics(self, *arguments: Any, **options: Any) -> Any:
            found = super().list_topics(*arguments, **options)
            del found.topics["b"]
            return found

    monkeypatch.setattr("blobmsg_spark.sink_commit._StockConsumer", Behind)

    assert transaction._find_last_batch(set()) == 7
    assert transaction._find_last_batch({"b"}) == 12


def test_whoever_asks_waits_for_open_transactions(
    transaction: SinkTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    confs: list[dict[str, Any]] = []

    class Noted(Consumer):
        def __init__(self, conf: dict[str, Any]) -> None:
            confs.append(conf)
            super().__init__(conf)

    monkeypatch.setattr("blobmsg_spark.sink_commit._StockConsumer", Noted)

    transaction._find_last_batch(set())

    assert [conf["isolation.level"] for conf in confs] == ["read_committed"]


def test_a_group_that_may_not_be_read_is_an_error_that_says_what_to_do(
    transaction: SinkTransaction, kafka: MockKafka
) -> None:
    kafka.refuse_next(_FIND_COORDINATOR, *[KafkaError.GROUP_AUTHORIZATION_FAILED] * 1000)

    with pytest.raises(BlobmsgError, match="this user needs Read on groups"):
        transaction._find_last_batch(set())


def test_without_a_marker_no_batch_is_written(transaction: SinkTransaction) -> None:
    assert transaction._find_last_batch(set()) == -1


# An admin client ends the process where the coordinator has moved.
@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
@pytest.mark.usefixtures("marked")
def test_an_answer_that_may_pass_is_no_missing_marker(
    transaction: SinkTransaction, kafka: MockKafka, code: int
) -> None:
    kafka.refuse_next(_OFFSET_FETCH, code, code)

    assert transaction._find_last_batch(set()) == 12


@pytest.mark.usefixtures("marked")
def test_an_answer_that_stays_is_an_error_at_once(
    transaction: SinkTransaction, kafka: MockKafka
) -> None:
    kafka.refuse_next(_OFFSET_FETCH, KafkaError.GROUP_AUTHORIZATION_FAILED)

    with pytest.raises(BlobmsgError, match=r"failed to read the marker: .*authorization failed"):
        transaction._find_last_batch(set())
