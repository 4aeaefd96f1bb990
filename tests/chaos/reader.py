"""A member of a group that says what it got, then commits it, until told to end, or killed."""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from blobmsg import BlobConsumer
from tests.chaos.child import Child, run_child
from tests.chaos.runs import RunBuilder

_AT_ONCE = 1000
_WAIT_S = 0.2
_COMMIT_EVERY_S = 0.5


class Reader:
    """Consumes; see the module.

    Args:
        child: This process.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._topic: str = child.plan["topic"]
        self._behind: dict[int, int] = {}  # what is not committed yet: position by partition
        conf = child.plan["conf"]
        self._consumer: Any = Consumer(conf) if child.is_stock else BlobConsumer(conf)
        child.constructed()

    def run(self) -> None:
        """Until it is told to end; then commit and close."""
        child = self._child
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        commit_at = 0.0
        while not child.stopping.is_set():
            messages = child.timed(
                "consume", _WAIT_S, lambda: self._consumer.consume(_AT_ONCE, _WAIT_S)
            )
            self._tell(messages)
            if time.monotonic() >= commit_at:
                self._commit()
                commit_at = time.monotonic() + _COMMIT_EVERY_S
        self._commit()
        self._consumer.close()
        child.journal.write("closed")

    def _tell(self, messages: list[Any]) -> None:
        builders: dict[int, RunBuilder] = {}
        for message in messages:
            identity = self._child.identity_of(message)
            if identity is None:
                continue
            partition, offset = message.partition(), message.offset()
            builders.setdefault(partition, RunBuilder()).add(
                identity.transaction, identity.instance, identity.number, offset
            )
            self._behind[partition] = offset + 1
        if builders:
            runs = {partition: builder.runs for partition, builder in builders.items()}
            self._child.journal.write("received", runs=runs)

    def _commit(self) -> None:
        if not self._behind:
            return
        positions = dict(self._behind)
        self._child.journal.write("committing", positions=positions)
        offsets = [TopicPartition(self._topic, p, offset) for p, offset in positions.items()]
        try:
            results = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as failure:
            self._child.journal.write("commit_failed", text=str(failure))
            return
        done = {result.partition for result in results if result.error is None}
        self._behind = {p: o for p, o in self._behind.items() if p not in done}
        self._child.journal.write(
            "committed", positions={p: o for p, o in positions.items() if p in done}
        )

    def _assigned(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._child.journal.write("assigned", partitions=[p.partition for p in partitions])

    def _revoked(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        with self._child.in_callback():
            self._commit()
        self._gone("revoked", partitions)

    def _lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._gone("lost", partitions)

    def _gone(self, event: str, partitions: list[TopicPartition]) -> None:
        for gone in partitions:
            self._behind.pop(gone.partition, None)
        self._child.journal.write(event, partitions=[p.partition for p in partitions])


if __name__ == "__main__":
    sys.exit(run_child(lambda child: Reader(child).run()))
