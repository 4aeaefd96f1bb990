"""The largest record and the longest notification, all the way through Kafka and the store."""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import flush, partition, read, read_to_end, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LARGEST_BYTES = 64 << 20
LONGEST_RECORDS = (1 << 20) - 1


def test_the_largest_record_arrives_between_small_ones(
    conf: dict[str, Any], group_conf: dict[str, Any], topic: str
) -> None:
    key = b"key"
    largest = random.Random(1).randbytes(LARGEST_BYTES - len(key))
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        reports = send(producer, topic, [b"before", largest, b"after"], key=key)
        with pytest.raises(KafkaException) as refused:
            producer.produce(topic, largest + b"1", key)
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    # Compared by checksum: a failure would print 64 MiB.
    assert [zlib.crc32(m.value()) for m in reports.messages()] == list(
        map(zlib.crc32, (b"before", largest, b"after"))
    )

    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic)])
        found = read_to_end(consumer, 1).messages

    assert [(m.key(), len(m.value()), zlib.crc32(m.value())) for m in found] == [
        (key, len(value), zlib.crc32(value)) for value in (b"before", largest, b"after")
    ]


@pytest.mark.parametrize("route", ["auto", "inline", "blob"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_topic_that_takes_little_at_once_gets_records_of_every_size_in_order(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    make_topic: Callable[..., str],
    route: str,
    codec: str,
) -> None:
    topic = make_topic(config={"max.message.bytes": "5000"})
    rng = random.Random(3)
    sizes = [*rng.choices((10, 1000, 4900, 5100, 60_000), k=60), 300_000]
    values = [b"%d " % number + rng.randbytes(size) for number, size in enumerate(sizes)]
    more = {"blobmsg.route": route, "compression.type": codec, "blobmsg.batch.interval.ms": 20}
    with BlobProducer({**conf, **more}) as producer:
        for start in range(0, len(values), 7):
            assert send(producer, topic, values[start : start + 7]).errors == []

    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic)])
        found = read_to_end(consumer, 1).messages

    assert list(map(zlib.crc32, (m.value() for m in found))) == list(map(zlib.crc32, values))


def _numbers(consumer: Any, count: int) -> Iterator[tuple[int, int]]:
    """The number and the offset of each record, without keeping a million messages."""
    while count:
        messages = read(consumer, min(count, 50_000), batch=10_000)
        count -= len(messages)
        for message in messages:
            yield int(message.value()), message.offset()


def test_more_records_than_a_notification_holds(
    conf: dict[str, Any], group_conf: dict[str, Any], topic: str
) -> None:
    count = LONGEST_RECORDS + 5
    settings = {
        "blobmsg.route": "blob",
        "blobmsg.batch.size.bytes": 64 << 20,
        "blobmsg.batch.interval.ms": 900_000,
        "message.timeout.ms": 0,  # else the interval is a part of it
    }
    with BlobProducer({**conf, **settings}) as producer:
        for start in range(0, count, 10_000):
            batch = [{"value": b"%d" % n} for n in range(start, min(start + 10_000, count))]
            assert producer.produce_batch(topic, batch, 0) == len(batch)
        flush(producer)
        stats = producer.stats()
        assert (stats["batches"], stats["notifications"]) == (1, 2)

    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic)])
        offsets = [-1]
        for expected, (number, offset) in enumerate(_numbers(consumer, count)):
            assert number == expected
            assert offset > offsets[-1]
            offsets.append(offset)
        # The place behind the last one that a notification can hold.
        consumer.commit(
            offsets=[partition(topic, 0, offsets[LONGEST_RECORDS] + 1)], asynchronous=False
        )

    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic)])
        rest = read_to_end(consumer, 1).messages
    assert [int(message.value()) for message in rest] == list(range(LONGEST_RECORDS, count))
