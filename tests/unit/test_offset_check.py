"""The check of the first positions that a producer sends: on librdkafka's mock cluster."""

from __future__ import annotations

import subprocess
import sys
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from blobmsg import offset_check
from blobmsg.offset_check import FirstOffsetCheck
from tests.helpers.mock_topic import kafka_with_records
from tests.helpers.records import partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import TopicPartition

    from blobmsg.testing import MockKafka

_VIRTUAL = 3 << 20
_LIST_OFFSETS = 2

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with kafka_with_records(8) as kafka:
        yield kafka


@pytest.fixture
def check(kafka: MockKafka) -> FirstOffsetCheck:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    return FirstOffsetCheck(lambda: admin)


def test_virtual_offsets_pass_and_are_not_asked_for_again(
    kafka: MockKafka, check: FirstOffsetCheck
) -> None:
    positions = [partition("t", 0, _VIRTUAL), partition("t", 1, _VIRTUAL)]
    check.check(positions)
    kafka.go_away()
    check.check(positions)

    assert check._checked == {("t", 0), ("t", 1)}


def test_partitions_that_are_not_there_are_not_this_checks_business(
    check: FirstOffsetCheck,
) -> None:
    check.check([partition("t", 9, 7), partition("t", 1, _VIRTUAL)])

    assert check._checked == {("t", 1)}


def test_slow_answers_are_there_at_one_of_the_next_calls(
    kafka: MockKafka, check: FirstOffsetCheck
) -> None:
    kafka.answer_after(200)
    for _ in range(4):
        check.check([partition("t", 0, _VIRTUAL)])

    assert check._checked == {("t", 0)}


def test_a_leader_that_does_not_answer_has_not_checked(
    kafka: MockKafka, check: FirstOffsetCheck
) -> None:
    check.check([partition("t", 1, _VIRTUAL)])
    kafka.refuse_next(_LIST_OFFSETS, *[KafkaError._TRANSPORT] * 2)
    check.check([partition("t", 0, _VIRTUAL)])

    assert check._checked == {("t", 1)}


def test_a_client_that_is_closed_checks_nothing() -> None:
    check = FirstOffsetCheck(lambda: None)
    check.check([partition("t", 0, _VIRTUAL)])

    assert check._checked == set()


class _Admin:
    """Knows a partition whose records have Kafka's offsets 10 to 20."""

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        assert timeout_s > 0
        of_topic = SimpleNamespace(partitions={0: SimpleNamespace(leader=1)})
        return SimpleNamespace(topics={topic: of_topic}, brokers={1})

    def list_offsets(
        self, asked: dict[TopicPartition, Any], request_timeout: float
    ) -> dict[TopicPartition, Any]:
        assert request_timeout > 0
        offsets = {id(offset_check._EARLIEST): 10, id(offset_check._LATEST): 20}

        def answer(end: object) -> Any:
            return SimpleNamespace(result=lambda _s: SimpleNamespace(offset=offsets[id(end)]))

        return {partition: answer(end) for partition, end in asked.items()}


def test_a_refusal_that_is_kept_keeps_no_admin_client() -> None:
    """It would not end with its producer."""
    admins = [_Admin()]
    admin = weakref.ref(admins[0])
    check = FirstOffsetCheck(lambda: admins[0])
    with pytest.raises(KafkaException, match="no virtual offset") as raised:
        check.check([partition("t", 0, 15)])
    admins.clear()

    assert admin() is None
    assert raised.value.args[0].code() == KafkaError._INVALID_ARG


_HASTY = """
from confluent_kafka.admin import AdminClient
from confluent_kafka import TopicPartition
from blobmsg import offset_check
from blobmsg.testing import MockKafka

offset_check._WATERMARKS_TIMEOUT_S = 0.0009
with MockKafka(["a"]) as kafka:
    kafka.create_topic("t", 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    check = offset_check.FirstOffsetCheck(lambda: admin)
    for number in range(500):
        check.check([TopicPartition("t", 0, 5 << 20), TopicPartition(f"new{number}", 0, 5 << 20)])
print("lives")
"""


def test_a_limit_that_is_over_at_once_ends_no_process() -> None:
    """librdkafka frees such a request for offsets twice: SIGSEGV, or what `free` finds."""
    done: Any = subprocess.run(
        [sys.executable, "-c", _HASTY], capture_output=True, text=True, timeout=80, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "lives\n", "")
