"""How much memory a client takes while the store is away: the pieces of `bench.memory`.

Each runs in a process of its own. Memory is what the system says that the process has (RSS), first
just behind the constructor, then the most that it ever was.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench._consuming import create_consumer
from bench._producing import create_producer
from tests.helpers.memory import rss_bytes

__all__ = [
    "consume_slowly",
    "consume_slowly_in_loop",
    "fill",
    "produce_in_loop_through_outage",
    "produce_through_outage",
]

_FLUSH_TIMEOUT_S = 900.0
_LOOK_EVERY_RECORDS = 1000
_FULL_WAIT_S = 0.05
_STALLED_S = 120.0
_SLOW_AFTER_OUTAGE_S = 5.0


def _most_rss_bytes() -> int:
    """The most that this process ever had; not `ru_maxrss`, which begins with the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _is_within(seconds: float, since: float) -> bool:
    return time.monotonic() < since + seconds


class _Outcomes:
    """Counts delivery reports."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed: list[str] = []

    def on_delivery(self, error: Any, _message: Any) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed.append(str(error))

    def figures(
        self, *, base_bytes: int, records: int, refusals: int, undelivered: int
    ) -> dict[str, Any]:
        """What a producer's piece returns."""
        return {
            "base_bytes": base_bytes,
            "most_bytes": _most_rss_bytes(),
            "records": records,
            "refusals": refusals,
            "undelivered": undelivered,
            "delivered": self.delivered,
            "failed": self.failed[:3],
        }


def produce_through_outage(
    *,
    client: str,
    conf: dict[str, Any],
    topic: str,
    value_bytes: int,
    with_callback: bool,
    outage_s: float,
    heal_file: str,
) -> dict[str, Any]:
    """Produce as fast as the buffer takes it until it was full, then flush.

    Args:
        client: `stock` or `blobmsg`.
        conf: Its settings.
        topic: Where to.
        value_bytes: Of each record; its key has 8 more.
        with_callback: Whether every record has a delivery callback.
        outage_s: How long at least, before the flush.
        heal_file: Made before the flush: the store is away until it is there.
    """
    producer = create_producer(client, conf)
    base_bytes = rss_bytes()
    is_transactional = "transactional.id" in conf
    if is_transactional:
        producer.init_transactions()
        producer.begin_transaction()
    outcomes = _Outcomes()
    callback = outcomes.on_delivery if with_callback else None
    records = refusals = 0
    started = time.monotonic()
    filler = bytes(value_bytes - 8)
    while _is_within(outage_s + (0 if refusals else _STALLED_S), started):
        for _ in range(_LOOK_EVERY_RECORDS):
            number = b"%08d" % records
            try:
                producer.produce(topic, number + filler, number, -1, callback)
            except BufferError:
                refusals += 1
                producer.poll(_FULL_WAIT_S)
                break
            records += 1
        producer.poll(0)
    Path(heal_file).touch()
    producer.flush(_FLUSH_TIMEOUT_S)
    if is_transactional:
        producer.commit_transaction()
    return outcomes.figures(
        base_bytes=base_bytes, records=records, refusals=refusals, undelivered=len(producer)
    )


def produce_in_loop_through_outage(
    *, conf: dict[str, Any], topic: str, value_bytes: int, outage_s: float, heal_file: str
) -> dict[str, Any]:
    """As `produce_through_outage`, by an asyncio producer whose outcomes are all heard.

    Args:
        conf: Its settings.
        topic: Where to.
        value_bytes: Of each record; its key has 8 more.
        outage_s: How long at least, before the flush.
        heal_file: Made before the flush: the store is away until it is there.
    """
    return asyncio.run(_produce_in_loop(conf, topic, value_bytes, outage_s, Path(heal_file)))


async def _produce_in_loop(
    conf: dict[str, Any], topic: str, value_bytes: int, outage_s: float, heal_file: Path
) -> dict[str, Any]:
    from blobmsg.aio import AIOBlobProducer

    producer = AIOBlobProducer(conf)
    base_bytes = rss_bytes()
    outcomes = _Outcomes()

    def heard(outcome: asyncio.Future[Any]) -> None:
        outcomes.on_delivery(outcome.exception(), None)

    records = refusals = 0
    started = time.monotonic()
    filler = bytes(value_bytes - 8)
    while _is_within(outage_s + (0 if refusals else _STALLED_S), started):
        number = b"%08d" % records
        begun = time.monotonic()
        outcome = await producer.produce(topic, number + filler, number)
        outcome.add_done_callback(heard)
        records += 1
        refusals += time.monotonic() - begun > _FULL_WAIT_S  # it has waited for room
        if not records % _LOOK_EVERY_RECORDS:
            await asyncio.sleep(0)
    heal_file.touch()
    undelivered = await producer.flush(_FLUSH_TIMEOUT_S)
    await producer.close()
    return outcomes.figures(
        base_bytes=base_bytes, records=records, refusals=refusals, undelivered=undelivered
    )


def fill(
    *, client: str, conf: dict[str, Any], topic: str, value_bytes: int, records: int
) -> dict[str, Any]:
    """Produce records like those of `produce_through_outage` and wait until they are there.

    Args:
        client: `stock` or `blobmsg`.
        conf: Its settings.
        topic: Where to.
        value_bytes: Of each record.
        records: How many.
    """
    producer = create_producer(client, conf)
    filler = bytes(value_bytes - 8)
    produced = 0
    while produced < records:
        number = b"%08d" % produced
        try:
            producer.produce(topic, number + filler, number)
            produced += 1
        except BufferError:
            producer.poll(_FULL_WAIT_S)
    if producer.flush(_FLUSH_TIMEOUT_S):
        raise SystemExit("flush gave up")
    return {"records": records}


class _SlowReading:
    """How an application reads: little at a time until the store has been back for a while.

    Args:
        records: How many to read.
        outage_s: How long the store is away.
        heal_file: Made when the outage ends.
    """

    def __init__(self, records: int, outage_s: float, heal_file: str) -> None:
        self.read = 0
        self._records = records
        self._outage_s = outage_s
        self._slow_s = outage_s + _SLOW_AFTER_OUTAGE_S
        self._heal_file = Path(heal_file)
        self._started = self._last = time.monotonic()

    @property
    def goes_on(self) -> bool:
        """Whether records are missing, and still come."""
        patience_s = max(_STALLED_S, 2 * self._slow_s)
        return self.read < self._records and _is_within(patience_s, self._last)

    def next_call(self) -> tuple[int, float]:
        """Arguments of the next `consume`; ends the outage when it is over."""
        if not _is_within(self._outage_s, self._started):
            self._heal_file.touch()
        return (10, 0.02) if self._is_slow else (1000, 1.0)

    def has_read(self, messages: list[Any]) -> float:
        """Count what came; for how long the application is at work with it, in seconds."""
        fresh = sum(message.error() is None for message in messages)
        if fresh:
            self._last = time.monotonic()
            self.read += fresh
        return 0.02 if self._is_slow else 0.0

    @property
    def _is_slow(self) -> bool:
        return _is_within(self._slow_s, self._started)


def consume_slowly(
    *,
    client: str,
    conf: dict[str, Any],
    topic: str,
    records: int,
    outage_s: float,
    heal_file: str,
) -> dict[str, Any]:
    """Read a little now and then until the store has been back for a while, later the rest.

    Args:
        client: `stock` or `blobmsg`.
        conf: Its settings.
        topic: Holds `records`.
        records: How many to read.
        outage_s: How long the store is away. Until 5 s behind it this reads 10 records at a time,
            50 times a second.
        heal_file: Made when the outage ends.
    """
    consumer = create_consumer(client, conf)
    base_bytes = rss_bytes()
    consumer.subscribe([topic])
    reading = _SlowReading(records, outage_s, heal_file)
    while reading.goes_on:
        time.sleep(reading.has_read(consumer.consume(*reading.next_call())))
    return {"base_bytes": base_bytes, "most_bytes": _most_rss_bytes(), "records": reading.read}


def consume_slowly_in_loop(
    *, conf: dict[str, Any], topic: str, records: int, outage_s: float, heal_file: str
) -> dict[str, Any]:
    """As `consume_slowly`, by an asyncio consumer."""
    return asyncio.run(_consume_in_loop(conf, topic, _SlowReading(records, outage_s, heal_file)))


async def _consume_in_loop(
    conf: dict[str, Any], topic: str, reading: _SlowReading
) -> dict[str, Any]:
    from blobmsg.aio import AIOBlobConsumer

    consumer = AIOBlobConsumer({**conf, "group.id": topic, "auto.offset.reset": "earliest"})
    base_bytes = rss_bytes()
    await consumer.subscribe([topic])
    while reading.goes_on:
        messages = await consumer.consume(*reading.next_call())
        await asyncio.sleep(reading.has_read(messages))
    most_bytes = _most_rss_bytes()
    await consumer.close()
    return {"base_bytes": base_bytes, "most_bytes": most_bytes, "records": reading.read}
