from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg_spark.sink_commit import SinkTransaction, batch_number, marker_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence


class FakeAdmin:
    """Answers one question about a group's offsets."""

    def __init__(self, places: Sequence[Any], error: KafkaError | None = None) -> None:
        self._places = places
        self._error = error

    def list_consumer_group_offsets(self, _asked: Any, **options: Any) -> dict[str, Any]:
        assert options["require_stable"]
        return {"group": self}

    def result(self) -> Any:
        if self._error is not None:
            raise KafkaException(self._error)
        return SimpleNamespace(topic_partitions=self._places)


@pytest.fixture
def transaction() -> SinkTransaction:
    return SinkTransaction({"bootstrap.servers": "127.0.0.1:9"}, "name")


def test_a_marker_is_read_as_it_was_written() -> None:
    assert [batch_number(marker_metadata(batch)) for batch in (0, 7, 1 << 40)] == [0, 7, 1 << 40]


@pytest.mark.parametrize("metadata", [None, "", "blobmsg1:3", "blobmsg-spark1:batch=", "x7"])
def test_what_others_committed_is_no_marker(metadata: str | None) -> None:
    assert batch_number(metadata) == -1


def test_the_last_of_several_topics_counts(transaction: SinkTransaction) -> None:
    places = [
        TopicPartition(topic, 0, batch, metadata=marker_metadata(batch))
        for topic, batch in (("a", 3), ("b", 12), ("c", 7))
    ]

    assert transaction._read_marker(FakeAdmin(places)) == 12
    assert transaction._read_marker(FakeAdmin([])) == -1


@pytest.mark.parametrize("is_of_partition", [True, False])
def test_an_answer_that_may_pass_is_no_missing_marker(
    transaction: SinkTransaction, is_of_partition: bool
) -> None:
    unstable = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)
    place = SimpleNamespace(error=unstable, metadata=None)
    admin = FakeAdmin([place]) if is_of_partition else FakeAdmin([], unstable)

    with pytest.raises(KafkaException) as raised:
        transaction._read_marker(admin)

    assert raised.value.args[0].retriable()


def test_an_answer_that_stays_is_an_error_at_once(transaction: SinkTransaction) -> None:
    denied = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)

    with pytest.raises(KafkaException) as raised:
        transaction._read_marker(FakeAdmin([], denied))

    assert not raised.value.args[0].retriable()
