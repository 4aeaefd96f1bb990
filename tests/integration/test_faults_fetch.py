"""A store that answers late or not at all while a consumer's world goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.fault_proxy import Answer, Hold
from tests.helpers.private import private
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
    from typing_extensions import Self

    from tests.helpers.fault_proxy import FaultProxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

RECORDS_PER_BATCH = 10
BATCHES = 4
COUNT = RECORDS_PER_BATCH * BATCHES
PREFETCH_BYTES = 1 << 20
PLAIN_COUNT = 5000
PLAIN_BYTES = 1000  # so that memory is full before there are too many for their number
# Plain records are taken 501 at a time at most, before it is seen that they are too many; each is
# counted with 256 bytes more, and its value with the number before it. And one batch is fetched in
# any case.
BATCH_BYTES = RECORDS_PER_BATCH * 31_000
MOST_HELD_BYTES = PREFETCH_BYTES + 501 * (PLAIN_BYTES + 6 + 256) + BATCH_BYTES


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


def test_a_fetch_that_is_never_answered_is_tried_again_when_its_time_is_over(
    conf: dict[str, Any], reader_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    _fill(conf, topic)
    never = threading.Event()
    proxy.rule = lambda request: Hold(never) if request.attempt == 0 else None
    # Far longer than an answer takes that comes.
    limits = {"blobmsg.request.timeout.ms": 1000}
    try:
        with BlobConsumer({**reader_conf, **limits}) as consumer:
            consumer.assign([partition(topic, 0, 0)])
            messages = read(consumer, COUNT)
    finally:
        never.set()

    assert _numbers(messages) == list(range(COUNT))
    assert proxy.faults["Hold"] == BATCHES


def _fill_behind(conf: dict[str, Any], topic: str) -> None:
    """Plain records behind those of `_fill`, several times what may be held."""
    reports = Reports()
    with BlobProducer({**conf, "blobmsg.route": "plain"}) as producer:
        for number in range(COUNT, COUNT + PLAIN_COUNT):
            value = b"%d:" % number + bytes(PLAIN_BYTES)
            produce(producer, topic, value, partition=0, on_delivery=reports)
        flush(producer)
    assert reports.errors == []


class HeldBytes:
    """What a consumer holds, looked at again and again while it is busy; a context manager."""

    def __init__(self, consumer: BlobConsumer) -> None:
        self._consumer = consumer
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="looks", daemon=True)
        self.samples: list[int] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.samples.append(self._consumer.stats()["held_bytes"])


def _is_paused_for_memory(consumer: BlobConsumer) -> bool:
    flows = private(consumer, "consumption")._core.flows
    return bool(flows) and all(flow.is_paused_by_us for flow in flows.values())


def test_a_member_outlives_a_store_that_is_away_for_longer_than_it_may_be_silent(
    conf: dict[str, Any], reader_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    _fill(conf, topic, value_bytes=30_000)  # together more than it may hold
    _fill_behind(conf, topic)
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
        with HeldBytes(consumer) as held:
            wait_until(lambda: len(proxy.requests) > 0, "a fetch was refused",
                       serve=lambda: _nothing(consumer.poll(0.1)))  # fmt: skip
            wait_until(lambda: _is_paused_for_memory(consumer), "memory is full",
                       serve=lambda: _nothing(consumer.poll(0.1)))  # fmt: skip
            assert len(owned) == 1
            until_full = len(held.samples)
            _nothing(consumer.poll(9.0))  # a single call, longer than the group waits for a member
            assert _is_paused_for_memory(consumer)
        proxy.rule = None
        messages = read(consumer, COUNT + PLAIN_COUNT, batch=500)
        assert len(consumer.assignment()) == 1
        assert lost == []

    assert max(held.samples) <= MOST_HELD_BYTES
    assert min(held.samples[until_full:]) > PREFETCH_BYTES // 4
    assert _numbers(messages) == list(range(COUNT + PLAIN_COUNT))
    assert len(owned) == 1
