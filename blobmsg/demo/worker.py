"""The process of one producer or one consumer of the demo; `job` says what it is told and tells.

    python -m blobmsg.demo.worker

It uses the clients as an application would: `BlobProducer` and `BlobConsumer` stand where the
stock classes stand in the other runs, and nothing else differs.

Threads: the main one works; one listens for commands and ends the process when there can be no
more of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

import blobmsg
from blobmsg.demo.flights import ID_PREFIX, from_line
from blobmsg.demo.job import UNREADABLE, Arrivals, Job
from blobmsg.demo.oracle import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

# Records between two looks at the clock. At 10,000/s that is a burst of 6 ms.
_BURST_RECORDS: Final = 64
_TELL_EVERY_S: Final = 0.2
# Wire bytes come with librdkafka's statistics: often enough that the end costs little waiting.
_STATISTICS_INTERVAL_MS: Final = 250
_STATISTICS_TIMEOUT_S: Final = 3.0
# Nothing acknowledged and nothing received for so long: give up and let the oracle say what is
# missing. Longer than a broker's session timeout, so that one restart is survived.
_PATIENCE_S: Final = 30.0
# After the end of all partitions, for what should not be there.
_AFTERWARDS_S: Final = 0.3
_ERRORS_TOLD: Final = 3


class Commands:
    """What the session says to this process."""

    def __init__(self) -> None:
        self._lines = _lines_of(0)
        line = next(self._lines, None)
        if line is None:  # the session was interrupted before it could say
            os._exit(1)
        self.job = Job.from_json(line)
        self.go = threading.Event()
        self.drain = threading.Event()
        threading.Thread(target=self._listen, name="commands", daemon=True).start()

    def _listen(self) -> None:
        for line in self._lines:
            {b"go": self.go, b"drain": self.drain}[line].set()
        os._exit(1)  # the session is gone, however that happened


def _lines_of(descriptor: int) -> Iterator[bytes]:
    # Not sys.stdin: a thread that waits in it makes the interpreter's end fail.
    rest = b""
    while data := os.read(descriptor, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


class WireBytes:
    """Bytes on the wire, from librdkafka's own statistics; the same way for all clients."""

    def __init__(self) -> None:
        self.tx_bytes = 0
        self.rx_bytes = 0
        self.events = 0

    def take(self, text: str) -> None:
        """A `stats_cb`."""
        statistics = json.loads(text)
        self.tx_bytes, self.rx_bytes = statistics["tx_bytes"], statistics["rx_bytes"]
        self.events += 1

    def settle(self, client: Any) -> None:
        """Wait for statistics that began after this call."""
        enough = self.events + 2
        deadline = time.monotonic() + _STATISTICS_TIMEOUT_S
        while self.events < enough and time.monotonic() < deadline:
            client.poll(0.05)


def _tell(kind: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def _conf(job: Job, wire: WireBytes) -> dict[str, Any]:
    return {
        **job.conf,
        "stats_cb": wire.take,
        "statistics.interval.ms": _STATISTICS_INTERVAL_MS,
    }


class _Reports:
    """Delivery reports."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.reasons: list[str] = []

    def take(self, error: Any, _message: Any) -> None:
        """An `on_delivery`."""
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1
            if len(self.reasons) < _ERRORS_TOLD:
                self.reasons.append(str(error))


def _produce(job: Job, commands: Commands) -> None:
    wire, reports = WireBytes(), _Reports()
    make = blobmsg.BlobProducer if job.client == "blobmsg" else confluent_kafka.Producer
    producer: Any = make(_conf(job, wire))
    on_delivery, topic, rate = reports.take, job.topic, job.rate
    sent = 0

    def send(line: bytes) -> None:
        key, value = from_line(line)
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=on_delivery)
            except BufferError:  # noqa: PERF203  (the loop is the waiting)
                producer.poll(0.1)
            else:
                return

    with Path(job.path).open("rb") as lines:
        # The first record alone, before the clock starts: it brings the connections up, and the
        # topic's settings, which librdkafka's mock cluster never answers for (2 s).
        first = lines.readline()
        if first:
            send(first)
            sent = 1
            _flush(producer, reports)
        _tell("ready")
        commands.go.wait()
        started = tell_next = time.monotonic()
        for line in lines:
            send(line)
            sent += 1
            if sent % _BURST_RECORDS:
                continue
            producer.poll(0)
            now = time.monotonic()
            if rate and (ahead_s := sent / rate - (now - started)) > 0:
                time.sleep(ahead_s)
            if now >= tell_next:
                _tell("progress", records=sent)
                tell_next = now + _TELL_EVERY_S
    sent_at = time.time()
    _tell("progress", records=sent)
    remaining = _flush(producer, reports)
    acknowledged_at = time.time()
    wire.settle(producer)
    counters: dict[str, int] = producer.stats() if job.client == "blobmsg" else {}
    cpu_s = time.process_time()
    if job.client == "blobmsg" and not remaining:  # stock's has no `close` before 2.13
        producer.close()
    _tell(
        "done",
        records=sent,
        delivered=reports.delivered,
        failed=reports.failed,
        reasons=reports.reasons,
        sent_at=sent_at,
        finished_at=acknowledged_at,
        tx_bytes=wire.tx_bytes,
        rx_bytes=wire.rx_bytes,
        cpu_s=cpu_s,
        counters=counters,
    )


def _flush(producer: Any, reports: _Reports) -> int:
    """Flush as long as that gets on; returns what remains."""
    patient_until = time.monotonic() + _PATIENCE_S
    settled = -1
    while (remaining := producer.flush(0.5)) and time.monotonic() < patient_until:
        if reports.delivered + reports.failed != settled:
            settled = reports.delivered + reports.failed
            patient_until = time.monotonic() + _PATIENCE_S
    return int(remaining)


def _consume(job: Job, commands: Commands) -> None:
    wire = WireBytes()
    make = blobmsg.BlobConsumer if job.client == "blobmsg" else confluent_kafka.Consumer
    consumer: Any = make(_conf(job, wire))
    partitions = [TopicPartition(job.topic, number) for number in job.partitions]
    consumer.assign(partitions)
    receiver = _Receiver(consumer, partitions)
    receiver.receive_for(0.2)
    _tell("ready")
    # The producers' first records come before `go`, so it reads on all the while.
    receiver.receive_until_drained(commands.drain)
    wire.settle(consumer)
    counters: dict[str, int] = consumer.stats() if job.client == "blobmsg" else {}
    cpu_s = time.process_time()
    consumer.close()
    receiver.arrivals.save(Path(job.path))
    _tell(
        "done",
        records=len(receiver.arrivals.numbers),
        falling_offsets=receiver.falling_offsets,
        errors=receiver.errors,
        reasons=receiver.reasons,
        finished_at=receiver.last_at,
        tx_bytes=wire.tx_bytes,
        rx_bytes=wire.rx_bytes,
        cpu_s=cpu_s,
        counters=counters,
    )


class _Receiver:
    """Notes all that a consumer hands out."""

    def __init__(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._partitions = partitions
        self._offsets: dict[int, int] = {p.partition: -1 for p in partitions}
        self.arrivals = Arrivals()
        self.falling_offsets = 0
        self.errors = 0
        self.reasons: list[str] = []
        self.last_at = 0.0

    def receive_until_drained(self, drain: threading.Event) -> None:
        """Receive until all is sent and the end of every partition is reached."""
        patient_until = float("inf")
        received = -1
        while True:
            self.receive_for(_TELL_EVERY_S)
            _tell("progress", records=len(self.arrivals.numbers))
            if not drain.is_set():
                continue
            now = time.monotonic()
            if len(self.arrivals.numbers) != received:
                received, patient_until = len(self.arrivals.numbers), now + _PATIENCE_S
            elif self._is_at_the_end():
                self.receive_for(_AFTERWARDS_S)
                return
            elif now > patient_until:
                return

    def receive_for(self, duration_s: float) -> None:
        """Receive for so long."""
        poll, note = self._consumer.poll, self._note
        until = time.monotonic() + duration_s
        while (left := until - time.monotonic()) > 0:
            message = poll(left)
            if message is not None:
                note(message)

    def _note(self, message: Any) -> None:
        now_ms = time.time_ns() // 1_000_000
        if message.error() is not None:
            self.errors += 1
            if len(self.reasons) < _ERRORS_TOLD:
                self.reasons.append(str(message.error()))
            return
        value: bytes = message.value() or b""
        partition: int = message.partition()
        offset: int = message.offset()
        if offset <= self._offsets[partition]:
            self.falling_offsets += 1
        self._offsets[partition] = offset
        arrivals = self.arrivals
        arrivals.numbers.append(_number_of(value))
        arrivals.partitions.append(partition)
        arrivals.digests.append(digest_of(message.key(), value))
        arrivals.latencies_ms.append(now_ms - message.timestamp()[1])
        self.last_at = now_ms / 1000

    def _is_at_the_end(self) -> bool:
        for place in self._consumer.position(self._partitions):
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(place.topic, place.partition), timeout=5
            )
            if high > low and place.offset != high:
                return False
        return True


def _number_of(value: bytes) -> int:
    start = len(ID_PREFIX)
    end = value.find(b",", start, start + 20)
    digits = value[start:end]
    return int(digits) if end > 0 and digits.isdigit() else UNREADABLE


def main() -> int:
    """Do the job that standard input brings."""
    commands = Commands()
    try:
        {"produce": _produce, "consume": _consume}[commands.job.role](commands.job, commands)
    except (KafkaException, OSError) as error:
        _tell("failed", why=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
