"""Producing, timed: from the first `produce` until `flush` has returned.

The same loop for both clients. Before the clock starts, a warm-up to another topic, as long as what
is timed, makes imports, connections and producer ids, lets the client's buffers have their memory
and the brokers compile what this client asks of them. After it stopped, the client has time for its
last statistics.
"""

from __future__ import annotations

import gc
import json
import os
import time
from typing import TYPE_CHECKING, Any

from bench._clock import Stopwatch
from bench._records import Workload, make_records

if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[[Any, Any], None]

__all__ = ["create_producer", "make_batches", "measure"]

# Both clients queue delivery reports until poll; every 1000 records is rare enough to cost nothing.
_POLL_EVERY_RECORDS = 1000
_BATCH_RECORDS = 1000
_FULL_WAIT_S = 0.1
_FLUSH_TIMEOUT_S = 300.0
# Of small records a million does it.
_WARM_UP_RECORDS = 1 << 20
_STATISTICS_INTERVAL_MS = 500


def create_producer(client: str, conf: dict[str, Any]) -> Any:
    """Make a producer of `stock` or `blobmsg`."""
    if client == "stock":
        from confluent_kafka import Producer

        return Producer(conf)
    from blobmsg import BlobProducer

    return BlobProducer(conf)


class _Reports:
    """Counts delivery reports: the cheapest callback that still looks at the outcome."""

    __slots__ = ("delivered", "failed")

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0

    def on_delivery(self, error: Any, _message: Any) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1


def measure(
    *,
    client: str,
    conf: dict[str, Any],
    topic: str,
    warm_topic: str,
    records: int,
    workload: dict[str, Any],
    call: str,
    with_callback: bool,
    servers: dict[str, list[int]],
) -> dict[str, Any]:
    """Produce all records and say what it took.

    Args:
        client: `stock` or `blobmsg`.
        conf: Its settings.
        topic: Empty, with partitions.
        warm_topic: For the warm-up.
        records: How many.
        workload: What they are: the fields of a `Workload`.
        call: `produce` or `produce_batch`.
        with_callback: Whether every record has a delivery callback.
        servers: Processes whose CPU is measured as well.
    """
    sent = Workload(**workload)
    keys, values = make_records(records, sent)
    statistics: dict[str, int] = {}

    def on_statistics(text: str) -> None:
        statistics["tx_bytes"] = json.loads(text)["tx_bytes"]

    producer = create_producer(
        client,
        {**conf, "statistics.interval.ms": _STATISTICS_INTERVAL_MS, "stats_cb": on_statistics},
    )
    warm = slice(_WARM_UP_RECORDS)
    _one_by_one(producer, warm_topic, keys[warm], values[warm], None)
    _flush(producer)
    os.sync()  # what the warm-up left for the disk is not to be paid below
    reports = _Reports()
    callback = reports.on_delivery if with_callback else None
    batches = make_batches(keys, values) if call == "produce_batch" else []
    gc.collect()
    gc.freeze()  # the records are no garbage to look through

    watch = Stopwatch(servers)
    if call == "produce_batch":
        _in_batches(producer, topic, batches, callback)
    else:
        _one_by_one(producer, topic, keys, values, callback)
    accepted = watch.read()
    _flush(producer)
    figures: dict[str, Any] = watch.read()

    if with_callback and (reports.failed or reports.delivered != records):
        raise SystemExit(f"{reports.delivered} of {records} delivered, {reports.failed} failed")
    figures["accepted_s"] = accepted["wall_s"]
    # The statistics of an interval that began after the end.
    end = time.monotonic() + 2.5 * _STATISTICS_INTERVAL_MS / 1000
    while time.monotonic() < end:
        producer.poll(0.1)
    figures["tx_bytes"] = statistics["tx_bytes"]
    if client == "blobmsg":
        figures["stats"] = producer.stats()
        producer.close()
    return figures


def _one_by_one(
    producer: Any, topic: str, keys: list[bytes], values: list[bytes], callback: Callback | None
) -> None:
    produce, poll = producer.produce, producer.poll
    until_poll = _POLL_EVERY_RECORDS
    for key, value in zip(keys, values, strict=True):
        until_poll -= 1
        if not until_poll:
            until_poll = _POLL_EVERY_RECORDS
            poll(0)
        while True:
            try:
                produce(topic, value, key, -1, callback)
                break
            except BufferError:
                poll(_FULL_WAIT_S)


def make_batches(keys: list[bytes], values: list[bytes]) -> list[list[dict[str, Any]]]:
    """The records as `produce_batch` takes them, 1000 at a time."""
    messages = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
    return [messages[at : at + _BATCH_RECORDS] for at in range(0, len(messages), _BATCH_RECORDS)]


def _in_batches(
    producer: Any, topic: str, batches: list[list[dict[str, Any]]], callback: Callback | None
) -> None:
    for batch in batches:
        rest = batch
        while producer.produce_batch(topic, rest, -1, callback) < len(rest):
            rest = [message for message in rest if message.pop("_error", None) is not None]
            producer.poll(_FULL_WAIT_S)
        producer.poll(0)


def _flush(producer: Any) -> None:
    remaining = producer.flush(_FLUSH_TIMEOUT_S)
    if remaining:
        raise SystemExit(f"flush gave up with {remaining} records undelivered")
