"""A broker that stood still takes itself for a leader: positions that it does not know are kept."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import flush, next_error, next_message, partition, produce, wait_until
from tests.helpers.stack import heal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BEFORE, COUNT, WANTED = 5, 25, 20


@pytest.fixture
def brokers(stack: lab.Stack) -> Iterator[lab.Stack]:
    yield stack
    heal(stack)


def _send(conf: dict[str, Any], topic: str, numbers: range) -> list[int]:
    """Send records, each with a notification of its own; their offsets."""
    offsets: list[int] = []
    with BlobProducer(conf) as producer:
        for number in numbers:
            produce(
                producer,
                topic,
                b"%d" % number,
                partition=0,
                on_delivery=lambda _error, message: offsets.append(message.offset()),
            )
            flush(producer)
    return offsets


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_leader_that_stood_still_moves_nobodys_position(
    brokers: lab.Stack, store_prefix: str, make_topic: Callable[..., str], reset: str
) -> None:
    topic = make_topic(partitions=1)
    conf = brokers.conf(store_prefix)
    offsets = _send({**conf, "blobmsg.route": "blob"}, topic, range(BEFORE))

    def leader() -> int:
        asking = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
        try:
            number: int = asking.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
        except KafkaException:
            return -1
        return number

    reading = {
        **conf,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": reset,
        "enable.auto.commit": False,
    }
    with BlobConsumer(reading) as consumer:
        consumer.assign([partition(topic, 0, offsets[0])])
        for number in range(BEFORE):
            assert next_message(consumer).value() == b"%d" % number
        old = leader()
        with brokers.broker(old).paused():
            wait_until(lambda: leader() not in (old, -1), "another one leads", timeout_s=60)
            offsets += _send({**conf, "blobmsg.route": "blob"}, topic, range(BEFORE, COUNT))
            # As the next member of a group does, where another one has committed.
            consumer.seek(partition(topic, 0, offsets[WANTED]))

        got = [next_message(consumer) for _ in range(WANTED, COUNT)]

    assert [(m.error(), m.value(), m.offset()) for m in got] == [
        (None, b"%d" % number, offsets[number]) for number in range(WANTED, COUNT)
    ]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_position_in_a_log_that_is_empty_now_is_given_up(
    conf: dict[str, Any], topic: str, reset: str
) -> None:
    reading = {
        **conf,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": reset,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    with BlobConsumer(reading) as consumer:
        consumer.assign([partition(topic, 0, 7 << 20)])
        end = next_error(consumer)  # behind the time for which brokers may be wrong
        assert end.error().code() == KafkaError._PARTITION_EOF
        assert end.offset() == 0

        _send({**conf, "blobmsg.route": "blob"}, topic, range(1))
        assert next_message(consumer).value() == b"0"
