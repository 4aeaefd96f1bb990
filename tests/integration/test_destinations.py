"""Which records share an object, where in it they lie, and how long its name lets it live."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.format.batch_object import IndexEntry, decode_batch_object_index
from blobmsg.format.object_key import ObjectKey
from blobmsg.topic_directory import TopicDirectory, TopicFacts
from tests.helpers.records import (
    Reports,
    flush,
    partition,
    produce,
    read_to_end,
    send,
    wait_until,
)
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PARTITIONS = 6


@pytest.fixture
def objects(stack: lab.Stack, store_prefix: str) -> Callable[[], dict[ObjectKey, list[IndexEntry]]]:
    """What lies in the test's prefix, read by a client that is not ours."""

    def read_objects() -> dict[ObjectKey, list[IndexEntry]]:
        client = stack.s3_client()
        try:
            found: dict[ObjectKey, list[IndexEntry]] = {}
            prefix = store_prefix + "/"
            listing = client.list_objects_v2(Bucket=stack.bucket, Prefix=prefix)
            for entry in listing.get("Contents", []):
                data = client.get_object(Bucket=stack.bucket, Key=entry["Key"])["Body"].read()
                key = ObjectKey.decode(entry["Key"].removeprefix(prefix))
                found[key] = decode_batch_object_index(data, len(data))
        finally:
            client.close()
        return found

    return read_objects


def _produce_everywhere(conf: dict[str, Any], topic: str, **more: Any) -> None:
    reports = Reports()
    with BlobProducer({**conf, "blobmsg.route": "blob", **more}) as producer:
        for number in range(10 * PARTITIONS):
            value = b"%d" % number
            produce(producer, topic, value, partition=number % PARTITIONS, on_delivery=reports)
        flush(producer)
    assert reports.errors == []


def _zones(entries: list[IndexEntry]) -> dict[int, str]:
    return {entry.partition: entry.destination_zone for entry in entries}


def _read_everything(conf: dict[str, Any], topic: str) -> None:
    reading = {**conf, "group.id": "destinations", "enable.partition.eof": True}
    with BlobConsumer(reading) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(PARTITIONS)])
        values = [int(m.value()) for m in read_to_end(consumer, PARTITIONS).messages]
    assert sorted(values) == list(range(10 * PARTITIONS))


def test_leader_groups_partitions_by_the_rack_of_their_leaders(
    bootstrap: str, conf: dict[str, Any], make_topic: Callable[..., str], objects: Any
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    _produce_everywhere(conf, topic, **{"blobmsg.destination": "leader"})

    admin = AdminClient({"bootstrap.servers": bootstrap})
    racks = {node.id: node.rack for node in admin.describe_cluster().result(timeout=20).nodes}
    leaders = admin.list_topics(topic, timeout=20).topics[topic].partitions
    expected = {number: racks[found.leader] for number, found in leaders.items()}
    found: dict[int, str] = {}
    for entries in objects().values():
        zones = _zones(entries)
        assert len(set(zones.values())) == 1  # one zone an object
        found |= zones
    assert set(racks.values()) == {"az1", "az2", "az3"}
    assert found == expected
    _read_everything(conf, topic)


def test_static_assigns_partitions_to_the_list_in_turn(
    conf: dict[str, Any], make_topic: Callable[..., str], objects: Any
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    _produce_everywhere(conf, topic, **{"blobmsg.destination": "static:az1,az2,az3"})

    found: dict[int, str] = {}
    for entries in objects().values():
        found |= _zones(entries)
    assert found == {number: f"az{number % 3 + 1}" for number in range(PARTITIONS)}
    assert len(objects()) == 3
    _read_everything(conf, topic)


def test_aliases_are_resolved_in_destinations(
    conf: dict[str, Any], make_topic: Callable[..., str], objects: Any
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    more = {"blobmsg.destination": "static:az1,use1-az1", "blobmsg.zone.aliases": "use1-az1=az1"}
    _produce_everywhere(conf, topic, **more)

    [entries] = objects().values()
    assert set(_zones(entries)) == set(range(PARTITIONS))
    assert len(set(_zones(entries).values())) == 1


@pytest.mark.parametrize("destination", ["none", "auto"])
def test_without_destinations_all_partitions_share_one_object(
    conf: dict[str, Any], make_topic: Callable[..., str], objects: Any, destination: str
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    more = {"blobmsg.destination": destination, "blobmsg.batch.interval.ms": 60_000}
    _produce_everywhere(conf, topic, **more)

    [(key, entries)] = objects().items()
    assert _zones(entries) == dict.fromkeys(range(PARTITIONS), "")
    assert [entry.records for entry in entries] == [10] * PARTITIONS
    assert key.zone == "none"
    _read_everything(conf, topic)


def test_keys_name_isolation_and_the_writers_zone(
    conf: dict[str, Any], make_topic: Callable[..., str], objects: Any
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    _produce_everywhere(conf, topic, **{"blobmsg.isolation": "payroll", "client.rack": "az2"})

    for key, entries in objects().items():
        assert (key.isolation, key.zone) == ("payroll", "az2")
        assert {entry.producer_id for entry in entries} == {key.writer_bytes}
    _read_everything(conf, topic)


_HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("retention_ms", "kept"),
    [
        ("1000", _HOUR),
        ("3600000", _HOUR),
        ("3600001", 6 * _HOUR),
        ("86400000", 24 * _HOUR),
        ("604800000", 7 * 24 * _HOUR),
        ("-1", None),
    ],
)
def test_the_expiry_hour_follows_the_topics_retention(
    conf: dict[str, Any],
    make_topic: Callable[..., str],
    objects: Any,
    retention_ms: str,
    kept: timedelta | None,
) -> None:
    segment_ms = 1_800_000  # half an hour
    config = {"retention.ms": retention_ms, "segment.ms": str(segment_ms)}
    topic = make_topic(config=config)
    before = datetime.now(timezone.utc)
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        assert send(producer, topic, [b"value"]).errors == []
    after = datetime.now(timezone.utc)

    [key] = objects()
    if kept is None:
        assert key.expiry_hour == "forever"
        return
    slack = kept + timedelta(milliseconds=segment_ms) + _HOUR
    expected = {_hour_after(moment + slack) for moment in (before, after)}
    assert key.expiry_hour in expected


def _hour_after(moment: datetime) -> str:
    floor = moment.replace(minute=0, second=0, microsecond=0)
    return (floor if floor == moment else floor + _HOUR).strftime("%Y%m%d%H")


def test_topics_of_different_retention_do_not_share_objects(
    conf: dict[str, Any], make_topic: Callable[..., str], objects: Any
) -> None:
    short = make_topic(config={"retention.ms": "3600000"})
    long = make_topic(config={"retention.ms": "604800000"})
    more = {"blobmsg.route": "blob", "blobmsg.batch.interval.ms": 60_000}
    with BlobProducer({**conf, **more}) as producer:
        for number in range(10):
            producer.produce(short, b"%d" % number)
            producer.produce(long, b"%d" % number)
        flush(producer)

    found = {key.expiry_hour: {e.topic for e in entries} for key, entries in objects().items()}
    assert sorted(map(sorted, found.values())) == sorted([[short], [long]])


def test_a_compacted_topic_stays_plain(
    conf: dict[str, Any],
    make_topic: Callable[..., str],
    objects: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(config={"cleanup.policy": "compact"})
    reads: list[str] = []
    read = TopicDirectory.read

    def counted_read(directory: TopicDirectory, name: str) -> TopicFacts:
        facts = read(directory, name)
        reads.append(name)
        return facts

    monkeypatch.setattr(TopicDirectory, "read", counted_read)
    often = {"topic.metadata.refresh.interval.ms": 1000}  # it is said once all the same
    with (
        caplog.at_level(logging.WARNING, "blobmsg"),
        BlobProducer({**conf, "blobmsg.route": "blob", **often}) as producer,
    ):
        reports = Reports()
        for number in range(50):
            producer.produce(topic, b"%d" % number, b"key-%d" % number, on_delivery=reports)
        producer.produce(topic, None, b"key-0", on_delivery=reports)
        flush(producer)
        assert producer.stats()["notifications"] == 0
        # What is said of the second is said when the third has begun.
        wait_until(lambda: reads.count(topic) >= 3, "the topic is read again, and once more")
    assert reports.errors == []
    assert objects() == {}
    assert len([text for text in caplog.messages if f"{topic} is compacted" in text]) == 1

    reading = {
        "bootstrap.servers": conf["bootstrap.servers"],
        "group.id": "destinations",
        "enable.partition.eof": True,
    }
    with StockConsumer(reading) as stock:
        stock.assign([partition(topic, 0, 0)])
        messages = read_to_end(stock, 1).messages
    assert [(m.key(), m.value()) for m in messages] == [
        *[(b"key-%d" % number, b"%d" % number) for number in range(50)],
        (b"key-0", None),
    ]


def test_a_compacted_topic_refuses_records_without_a_key_as_in_stock(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(config={"cleanup.policy": "compact"})
    codes = []
    for client in (StockProducer, BlobProducer):
        own = {k: v for k, v in conf.items() if client is BlobProducer or "blobmsg" not in k}
        with client(own) as producer:
            codes.append(send(producer, topic, [b"no key"]).codes)
    assert codes[0] == codes[1]
    assert codes[0] != [None]
