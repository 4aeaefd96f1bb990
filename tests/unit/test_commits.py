from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.commits import Commits
from blobmsg.core.debatcher import Debatcher
from blobmsg.core.offsets import to_virtual
from blobmsg.handout import Handout
from blobmsg.kafka_settings import KafkaView
from blobmsg.rare_log import RareLog

if TYPE_CHECKING:
    import pytest

KEY = ("topic", 0)


class SilentKafka:
    """A consumer whose questions take all the time that they are given, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        del partitions
        self.now_s += timeout
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _commits(inner: SilentKafka) -> Commits:
    core = Debatcher(
        prefetch_max_bytes=1, fetch_slots=1, max_section_bytes=1, gather_ms=0,
        skips_missing=False, skips_expired=False,
    )  # fmt: skip
    return Commits(
        inner, core, Handout(core), KafkaView.parse({}),
        lock=threading.RLock(), log=RareLog(logging.getLogger("test").warning),
        monotonic_s=lambda: inner.now_s,
    )  # fmt: skip


def test_what_is_not_answered_is_not_asked_again_by_the_same_poll() -> None:
    # A poll of 0.2 s took two: tests/chaos, a transaction that a killed process had left open.
    kafka = SilentKafka()
    commits = _commits(kafka)
    began_s = kafka.now_s

    found, unresolved, refusals = commits.look_up([KEY])

    assert (found, refusals) == ({}, [])
    assert kafka.now_s - began_s < 1
    assert unresolved[KEY] > kafka.now_s


def test_a_look_up_that_failed_keeps_nothing_alive() -> None:
    # librdkafka's client, its threads and connections lived until the next garbage collection.
    kafka = SilentKafka()
    commits = _commits(kafka)
    is_alive = weakref.ref(commits)
    gc.disable()
    try:
        commits.look_up([KEY])
        del commits
        assert is_alive() is None
    finally:
        gc.enable()


def test_what_kafka_confirms_of_a_partition_that_is_gone_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commits = _commits(SilentKafka())
    commits.confirmed([TopicPartition(*KEY, 5)])
    commits.positions.store(KEY, to_virtual(5))

    assert [entry.kafka_offset for entry in commits.positions.changed([KEY])] == [5]
