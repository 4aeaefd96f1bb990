"""A topic that gets partitions while it is in use: where its records go, and what was there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    NewPartitions,
)

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.format.batch_object import decode_batch_object_index
from tests.helpers.metadata import wait_until_all_know
from tests.helpers.records import (
    Reports,
    flush,
    outcome,
    produce,
    read_to_end,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BEFORE = 3
AFTER = 9
PER_PARTITION = 5
QUICK = {"topic.metadata.refresh.interval.ms": 500, "blobmsg.route": "blob"}


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic(partitions=BEFORE)


@pytest.fixture
def add_partitions(
    admin: AdminClient, bootstrap: str, topic: str
) -> Callable[[BlobProducer], None]:
    """Adds partitions, and returns when a producer that runs knows them."""

    def add(producer: BlobProducer) -> None:
        admin.create_partitions([NewPartitions(topic, AFTER)])[topic].result(timeout=30)
        # One that does not know of them yet would answer without them.
        wait_until_all_know(bootstrap, topic, AFTER)
        wait_until(
            lambda: (
                outcome(lambda: producer.produce(topic, b"knows", partition=AFTER - 1))
                == ("returned", None)
            ),
            "the producer takes records for the last of the new partitions",
            serve=lambda: producer.poll(0.1),
        )
        flush(producer)

    return add


def _produce_everywhere(
    producer: BlobProducer, topic: str, partitions: int, what: str
) -> dict[int, list[bytes]]:
    """Some records to each partition, in one batch if they may share one; by partition."""
    reports = Reports()
    for number in range(PER_PARTITION * partitions):
        value = b"%s-%d" % (what.encode(), number)
        produce(producer, topic, value, partition=number % partitions, on_delivery=reports)
    flush(producer)
    return reports.values_by_partition()


def _zones_of_objects(stack: lab.Stack, prefix: str) -> dict[str, dict[int, str]]:
    """Of each object under a prefix the destination zones that its index names, by partition."""
    client = stack.s3_client()
    try:
        listing = client.list_objects_v2(Bucket=stack.bucket, Prefix=f"{prefix}/")
        found: dict[str, dict[int, str]] = {}
        for entry in listing["Contents"]:
            data = client.get_object(Bucket=stack.bucket, Key=entry["Key"])["Body"].read()
            index = decode_batch_object_index(data, len(data))
            found[entry["Key"]] = {part.partition: part.destination_zone for part in index}
    finally:
        client.close()
    return found


def test_records_of_partitions_that_are_added_go_with_those_of_their_leaders_rack(
    conf: dict[str, Any],
    stack: lab.Stack,
    store_prefix: str,
    admin: AdminClient,
    topic: str,
    add_partitions: Callable[[BlobProducer], None],
) -> None:
    with BlobProducer({**conf, **QUICK, "blobmsg.destination": "leader"}) as producer:
        _produce_everywhere(producer, topic, BEFORE, "before")
        add_partitions(producer)

        racks = {node.id: node.rack for node in admin.describe_cluster().result(timeout=20).nodes}
        leaders = admin.list_topics(topic, timeout=20).topics[topic].partitions
        expected = {number: racks[found.leader] for number, found in leaders.items()}
        assert set(expected) == set(range(AFTER))
        assert len(set(expected.values())) == 3
        found: dict[int, str] = {}

        def produce_more() -> None:
            earlier = _zones_of_objects(stack, store_prefix)
            _produce_everywhere(producer, topic, AFTER, "after")
            objects = _zones_of_objects(stack, store_prefix)
            found.clear()
            for key in objects.keys() - earlier.keys():
                assert len(set(objects[key].values())) == 1  # one zone an object
                found.update(objects[key])

        # What it has read first may be of a moment when the new ones had no leaders yet.
        wait_until(lambda: found == expected, "the new ones have zones", serve=produce_more)


def test_what_was_there_before_partitions_were_added_is_read_from_the_start(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    topic: str,
    add_partitions: Callable[[BlobProducer], None],
) -> None:
    with BlobProducer({**conf, **QUICK}) as producer:
        before = _produce_everywhere(producer, topic, BEFORE, "before")
        add_partitions(producer)
        after = _produce_everywhere(producer, topic, AFTER, "after")

    expected = {number: before.get(number, []) + after[number] for number in range(AFTER)}
    expected[AFTER - 1].insert(0, b"knows")
    with BlobConsumer(group_conf) as consumer:
        consumer.subscribe([topic])
        found: dict[int, list[bytes]] = {}
        for message in read_to_end(consumer, AFTER).messages:
            found.setdefault(message.partition(), []).append(message.value())
    assert found == expected
