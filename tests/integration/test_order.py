"""Records keep their order, whatever happens to the uploads that carry them."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.fault_proxy import (
    Answer,
    Delay,
    Fault,
    FaultProxy,
    Hold,
    LoseAnswer,
    Request,
    Reset,
)
from tests.helpers.records import (
    Reports,
    flush,
    partition,
    places,
    produce,
    read_to_end,
    send,
    values_by_partition,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PARTITIONS = 4


@pytest.fixture
def producer_conf(conf: dict[str, Any], proxy: FaultProxy) -> dict[str, Any]:
    return {
        **conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.route": "blob",
        "blobmsg.on.store.failure": "wait",
        "blobmsg.batch.size.bytes": 8192,
        "blobmsg.upload.threads": 48,
    }


def _some_uploads_fail(seed: int) -> Callable[[Request], Fault | None]:
    """Every first attempt is late, half of them fail; second and third ones sometimes."""

    def rule(request: Request) -> Fault | None:
        rng = random.Random(f"{seed} {request.path} {request.attempt}")
        if request.attempt >= 3 or (request.attempt > 0 and rng.random() < 0.7):
            return None
        faults: list[Fault] = [
            Delay(rng.uniform(0, 0.4)),
            Delay(rng.uniform(0, 0.4)),
            Delay(rng.uniform(0, 0.4)),
            Answer(500, "InternalError"),
            Reset(),
            LoseAnswer(),
        ]
        # Late ones only: the store client then sends less at once, which is its job.
        if request.method == "PUT" and request.object_number >= 200 and rng.random() < 0.1:
            return Answer(503, "SlowDown")
        return rng.choice(faults)

    return rule


def _keyed_values(count: int) -> list[tuple[bytes, bytes]]:
    return [(b"key-%d" % (i % 37), b"%d:" % i + b"x" * 400) for i in range(count)]


def _assert_order_by_key(messages: list[Any]) -> None:
    last: dict[bytes, int] = {}
    for message in messages:
        number = int(message.value().split(b":")[0])
        assert number > last.get(message.key(), -1), f"{message.key()!r}: {number} came late"
        last[message.key()] = number


@pytest.mark.parametrize("seed", [1, 2])
def test_order_holds_with_late_failing_and_ghost_uploads(
    producer_conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    make_topic: Callable[..., str],
    seed: int,
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    proxy.rule = _some_uploads_fail(seed)
    reports = Reports()
    sent = _keyed_values(5000)

    with BlobProducer(producer_conf) as producer:
        for key, value in sent:
            produce(producer, topic, value, key=key, on_delivery=reports)
        flush(producer)
        batches = producer.stats()["batches"]
    reported = reports.messages()
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(PARTITIONS)])
        messages = read_to_end(consumer, PARTITIONS, batch=500).messages

    # The faults did happen, and uploads did overtake each other.
    assert batches >= 200
    assert proxy.most_in_flight >= 24
    assert all(proxy.faults[name] >= 20 for name in ("Delay", "Answer", "Reset", "LoseAnswer"))
    finished = [request.object_number for request in proxy.finished if request.attempt == 0]
    assert finished != sorted(finished)
    # Nothing lost, nothing twice, every partition and key in order. (A difference of thousands of
    # values takes pytest minutes to print.)
    _assert_order_by_key(messages)
    is_complete = sorted(m.value() for m in messages) == sorted(value for _, value in sent)
    assert is_complete
    is_as_reported = values_by_partition(messages) == values_by_partition(reported)
    assert is_as_reported
    # What the reports said is where the consumer found it, offsets growing.
    is_where_reported = places(messages) == places(reported)
    assert is_where_reported
    for number in range(PARTITIONS):
        offsets = [m.offset() for m in messages if m.partition() == number]
        assert offsets == sorted(set(offsets))


def test_reports_come_in_produce_order_per_partition_with_exact_offsets(
    producer_conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    proxy.rule = _some_uploads_fail(3)
    reports = Reports()
    sent: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}

    with BlobProducer(producer_conf) as producer:
        for i in range(3000):
            value = b"%d:" % i + b"y" * 300
            sent[i % PARTITIONS].append(value)
            produce(producer, topic, value, partition=i % PARTITIONS, on_delivery=reports)
            if i % 500 == 0:
                producer.poll(0)
        flush(producer)

    assert reports.values_by_partition() == sent
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(PARTITIONS)])
        messages = read_to_end(consumer, PARTITIONS).messages
    assert places(messages) == places(reports.messages())


def test_an_upload_that_hangs_holds_back_only_its_own_partitions(
    producer_conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(partitions=2)
    released = threading.Event()
    proxy.rule = lambda request: Hold(released) if request.object_number == 0 else None
    first, others, behind = Reports(), Reports(), Reports()

    with BlobProducer(producer_conf) as producer:
        # Each of them fills a batch of its own.
        produce(producer, topic, b"first" + bytes(9000), partition=0, on_delivery=first)
        for number in range(20):
            produce(producer, topic, b"b%d" % number + bytes(9000), partition=1, on_delivery=others)
        for number in range(20):
            produce(producer, topic, b"c%d" % number + bytes(9000), partition=0, on_delivery=behind)
        proxy.wait_for(lambda requests: len(requests) == 41)
        while len(others.outcomes) < 20:
            assert producer.poll(30) > 0

        assert first.outcomes == []
        assert behind.outcomes == []
        released.set()
        flush(producer)

    assert first.errors + others.errors + behind.errors == []
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        values = [m.value().rstrip(b"\0") for m in read_to_end(consumer, 1).messages]
    assert values == [b"first", *[b"c%d" % number for number in range(20)]]


def test_a_segment_that_fails_for_good_is_reported_in_its_place_and_the_next_follow(
    producer_conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    proxy.rule = lambda request: (
        Answer(403, "AccessDenied") if request.object_number == 3 else Delay(0.05)
    )
    with BlobProducer(producer_conf) as producer:
        reports = send(producer, topic, [b"%d" % i + bytes(9000) for i in range(8)])

    expected: list[int | None] = [None] * 8
    expected[3] = KafkaError._AUTHENTICATION
    assert reports.codes == expected
    assert [m.value().rstrip(b"\0") for _, m in reports.outcomes] == [b"%d" % i for i in range(8)]
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        values = [m.value().rstrip(b"\0") for m in read_to_end(consumer, 1).messages]
    assert values == [b"%d" % i for i in range(8) if i != 3]


def test_a_stored_object_whose_answer_was_lost_is_put_again_under_the_same_name(
    producer_conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    stack: lab.Stack,
    store_prefix: str,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    proxy.rule = lambda request: LoseAnswer() if request.attempt < 2 else None
    with BlobProducer(producer_conf) as producer:
        reports = send(producer, topic, [b"%d" % i + bytes(9000) for i in range(5)])

    assert reports.errors == []
    client = stack.s3_client()
    try:
        listing = client.list_objects_v2(Bucket=stack.bucket, Prefix=store_prefix + "/")
    finally:
        client.close()
    assert len(listing["Contents"]) == 5
    assert len(proxy.requests) == 15
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages
    assert [m.value().rstrip(b"\0") for m in messages] == [b"%d" % i for i in range(5)]


def test_fetches_that_finish_out_of_order_are_handed_out_in_order(
    producer_conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(partitions=2)
    values = [b"%d:" % i + b"z" * 500 for i in range(1500)]
    with BlobProducer(producer_conf) as producer:
        reports = send(producer, topic, values)
    proxy.rule = _some_uploads_fail(4)
    through = {
        **group_conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.cache.memory.bytes": 0,
        "blobmsg.fetch.threads": 32,
    }

    with BlobConsumer(through) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(2)])
        messages = read_to_end(consumer, 2, batch=100).messages

    gets = [r.path for r in proxy.finished if r.method == "GET" and r.attempt == 0]
    asked = [r.path for r in proxy.requests if r.method == "GET" and r.attempt == 0]
    assert len(asked) >= 50
    assert gets != asked
    assert values_by_partition(messages) == reports.values_by_partition()
    assert places(messages) == places(reports.messages())
