"""Ctrl-C in poll, consume and close: the application hears it at once and loses nothing."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.child_process import InterruptedChild
from tests.helpers.records import DEADLINE_S, flush, produce, read, send

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PARTITIONS = 3
COUNT = 30_000
# Long after any wait inside of the client, and far below what a user takes for a hung program.
PROMPT_S = 2.0


@pytest.fixture
def group_conf(conf: dict[str, Any], store_prefix: str) -> dict[str, Any]:
    return {
        **conf,
        "group.id": store_prefix,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 3_600_000,
    }


def _fill(conf: dict[str, Any], topic: str) -> None:
    """Numbers, by turns as plain records and in objects."""
    with (
        BlobProducer({**conf, "blobmsg.route": "blob"}) as blob,
        BlobProducer({**conf, "blobmsg.route": "plain"}) as plain,
    ):
        for start in range(0, COUNT, 300):
            producer = blob if start % 600 else plain
            for number in range(start, start + 300):
                produce(producer, topic, b"%d" % number, partition=number % PARTITIONS)
            flush(producer)


def _in_order(values: list[str]) -> None:
    for number in range(PARTITIONS):
        of_one = [int(value) for value in values if int(value) % PARTITIONS == number]
        assert of_one == list(range(number, number + PARTITIONS * len(of_one), PARTITIONS))


@pytest.mark.parametrize("call", ["poll", "consume"])
def test_reading_on_after_every_ctrl_c_loses_and_doubles_nothing(
    conf: dict[str, Any], group_conf: dict[str, Any], make_topic: Callable[..., str], call: str
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    _fill(conf, topic)
    chance = random.Random(call)
    interrupts = 0

    with InterruptedChild(group_conf, topic, call=call, count=COUNT) as child:
        child.wait_for("ready")
        deadline = time.monotonic() + DEADLINE_S
        while not child.said("closing"):
            started = time.monotonic()
            assert started < deadline, "it waits for records that do not come"
            child.interrupt()
            child.wait_for("interrupted", DEADLINE_S)
            assert time.monotonic() - started < PROMPT_S
            interrupts += 1
            time.sleep(chance.uniform(0.001, 0.01))  # anywhere in what it does
        child.interrupt()  # in or after its close
        outcome = child.wait_for("read")

    assert interrupts >= 20
    assert outcome["errors"] == []
    assert len(outcome["values"]) == COUNT
    _in_order(outcome["values"])


@pytest.mark.parametrize("call", ["poll", "consume"])
def test_ctrl_c_ends_a_call_that_waits_without_a_limit(
    conf: dict[str, Any], group_conf: dict[str, Any], make_topic: Callable[..., str], call: str
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    count = 1 if call == "poll" else 40

    with InterruptedChild(group_conf, topic, call=call, count=count, waits=True) as child:
        child.wait_for("ready")
        for pause_s in (0.0, 0.5, 3.0):  # joining, assigned, nothing to read
            time.sleep(pause_s)
            started = time.monotonic()
            child.interrupt()
            child.wait_for("interrupted", DEADLINE_S)
            assert time.monotonic() - started < PROMPT_S
        with BlobProducer(conf) as producer:
            send(producer, topic, [b"%d" % number for number in range(count)], partition=0)
        outcome = child.wait_for("read")

    assert outcome["values"] == [str(number) for number in range(count)]


@pytest.mark.parametrize("after_ms", [0, 2, 10, 50])
def test_ctrl_c_in_close_commits_what_was_read_and_no_more(
    conf: dict[str, Any], group_conf: dict[str, Any], make_topic: Callable[..., str], after_ms: int
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    _fill(conf, topic)

    with InterruptedChild(group_conf, topic, call="consume", count=COUNT // 2) as child:
        child.wait_for("closing")
        time.sleep(after_ms / 1000)
        child.interrupt()
        child.wait_for("interrupted")
        first = child.wait_for("read")["values"]
    with BlobConsumer(group_conf) as consumer:
        consumer.subscribe([topic])
        rest = read(consumer, COUNT - len(first), batch=500)
        assert consumer.poll(0.5) is None

    _in_order(first + [message.value().decode() for message in rest])
