"""All brokers are gone while the store is there: what is produced waits, and nothing is wasted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg import AIOBlobConsumer, AIOBlobProducer, BlobConsumer, BlobProducer, lab
from tests.helpers.fault_proxy import FaultProxy, Hold
from tests.helpers.private import private
from tests.helpers.records import (
    Reports,
    flush,
    partition,
    produce,
    read,
    read_to_end,
    send,
    wait_until,
)
from tests.helpers.stack import heal, topic_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 3


@pytest.fixture(scope="module")
def own_stack() -> Iterator[lab.Stack]:
    """Brokers that only this module uses."""
    with lab.start_stack(f"away-{os.getpid()}") as stack:
        yield stack


@pytest.fixture
def brokers(stack: lab.Stack, own_stack: lab.Stack) -> lab.Stack:
    del stack  # asked for because it skips where there can be none
    heal(own_stack)  # behind the last test nobody would need it
    return own_stack


@pytest.fixture
def producer_conf(brokers: lab.Stack, store_prefix: str) -> dict[str, Any]:
    return {
        **brokers.conf(store_prefix),
        "blobmsg.route": "blob",
        "blobmsg.batch.size.bytes": 200_000,
        "blobmsg.batch.interval.ms": 100,
        "queue.buffering.max.kbytes": 8192,
        "message.max.bytes": 100_000,
        "reconnect.backoff.max.ms": 500,
        "error_cb": lambda _error: None,
    }


@pytest.fixture
def make_topic(brokers: lab.Stack) -> Callable[..., str]:
    return topic_factory({"bootstrap.servers": brokers.bootstrap_servers})


def _stop_brokers(stack: lab.Stack) -> None:
    for broker in stack.brokers:
        broker.kill()


def test_records_wait_while_all_brokers_are_gone_and_arrive_once_in_order(
    producer_conf: dict[str, Any], brokers: lab.Stack, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    reports = Reports()
    number = 0

    def produce_one(producer: Any) -> None:
        nonlocal number
        value = b"%d:" % number + os.urandom(2000)
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=reports)
        number += 1

    def fill(producer: Any) -> None:
        while number < 20_000:
            produce_one(producer)

    with BlobProducer(producer_conf) as producer:
        for _ in range(300):
            produce_one(producer)
        flush(producer)
        _stop_brokers(brokers)
        # As long as it takes to notice, uploads go on; then they stop.
        producer.produce(topic, b"%d:" % number, partition=number % PARTITIONS, on_delivery=reports)
        number += 1
        presence = private(producer, "pipeline")._core.presence
        wait_until(lambda: presence.is_away(_now_ms()), "Kafka is away",
                   serve=lambda: producer.poll(0.1))  # fmt: skip
        stored = producer.stats()["object_bytes"]
        with pytest.raises(BufferError):
            fill(producer)
        assert producer.flush(3) > 0
        with pytest.raises(BufferError):
            fill(producer)
        # What was begun before may have ended meanwhile.
        assert producer.stats()["object_bytes"] <= stored + 8 * 250_000
        assert [e for e, _ in reports.outcomes[300:]] == []

        heal(brokers)
        for _ in range(100):
            produce(producer, topic, b"%d:" % number + os.urandom(2000),
                    partition=number % PARTITIONS, on_delivery=reports)  # fmt: skip
            number += 1
        flush(producer)

    assert reports.errors == []
    assert len(reports.outcomes) == number
    reader = {
        **brokers.conf(),
        "blobmsg.store.url": producer_conf["blobmsg.store.url"],
        "group.id": "away",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, n, 0) for n in range(PARTITIONS)])
        messages = read_to_end(consumer, PARTITIONS, batch=500).messages
    for n in range(PARTITIONS):
        found = [int(m.value().split(b":")[0]) for m in messages if m.partition() == n]
        assert found == list(range(n, number, PARTITIONS))


def test_with_a_short_time_out_every_record_fails_and_flush_returns(
    producer_conf: dict[str, Any], brokers: lab.Stack, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    by_route = {route: Reports() for route in ("blob", "auto", "inline")}
    with contextlib.ExitStack() as cleaning:
        producers = {}
        for route, reports in by_route.items():
            more = {"message.timeout.ms": 8000, "blobmsg.route": route}
            producer = cleaning.enter_context(BlobProducer({**producer_conf, **more}))
            produce(producer, topic, b"first", on_delivery=reports)
            flush(producer)
            producers[route] = producer
        _stop_brokers(brokers)
        for route, producer in producers.items():
            for number in range(500):
                value = b"%d" % number + os.urandom(1000)
                produce(producer, topic, value, on_delivery=by_route[route])
        with ThreadPoolExecutor(len(producers)) as pool:  # each waits by itself
            assert list(pool.map(lambda p: p.flush(60), producers.values())) == [0, 0, 0]
        for producer in producers.values():
            producer.poll(0)  # error_cb may have been called for since
            assert len(producer) == 0

    expected = [None, *[KafkaError._MSG_TIMED_OUT] * 500]
    assert {route: reports.codes for route, reports in by_route.items()} == dict.fromkeys(
        by_route, expected
    )


@pytest.mark.parametrize("how", ["gone", "standing still"])
def test_calls_return_in_time_though_brokers_and_store_are_dead(
    producer_conf: dict[str, Any],
    brokers: lab.Stack,
    make_topic: Callable[..., str],
    how: str,
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    never = threading.Event()
    reports = Reports()
    message_timeout_s = 8
    with (
        FaultProxy(brokers.minio.host, brokers.minio.port) as proxy,
        contextlib.ExitStack() as cleaning,
    ):
        conf = {**producer_conf, "blobmsg.s3.endpoint.url": proxy.url}
        producer = BlobProducer({**conf, "message.timeout.ms": message_timeout_s * 1000})
        member = {
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            # A commit that a standing broker never answers is waited for, as in stock.
            "enable.auto.commit": how == "gone",
        }
        consumer = BlobConsumer({**conf, **member})
        for clean in (producer.close, consumer.close, never.set):
            cleaning.callback(clean)
        send(producer, topic, [b"%d" % number for number in range(20)])
        consumer.subscribe([topic])
        read(consumer, 10)

        proxy.rule = lambda _: Hold(never)
        for broker in brokers.brokers:
            broker.kill() if how == "gone" else broker.pause()
        for number in range(300):
            produce(producer, topic, b"%d" % number + os.urandom(1000), on_delivery=reports)

        for timeout_s in (0.0, 0.5, 2.0):
            for call in (
                producer.poll,
                producer.flush,
                consumer.poll,
                partial(consumer.consume, 5),
            ):
                _call_in_time(call, timeout_s)
        _call_in_time(lambda _: producer.close(), message_timeout_s)
        _call_in_time(lambda _: consumer.close(), message_timeout_s)

        asyncio.run(_calls_of_asyncio_clients_in_time(conf, member, topic))

    assert reports.codes == [KafkaError._MSG_TIMED_OUT] * 300


async def _calls_of_asyncio_clients_in_time(
    conf: dict[str, Any], member: dict[str, Any], topic: str
) -> None:
    message_timeout_s = 3
    producer = AIOBlobProducer({**conf, "message.timeout.ms": message_timeout_s * 1000})
    consumer = AIOBlobConsumer({**conf, **member})
    await consumer.subscribe([topic])
    outcomes = [await producer.produce(topic, b"%d" % number) for number in range(300)]

    # Each client has one thread, in which these wait.
    waiting = [
        asyncio.ensure_future(client.list_topics(timeout=4)) for client in (producer, consumer)
    ]
    await asyncio.sleep(0)
    for timeout_s in (0.0, 0.3, 1.0):
        for call in (producer.poll, producer.flush, consumer.poll, partial(consumer.consume, 5)):
            with _in_time(f"{call} of asyncio", timeout_s):
                await call(timeout_s)
    asked = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in asked] == [KafkaException] * 2
    with _in_time("close() of asyncio", message_timeout_s):
        await producer.close()
    with _in_time("close() of asyncio", message_timeout_s):
        await consumer.close()
    errors = await asyncio.gather(*outcomes, return_exceptions=True)
    assert [error.args[0].code() for error in errors] == [KafkaError._MSG_TIMED_OUT] * 300  # type: ignore[union-attr]


def _call_in_time(call: Callable[[float], object], timeout_s: float) -> None:
    with _in_time(str(call), timeout_s):
        call(timeout_s)


@contextlib.contextmanager
def _in_time(what: str, timeout_s: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    assert took_s <= timeout_s + 1, f"{what} took {took_s:.1f} s of {timeout_s} s"


def _now_ms() -> int:
    from blobmsg.clock import SystemClock

    return SystemClock().now_ms()
