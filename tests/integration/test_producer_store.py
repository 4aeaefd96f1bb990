"""A producer whose store is slow or hangs: in time for the records, within its memory."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.fault_proxy import Answer, Delay, Fault, FaultProxy, Hold, Request, puts
from tests.helpers.memory import rss_bytes
from tests.helpers.records import Reports, flush, partition, produce, read_to_end, send

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def producer_conf(conf: dict[str, Any], proxy: FaultProxy) -> dict[str, Any]:
    return {
        **conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.route": "blob",
        # What Kafka does in the store's stead is `test_fallback`'s.
        "blobmsg.on.store.failure": "wait",
    }


def test_a_request_that_hangs_is_tried_again_before_its_records_time_out(
    producer_conf: dict[str, Any], proxy: FaultProxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    released = threading.Event()
    proxy.rule = lambda request: Hold(released) if request.attempt == 0 else None

    # 6 s for the store, of which one request gets 3.5; blobmsg.request.timeout.ms alone says 30.
    with BlobProducer({**producer_conf, "message.timeout.ms": 12_000}) as producer:
        started = time.monotonic()
        reports = send(producer, topic, [b"value"])
        took_s = time.monotonic() - started
        released.set()

    assert reports.codes == [None]
    assert took_s < 12 + 1


def test_pauses_between_attempts_grow(
    producer_conf: dict[str, Any], proxy: FaultProxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    proxy.rule = lambda _request: Answer(500, "InternalError")

    with BlobProducer({**producer_conf, "message.timeout.ms": 12_000}) as producer:
        started = time.monotonic()
        reports = send(producer, topic, [b"value"])
        took_s = time.monotonic() - started

    assert reports.codes == [KafkaError._MSG_TIMED_OUT]
    assert took_s < 12 + 1
    # Of 100 ms at most the first, and twice that each time: a dozen. Never growing: a hundred.
    assert 4 <= len(proxy.requests) <= 30


def test_after_slow_down_all_threads_together_send_less_at_once(
    producer_conf: dict[str, Any], proxy: FaultProxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    threads = 16
    most = 0

    def rule(request: Request) -> Fault:
        nonlocal most
        if request.attempt == 0:
            # All are on their way when the store complains, so that each hears it once.
            proxy.wait_for(lambda requests: len(requests) >= threads)
            return Answer(503, "SlowDown")
        again = [r for r in proxy.requests if r.attempt > 0]
        most = max(most, len(again) - len([r for r in proxy.finished if r.attempt > 0]))
        return Delay(0.5)  # far longer than the back-offs differ

    proxy.rule = rule
    more = {"blobmsg.upload.threads": threads, "blobmsg.batch.size.bytes": 8192}
    with BlobProducer({**producer_conf, **more}) as producer:
        # Each of them fills a batch of its own.
        reports = send(producer, topic, [b"%d" % i + bytes(9000) for i in range(threads)])

    assert reports.codes == [None] * threads
    assert proxy.faults["Answer"] == threads
    # Half of them, and about one more for each eight that were answered well.
    assert 1 <= most <= threads // 2 + 3


def test_memory_holds_its_limit_while_the_store_is_slow_and_all_arrives(
    producer_conf: dict[str, Any],
    conf: dict[str, Any],
    proxy: FaultProxy,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    limit_kbytes = 16 * 1024
    more = {
        "queue.buffering.max.kbytes": limit_kbytes,
        "blobmsg.batch.size.bytes": 1 << 20,
        "blobmsg.upload.threads": 4,
        "message.max.bytes": 100_000,
        "compression.type": "none",
    }
    count, refused = 8000, 0  # 80 MB through 16
    reports = Reports()
    with BlobProducer({**producer_conf, **more}) as producer:
        # What connections, codecs and threads take once is not the limit's.
        for number in range(200):
            produce(producer, topic, b"%06d" % number + bytes(10_000))
        flush(producer)
        proxy.rule = puts(Delay(0.5))
        before, most = rss_bytes(), 0
        for number in range(200, count):
            value = b"%06d" % number + bytes(10_000)
            while True:
                try:
                    producer.produce(topic, value, on_delivery=_Numbers(reports))
                    break
                except BufferError:
                    refused += 1
                    producer.poll(0.05)
            if number % 50 == 0:
                most = max(most, rss_bytes())
        flush(producer)

    assert refused > 0
    assert reports.errors == []
    assert most - before < 3 * limit_kbytes * 1024, f"{most - before} bytes more"
    reader = {**conf, "group.id": "memory", "enable.partition.eof": True}
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1, batch=500).messages
    assert [int(m.value()[:6]) for m in messages] == list(range(count))


class _Numbers:
    """A callback that keeps errors only: kept messages would be memory of the test's own."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def __call__(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._reports(error, None)
