"""Ctrl-C in the calls that ask Kafka something, while no broker answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.ctrl_c import call_with_ctrl_c
from tests.helpers.nobody import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

# An attempt takes as long again as was waited before; the next one ends it.
PRESSED_AFTER_S = 1.0
PROMPT_S = 10.0
PARTITIONS = [TopicPartition("nowhere", 0, 0)]

BOTH: dict[str, Callable[[Any], Any]] = {
    "list_topics()": lambda client: client.list_topics(),
    "list_topics(topic)": lambda client: client.list_topics("nowhere"),
    "cluster_id()": lambda client: client.cluster_id(),
}
CONSUMERS: dict[str, Callable[[Any], Any]] = {
    "committed()": lambda client: client.committed(PARTITIONS),
    "get_watermark_offsets()": lambda client: client.get_watermark_offsets(PARTITIONS[0]),
    "offsets_for_times()": lambda client: client.offsets_for_times(PARTITIONS),
}


def interrupted_after(call: Callable[[], Any]) -> float:
    """Seconds until a call ended by Ctrl-C."""
    was_heard, took_s = call_with_ctrl_c(call, PRESSED_AFTER_S)
    assert was_heard
    return took_s


@pytest.mark.parametrize("call", BOTH.values(), ids=BOTH.keys())
def test_a_producer(call: Callable[[Any], Any]) -> None:
    with BlobProducer(NOBODY) as producer:
        assert PRESSED_AFTER_S <= interrupted_after(lambda: call(producer)) < PROMPT_S


def test_init_transactions() -> None:
    with BlobProducer({**NOBODY, "transactional.id": "t"}) as producer:
        took_s = interrupted_after(lambda: producer.init_transactions(60))
        assert PRESSED_AFTER_S <= took_s < PROMPT_S


@pytest.mark.parametrize("call", [*BOTH.values(), *CONSUMERS.values()], ids=[*BOTH, *CONSUMERS])
def test_a_consumer(call: Callable[[Any], Any]) -> None:
    with BlobConsumer({**NOBODY, "group.id": "g"}) as consumer:
        assert PRESSED_AFTER_S <= interrupted_after(lambda: call(consumer)) < PROMPT_S
