"""A store that answers late or not at all while a consumer's world goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.fault_proxy import Answer, Hold
from tests.helpers.records import (
    Reports,
    flush,
    next_message,
    partition,
    produce,
    read,
    wait_until,
)

if TYPE_CHECKING:
    from tests.helpers.fault_proxy import FaultProxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

RECORDS_PER_BATCH = 10
BATCHES = 4
COUNT = RECORDS_PER_BATCH * BATCHES
PREFETCH_BYTES = 1 << 20


@pytest.fixture
def reader_conf(group_conf: dict[str, Any], proxy: FaultProxy) -> dict[str, Any]:
    return {
        **group_conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.cache.memory.bytes": 0,
        "blobmsg.prefetch.max.bytes": PREFETCH_BYTES,
        "enable.partition.eof": False,
    }


def _fill(conf: dict[str, Any], topic: str, *, value_bytes: int = 0) -> list[int]:
    """Records 0 to COUNT - 1 in partition 0, 10 to a notification; their virtual offsets."""
    reports = Reports()
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(COUNT):
            value = b"%d:" % number + bytes(value_bytes)
            produce(producer, topic, value, partition=0, on_delivery=reports)
            if (number + 1) % RECORDS_PER_BATCH == 0:
                flush(producer)
    return [message.offset() for message in reports.messages()]


def _numbers(messages: list[Any]) -> list[int]:
    return [int(m.value().partition(b":")[0]) for m in messages]


@pytest.mark.parametrize("change", ["seek", "assign"])
def test_an_answer_that_comes_after_the_partition_was_moved_is_dropped(
    conf: dict[str, Any],
    reader_conf: dict[str, Any],
    proxy: FaultProxy,
    topic: str,
    change: str,
) -> None:
    offsets = _fill(conf, topic)
    released = threading.Event()
    proxy.rule = lambda request: Hold(released) if request.method == "GET" else None
    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        wait_until(lambda: len(proxy.requests) > 0, "a fetch is on its way",
                   serve=lambda: _nothing(consumer.poll(0.1)))  # fmt: skip
        proxy.rule = None
        if change == "seek":
            consumer.seek(partition(topic, 0, offsets[35]))
        else:
            consumer.unassign()
            consumer.assign([partition(topic, 0, offsets[35])])
        first = next_message(consumer)
        held = list(proxy.requests)
        released.set()
        wait_until(lambda: {r.number for r in proxy.finished} >= {r.number for r in held},
                   "the late answers came")  # fmt: skip
        consumer.seek(partition(topic, 0, offsets[38]))
        rest = read(consumer, 2)
        wait_until(lambda: consumer.stats()["held_bytes"] == 0, "what came late was let go",
                   serve=lambda: _nothing(consumer.poll(0.1)))  # fmt: skip

    assert _numbers([first, *rest]) == [35, 38, 39]


def _nothing(message: Any) -> None:
    assert message is None, message.value()


def test_a_member_outlives_a_store_that_is_away_for_longer_than_it_may_be_silent(
    conf: dict[str, Any], reader_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    _fill(conf, topic, value_bytes=60_000)  # together more than it may hold
    # The shortest that brokers allow.
    limits = {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000}
    limits["heartbeat.interval.ms"] = 500
    proxy.rule = lambda _: Answer(503, "SlowDown")
    lost: list[Any] = []
    owned: list[Any] = []

    with BlobConsumer({**reader_conf, **limits}) as consumer:
        consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: owned.extend(partitions),
            on_revoke=lambda _, partitions: lost.extend(partitions),
        )
        wait_until(lambda: len(proxy.requests) > 0, "a fetch was refused",
                   serve=lambda: _nothing(consumer.poll(0.1)))  # fmt: skip
        assert len(owned) == 1
        _nothing(consumer.poll(9.0))  # a single call, longer than the group waits for a member
        assert consumer.stats()["held_bytes"] <= PREFETCH_BYTES
        proxy.rule = None
        messages = read(consumer, COUNT)
        assert len(consumer.assignment()) == 1
        assert lost == []

    assert _numbers(messages) == list(range(COUNT))
    assert len(owned) == 1
