"""What the driver keeps of Kafka's metadata, and when it asks anew."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin._metadata import (
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
)
from confluent_kafka.admin._metadata import (
    TopicMetadata as KafkaTopic,
)

from blobmsg_spark import topic_metadata
from blobmsg_spark.topic_metadata import TopicMetadata

_MANY = [f"t{number}" for number in range(topic_metadata._FEW_TOPICS + 1)]


class Admin:
    """Topics with one partition each, as `leaders` says.

    Attributes:
        leaders: Of partition 0 of each topic.
        hidden: Topics that this user may not see: not listed, and refused by name.
        asked: The names that were asked for; None: all.
    """

    def __init__(self) -> None:
        self.leaders = dict.fromkeys(_MANY, 1)
        self.hidden: set[str] = set()
        self.asked: list[str | None] = []

    def list_topics(self, name: str | None, timeout: float) -> ClusterMetadata:
        assert 0 <= timeout <= 10
        self.asked.append(name)
        found = ClusterMetadata()
        found.brokers = {1: BrokerMetadata()}
        names = [each for each in self.leaders if each not in self.hidden]
        found.topics = {each: self._topic(each) for each in (names if name is None else [name])}
        return found

    def _topic(self, name: str) -> KafkaTopic:
        topic = KafkaTopic()
        if name in self.hidden:
            topic.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        elif name not in self.leaders:
            topic.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        else:
            partition = PartitionMetadata()
            partition.leader = self.leaders[name]
            topic.partitions = {0: partition}
        return topic


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def metadata(admin: Admin) -> TopicMetadata:
    return TopicMetadata(lambda: admin, 10)


def _errors(metadata: TopicMetadata, *names: str, partition: int = 0) -> dict[str, int]:
    found = metadata.without_leader([(name, partition) for name in names])
    return {name: error.code() for (name, _), error in found.items()}


def test_a_few_topics_are_asked_for_by_name_and_many_with_all_others(
    admin: Admin, metadata: TopicMetadata
) -> None:
    assert list(metadata.named(_MANY[:2])) == _MANY[:2]
    assert list(metadata.named(_MANY)) == _MANY
    assert list(metadata.matching("t1".__eq__, ())) == ["t1"]

    assert admin.asked == [*_MANY[:2], None, None]


def test_a_topic_that_is_not_listed_is_asked_for_by_name(
    admin: Admin, metadata: TopicMetadata
) -> None:
    """Kafka leaves out what a user may not see: that does not mean that it is gone."""
    admin.hidden = {"t3"}
    del admin.leaders["t4"]
    codes = {"t3": KafkaError.TOPIC_AUTHORIZATION_FAILED, "t4": KafkaError.UNKNOWN_TOPIC_OR_PART}

    assert _errors(metadata, *_MANY) == codes
    found = metadata.matching(lambda name: True, ["t3", "t4", "t5"])
    assert {name: topic.error.code() for name, topic in found.items() if topic.error} == codes


def test_leaders_are_kept_for_a_while(
    admin: Admin, metadata: TopicMetadata, monkeypatch: pytest.MonkeyPatch
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
    admin: Admin, metadata: TopicMetadata, leader: int
) -> None:
    admin.leaders["t1"] = leader
    assert _errors(metadata, "t1") == {"t1": KafkaError.LEADER_NOT_AVAILABLE}
    admin.leaders["t1"] = 1
    assert _errors(metadata, "t1") == {}
    assert _errors(metadata, "t1", partition=1) == {"t1": KafkaError._UNKNOWN_PARTITION}
