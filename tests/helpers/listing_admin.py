"""Stands for an AdminClient that lists topics, some of which its user may not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError
from confluent_kafka.admin._metadata import (
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ListingAdmin"]


class ListingAdmin:
    """Topics with one partition each.

    Args:
        topics: They have a leader.

    Attributes:
        leaders: Of partition 0 of each topic.
        hidden: Topics that this user may not see: not listed, and refused by name.
        asked: The names that were asked for; None: all.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.leaders = dict.fromkeys(topics, 1)
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

    def _topic(self, name: str) -> TopicMetadata:
        topic = TopicMetadata()
        if name in self.hidden:
            topic.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        elif name not in self.leaders:
            topic.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        else:
            partition = PartitionMetadata()
            partition.leader = self.leaders[name]
            topic.partitions = {0: partition}
        return topic
