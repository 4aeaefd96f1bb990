"""Copies a topic exactly once: consume, produce, and commit both in one transaction.

It says which records a transaction has before it commits it, and how the commit ended. It ends
with a fatal error when another process has taken its place.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from confluent_kafka import KafkaException

from blobmsg import BlobConsumer, BlobProducer
from tests.chaos.child import FATAL, Child, run_child
from tests.chaos.record import encode_record
from tests.chaos.runs import RunBuilder

_AT_ONCE = 500
_WAIT_S = 0.2
_TRANSACTION_S = 1.0
_INIT_S = 60.0
_POSITION_S = 20.0
_CALL_S = 20.0
_ATTEMPTS = 4


class Transformer:
    """Copies; see the module.

    Args:
        child: This process.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._topic: str = child.plan["topic"]
        self._to: str = child.plan["to"]
        self._number = 0
        self._builders: dict[int, RunBuilder] = {}  # of the open transaction, by partition
        self._is_open = False
        self._must_drop = False
        self._producer: Any = BlobProducer(child.plan["producer_conf"])
        self._consumer: Any = BlobConsumer(child.plan["conf"])
        child.constructed()

    @property
    def _transaction(self) -> str:
        return f"{self._child.instance}/{self._number}"

    def run(self) -> None:
        """Until it is told to end."""
        child = self._child
        self._init()
        child.journal.write("ready")
        self._consumer.subscribe([self._topic], on_revoke=self._moved, on_lost=self._moved)
        commit_at = time.monotonic() + _TRANSACTION_S
        while not child.stopping.is_set():
            try:
                self._copy(
                    child.timed(
                        "consume", _WAIT_S, lambda: self._consumer.consume(_AT_ONCE, _WAIT_S)
                    )
                )
                if time.monotonic() >= commit_at:
                    self._commit()
                    commit_at = time.monotonic() + _TRANSACTION_S
            except KafkaException as failure:
                error = failure.args[0]
                if error.fatal():
                    raise
                child.journal.write("failed", transaction=self._transaction, text=str(error))
                self._abort()
        if self._is_open:
            self._abort()
        self._consumer.close()
        close_s = child.plan["producer_conf"]["transaction.timeout.ms"] / 1000
        child.timed("close", close_s, self._producer.close)
        child.journal.write("closed")

    def _init(self) -> None:
        while not self._child.stopping.is_set():
            try:
                self._child.timed(
                    "init_transactions", _INIT_S, lambda: self._producer.init_transactions(_INIT_S)
                )
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
                self._child.journal.write("init_failed", text=str(failure))
            else:
                return

    def _copy(self, messages: list[Any]) -> None:
        for message in messages:
            identity = self._child.identity_of(message)
            if identity is None:
                continue
            partition, offset = message.partition(), message.offset()
            if not self._is_open:
                self._number += 1
                self._builders = {}
                self._child.journal.write("beginning", transaction=self._transaction)
                self._producer.begin_transaction()
                self._is_open = True
            value = encode_record(identity._replace(transaction=self._transaction))
            self._produce(partition, value)
            self._builders.setdefault(partition, RunBuilder()).add(
                "", identity.instance, identity.number, offset
            )

    def _produce(self, partition: int, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._to, value, partition=partition)
            except BufferError:
                self._child.timed("poll", _WAIT_S, lambda: self._producer.poll(_WAIT_S))
            else:
                return

    def _commit(self) -> None:
        if not self._is_open:
            return
        runs = {partition: builder.runs for partition, builder in self._builders.items()}
        self._child.journal.write("committing", transaction=self._transaction, runs=runs)
        positions = self._consumer.position(self._consumer.assignment())
        metadata = self._consumer.consumer_group_metadata()
        self._retried("send_offsets_to_transaction", positions, metadata)
        self._retried("commit_transaction")
        self._is_open = False
        self._child.journal.write("committed", transaction=self._transaction, runs=runs)

    def _moved(self, _consumer: Any, partitions: list[Any]) -> None:
        """Partitions go: their next owner begins at the committed positions, so must we."""
        self._child.journal.write("revoked", partitions=[p.partition for p in partitions])
        if self._is_open:
            with self._child.in_callback():
                self._abort()

    def _abort(self) -> None:
        """Forget what is not committed, and read it again."""
        if self._is_open:
            self._retried("abort_transaction")
            self._is_open = False
            self._child.journal.write("aborted", transaction=self._transaction)
        self._rewind()

    def _rewind(self) -> None:
        while not self._child.stopping.is_set():
            try:
                for place in self._asked("committed", self._consumer.assignment()):
                    if place.offset < 0:  # nothing is committed yet
                        place.offset, _ = self._asked("get_watermark_offsets", place)
                    self._consumer.seek(place)
            except KafkaException as failure:
                self._child.journal.write("rewind_failed", text=str(failure))
            else:
                return

    def _asked(self, name: str, about: Any) -> Any:
        method = getattr(self._consumer, name)
        return self._child.timed(name, _POSITION_S, lambda: method(about, _POSITION_S))

    def _retried(self, name: str, *arguments: Any) -> None:
        """Make a call, again if it may be made again; in the end, make way for another process."""
        method = getattr(self._producer, name)
        for _ in range(_ATTEMPTS):
            try:
                self._child.timed(name, _CALL_S, lambda: method(*arguments, _CALL_S))
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
                self._child.journal.write("retried", call=name, text=str(failure))
            else:
                return
        # As a supervisor would: librdkafka's send_offsets_to_transaction may never end (5456).
        self._child.journal.write("gave_up", call=name, transaction=self._transaction)
        os._exit(FATAL)


if __name__ == "__main__":
    sys.exit(run_child(lambda child: Transformer(child).run()))
