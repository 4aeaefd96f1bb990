"""Consuming, timed: from the first message to the last; and a reader that checks every record.

The same loop for both clients: key, value, offset and timestamp of every record are read once. CPU
counts from the assignment on, so that what is read ahead before the first message is in it.
"""

from __future__ import annotations

import gc
import time
import uuid
from dataclasses import asdict
from typing import Any

from bench._clock import Stopwatch
from bench._records import TallyMaker, Workload

__all__ = ["create_consumer", "measure", "verify"]

_MESSAGES = 1000
_WAIT_S = 1.0
_STALLED_S = 60.0


def create_consumer(client: str, conf: dict[str, Any]) -> Any:
    """Make a consumer of `stock` or `blobmsg` in a group of its own."""
    conf = {**conf, "group.id": f"bench-{uuid.uuid4().hex}", "auto.offset.reset": "earliest"}
    if client == "stock":
        from confluent_kafka import Consumer

        return Consumer(conf)
    from blobmsg import BlobConsumer

    return BlobConsumer(conf)


def measure(
    *,
    client: str,
    conf: dict[str, Any],
    topic: str,
    warm_topic: str,
    warm_records: int,
    partitions: int,
    records: int,
    call: str,
) -> dict[str, Any]:
    """Read all records of a topic and say what it took.

    Args:
        client: `stock` or `blobmsg`.
        conf: Its settings.
        topic: Holds `records`.
        warm_topic: Read first, untimed.
        warm_records: How many are in it.
        partitions: Of either topic.
        records: How many to read.
        call: `poll` or `consume`.
    """
    consumer = create_consumer(client, conf)
    read = _by_poll if call == "poll" else _by_consume
    _assign(consumer, warm_topic, partitions)
    read(consumer, warm_records)
    gc.collect()
    gc.freeze()
    watch = Stopwatch()
    _assign(consumer, topic, partitions)
    first, after_first = read(consumer, records)
    figures: dict[str, Any] = watch.read()
    figures["since_assign_s"] = figures["wall_s"]
    figures["wall_s"] = time.perf_counter() - after_first
    figures["timed_records"] = records - first
    if client == "blobmsg":
        figures["stats"] = consumer.stats()
    consumer.close()
    return figures


def _assign(consumer: Any, topic: str, partitions: int) -> None:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    consumer.assign(
        [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
    )


def _by_poll(consumer: Any, records: int) -> tuple[int, float]:
    """Read so many; how many came first and when that was."""
    poll = consumer.poll
    left, first_at = records, 0.0
    waits = 0
    while left:
        message = poll(_WAIT_S)
        if message is None:
            waits += 1
            _check_progress(waits, left)
            continue
        waits = 0
        if message.error() is not None:
            raise SystemExit(f"consumer error: {message.error()}")
        if left == records:
            first_at = time.perf_counter()
        message.key()
        message.value()
        message.offset()
        message.timestamp()
        left -= 1
    return 1, first_at


def _by_consume(consumer: Any, records: int) -> tuple[int, float]:
    """Read so many; how many came first and when that was."""
    consume = consumer.consume
    left, first, first_at = records, 0, 0.0
    waits = 0
    while left:
        messages = consume(min(_MESSAGES, left), _WAIT_S)
        if not messages:
            waits += 1
            _check_progress(waits, left)
            continue
        waits = 0
        if left == records:
            first_at, first = time.perf_counter(), len(messages)
        for message in messages:
            if message.error() is not None:
                raise SystemExit(f"consumer error: {message.error()}")
            message.key()
            message.value()
            message.offset()
            message.timestamp()
        left -= len(messages)
    return first, first_at


def _check_progress(waits: int, left: int) -> None:
    if waits * _WAIT_S > _STALLED_S:
        raise SystemExit(f"{left} records did not come in {_STALLED_S:.0f} s")


def verify(
    *, client: str, conf: dict[str, Any], topic: str, workload: dict[str, Any], records: int
) -> dict[str, Any]:
    """Read a topic to its end and add up what is there.

    Args:
        client: `stock` or `blobmsg`.
        conf: Its settings.
        topic: To be read.
        workload: What is in it: the fields of a `Workload`.
        records: How many are expected; more are noticed, too.
    """
    consumer = create_consumer(client, conf)
    sent = Workload(**workload)
    _assign(consumer, topic, sent.partitions)
    maker = TallyMaker(sent.partitions)
    seen = 0
    waiting_since = time.monotonic()
    while True:
        messages = consumer.consume(_MESSAGES, 0.5 if seen < records else 1.0)
        for message in messages:
            if message.error() is not None:
                raise SystemExit(f"consumer error: {message.error()}")
            value = message.value()
            if len(value) != sent.value_bytes:
                raise SystemExit(f"a record of {len(value)} bytes in {topic}")
            maker.add(message.partition(), message.offset(), message.key(), value)
        seen += len(messages)
        if messages:
            waiting_since = time.monotonic()
        elif seen >= records or time.monotonic() - waiting_since > _STALLED_S / 2:
            break
    consumer.close()
    return asdict(maker.tally())
