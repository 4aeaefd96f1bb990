"""`offsets_for_times`: the first record at or after a time, whatever carries it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
)

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.fault_proxy import Answer, FaultProxy
from tests.helpers.records import (
    flush,
    next_message,
    outcome,
    partition,
    read_to_end,
    send,
)
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

# Kafka deletes what is older than a week, by these times.
_FIRST_MS = time.time_ns() // 1_000_000 - 3_600_000


def _reader(conf: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**conf, "group.id": "times", "enable.partition.eof": True, **more}


def _stock(conf: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in conf.items() if not name.startswith("blobmsg.")}


def _fill(conf: dict[str, Any], topic: str) -> None:
    """Objects, inline segments and plain records, whose times go forth and back."""
    times = [0, 10, 10, 20, 15, 30, 5, 40]
    for number, route in enumerate(("blob", "inline", "blob", "plain", "blob")):
        with BlobProducer({**conf, "blobmsg.route": route}) as producer:
            for partition_number in range(2):
                for place, after_ms in enumerate(times):
                    producer.produce(
                        topic,
                        b"%s %d" % (route.encode(), place),
                        partition=partition_number,
                        timestamp=_FIRST_MS + 100 * number + after_ms + partition_number,
                    )
            flush(producer)
    with_stock = StockProducer(_stock(conf))
    with_stock.produce(topic, b"stock", partition=0, timestamp=_FIRST_MS + 1000)
    flush(with_stock)


def _fill_by_ms(conf: dict[str, Any], topic: str, count: int) -> None:
    """Records 0, 1, 2 … in one object, each a millisecond after the one before."""
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(count):
            producer.produce(topic, b"%d" % number, timestamp=_FIRST_MS + number)


def test_the_first_record_of_a_time_is_found_in_objects_inline_and_plain(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2)
    _fill(conf, topic)
    with BlobConsumer(_reader(conf)) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(2)])
        messages = read_to_end(consumer, 2).messages
        assert len(messages) == 81
        times = sorted({m.timestamp()[1] for m in messages})

        for asked_ms in (0, *times[::9], *(t + 1 for t in times[::7]), times[-1], times[-1] + 1):
            asked = [partition(topic, number, asked_ms) for number in (1, 0)]
            found = consumer.offsets_for_times(asked, 30)
            expected = [
                next(
                    (
                        m.offset()
                        for m in messages
                        if m.partition() == number and m.timestamp()[1] >= asked_ms
                    ),
                    OFFSET_END,
                )
                for number in (1, 0)
            ]
            assert [(p.partition, p.offset) for p in found] == list(
                zip((1, 0), expected, strict=True)
            ), asked_ms


def test_what_is_found_can_be_sought_and_the_asking_consumer_stays_where_it_is(
    conf: dict[str, Any], topic: str
) -> None:
    _fill_by_ms(conf, topic, 100)
    with BlobConsumer(_reader(conf)) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert next_message(consumer).value() == b"0"
        [found] = consumer.offsets_for_times([partition(topic, 0, _FIRST_MS + 42)], 30)
        assert next_message(consumer).value() == b"1"
        consumer.seek(found)
        assert next_message(consumer).value() == b"42"


def test_on_a_log_append_time_topic_every_record_has_the_brokers_time(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        send(producer, topic, [b"a", b"b"], timestamp=1)
        time.sleep(0.01)
        between_ms = time.time_ns() // 1_000_000
        send(producer, topic, [b"c", b"d"], timestamp=1)
    with BlobConsumer(_reader(conf)) as consumer:
        [found] = consumer.offsets_for_times([partition(topic, 0, between_ms)], 30)
        consumer.assign([found])
        assert next_message(consumer).value() == b"c"


def test_wrong_calls_are_answered_as_stock_answers_them(conf: dict[str, Any], topic: str) -> None:
    found = []
    for client, settings in ((StockConsumer, _stock(_reader(conf))), (BlobConsumer, _reader(conf))):
        with client(settings) as consumer:
            wrong: list[Any] = [None, [1], partition(topic, 0, 0), [], [partition(topic, 7, 0)]]
            wrong.append([partition(topic, 0, OFFSET_INVALID)])
            answers = [outcome(lambda c=consumer, w=w: c.offsets_for_times(w, 5)) for w in wrong]  # type: ignore[misc]
            [at_the_end] = consumer.offsets_for_times([partition(topic, 0, 5)], 5)
            found.append((answers, at_the_end.offset, at_the_end.error))
    assert found[0] == found[1]


def test_the_ends_of_the_log_are_its_watermarks_and_the_last_of_one_partition_counts(
    conf: dict[str, Any], topic: str
) -> None:
    _fill_by_ms(conf, topic, 10)
    with BlobConsumer(_reader(conf)) as consumer:

        def found(*times: int) -> list[int]:
            asked = [partition(topic, 0, each) for each in times]
            return [place.offset for place in consumer.offsets_for_times(asked, 30)]

        low, high = consumer.get_watermark_offsets(partition(topic), 10)
        assert (found(OFFSET_BEGINNING), found(OFFSET_END)) == ([low], [high])
        assert found(_FIRST_MS + 7, _FIRST_MS + 3) == [high - 7] * 2  # as stock


def test_a_store_that_is_away_is_told_in_time(
    conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        send(producer, topic, [b"a", b"b"], timestamp=_FIRST_MS)
    proxy.rule = lambda _request: Answer(503, "SlowDown")
    conf = {**conf, "blobmsg.s3.endpoint.url": proxy.url, "blobmsg.cache.memory.bytes": 0}
    with BlobConsumer(_reader(conf)) as consumer:
        started = time.monotonic()
        with pytest.raises(KafkaException, match=rf"no record could be read of {topic} \[0\]") as e:
            consumer.offsets_for_times([partition(topic, 0, _FIRST_MS)], 3)
        assert time.monotonic() - started < 4
        assert e.value.args[0].code() == KafkaError._TIMED_OUT
        proxy.rule = None
        [found] = consumer.offsets_for_times([partition(topic, 0, _FIRST_MS)], 30)
        assert found.offset > 0
