from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.group_commits import find_commits


def test_many_partitions_are_asked_for_in_parts() -> None:
    parts: list[list[TopicPartition]] = []

    def committed(places: list[TopicPartition]) -> list[TopicPartition]:
        parts.append(places)
        return [
            TopicPartition(place.topic, place.partition, place.partition or -1001)
            for place in places
        ]

    found = list(find_commits(committed, (("t", number) for number in range(2001))))

    assert [len(part) for part in parts] == [1000, 1000, 1]
    assert [(place.topic, place.partition) for part in parts for place in part] == [
        ("t", number) for number in range(2001)
    ]
    assert [place.offset for place in found] == list(range(1, 2001))


def test_of_nothing_nobody_is_asked() -> None:
    assert list(find_commits(lambda _: pytest.fail("asked"), [])) == []


def test_an_error_of_a_partition_is_no_missing_commit() -> None:
    class Refused(TopicPartition):
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        list(find_commits(lambda _: [Refused("t", 0, 5)], [("t", 0)]))
