"""`purge` beside stock's: what is dropped, what its reports say, and that the producer goes on."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.fault_proxy import FaultProxy, Hold, puts
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
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab

_STATISTICS = "statistics.interval.ms"

PRODUCERS = pytest.mark.parametrize("client", [StockProducer, BlobProducer])


def _for(client: type, conf: dict[str, Any], **more: Any) -> dict[str, Any]:
    blob = {"blobmsg.route": "blob", "blobmsg.on.store.failure": "wait"}
    both = {**conf, "acks": "all", "enable.idempotence": True, **blob, **more}
    is_ours = client is BlobProducer
    return {k: v for k, v in both.items() if is_ours or not k.startswith("blobmsg.")}


class _Statistics:
    """A `stats_cb` that looks at what brokers owe answers for."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def __call__(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        in_flight = sum(broker["waitresp_msg_cnt"] for broker in brokers)
        self._in_a_row = self._in_a_row + 1 if in_flight else 0

    def wait(self, producer: Any) -> None:
        """Wait until messages stay in flight; what was sent before may be seen there once."""

        def look() -> bool:
            producer.poll(0.1)
            return self._in_a_row >= 3

        self._in_a_row = 0
        wait_until(look, "messages stay in flight")


def _assert_goes_on(producer: Any, topic: str) -> None:
    """Assert that a record behind a purge is delivered.

    librdkafka's threads do a purge on their own, and confluent-kafka (2.8 to 2.16) asks for no
    answer of theirs when it is to wait for them: what follows may still be dropped by it.
    """
    codes: list[int | None] = []

    def is_delivered() -> bool:
        codes.extend(send(producer, topic, [b"after"]).codes)
        return codes[-1] is None

    wait_until(is_delivered, "a record is delivered")
    assert set(codes[:-1]) <= {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}


def _arrived(conf: dict[str, Any], topic: str, partitions: int) -> list[bytes]:
    reader = {**conf, "group.id": topic, "enable.partition.eof": True}
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(partitions)])
        return [message.value() for message in read_to_end(consumer, partitions).messages]


def test_records_whose_object_is_under_way_are_dropped_and_later_ones_arrive(
    conf: dict[str, Any], proxy: FaultProxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=3)
    released = threading.Event()
    proxied = _for(BlobProducer, conf, **{"blobmsg.s3.endpoint.url": proxy.url})
    reports = Reports()
    with BlobProducer({**proxied, "blobmsg.batch.size.bytes": 65536}) as producer:
        send(producer, topic, [b"before"], partition=0)
        proxy.rule = puts(Hold(released))
        known = len(proxy.requests)
        for number in range(300):
            produce(
                producer, topic, b"%03d" % number * 400, partition=number % 3, on_delivery=reports
            )
        proxy.wait_for(lambda requests: len(requests) > known)
        producer.purge()
        flush(producer)
        assert reports.codes == [KafkaError._PURGE_QUEUE] * 300
        for number in range(3):
            values = [m.value()[:3] for _, m in reports.outcomes if m.partition() == number]
            assert values == [b"%03d" % n for n in range(number, 300, 3)]
        released.set()
        after = send(producer, topic, [b"after"], partition=0)

    assert after.codes == [None]
    assert _arrived(conf, topic, 3) == [b"before", b"after"]


@PRODUCERS
def test_records_of_a_topic_that_nobody_has_told_of_yet_are_dropped(
    conf: dict[str, Any], client: type
) -> None:
    nowhere = _for(client, conf, **{"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    reports = Reports()
    producer = client({**nowhere, "message.timeout.ms": 60_000})
    for number in range(5):
        producer.produce("never-seen", b"%d" % number, on_delivery=reports)

    producer.purge(in_queue=False)
    producer.poll(0.2)
    assert reports.codes == []
    producer.purge(in_flight=False)
    flush(producer)

    assert reports.codes == [KafkaError._PURGE_QUEUE] * 5
    assert [error.str() for error in reports.errors] == ["Local: Purged in queue"] * 5
    assert [message.value() for _, message in reports.outcomes] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.timeout(240)
@PRODUCERS
def test_what_a_broker_was_sent_is_reported_as_in_flight_and_the_producer_goes_on(
    conf: dict[str, Any], breakable_stack: lab.Stack, topic: str, client: type
) -> None:
    reports, statistics = Reports(), _Statistics()
    more = {"linger.ms": 0, "log_level": 0, _STATISTICS: 100, "stats_cb": statistics}
    with client(_for(client, conf, **more)) as producer:
        send(producer, topic, [b"before"])
        with contextlib.ExitStack() as paused:
            for broker in breakable_stack.brokers:
                paused.enter_context(broker.paused())
            producer.produce(topic, b"in flight", on_delivery=reports)
            statistics.wait(producer)
            producer.purge()
            flush(producer)
        _assert_goes_on(producer, topic)

    assert reports.codes == [KafkaError._PURGE_INFLIGHT]
    assert [error.str() for error in reports.errors] == ["Local: Purged in flight"]


def test_plain_records_are_dropped_with_their_places_in_order(
    conf: dict[str, Any], breakable_stack: lab.Stack, topic: str
) -> None:
    reports, statistics = Reports(), _Statistics()
    more = {"blobmsg.route": "plain", "log_level": 0, _STATISTICS: 100, "stats_cb": statistics}
    plain = _for(BlobProducer, conf, **more)
    with BlobProducer({**plain, "blobmsg.batch.interval.ms": 50}) as producer:
        send(producer, topic, [b"before"])
        with contextlib.ExitStack() as paused:
            for broker in breakable_stack.brokers:
                paused.enter_context(broker.paused())
            for number in range(3000):  # more than a wave
                produce(producer, topic, b"%d" % number, on_delivery=reports)
            statistics.wait(producer)
            producer.purge(blocking=False)
            flush(producer)
        _assert_goes_on(producer, topic)

    assert set(reports.codes) == {KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE}
    assert reports.codes == sorted(
        reports.codes, key=lambda code: code != KafkaError._PURGE_INFLIGHT
    )
    assert [int(message.value()) for _, message in reports.outcomes] == list(range(3000))


@PRODUCERS
def test_a_delivery_callback_may_purge(conf: dict[str, Any], topic: str, client: type) -> None:
    codes: list[int | None] = []
    later = Reports()
    waits = {"blobmsg.batch.interval.ms": 3000, "linger.ms": 3000}
    with client(_for(client, conf, **waits)) as producer:
        send(producer, topic, [b"known"])

        def on_delivery(error: KafkaError | None, _message: Any) -> None:
            codes.append(None if error is None else error.code())
            producer.produce(topic, b"second", on_delivery=later)
            producer.purge()

        producer.produce(topic, b"first", on_delivery=on_delivery)
        # Not by a flush, in which stock does not linger: the second might be sent before its purge.
        wait_until(lambda: bool(codes), "it is delivered", serve=lambda: producer.poll(0.1))
        flush(producer)

    assert codes == [None]
    assert later.codes == [KafkaError._PURGE_QUEUE]


def test_a_purge_ends_the_flush_of_another_thread(
    conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxied = _for(BlobProducer, conf, **{"blobmsg.s3.endpoint.url": proxy.url})
    reports = Reports()
    with BlobProducer(proxied) as producer:
        send(producer, topic, [b"known"])
        known = len(proxy.requests)
        proxy.rule = puts(Hold(released))
        producer.produce(topic, b"value", on_delivery=reports)
        flushing = threading.Thread(target=lambda: flush(producer))
        flushing.start()
        proxy.wait_for(lambda requests: len(requests) > known)
        producer.purge()
        flushing.join(30)
        assert not flushing.is_alive()
        released.set()

    assert reports.codes == [KafkaError._PURGE_QUEUE]


@PRODUCERS
def test_a_topic_without_the_store_is_purged_as_well(conf: dict[str, Any], client: type) -> None:
    nowhere = _for(
        client,
        conf,
        **{"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "blobmsg.topics": "^only-this$"},
    )
    reports = Reports()
    producer = client(nowhere)
    producer.produce("another", b"value", on_delivery=reports)

    producer.purge()
    flush(producer)

    assert reports.codes == [KafkaError._PURGE_QUEUE]


def test_after_a_purge_positions_and_order_are_whole(
    conf: dict[str, Any], topic: str, group_conf: dict[str, Any]
) -> None:
    with BlobProducer(_for(BlobProducer, conf)) as producer:
        for round_number in range(5):
            send(producer, topic, [b"kept %d.%d" % (round_number, n) for n in range(3)])
            for number in range(50):
                producer.produce(topic, b"dropped %d" % number)
            producer.purge()
        flush(producer)
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        found = [m.value() for m in read(consumer, 15)]

    assert found == [b"kept %d.%d" % (r, n) for r in range(5) for n in range(3)]
