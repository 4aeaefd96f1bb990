"""A producer that writes numbered records to every partition until it is told to end, or killed.

Before it produces it says what, after every call that runs callbacks what was reported.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from blobmsg import BlobProducer
from tests.chaos.child import Child, run_child
from tests.chaos.record import NO_TRANSACTION, Identity, decode_record, encode_record

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_CHUNK = 40
_FLUSH_EVERY = 50  # chunks
_FLUSH_S = 0.2
_FULL_POLL_S = 0.1


class Reports:
    """Delivery reports of one call, joined: [partition, first, last, error code, last offset]."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        identity = decode_record(message.value())
        if identity is None:
            raise AssertionError(f"a report of a record that was never made: {message.value()!r}")
        code = 0 if error is None else error.code()
        offset = message.offset() if error is None else -1
        if self.runs:
            run = self.runs[-1]
            follows = run[:4:3] == [identity.partition, code] and identity.number == run[2] + 1
            if follows:
                run[2], run[4] = identity.number, offset
                return
        self.runs.append([identity.partition, identity.number, identity.number, code, offset])

    def take(self) -> list[list[int]]:
        """What has come since the last call."""
        runs, self.runs = self.runs, []
        return runs


class Writer:
    """Produces; see the module.

    Args:
        child: This process.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._topic: str = child.plan["topic"]
        self._partitions: int = child.plan["partitions"]
        self._pause_s: float = _CHUNK / child.plan["rate"]
        self._reports = Reports()
        conf = child.plan["conf"]
        self._producer: Any = Producer(conf) if child.is_stock else BlobProducer(conf)
        child.constructed()

    def run(self) -> None:
        """Until it is told to end; then close."""
        child = self._child
        next_number = [0] * self._partitions
        for chunk in itertools.count():
            if child.stopping.is_set():
                break
            partition = chunk % self._partitions
            first = next_number[partition]
            child.journal.write("asking", p=partition, first=first, last=first + _CHUNK - 1)
            accepted = self._produce(partition, first)
            next_number[partition] = first + accepted
            if accepted < _CHUNK:
                child.journal.write(
                    "refused", p=partition, first=first + accepted, last=first + _CHUNK - 1
                )
            self._serve("poll", self._pause_s)
            if chunk % _FLUSH_EVERY == _FLUSH_EVERY - 1:
                self._serve("flush", _FLUSH_S)
        self._close()

    def _produce(self, partition: int, first: int) -> int:
        """How many of a chunk the client took: fewer when this process is to end meanwhile."""
        for number in range(first, first + _CHUNK):
            value = encode_record(Identity(NO_TRANSACTION, self._child.instance, partition, number))
            while not self._try_produce(partition, value):
                if self._child.stopping.is_set():
                    return number - first
                self._serve("poll", _FULL_POLL_S)
        return _CHUNK

    def _try_produce(self, partition: int, value: bytes) -> bool:
        try:
            self._producer.produce(
                self._topic, value, partition=partition, on_delivery=self._reports
            )
        except BufferError:
            return False
        return True

    def _serve(self, call: str, timeout_s: float) -> None:
        method = getattr(self._producer, call)
        self._child.timed(call, timeout_s, lambda: method(timeout_s))
        self._tell()

    def _tell(self) -> None:
        runs = self._reports.take()
        if runs:
            self._child.journal.write("reported", runs=runs)

    def _close(self) -> None:
        self._child.journal.write("closing")
        limit_s = self._child.plan["conf"]["message.timeout.ms"] / 1000
        self._child.timed("close", limit_s, self._producer.close)
        self._tell()
        self._child.journal.write("closed")


if __name__ == "__main__":
    sys.exit(run_child(lambda child: Writer(child).run()))
