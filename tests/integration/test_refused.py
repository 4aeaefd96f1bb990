"""Kafka refuses one record of a batch: it alone fails, the others arrive in order, once each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import (
    Reports,
    flush,
    partition,
    read_to_end,
    send,
    values_by_partition,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HOUR_MS = 3_600_000
INVALID_RECORD = 87


PROBE = bytes(30_000)  # no key, and large: what each changed topic here refuses


@pytest.fixture
def alter(bootstrap: str) -> Callable[[str, str, str], None]:
    """Change a topic's setting, and return when its leader goes by it, which it tells by refusing.

    (`describe_configs` asks any broker, and one may know what the leader has yet to hear.)
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def alter(topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(timeout=30)
        stock = Producer({"bootstrap.servers": bootstrap})

        def is_refused() -> bool:
            reports = Reports()
            stock.produce(topic, PROBE, partition=0, on_delivery=reports)
            flush(stock)
            return reports.codes != [None]

        wait_until(is_refused, f"the leader goes by {name}={value} of {topic}")

    return alter


def _read(conf: dict[str, Any], topic: str, partitions: int) -> dict[int, list[bytes]]:
    reader = {
        **conf,
        "group.id": "refused",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(partitions)])
        found = values_by_partition(read_to_end(consumer, partitions).messages)
    return {number: [v for v in values if v != PROBE] for number, values in found.items()}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("route", ["plain", "inline", "blob", "auto"])
def test_one_timestamp_out_of_bounds_fails_alone(
    conf: dict[str, Any], make_topic: Callable[..., str], route: str
) -> None:
    topic = make_topic(partitions=3, config={"message.timestamp.before.max.ms": str(HOUR_MS)})
    # One record per segment, so that a wave holds many notifications too.
    more = {"blobmsg.route": route, "blobmsg.batch.size.bytes": 4096}
    reports = Reports()
    guilty = {23, 24, 71}
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    with BlobProducer({**conf, **more}) as producer:
        send(producer, topic, [b"first"], partition=2)
        for i in range(120):
            value = b"%d" % i + bytes(5000)
            timestamp = _now_ms() - (2 * HOUR_MS if i in guilty else 0)
            producer.produce(
                topic, value, partition=i % 3, timestamp=timestamp, on_delivery=reports
            )
            if i not in guilty:
                sent[i % 3].append(value)
        flush(producer)

    failed = {int(m.value().rstrip(b"\0")) for e, m in reports.outcomes if e is not None}
    assert failed == guilty
    assert {e.code() for e in reports.errors} <= {KafkaError.INVALID_TIMESTAMP, INVALID_RECORD}
    for number in range(3):  # reports in produce order, failures included
        told = [m.value() for _, m in reports.outcomes if m.partition() == number]
        assert told == [b"%d" % i + bytes(5000) for i in range(number, 120, 3)]
    sent[2].insert(0, b"first")
    assert _read(conf, topic, 3) == sent


@pytest.mark.parametrize("route", ["inline", "blob"])
def test_a_topic_made_compacted_later_gets_plain_records_in_order(
    conf: dict[str, Any],
    make_topic: Callable[..., str],
    alter: Callable[[str, str, str], None],
    route: str,
) -> None:
    topic = make_topic()
    reports = Reports()
    values = [b"%d" % i for i in range(40)]
    with BlobProducer({**conf, "blobmsg.route": route}) as producer:
        send(producer, topic, [b"before"], key=b"k")
        alter(topic, "cleanup.policy", "compact")
        for i, value in enumerate(values):
            key = None if i == 7 else value
            producer.produce(topic, value, key, on_delivery=reports)
        flush(producer)
        late = send(producer, topic, [b"late"], key=b"late")

    expected: list[int | None] = [None] * 40
    expected[7] = INVALID_RECORD
    assert reports.codes == expected
    assert late.codes == [None]
    assert _read(conf, topic, 1) == {0: [b"before", *values[:7], *values[8:], b"late"]}


def test_a_topic_limit_lowered_later_fails_what_is_larger_alone(
    conf: dict[str, Any],
    make_topic: Callable[..., str],
    alter: Callable[[str, str, str], None],
) -> None:
    topic = make_topic()
    reports = Reports()
    with BlobProducer({**conf, "blobmsg.route": "plain"}) as producer:
        send(producer, topic, [b"before"])
        alter(topic, "max.message.bytes", "20000")
        values = [b"%d" % i + bytes(30_000 if i == 17 else 2000) for i in range(60)]
        for value in values:
            producer.produce(topic, value, on_delivery=reports)
        flush(producer)

    expected: list[int | None] = [None] * 60
    expected[17] = KafkaError.MSG_SIZE_TOO_LARGE
    assert reports.codes == expected
    assert _read(conf, topic, 1) == {0: [b"before", *values[:17], *values[18:]]}
