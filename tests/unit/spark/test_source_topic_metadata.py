"""What the driver keeps of Kafka's metadata, and when it asks anew."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from blobmsg_spark import topic_metadata
from blobmsg_spark.topic_metadata import TopicMetadata
from tests.helpers.listing_admin import ListingAdmin

_MANY = [f"t{number}" for number in range(topic_metadata._FEW_TOPICS + 1)]


@pytest.fixture
def admin() -> ListingAdmin:
    return ListingAdmin(_MANY)


@pytest.fixture
def metadata(admin: ListingAdmin) -> TopicMetadata:
    return TopicMetadata(admin, 10)


def _errors(metadata: TopicMetadata, *names: str, partition: int = 0) -> dict[str, int]:
    found = metadata.without_leader([(name, partition) for name in names])
    return {name: error.code() for (name, _), error in found.items()}


def test_a_few_topics_are_asked_for_by_name_and_many_with_all_others(
    admin: ListingAdmin, metadata: TopicMetadata
) -> None:
    assert list(metadata.named(_MANY[:2])) == _MANY[:2]
    assert list(metadata.named(_MANY)) == _MANY
    assert list(metadata.matching("t1".__eq__, ())) == ["t1"]

    assert admin.asked == [*_MANY[:2], None, None]


def test_a_topic_that_is_not_listed_is_asked_for_by_name(
    admin: ListingAdmin, metadata: TopicMetadata
) -> None:
    """Kafka leaves out what a user may not see: that does not mean that it is gone."""
    admin.hidden = {"t3"}
    del admin.leaders["t4"]
    codes = {"t3": KafkaError.TOPIC_AUTHORIZATION_FAILED, "t4": KafkaError.UNKNOWN_TOPIC_OR_PART}

    assert _errors(metadata, *_MANY) == codes
    found = metadata.matching(lambda name: True, ["t3", "t4", "t5"])
    assert {name: topic.error.code() for name, topic in found.items() if topic.error} == codes


def test_leaders_are_kept_for_a_while(
    admin: ListingAdmin, metadata: TopicMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_metadata, "_KEPT_S", 1000.0)
    metadata.named(["t1"])
    assert _errors(metadata, "t1", "t2") == _errors(metadata, "t1", "t2") == {}
    assert admin.asked == ["t1", "t2"]

    metadata.forget(["t1", "t9"])
    assert _errors(metadata, "t1", "t2") == {}
    assert admin.asked == ["t1", "t2", "t1"]

    monkeypatch.setattr(topic_metadata, "_KEPT_S", -1.0)
    metadata.named(["t2"])
    assert _errors(metadata, "t2") == {}
    assert admin.asked[3:] == ["t2", "t2"]


@pytest.mark.parametrize("leader", [-1, 2])
def test_a_leader_that_is_not_there_is_asked_for_each_time(
    admin: ListingAdmin, metadata: TopicMetadata, leader: int
) -> None:
    admin.leaders["t1"] = leader
    assert _errors(metadata, "t1") == {"t1": KafkaError.LEADER_NOT_AVAILABLE}
    admin.leaders["t1"] = 1
    assert _errors(metadata, "t1") == {}
    assert _errors(metadata, "t1", partition=1) == {"t1": KafkaError._UNKNOWN_PARTITION}
