"""A producer that ends too early, in whatever way: what it was acknowledged can be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.child_process import ChildProgram
from tests.helpers.fault_proxy import Delay, FaultProxy, Hold
from tests.helpers.records import (
    DEADLINE_S,
    Reports,
    flush,
    partition,
    produce,
    read_to_end,
    send,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120), pytest.mark.chaos]

PROGRAM = "tests.helpers.killed_producer"


class KilledProducer(ChildProgram):
    """Runs `killed_producer`; see there."""

    def __init__(
        self, conf: dict[str, Any], topic: str, *, count: int | None = None, ends: str = "killed"
    ) -> None:
        plan = {"conf": conf, "topic": topic, "count": count, "ends": ends}
        super().__init__(PROGRAM, plan)

    def acknowledged(self) -> list[str]:
        """The records whose success it has told of so far."""
        return [said["value"] for said in self.events if said["event"] == "delivered"]

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.send_signal(signal.SIGTERM)


@pytest.fixture
def producer_conf(conf: dict[str, Any], proxy: FaultProxy) -> dict[str, Any]:
    return {
        **conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.route": "blob",
        "blobmsg.on.store.failure": "wait",
        "blobmsg.batch.interval.ms": 100,
    }


@pytest.fixture
def read_values(conf: dict[str, Any]) -> Callable[[str], list[str]]:
    """Everything of a topic's only partition; an object that is not there is an error."""

    def read_values(topic: str) -> list[str]:
        reader = {
            **conf,
            "group.id": topic,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        with BlobConsumer(reader) as consumer:
            consumer.assign([partition(topic, 0, 0)])
            return [m.value().decode() for m in read_to_end(consumer, 1, batch=500).messages]

    return read_values


def _assert_whole(values: list[str], acknowledged: list[str]) -> None:
    """Nothing acknowledged is missing, nothing is there twice or out of order."""
    assert values == [str(number) for number in range(len(values))]
    assert acknowledged == values[: len(acknowledged)]


def test_a_producer_killed_while_the_store_has_not_answered_was_acknowledged_nothing_of_it(
    producer_conf: dict[str, Any],
    proxy: FaultProxy,
    topic: str,
    read_values: Callable[[str], list[str]],
) -> None:
    never = threading.Event()
    proxy.rule = lambda request: Hold(never) if request.object_number >= 3 else None
    small = {**producer_conf, "blobmsg.batch.size.bytes": 4096}
    with KilledProducer(small, topic, count=5000) as child:
        child.wait_for("produced")
        proxy.wait_for(lambda requests: any(r.object_number >= 3 for r in requests))
        for _ in range(20):  # long enough for a report that comes too early
            child.wait_for("polled")
        child.kill()

    values = read_values(topic)
    assert 0 < len(values) < 5000
    _assert_whole(values, child.acknowledged())


class UntilDead(threading.Event):
    """Lets a request reach the store after a while, and one of a dead client never."""

    def __init__(self, dead: threading.Event, seconds: float) -> None:
        super().__init__()
        self._dead = dead
        self._seconds = seconds

    def wait(self, timeout: float | None = None) -> bool:
        if self._dead.wait(self._seconds):
            raise ConnectionResetError
        return True


@pytest.mark.parametrize("after", [1, 300, 2500])
def test_a_producer_killed_at_any_time_loses_nothing_that_was_acknowledged(
    producer_conf: dict[str, Any],
    proxy: FaultProxy,
    topic: str,
    read_values: Callable[[str], list[str]],
    after: int,
) -> None:
    dead = threading.Event()
    # Several are on their way at any time, and end in any order.
    proxy.rule = lambda request: Hold(UntilDead(dead, 0.3 + 0.3 * (request.number % 3)))
    with KilledProducer(producer_conf, topic) as child:
        while len(child.acknowledged()) < after:
            child.wait_for("delivered")
        dead.set()
        child.kill()

    assert len(child.acknowledged()) >= after
    _assert_whole(read_values(topic), child.acknowledged())


def test_sigterm_loses_nothing_that_was_produced_where_the_application_closes(
    producer_conf: dict[str, Any],
    proxy: FaultProxy,
    topic: str,
    read_values: Callable[[str], list[str]],
) -> None:
    proxy.rule = lambda _: Delay(0.3)
    with KilledProducer(producer_conf, topic, ends="sigterm", count=3000) as child:
        child.wait_for("produced")
        child.terminate()
        child.wait_for("closed")
        acknowledged = child.acknowledged()

    assert acknowledged == [str(number) for number in range(3000)]
    assert read_values(topic) == acknowledged


def test_an_exit_with_buffered_records_says_how_many_are_lost(
    producer_conf: dict[str, Any], topic: str
) -> None:
    waits = {**producer_conf, "blobmsg.batch.interval.ms": 60_000}
    plan = {"conf": waits, "topic": topic, "count": 7, "ends": "exit"}
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, json.dumps(plan)],
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "the interpreter exits with 7 records undelivered" in done.stderr


def test_close_ends_with_its_records_time_though_the_store_never_answers(
    producer_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    never = threading.Event()
    proxy.rule = lambda _: Hold(never)
    reports = Reports()
    producer = BlobProducer({**producer_conf, "message.timeout.ms": 4000})
    closed = threading.Thread(target=producer.close, name="closes", daemon=True)
    started = time.monotonic()
    produce(producer, topic, b"never stored", on_delivery=reports)
    closed.start()
    closed.join(DEADLINE_S)
    took_s = time.monotonic() - started
    try:
        assert not closed.is_alive()
    finally:
        never.set()
    assert took_s < 4 + 1
    assert len(reports.errors) == 1


def test_acknowledged_means_by_all_replicas_though_less_was_asked_for(
    conf: dict[str, Any],
    breakable_stack: lab.Stack,
    topic: str,
    read_values: Callable[[str], list[str]],
) -> None:
    first = _leader(breakable_stack.brokers, topic)
    leader = breakable_stack.broker(first)
    followers = [broker for broker in breakable_stack.brokers if broker.name != leader.name]
    with BlobProducer({**conf, "acks": "1", "blobmsg.route": "blob"}) as producer:
        send(producer, topic, [b"0"])
        reports = Reports()
        for broker in followers:
            broker.pause()
        # A fetch that a follower sent before has an answer waiting for it: the first record. Each
        # flush lasts as long as a leader needs that asks nobody.
        for numbers in (range(1, 2), range(2, 21)):
            for number in numbers:
                produce(producer, topic, b"%d" % number, on_delivery=reports)
            producer.flush(3)
        leader.pause()  # for good, as far as the others know
        for broker in followers:
            broker.resume()
        wait_until(lambda: _leader(followers, topic) not in (first, -1), "another leader")
        leader.resume()
        flush(producer)
        stats = producer.stats()

    assert (stats["plain_records"], stats["inline_segments"]) == (0, 0)
    assert stats["notifications"] >= 3
    assert reports.codes == [None] * 20
    _assert_whole(read_values(topic), [str(number) for number in range(21)])


def _leader(brokers: list[lab.Node], topic: str) -> int:
    """The leader of the topic's partition, as these brokers know it; -1: none."""
    addresses = ",".join(broker.address for broker in brokers)
    # Anew each time: a client that knows all brokers may ask one that hangs.
    admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
    try:
        return int(admin.list_topics(topic, timeout=2).topics[topic].partitions[0].leader)
    except KafkaException:
        return -1
