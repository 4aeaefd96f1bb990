"""After kill -9 a consumer goes on exactly where it had committed, inside a notification too."""

from __future__ import annotations

from typing import Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.child_process import ChildConsumer
from tests.helpers.records import Reports, flush, partition, produce, read, read_to_end, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

RECORDS_PER_BATCH = 100
BATCHES = 12
COUNT = RECORDS_PER_BATCH * BATCHES
MASK = (1 << 20) - 1


@pytest.fixture
def group_conf(group_conf: dict[str, Any]) -> dict[str, Any]:
    return {
        **group_conf,
        # The least a broker allows: the dead member's partitions are free after it.
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
    }


@pytest.fixture
def offsets(conf: dict[str, Any], topic: str) -> list[int]:
    """The topic's records 0 to COUNT - 1 are in notifications of 100; their virtual offsets."""
    reports = Reports()
    settings = {"blobmsg.route": "blob", "blobmsg.batch.interval.ms": 60_000}
    with BlobProducer({**conf, **settings}) as producer:
        for number in range(COUNT):
            produce(producer, topic, b"%d" % number, key=b"key", on_delivery=reports)
            if (number + 1) % RECORDS_PER_BATCH == 0:
                flush(producer)
        assert producer.stats()["notifications"] == BATCHES
    return [message.offset() for message in reports.messages()]


def _rest(group_conf: dict[str, Any], topic: str) -> list[int]:
    """What a new member of the group reads."""
    with BlobConsumer(group_conf) as consumer:
        consumer.subscribe([topic])
        return [int(m.value()) for m in read_to_end(consumer, 1, batch=100).messages]


def _committed(conf: dict[str, Any], topic: str) -> int:
    with BlobConsumer(conf) as consumer:
        found: int = consumer.committed([partition(topic)], 20)[0].offset
        return found


def _record_at(position: int, offsets: list[int]) -> int:
    """The number of the record that comes next at a position."""
    if position & MASK == 0:  # all of a notification
        return (position >> 20) * RECORDS_PER_BATCH
    return offsets.index(position)


@pytest.mark.parametrize("mode", ["message", "offsets", "position", "store", "store_message"])
def test_a_synchronous_commit_inside_a_batch_is_resumed_exactly_after_kill_9(
    group_conf: dict[str, Any], topic: str, offsets: list[int], mode: str
) -> None:
    # A static member's successor need not wait until its session ends.
    group_conf["group.instance.id"] = "only"
    child_conf = {**group_conf, "enable.auto.offset.store": not mode.startswith("store")}
    with ChildConsumer(child_conf, topic, mode=mode, stop_after=342) as child:
        stopped = child.wait_for("stopped")
        assert stopped["offset"] == offsets[341]
        assert stopped["offset"] & MASK != MASK  # inside of its notification
        # It goes on without committing: what follows the commit will come again.
        child.say("go")
        while len(child.records()) < 600:
            child.wait_for("record")
        child.kill()

    assert [int(said["value"]) for said in child.records()][:600] == list(range(600))
    assert _committed(group_conf, topic) == offsets[342]
    assert _rest(group_conf, topic) == list(range(342, COUNT))


def test_automatic_commits_inside_a_batch_are_resumed_exactly_after_kill_9(
    group_conf: dict[str, Any], topic: str, offsets: list[int]
) -> None:
    child_conf = {**group_conf, "enable.auto.commit": True, "auto.commit.interval.ms": 100}
    with ChildConsumer(child_conf, topic, stop_after=250) as child:
        child.wait_for("stopped")
        with BlobConsumer(group_conf) as looker:
            wait_until(
                lambda: looker.committed([partition(topic)], 20)[0].offset == offsets[250],
                "the position behind the last record is committed",
            )
            # Within one notification, too, where Kafka's own offset does not move.
            child.say("go")
            child.wait_for("record")
            child.kill()
            committed = looker.committed([partition(topic)], 20)[0].offset

    resumed_at = _record_at(committed, offsets)
    assert 250 <= resumed_at <= len(child.records())
    assert _rest(group_conf, topic) == list(range(resumed_at, COUNT))


def test_kill_9_while_reading_at_full_speed_skips_nothing(
    group_conf: dict[str, Any], topic: str, offsets: list[int]
) -> None:
    child_conf = {**group_conf, "enable.auto.commit": True, "auto.commit.interval.ms": 20}
    with ChildConsumer(child_conf, topic, stop_after=None) as child:
        while len(child.records()) < 700:
            child.wait_for("record")
        child.kill()

    seen = [int(said["value"]) for said in child.records()]
    assert seen == list(range(len(seen)))
    committed = _committed(group_conf, topic)
    resumed_at = 0 if committed < 0 else _record_at(committed, offsets)  # none yet is legal
    assert resumed_at <= len(seen)
    assert _rest(group_conf, topic) == list(range(resumed_at, COUNT))


def test_automatic_commits_of_stored_offsets_only(
    group_conf: dict[str, Any], topic: str, offsets: list[int]
) -> None:
    group_conf["group.instance.id"] = "only"
    child_conf = {
        **group_conf,
        "enable.auto.commit": True,
        "auto.commit.interval.ms": 50,
        "enable.auto.offset.store": False,
    }
    with ChildConsumer(child_conf, topic, mode="store", stop_after=161) as child:
        child.wait_for("stopped")
        child.kill()

    assert _committed(group_conf, topic) == offsets[161]
    assert _rest(group_conf, topic) == list(range(161, COUNT))


def test_a_closed_consumer_has_committed_where_it_stood(
    group_conf: dict[str, Any], topic: str, offsets: list[int]
) -> None:
    conf = {**group_conf, "enable.auto.commit": True, "auto.commit.interval.ms": 3_600_000}
    with BlobConsumer(conf) as consumer:
        consumer.subscribe([topic])
        first = read(consumer, 137, batch=200)
        assert [int(m.value()) for m in first] == list(range(137))

    assert _committed(group_conf, topic) == offsets[137]
    assert _rest(group_conf, topic) == list(range(137, COUNT))


def test_an_offset_kept_elsewhere_brings_back_the_record_behind_it(
    group_conf: dict[str, Any], topic: str, offsets: list[int]
) -> None:
    for place in (0, 1, 99, 100, 555, COUNT - 1):
        with BlobConsumer(group_conf) as consumer:
            consumer.assign([partition(topic, 0, offsets[place] + 1)])
            ending = read_to_end(consumer, 1, batch=1000)
        assert [int(m.value()) for m in ending.messages] == list(range(place + 1, COUNT))
