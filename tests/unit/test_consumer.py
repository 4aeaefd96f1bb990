"""BlobConsumer without a broker: what its own decisions are, on an inner client that records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from blobmsg import BlobConsumer
from blobmsg.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobmsg.core.positions import CommitEntry

TOPIC = "orders"


@pytest.fixture
def consumer() -> Iterator[BlobConsumer]:
    consumer = BlobConsumer(
        {
            "bootstrap.servers": "127.0.0.1:1",  # nobody answers, and nothing here asks
            "group.id": "g",
            "blobmsg.store.url": "memory://test-consumer",
            "log_level": 0,
        }
    )
    yield consumer
    consumer.close()


def committed_by(consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch) -> list[CommitEntry]:
    """Records what the consumer commits; assigns one partition with one record handed out."""
    consumption: Any = consumer._consumption
    committed: list[CommitEntry] = []

    def commit(entries: list[CommitEntry], *, asynchronous: bool) -> None:
        assert not asynchronous
        committed.extend(entries)

    monkeypatch.setattr(consumption, "commit", commit)
    flow = consumption._core.assigned((TOPIC, 0), None)
    flow.settled_position = 5 << 20
    return committed


def test_revoked_partitions_are_committed_and_forgotten(
    consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = committed_by(consumer, monkeypatch)

    consumer._on_revoked(None, [TopicPartition(TOPIC, 0)])

    assert [(entry.partition, entry.kafka_offset) for entry in committed] == [(0, 5)]
    assert consumer._consumption.keys() == []


def test_lost_partitions_are_forgotten_but_not_committed(
    consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = committed_by(consumer, monkeypatch)

    consumer._on_lost(None, [TopicPartition(TOPIC, 0)])

    assert committed == []
    assert consumer._consumption.keys() == []


def test_a_timeout_of_none_is_refused_even_while_a_record_is_ready(
    consumer: BlobConsumer,
) -> None:
    consumer._consumption._loose.append(Message(TOPIC, 0, 1))

    with pytest.raises(TypeError, match="must be real number"):
        consumer.poll(None)  # type: ignore[arg-type]
