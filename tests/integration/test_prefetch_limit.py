"""A consumer that is polled seldom holds no more than it may."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.memory import rss_bytes
from tests.helpers.records import DEADLINE_S, flush, produce, read

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MIB = 1 << 20
LIMIT_BYTES = 4 * MIB
PARTITIONS = 3
RECORD_BYTES = 50_000
COUNT = 1200  # 60 MB
SLOW_COUNT = 100
# Of the process beside what is read ahead: threads, connections, librdkafka's queues.
OTHER_BYTES = 24 * MIB


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_memory_stays_within_the_limit_while_nobody_polls_fast(
    conf: dict[str, Any], make_topic: Callable[..., str], store_prefix: str, codec: str
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    producer_conf = {
        **conf,
        "blobmsg.route": "blob",
        "blobmsg.batch.size.bytes": MIB,
        "blobmsg.compression.type": codec,
    }
    with BlobProducer(producer_conf) as producer:
        for number in range(COUNT):
            value = b"%08d" % number + os.urandom(RECORD_BYTES)
            produce(producer, topic, value, partition=number % PARTITIONS)
        flush(producer)

    reader_conf = {
        **conf,
        "group.id": store_prefix,
        "auto.offset.reset": "earliest",
        "blobmsg.prefetch.max.bytes": LIMIT_BYTES,
        "blobmsg.cache.memory.bytes": 0,
    }
    before_bytes = rss_bytes()
    most_held_bytes = most_rss_bytes = 0
    with BlobConsumer(reader_conf) as consumer:
        consumer.subscribe([topic])
        numbers = [int(read(consumer, 1)[0].value()[:8])]
        deadline = time.monotonic() + DEADLINE_S
        while len(numbers) < SLOW_COUNT:
            assert time.monotonic() < deadline, consumer.stats()
            received: list[Any] = consumer.consume(2, 0)
            numbers += [int(message.value()[:8]) for message in received]
            time.sleep(0.02)  # the application is at work
            most_held_bytes = max(most_held_bytes, consumer.stats()["held_bytes"])
            most_rss_bytes = max(most_rss_bytes, rss_bytes())
        while len(numbers) < COUNT:
            received = read(consumer, min(20, COUNT - len(numbers)), batch=20)
            numbers += [int(message.value()[:8]) for message in received]
            most_held_bytes = max(most_held_bytes, consumer.stats()["held_bytes"])

    assert sorted(numbers) == list(range(COUNT))
    assert LIMIT_BYTES // 4 < most_held_bytes <= LIMIT_BYTES
    assert most_rss_bytes - before_bytes < LIMIT_BYTES + OTHER_BYTES
