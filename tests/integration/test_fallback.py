"""While the store fails, segments go through Kafka: all, once, in order, at a bounded rate."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.fault_proxy import Answer, Fault, FaultProxy, Hold, LoseAnswer, Reset, puts
from tests.helpers.records import (
    Reports,
    flush,
    partition,
    places,
    produce,
    read_to_end,
    send,
    values_by_partition,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PARTITIONS = 3
AFTER_MS = 300
BUSY = Answer(503, "ServiceUnavailable")


@pytest.fixture
def producer_conf(conf: dict[str, Any], proxy: FaultProxy) -> dict[str, Any]:
    return {
        **conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.route": "blob",
        "blobmsg.batch.interval.ms": 50,
        "blobmsg.fallback.after.ms": AFTER_MS,
        "message.timeout.ms": 60_000,  # what would stay for ever keeps nobody waiting that long
    }


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic(PARTITIONS)


def read_all(group_conf: dict[str, Any], topic: str) -> list[Any]:
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, number) for number in range(PARTITIONS)])
        return read_to_end(consumer, PARTITIONS, batch=500).messages


def check_all_read(messages: list[Any], reports: Iterable[Reports]) -> None:
    """Every record once, where its report said, and in the order of the reports."""
    reported = [message for each in reports for message in each.messages()]
    assert places(messages) == places(reported)
    assert values_by_partition(messages) == values_by_partition(reported)


def values(name: str, count: int, size: int = 100) -> list[bytes]:
    random_bytes = random.Random(name).randbytes
    return [b"%s %06d " % (name.encode(), number) + random_bytes(size) for number in range(count)]


@pytest.mark.parametrize("fault", [BUSY, Reset(), LoseAnswer()], ids=["503", "reset", "ghost"])
def test_records_go_through_kafka_while_the_store_fails_and_through_the_store_again_after_that(
    producer_conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    topic: str,
    fault: Fault,
) -> None:
    with BlobProducer(producer_conf) as producer:
        before = send(producer, topic, values("before", 100))
        assert producer.stats()["fallback_segments"] == 0
        proxy.rule = puts(fault)
        during = [send(producer, topic, values(f"during {i}", 100)) for i in range(3)]
        in_outage = producer.stats()
        proxy.rule = puts(None)
        after = [send(producer, topic, values("after", 100))]

        def is_back() -> bool:
            return producer.stats()["notifications"] > in_outage["notifications"]

        wait_until(
            is_back,
            "objects are stored again",
            serve=lambda: after.append(send(producer, topic, values(f"{len(after)}", 10))),
        )

    assert in_outage["fallback_segments"] >= 3
    assert in_outage["fallback_bytes"] > 300 * 100
    assert in_outage["notifications"] <= PARTITIONS
    check_all_read(read_all(group_conf, topic), [before, *during, *after])


def test_records_go_through_kafka_while_the_store_hangs(
    producer_conf: dict[str, Any], group_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxy.rule = puts(Hold(released))
    more = {"blobmsg.request.timeout.ms": 1000, "blobmsg.upload.threads": 2}

    with BlobProducer({**producer_conf, **more}) as producer:
        reports = [send(producer, topic, values(f"{i}", 50)) for i in range(3)]
        stats = producer.stats()
        released.set()

    assert stats["fallback_segments"] >= 3
    check_all_read(read_all(group_conf, topic), reports)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("is_heard", [True, False], ids=["heard", "unheard"])
def test_what_is_too_long_for_a_notification_goes_in_pieces(
    producer_conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    topic: str,
    compression: str,
    is_heard: bool,
) -> None:
    sent = [(v, [("n", v[:9])] if i % 3 else None) for i, v in enumerate(values("v", 600, 10_000))]
    more = {
        "message.max.bytes": 200_000,
        "compression.type": compression,
        "blobmsg.inline.max.bytes.per.second": 1 << 30,
    }
    proxy.rule = puts(BUSY)
    reports = Reports()

    with BlobProducer({**producer_conf, **more}) as producer:
        callback = reports if is_heard else None
        for value, headers in sent:
            produce(producer, topic, value, partition=1, headers=headers, on_delivery=callback)
        flush(producer)
        stats = producer.stats()

    messages = read_all(group_conf, topic)
    # By name first: a difference of six megabytes takes minutes to print.
    assert [m.value()[:8] for m in messages] == [value[:8] for value, _ in sent]
    assert all((m.value(), m.headers()) == record for m, record in zip(messages, sent, strict=True))
    assert stats["fallback_segments"] >= 6_000_000 / 200_000
    if is_heard:
        check_all_read(messages, [reports])


def test_a_record_too_long_for_kafka_waits_for_the_store_and_holds_up_its_partition_alone(
    producer_conf: dict[str, Any], group_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    proxy.rule = puts(BUSY)
    held_up, others = Reports(), Reports()

    with BlobProducer({**producer_conf, "message.max.bytes": 50_000}) as producer:
        for value in [b"first", b"long" + bytes(60_000), b"behind it"]:
            produce(producer, topic, value, partition=0, on_delivery=held_up)
        for value in values("other", 20):
            produce(producer, topic, value, partition=1, on_delivery=others)
        wait_until(
            lambda: len(others.outcomes) == 20 and len(held_up.outcomes) == 1,
            "all but two are delivered",
            serve=lambda: producer.poll(0.1),
        )
        assert len(producer) == 2
        proxy.rule = puts(None)
        flush(producer)

    messages = read_all(group_conf, topic)
    check_all_read(messages, [held_up, others])


def test_no_more_goes_through_kafka_than_its_rate_allows_and_the_rest_waits_for_the_store(
    producer_conf: dict[str, Any], group_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    bytes_per_second = 100_000
    one_segment = 20_000
    more = {
        "blobmsg.inline.max.bytes.per.second": bytes_per_second,
        "message.max.bytes": one_segment,
        "compression.type": "none",
    }
    proxy.rule = puts(BUSY)
    reports = Reports()

    with BlobProducer({**producer_conf, **more}) as producer:
        started = time.monotonic()
        looks: list[tuple[float, int]] = []

        def look() -> None:
            producer.poll(0.05)
            began_s = time.monotonic() - started
            sent_bytes = producer.stats()["fallback_bytes"]
            looks.append((began_s if not sent_bytes else time.monotonic() - started, sent_bytes))

        for number, value in enumerate(values("v", 3000, 1000)):  # half a minute's worth
            produce(producer, topic, value, on_delivery=reports)
            if number % 300 == 0:
                look()
        wait_until(lambda: bool(looks) and looks[-1][1] > 300_000, "some go inline", serve=look)
        proxy.rule = puts(None)
        flush(producer)
        stats = producer.stats()

    # From any look to any later one; a tenth of a second may be drawn in advance.
    first_s = max(at_s for at_s, sent_bytes in looks if not sent_bytes)
    for at_s, sent_bytes in looks:
        allowed = bytes_per_second * (max(0.0, at_s - first_s) + 0.1) + one_segment
        assert sent_bytes <= allowed
    assert stats["fallback_bytes"] < 1_500_000
    assert stats["notifications"] >= 1
    check_all_read(read_all(group_conf, topic), [reports])


def test_those_who_would_rather_wait_for_the_store_do(
    producer_conf: dict[str, Any], group_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    proxy.rule = puts(BUSY)
    reports = Reports()

    with BlobProducer({**producer_conf, "blobmsg.on.store.failure": "wait"}) as producer:
        for value in values("v", 100):
            produce(producer, topic, value, on_delivery=reports)
        # Far longer than the fallback waits.
        proxy.wait_for(lambda requests: max((r.attempt for r in requests), default=0) >= 5)
        assert producer.poll(0.5) == 0
        proxy.rule = puts(None)
        flush(producer)
        assert producer.stats()["inline_segments"] == 0

    check_all_read(read_all(group_conf, topic), [reports])


def test_a_transaction_commits_while_the_store_fails(
    producer_conf: dict[str, Any], group_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    with BlobProducer({**producer_conf, "transactional.id": topic}) as producer:
        producer.init_transactions(30)
        proxy.rule = puts(BUSY)
        kept, dropped = Reports(), Reports()
        producer.begin_transaction()
        for value in values("kept", 100):
            produce(producer, topic, value, on_delivery=kept)
        producer.commit_transaction(60)
        before = producer.stats()["fallback_segments"]
        producer.begin_transaction()
        for value in values("dropped", 100):
            produce(producer, topic, value, on_delivery=dropped)
        wait_until(
            lambda: producer.stats()["fallback_segments"] > before,
            "some of it is inline",
            serve=lambda: producer.poll(0.1),
        )
        producer.abort_transaction(60)

    assert len(dropped.errors) == 100
    check_all_read(read_all(group_conf, topic), [kept])


def test_an_idle_outage_is_over_with_the_next_record(
    producer_conf: dict[str, Any], group_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    proxy.rule = puts(BUSY)
    with BlobProducer(producer_conf) as producer:
        during = send(producer, topic, values("during", 10))
        proxy.rule = puts(None)
        before = producer.stats()
        after = send(producer, topic, values("after", 10))

        assert producer.stats()["fallback_segments"] == before["fallback_segments"]
        assert producer.stats()["notifications"] > before["notifications"]

    check_all_read(read_all(group_conf, topic), [during, after])
