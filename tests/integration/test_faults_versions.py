"""What a later version of blobmsg has written: said by name, never guessed."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import next_error, partition, read, send

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


def test_a_committed_place_of_a_later_version_is_refused_and_a_known_one_heals(
    conf: dict[str, Any], group_conf: dict[str, Any], bootstrap: str, topic: str
) -> None:
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for batch in range(2):
            send(producer, topic, [b"%d" % (10 * batch + i) for i in range(10)])
    group = {"bootstrap.servers": bootstrap, "group.id": group_conf["group.id"]}

    def commit(metadata: str) -> None:
        stock = Consumer(group)
        try:
            stock.commit(offsets=[TopicPartition(topic, 0, 1, metadata)], asynchronous=False)
        finally:
            stock.close()

    commit("blobmsg2:3")  # whatever this will mean
    with BlobConsumer(group_conf) as consumer:
        consumer.subscribe([topic])
        message = next_error(consumer)
        assert message.error().code() == KafkaError._UNSUPPORTED_FEATURE
        assert "version 2" in str(message.error())
        assert (message.topic(), message.partition()) == (topic, 0)
        [place] = consumer.position([partition(topic)])
        assert place.offset < 0  # nothing was handed out

    commit("blobmsg1:3")
    with BlobConsumer(group_conf) as consumer:
        consumer.subscribe([topic])
        assert [m.value() for m in read(consumer, 3)] == [b"17", b"18", b"19"]
