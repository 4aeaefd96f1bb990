"""Records of stock and blob producers side by side in one topic; several topics and clients."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
)

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import (
    Place,
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
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

# For records with old timestamps, which Kafka would soon delete.
KEEP = {"retention.ms": "-1"}
ROUTES = ["auto", "blob", "inline", "plain"]


@pytest.fixture
def stock_conf(conf: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in conf.items() if not key.startswith("blobmsg.")}


@pytest.fixture
def reading() -> dict[str, Any]:
    return {
        "group.id": "mixed",  # never joined: partitions are assigned
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }


def _facts(message: Any) -> tuple[Any, ...]:
    return message.key(), message.value(), message.headers(), message.timestamp()


def test_stock_and_blob_producers_of_all_routes_share_a_topic(
    conf: dict[str, Any],
    stock_conf: dict[str, Any],
    reading: dict[str, Any],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(partitions=3, config=KEEP)
    reports = {name: Reports() for name in ["stock", *ROUTES]}
    producers: dict[str, Any] = {"stock": StockProducer(stock_conf)}
    for route in ROUTES:
        producers[route] = BlobProducer(
            {**conf, "blobmsg.route": route, "blobmsg.batch.interval.ms": 20}
        )

    for number in range(400):
        for name, producer in producers.items():
            value = b"%s-%d" % (name.encode(), number)
            produce(
                producer, topic, value, key=name.encode(), partition=number % 3,
                headers=[("from", name.encode())], timestamp=1_700_000_000_000 + number,
                on_delivery=reports[name],
            )  # fmt: skip
        if number % 50 == 0:
            for producer in producers.values():
                producer.poll(0)
    for producer in producers.values():
        flush(producer)
    stats = {route: producers[route].stats() for route in ROUTES}
    for producer in producers.values():
        producer.close()

    with BlobConsumer({**conf, **reading}) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(3)])
        ending = read_to_end(consumer, 3, batch=100)
        counters = consumer.stats()

    # All ways were in use, on both sides.
    assert stats["blob"]["batches"] > 0
    assert stats["inline"]["inline_segments"] > 0
    assert stats["plain"]["plain_records"] == 400
    assert min(counters[n] for n in ("notifications", "inline_segments", "plain_records")) > 0
    assert len(ending.messages) == 400 * len(producers)
    for name, report in reports.items():
        mine = [m for m in ending.messages if m.key() == name.encode()]
        assert values_by_partition(mine) == report.values_by_partition()
        for message in mine:
            number = int(message.value().rpartition(b"-")[2])
            assert message.headers() == [("from", name.encode())]
            assert message.timestamp() == (TIMESTAMP_CREATE_TIME, 1_700_000_000_000 + number)
        reported = places(report.messages())
        if name == "stock":  # which knows nothing of virtual offsets
            reported = {
                value: Place(place.partition, ((place.offset + 1) << 20) - 1)
                for value, place in reported.items()
            }
        assert places(mine) == reported
    for number in range(3):
        offsets = [m.offset() for m in ending.messages if m.partition() == number]
        assert offsets == sorted(set(offsets))
        assert ending.ends[topic, number] == (offsets[-1] + 1)


def test_a_stock_consumer_reads_what_goes_plain(
    conf: dict[str, Any],
    stock_conf: dict[str, Any],
    reading: dict[str, Any],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(config=KEEP)
    reports = Reports()
    with BlobProducer({**conf, "blobmsg.route": "plain"}) as producer:
        for number in range(300):
            producer.produce(
                topic, b"%d" % number, b"key", headers={"a": b"1", "b": None},
                timestamp=1_700_000_000_000 + number, on_delivery=reports,
            )  # fmt: skip
        flush(producer)

    with (
        StockConsumer({**stock_conf, **reading}) as stock,
        BlobConsumer({**conf, **reading}) as ours,
    ):
        for consumer in (stock, ours):
            consumer.assign([partition(topic, 0, 0)])
        by_stock = read_to_end(stock, 1).messages
        by_us = read_to_end(ours, 1).messages

    assert [_facts(m) for m in by_stock] == [_facts(m) for m in by_us]
    assert [m.value() for m in by_stock] == [b"%d" % number for number in range(300)]
    assert [m.offset() for m in by_us] == [((m.offset() + 1) << 20) - 1 for m in by_stock]
    assert [m.offset() for m in by_us] == [m.offset() for m in reports.messages()]


def test_at_a_low_rate_auto_sends_records_that_every_consumer_can_read(
    conf: dict[str, Any],
    stock_conf: dict[str, Any],
    reading: dict[str, Any],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    with BlobProducer(conf) as producer:
        for number in range(20):
            assert send(producer, topic, [b"%d" % number]).errors == []

    with StockConsumer({**stock_conf, **reading}) as stock:
        stock.assign([partition(topic, 0, 0)])
        values = [m.value() for m in read_to_end(stock, 1).messages]
    assert values == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("tells_ends", [False, True])
@pytest.mark.parametrize("route", ["plain", "blob"])
def test_what_comes_while_partitions_are_paused_at_their_ends_is_read_after_it(
    conf: dict[str, Any],
    reading: dict[str, Any],
    make_topic: Callable[..., str],
    route: str,
    *,
    tells_ends: bool,
) -> None:
    # librdkafka before 2.13.2 passes over one record there, if `consume` brought the end: several
    # partitions of a broker end together.
    numbers = range(12)
    topic = make_topic(partitions=12)
    everything = [partition(topic, number) for number in numbers]
    with (
        BlobProducer({**conf, "blobmsg.route": route}) as producer,
        BlobConsumer({**conf, **reading, "enable.partition.eof": tells_ends}) as consumer,
    ):

        def send_one_to_each(value: bytes) -> None:
            for number in numbers:
                produce(producer, topic, value, partition=number)
            flush(producer)

        send_one_to_each(b"first")
        consumer.assign([partition(topic, number, 0) for number in numbers])
        before: list[Any] = []
        wait_until(
            lambda: len(before) >= len(numbers),
            "the first ones are read",
            serve=lambda: before.extend(_some(consumer)),
        )
        for _ in range(16):  # ends are told half a second later
            before += _some(consumer)

        consumer.pause(everything)
        send_one_to_each(b"second")
        assert _some(consumer) == []
        consumer.resume(everything)

        after: list[Any] = []
        wait_until(
            lambda: len(after) >= len(numbers),
            "the second ones are read",
            serve=lambda: after.extend(_some(consumer)),
        )
    assert sorted(m.partition() for m in before) == list(numbers)
    assert sorted(m.partition() for m in after) == list(numbers)


def test_several_topics_producers_and_groups_at_once(
    conf: dict[str, Any], reading: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topics = [make_topic(partitions=count) for count in (1, 2, 3)]
    sent: dict[str, set[bytes]] = {topic: set() for topic in topics}
    reports = Reports()
    blob = {**conf, "blobmsg.route": "blob", "blobmsg.batch.size.bytes": 20_000}
    producers = [BlobProducer(blob) for _ in range(3)]
    for number in range(600):
        for index, producer in enumerate(producers):
            topic = topics[(number + index) % 3]
            value = b"%d-%d" % (index, number)
            sent[topic].add(value)
            produce(producer, topic, value, key=b"%d" % (number % 10), on_delivery=reports)
    for producer in producers:
        flush(producer)
        # Objects hold segments of several topics.
        stats = producer.stats()
        assert stats["notifications"] > stats["batches"]
        producer.close()
    assert reports.errors == []

    for group in ("one", "two"):
        # Committed on revoke: what one has read when the other joins does not come again.
        members = {"group.id": f"{topics[0]}-{group}", "enable.auto.commit": True}
        with (
            BlobConsumer({**conf, **reading, **members}) as first,
            BlobConsumer({**conf, **reading, **members}) as second,
        ):
            first.subscribe(topics[:2])
            second.subscribe(topics[2:])
            by_first, by_second = _read_both(first, second, 1800)
        given: dict[str, list[bytes]] = {topic: [] for topic in topics}
        for message in by_first + by_second:
            given[message.topic()].append(message.value())
        assert {topic: sorted(values) for topic, values in given.items()} == {
            topic: sorted(values) for topic, values in sent.items()
        }
        assert {m.topic() for m in by_first} == set(topics[:2])


def _read_both(first: Any, second: Any, count: int) -> tuple[list[Any], list[Any]]:
    """Read exactly so many; both are served all the time, for joining a group takes all members."""
    by_first: list[Any] = []
    by_second: list[Any] = []

    def serve() -> None:
        by_first.extend(_some(first))
        by_second.extend(_some(second))

    wait_until(lambda: len(by_first) + len(by_second) >= count, "all is read", serve=serve)
    serve()
    assert len(by_first) + len(by_second) == count
    return by_first, by_second


def _some(consumer: Any) -> list[Any]:
    messages = consumer.consume(100, 0.1)
    assert {m.error().code() for m in messages if m.error()} <= {KafkaError._PARTITION_EOF}
    return [m for m in messages if m.error() is None]


def test_a_subscription_by_regex_finds_its_topics(
    conf: dict[str, Any], reading: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    names = [make_topic(name="regex-one"), make_topic(name="regex-two")]
    tail = names[0].rpartition("-")[2]
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for name in names:
            send(producer, name, [b"of " + name.encode()])

    with BlobConsumer({**conf, **reading, "group.id": tail}) as consumer:
        pattern = "^regex-(one|two)-(" + "|".join(n.rpartition("-")[2] for n in names) + ")$"
        consumer.subscribe([pattern])
        messages = read_to_end(consumer, 2).messages
    assert sorted(m.value() for m in messages) == sorted(b"of " + n.encode() for n in names)


def test_topics_outside_the_pattern_pass_through_untouched(
    conf: dict[str, Any],
    stock_conf: dict[str, Any],
    reading: dict[str, Any],
    make_topic: Callable[..., str],
) -> None:
    inside, outside = make_topic(name="inside"), make_topic(name="outside")
    only = {**conf, "blobmsg.topics": "inside-.*", "blobmsg.route": "blob"}
    reports = Reports()
    with BlobProducer(only) as producer:
        for number in range(50):
            for topic in (inside, outside):
                producer.produce(topic, b"%d" % number, on_delivery=reports)
        flush(producer)
        assert producer.stats()["notifications"] >= 1
        # Which is ours only in topics that use the store.
        producer.produce(outside, b"50", headers=[("blobmsg", b"a user's")], on_delivery=reports)
        flush(producer)
    assert reports.errors == []
    assert len(reports.outcomes) == 101

    with (
        StockConsumer({**stock_conf, **reading}) as stock,
        BlobConsumer({**only, **reading}) as ours,
    ):
        stock.assign([partition(outside, 0, 0)])
        *_, last = by_stock = read_to_end(stock, 1).messages
        assert [int(m.value()) for m in by_stock] == list(range(51))
        assert last.headers() == [("blobmsg", b"a user's")]
        ours.assign([partition(inside, 0, 0), partition(outside, 0, 0)])
        messages = read_to_end(ours, 2).messages
    for topic, count in ((inside, 50), (outside, 51)):
        assert [int(m.value()) for m in messages if m.topic() == topic] == list(range(count))


def test_large_records_go_whole_between_small_ones(
    conf: dict[str, Any], reading: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    large = [os.urandom(30 << 20), os.urandom(30 << 20)]
    values = [b"small", large[0], b"", large[1], b"small again"]
    with BlobProducer(conf) as producer:
        reports = send(producer, topic, values)
    assert reports.errors == []

    with BlobConsumer({**conf, **reading, "blobmsg.prefetch.max.bytes": 1 << 20}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages
    assert [len(m.value()) for m in messages] == [len(value) for value in values]
    assert [m.value() for m in messages] == values
    assert [m.offset() for m in messages] == [m.offset() for m in reports.messages()]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "gzip", "snappy"])
@pytest.mark.parametrize("route", ["blob", "inline"])
def test_compressed_segments_come_back_as_they_were(
    conf: dict[str, Any],
    reading: dict[str, Any],
    make_topic: Callable[..., str],
    compression: str,
    route: str,
) -> None:
    topic = make_topic()
    values = [b"the same again and again " * 20 + b"%d" % number for number in range(300)]
    packed = {**conf, "blobmsg.route": route, "compression.type": compression}
    packed["blobmsg.batch.interval.ms"] = 10_000
    with BlobProducer(packed) as producer:
        reports = send(producer, topic, values, headers=[("h", b"v")])
        stats = producer.stats()
    assert reports.errors == []
    if route == "blob":
        assert (stats["object_bytes"] < 60_000) == (compression != "none")

    with BlobConsumer({**conf, **reading}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages
    assert [m.value() for m in messages] == values
    assert all(m.headers() == [("h", b"v")] for m in messages)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("hears", [False, True])
def test_what_compresses_so_well_that_an_object_is_dearer_goes_through_kafka(
    conf: dict[str, Any],
    reading: dict[str, Any],
    make_topic: Callable[..., str],
    compression: str,
    hears: bool,
) -> None:
    topic = make_topic()
    values = [b"the same again and again " * 20 + b"%d" % number for number in range(3000)]
    packed = {**conf, "blobmsg.route": "auto", "compression.type": compression}
    with BlobProducer(packed) as producer:
        reports = Reports()
        for value in values:
            producer.produce(topic, value, on_delivery=reports if hears else None)
        assert producer.flush(30) == 0
        stats = producer.stats()
    assert reports.errors == []
    assert len(reports.messages()) == (len(values) if hears else 0)
    # 1.5 MB, or 60 KB when compressed: an object pays from about 110 KiB on.
    assert (stats["object_bytes"] > 0) == (compression == "none")

    with BlobConsumer({**conf, **reading}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages
    assert [m.value() for m in messages] == values


@pytest.mark.parametrize("route", ROUTES)
def test_none_and_empty_headers_and_timestamps_are_what_stock_delivers(
    conf: dict[str, Any],
    stock_conf: dict[str, Any],
    reading: dict[str, Any],
    make_topic: Callable[..., str],
    route: str,
) -> None:
    stock_topic, topic = make_topic(config=KEEP), make_topic(config=KEEP)
    stamp = 1_700_000_000_000
    records: list[dict[str, Any]] = [
        {"value": None, "key": None},
        {"value": b"", "key": b""},
        {"value": None, "key": b""},
        {"value": b"", "key": None},
        {"value": "text: ä", "key": "schlüssel"},
        {"value": b"v", "key": b"k", "headers": []},
        {"value": b"v", "key": b"k", "headers": {}},
        {"value": b"v", "key": b"k", "headers": [("a", b"1"), ("a", None), ("a", b"")]},
        {"value": b"v", "key": b"k", "headers": {"t": "text ä", "n": None}},
        {"value": b"\x00" * 100, "key": b"\xff\xfe", "headers": [("", b"empty name")]},
        {"value": b"old", "key": b"k", "timestamp": 1},
        {"value": b"new", "key": b"k", "timestamp": stamp + 10**9},
    ]
    with StockProducer(stock_conf) as stock, BlobProducer({**conf, "blobmsg.route": route}) as ours:
        for producer, name in ((stock, stock_topic), (ours, topic)):
            reports = Reports()
            for record in records:
                producer.produce(
                    name, **{"timestamp": stamp, **record}, partition=0, on_delivery=reports
                )
            flush(producer)
            assert reports.errors == []

    with StockConsumer({**stock_conf, **reading}) as stock_consumer:
        stock_consumer.assign([partition(stock_topic, 0, 0)])
        expected = [_facts(m) for m in read_to_end(stock_consumer, 1).messages]
    with BlobConsumer({**conf, **reading}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert [_facts(m) for m in read_to_end(consumer, 1).messages] == expected


def test_log_append_time_is_the_brokers(
    conf: dict[str, Any], reading: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        send(producer, topic, [b"a", b"b"], timestamp=1000)

    with BlobConsumer({**conf, **reading}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        stamps = [m.timestamp() for m in read(consumer, 2)]
    assert stamps[0] == stamps[1]
    assert stamps[0][0] == TIMESTAMP_LOG_APPEND_TIME
    assert stamps[0][1] > 1_700_000_000_000


@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2_random", "fnv1a_random"])
def test_keys_go_to_the_partitions_that_stock_would_take(
    conf: dict[str, Any],
    stock_conf: dict[str, Any],
    make_topic: Callable[..., str],
    partitioner: str,
) -> None:
    topic = make_topic(partitions=7)
    keys = [b"key-%d" % number for number in range(200)]
    taken: list[list[int]] = []
    with (
        StockProducer({**stock_conf, "partitioner": partitioner}) as stock,
        BlobProducer({**conf, "blobmsg.route": "blob", "partitioner": partitioner}) as ours,
    ):
        for producer in (stock, ours):
            reports = Reports()
            for key in keys:
                producer.produce(topic, key, key, on_delivery=reports)
            flush(producer)
            by_key = {m.key(): m.partition() for m in reports.messages()}
            taken.append([by_key[key] for key in keys])
    assert taken[0] == taken[1]
