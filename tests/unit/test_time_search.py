"""`find_records` with a reader that hands out what a test says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from blobmsg.message import Message
from blobmsg.offsets import to_virtual
from blobmsg.time_search import find_records, reader_config

if TYPE_CHECKING:
    from typing_extensions import Self


class ScriptedReader:
    """A BlobConsumer of which only this much is used."""

    def __init__(self, *batches: list[Message]) -> None:
        self._batches = list(batches)
        self.calls: list[tuple[str, list[tuple[str, int, int]]]] = []
        self.is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def _note(self, call: str, *places: TopicPartition) -> None:
        self.calls.append((call, [(p.topic, p.partition, p.offset) for p in places]))

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._note("assign", *partitions)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._note("pause", *partitions)

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        assert num_messages > 1
        if self._batches:
            return self._batches.pop(0)
        time.sleep(timeout)
        return []


def record(offset: int, timestamp_ms: int, partition: int = 0) -> Message:
    return Message("t", partition, offset, value=b"", timestamp=(1, timestamp_ms))


def problem(code: int, offset: int = 0, **more: Any) -> Message:
    return Message("t", 0, offset, error=KafkaError(code, **more))


def find(reader: ScriptedReader, *times: int, timeout_s: float = 10) -> list[int]:
    asked = [TopicPartition("t", number, each) for number, each in enumerate(times)]
    answers = [TopicPartition("t", number, 7) for number in range(len(times))]
    found = find_records(asked, answers, lambda: reader, timeout_s)
    assert [p.partition for p in found] == list(range(len(times)))
    return [p.offset for p in found]


def test_the_first_record_of_the_time_or_later_counts_for_each_partition() -> None:
    reader = ScriptedReader(
        [record(1, 10), record(2, 20), record(1, 5, 1)],
        [record(3, 15), record(2, 30, 1), record(3, 8, 1)],
    )

    assert find(reader, 15, 8) == [2, 2]
    assert reader.calls[0] == ("assign", [("t", 0, to_virtual(7)), ("t", 1, to_virtual(7))])
    assert reader.is_closed


def test_no_reader_is_made_for_ends_and_errors() -> None:
    answers = [TopicPartition("t", 0, OFFSET_END)]

    def open_reader() -> Any:
        raise AssertionError

    assert find_records([TopicPartition("t", 0, 5)], answers, open_reader, 1) == answers


def test_what_kafka_found_and_nobody_may_see_is_the_end() -> None:
    end = problem(KafkaError._PARTITION_EOF, to_virtual(9))
    assert find(ScriptedReader([end]), 5) == [OFFSET_END]


def test_the_end_of_a_replica_that_lags_is_waited_out() -> None:
    end = problem(KafkaError._PARTITION_EOF, to_virtual(7))
    assert find(ScriptedReader([end], [record(9, 5)]), 5) == [9]


def test_an_error_that_passes_is_waited_out_and_another_one_raised() -> None:
    passing = problem(KafkaError.LEADER_NOT_AVAILABLE, retriable=True)
    assert find(ScriptedReader([passing], [record(9, 5)]), 5) == [9]

    refused = ScriptedReader([problem(KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    with pytest.raises(KafkaException) as caught:
        find(refused, 5)
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert refused.is_closed


@pytest.mark.parametrize("time_ms", [-1, -2, -1001])
def test_a_time_below_zero_asks_kafka_alone_for_an_end_of_the_log(time_ms: int) -> None:
    assert find(ScriptedReader(), time_ms) == [to_virtual(7)]


def test_time_that_is_over_is_told_with_the_partitions_that_are_missing() -> None:
    reader = ScriptedReader([record(1, 5, 1)])
    with pytest.raises(KafkaException, match=r"no record could be read of t \[0\]") as caught:
        find(reader, 5, 5, timeout_s=0.2)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    assert reader.is_closed


def test_the_reader_has_the_settings_of_the_asker_but_for_what_others_would_notice() -> None:
    conf = {
        "bootstrap.servers": "b:1",
        "group.id": "g",
        "group.instance.id": "one",
        "topic.auto.offset.reset": "latest",
        "on_commit": print,
        "stats_cb": print,
        "logger": "kept",
        "blobmsg.store.url": "memory://x",
        "blobmsg.fetch.threads": 8,
    }

    assert reader_config(conf) == {
        "bootstrap.servers": "b:1",
        "group.id": "g",
        "logger": "kept",
        "blobmsg.store.url": "memory://x",
        "auto.offset.reset": "earliest",
        "blobmsg.on.missing": "fail",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "blobmsg.fetch.threads": 1,
        "blobmsg.prefetch.max.bytes": 16 << 20,
        "blobmsg.offset.check": False,
    }
