"""Kafka refuses, is full, or changes under a producer: told, kept in order, followed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    NewPartitions,
    NewTopic,
)

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.metadata import wait_until_all_know
from tests.helpers.private import private
from tests.helpers.records import (
    DEADLINE_S,
    Reports,
    flush,
    partition,
    places,
    produce,
    read,
    read_to_end,
    send,
    values_by_partition,
    wait_until,
)
from tests.helpers.stack import wait_for_leaders

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab
    from tests.helpers.fault_proxy import FaultProxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PARTITIONS = 24


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def _read_all(group_conf: dict[str, Any], topic: str, partitions: int = 1) -> list[Any]:
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(partitions)])
        return read_to_end(consumer, partitions, batch=100).messages


def test_a_refused_notification_fails_every_record_of_it_and_leaves_its_object(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    stack: lab.Stack,
    store_prefix: str,
    proxy: FaultProxy,
    make_topic: Callable[..., str],
) -> None:
    # A notification takes about 150 bytes.
    topic = make_topic(config={"max.message.bytes": "100"})
    values = [b"%d" % number for number in range(50)]
    through = {"blobmsg.route": "blob", "blobmsg.s3.endpoint.url": proxy.url}
    with BlobProducer({**conf, **through}) as producer:
        reports = send(producer, topic, values)

    assert reports.codes == [KafkaError.MSG_SIZE_TOO_LARGE] * 50
    assert [m.value() for _, m in reports.outcomes] == values
    assert {request.method for request in proxy.requests} == {"PUT"}
    client = stack.s3_client()
    try:
        listing = client.list_objects_v2(Bucket=stack.bucket, Prefix=f"{store_prefix}/")
    finally:
        client.close()
    assert len(listing["Contents"]) == 1  # only its age removes it
    assert _read_all(group_conf, topic) == []


class CountingFull:
    """The inner producer, and how often its queue was full."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.times_full = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def produce(self, *args: Any, **kwargs: Any) -> None:
        try:
            self._inner.produce(*args, **kwargs)
        except BufferError:
            self.times_full += 1
            raise


@pytest.mark.chaos
@pytest.mark.parametrize("route", ["plain", "inline"])
def test_what_does_not_fit_into_librdkafkas_queue_waits_in_its_order(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    breakable_stack: lab.Stack,
    make_topic: Callable[..., str],
    route: str,
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    small = {
        "blobmsg.route": route,
        "blobmsg.batch.size.bytes": 8192,  # each record is sealed by itself
        "message.max.bytes": 100_000,
        "queue.buffering.max.kbytes": 8192,
        "compression.type": "none",
    }
    sent: dict[int, list[bytes]] = {}
    reports = Reports()
    with BlobProducer({**conf, **small}) as producer:
        outbox = private(producer, "pipeline")._outbox
        counting = outbox.inner = CountingFull(outbox.inner)

        def produce_to_all(number: int, size_bytes: int) -> None:
            for part in range(PARTITIONS):
                value = b"%d of %d:" % (number, part) + bytes(size_bytes)
                sent.setdefault(part, []).append(value)
                produce(producer, topic, value, partition=part, on_delivery=reports)

        produce_to_all(0, 0)
        flush(producer)  # the topic is known from here on
        with contextlib.ExitStack() as paused:
            for broker in breakable_stack.brokers:
                paused.enter_context(broker.paused())
            # Twice what the inner producer's queue holds, and nothing leaves it.
            produce_to_all(1, 80_000)
            wait_until(
                lambda: counting.times_full > 0,
                "librdkafka's queue is full",
                serve=lambda: producer.poll(0.1),
            )
            produce_to_all(2, 10_000)
        flush(producer)
        sent_as = {"plain": "plain_records", "inline": "inline_segments"}[route]
        assert producer.stats()[sent_as] == 3 * PARTITIONS

    assert reports.values_by_partition() == sent
    messages = _read_all(group_conf, topic, PARTITIONS)
    assert values_by_partition(messages) == sent
    assert places(messages) == places(reports.messages())


def test_partitions_that_are_added_get_records_and_are_read(
    conf: dict[str, Any], group_conf: dict[str, Any], admin: AdminClient, topic: str
) -> None:
    quick = {"topic.metadata.refresh.interval.ms": 500}
    reports = Reports()
    with (
        BlobProducer({**conf, **quick, "blobmsg.route": "blob"}) as producer,
        BlobConsumer({**group_conf, **quick, "enable.partition.eof": False}) as consumer,
    ):
        consumer.subscribe([topic])
        produce(producer, topic, b"0", on_delivery=reports)
        flush(producer)
        [first] = read(consumer, 1)
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(timeout=30)
        wait_for_leaders(admin, topic, 3)

        def produce_one() -> None:
            produce(producer, topic, b"%d" % len(reports.outcomes), on_delivery=reports)
            flush(producer)

        wait_until(
            lambda: {m.partition() for m in reports.messages()} == {0, 1, 2},
            "records went to the new partitions",
            serve=produce_one,
        )
        # A rebalance of a group that commits nothing begins anew: some may come twice.
        expected = {(m.partition(), m.offset(), m.value()) for m in reports.messages()}
        found = {(first.partition(), first.offset(), first.value())}

        def poll_one() -> None:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                found.add((message.partition(), message.offset(), message.value()))

        wait_until(lambda: found >= expected, "all was read", serve=poll_one)

    assert found == expected


def test_a_topic_that_is_made_again_is_used_as_it_is_now(
    conf: dict[str, Any], group_conf: dict[str, Any], admin: AdminClient, topic: str
) -> None:
    more = {"topic.metadata.refresh.interval.ms": 500, "blobmsg.route": "blob"}
    with BlobProducer({**conf, **more}) as producer:
        assert send(producer, topic, [b"before"]).codes == [None]
        admin.delete_topics([topic], operation_timeout=20)[topic].result(timeout=30)
        _make_again(admin, topic, 3)
        # One that does not know of the end yet would take records for the old topic.
        wait_until_all_know(conf["bootstrap.servers"], topic, 3)
        delivered: list[Any] = []

        def produce_one() -> None:
            reports = send(producer, topic, [b"%d" % len(delivered)])
            delivered.extend(m for e, m in reports.outcomes if e is None)

        wait_until(
            lambda: {m.partition() for m in delivered} == {0, 1, 2},
            "records go to the new topic's partitions",
            serve=produce_one,
        )

    messages = _read_all(group_conf, topic, 3)
    found = {(m.partition(), m.offset(), m.value()) for m in messages}
    assert {(m.partition(), m.offset(), m.value()) for m in delivered} <= found
    assert b"before" not in {m.value() for m in messages}


def _make_again(admin: AdminClient, topic: str, partitions: int) -> None:
    # The producer goes on asking for it, and brokers make what a producer asks for: at once,
    # so that nobody need ever see the topic gone.
    made = admin.create_topics([NewTopic(topic, partitions, 3)])[topic].exception(timeout=30)
    if made is not None:
        assert made.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        more = admin.create_partitions([NewPartitions(topic, partitions)])[topic]
        refused = more.exception(timeout=30)
        # It may have as many already.
        assert refused is None or refused.args[0].code() == KafkaError.INVALID_PARTITIONS
    wait_for_leaders(admin, topic, partitions)


@pytest.mark.chaos
def test_of_a_commit_without_an_answer_it_is_said_that_nobody_knows_its_end(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    breakable_stack: lab.Stack,
    topic: str,
) -> None:
    more = {"blobmsg.route": "blob", "transactional.id": topic}
    with BlobProducer({**conf, **more}) as producer:
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, b"one")
        flush(producer)  # so that nothing but the commit itself is left
        with contextlib.ExitStack() as paused:
            for broker in breakable_stack.brokers:
                paused.enter_context(broker.paused())
            with pytest.raises(KafkaException) as unanswered:
                producer.commit_transaction(3)
            # Nothing else begins before the end is known.
            with pytest.raises(KafkaException) as too_early:
                producer.begin_transaction()
        producer.commit_transaction(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, b"two")
        producer.commit_transaction(DEADLINE_S)

    error = unanswered.value.args[0]
    assert (error.code(), error.retriable()) == (KafkaError._TIMED_OUT, True)
    assert not error.txn_requires_abort()
    assert "nobody knows yet whether Kafka has committed" in error.str()
    assert "new producer" in error.str()
    assert too_early.value.args[0].code() == KafkaError._CONFLICT
    assert [message.value() for message in _read_all(group_conf, topic)] == [b"one", b"two"]


@pytest.mark.chaos
def test_behind_an_end_that_nobody_knows_a_new_producer_goes_on(
    conf: dict[str, Any], group_conf: dict[str, Any], breakable_stack: lab.Stack, topic: str
) -> None:
    more = {"blobmsg.route": "blob", "transactional.id": topic}
    producer = BlobProducer({**conf, **more})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"one")
    flush(producer)
    with contextlib.ExitStack() as paused:
        for broker in breakable_stack.brokers:
            paused.enter_context(broker.paused())
        with pytest.raises(KafkaException, match="new producer"):
            producer.commit_transaction(1)
    with BlobProducer({**conf, **more}) as successor:
        successor.init_transactions(DEADLINE_S)
        successor.begin_transaction()
        successor.produce(topic, b"two")
        successor.commit_transaction(DEADLINE_S)
    with contextlib.suppress(KafkaException):  # fenced, or its commit was the first
        producer.close()

    # As a whole or not at all, and the successor's in any case.
    values = [message.value() for message in _read_all(group_conf, topic)]
    assert values in ([b"one", b"two"], [b"two"])
