"""Callbacks of a consumer's settings that raise: it surfaces, and no record is lost or doubled."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import DEADLINE_S, flush, produce

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PARTITIONS = 3
COUNT = 6000


class _FailingError(Exception):
    """Of a callback."""


class _Failing:
    """A callback, or a logger, that always raises."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1
        raise _FailingError

    log = __call__


@pytest.mark.parametrize("call", ["poll", "consume"])
@pytest.mark.parametrize(
    ("callback", "more"),
    [
        ("stats_cb", {"statistics.interval.ms": 5}),
        ("on_commit", {"auto.commit.interval.ms": 5}),
        ("logger", {"debug": "fetch,consumer,cgrp"}),
    ],
)
def test_a_callback_that_raises_all_the_time_loses_and_doubles_nothing(
    conf: dict[str, Any],
    make_topic: Callable[..., str],
    store_prefix: str,
    callback: str,
    more: dict[str, Any],
    call: str,
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    with (
        BlobProducer({**conf, "blobmsg.route": "blob"}) as blob,
        BlobProducer({**conf, "blobmsg.route": "plain"}) as plain,
    ):
        for start in range(0, COUNT, 300):
            producer = blob if start % 600 else plain
            for number in range(start, start + 300):
                produce(producer, topic, b"%d" % number, partition=number % PARTITIONS)
            flush(producer)
    failing = _Failing()
    values: list[int] = []
    failures = 0
    reader_conf = {**conf, "group.id": store_prefix, "auto.offset.reset": "earliest", **more}

    consumer = BlobConsumer({**reader_conf, callback: failing})
    consumer.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < COUNT or not failures:
        assert time.monotonic() < deadline, (len(values), failures)
        try:
            received: list[Any] = (
                [consumer.poll(0.5)] if call == "poll" else consumer.consume(50, 0.5)
            )
        except _FailingError:
            failures += 1
            continue
        for message in received:
            if message is not None:
                assert message.error() is None, message.error()
                values.append(int(message.value()))
    try:
        consumer.close()
    except _FailingError:
        failures += 1

    assert 1 <= failures <= failing.calls
    for number in range(PARTITIONS):
        of_one = [value for value in values if value % PARTITIONS == number]
        assert of_one == list(range(number, COUNT, PARTITIONS))
