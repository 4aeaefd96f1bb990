"""Where logs begin and end, asked with a consumer: on librdkafka's mock cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException

from blobmsg.log_ends import log_ends
from blobmsg.testing import MockKafka
from tests.helpers.records import flush, produce
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIST_OFFSETS = 2
_NOT_THERE = {KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka(["a"]) as kafka:
        kafka.create_topic("t", 4)
        with StockProducer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
            for number in range(6):
                produce(producer, "t", b"", partition=number % 3)
            flush(producer)
        yield kafka


@pytest.fixture
def consumer(kafka: MockKafka) -> Iterator[Any]:
    with StockConsumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0}
    ) as consumer:
        yield consumer


def _codes(found: dict[tuple[str, int], int | KafkaError]) -> dict[tuple[str, int], int]:
    return {
        place: answer if isinstance(answer, int) else -answer.code()
        for place, answer in found.items()
    }


def test_each_partition_has_its_own_ends(consumer: Any) -> None:
    places = [("t", number) for number in range(4)]

    lows = log_ends(consumer, places, OFFSET_BEGINNING, 30)
    highs = log_ends(consumer, places, OFFSET_END, 30)

    assert lows == dict.fromkeys(places, 0)
    assert highs == {("t", 0): 2, ("t", 1): 2, ("t", 2): 2, ("t", 3): 0}


def test_nothing_is_asked_of_no_partition(consumer: Any) -> None:
    assert log_ends(consumer, [], OFFSET_END, 0) == {}


@pytest.mark.parametrize("more", [[("t", 0)], []])
def test_partitions_that_do_not_exist_say_so(consumer: Any, more: list[tuple[str, int]]) -> None:
    gone = [("t", 9), ("nowhere", 0)]

    found = log_ends(consumer, [*gone, *more], OFFSET_END, 30)

    codes = _codes(found)
    assert codes == {place: codes[place] for place in gone} | dict.fromkeys(more, 2)
    assert {-codes[place] for place in gone} <= _NOT_THERE


def test_a_refusal_is_its_partitions_alone(kafka: MockKafka, consumer: Any) -> None:
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    kafka.refuse_next(
        _LIST_OFFSETS, denied, denied, denied
    )  # of all, of the first two, of the first

    found = log_ends(consumer, [("t", number) for number in range(4)], OFFSET_END, 30)

    assert _codes(found) == {("t", 0): -denied, ("t", 1): 2, ("t", 2): 2, ("t", 3): 0}


def test_no_answer_in_time_is_an_error(kafka: MockKafka, consumer: Any) -> None:
    kafka.go_away()
    begun = time.monotonic()
    with pytest.raises(KafkaException):
        log_ends(consumer, [("t", 0)], OFFSET_END, 0.5)
    assert time.monotonic() - begun < 1.5


_HASTY = """
from confluent_kafka import OFFSET_END, Consumer, KafkaException
from blobmsg.log_ends import log_ends
from blobmsg.testing import MockKafka

with MockKafka(["a"]) as kafka:
    kafka.create_topic("t", 1)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0}
    )
    late = 0
    for number in range(300):
        try:
            log_ends(consumer, [("t", 0), (f"new{number}", 0)], OFFSET_END, 0.0001)
        except KafkaException:
            late += 1
    consumer.close()
print(late > 0)
"""


def test_a_limit_that_is_over_at_once_harms_nothing() -> None:
    """An admin client's `list_offsets` ends the process here (SIGSEGV, or what `free` finds)."""
    done = subprocess.run(
        [sys.executable, "-c", _HASTY], capture_output=True, text=True, timeout=80, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
