"""The program of a member of a group: the stock consumer, told what to do line by line.

Started by `stock_group.MemberProcess` with one JSON argument; prints one JSON line per event. It
polls all the time, but when it is told to be idle.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.helpers.outcomes import name_of, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S = 0.02


class _Program:
    """One member."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._who: str = plan["who"]
        self._topic: str = plan["topic"]
        self._commits_on_revoke: bool = plan["commits_on_revoke"]
        self._commits_when_lost = False
        self._is_idle = False
        self._positions: dict[int, int] = {}
        # Unbuffered: `select` must see what was not read.
        self._commands = open(0, "rb", buffering=0)  # noqa: SIM115
        self._consumer = Consumer(plan["conf"])
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def run(self) -> None:
        """Until it is told to close."""
        while True:
            if not self._is_idle:
                self._poll()
            wait_s = None if self._is_idle else 0
            if select.select([self._commands], [], [], wait_s)[0]:
                line = self._commands.readline()
                if not line:
                    return  # the test is gone
                word, *arguments = json.loads(line)
                method: Callable[..., object] = getattr(self, f"_{word}")
                self._say("done", outcome=method(*arguments))
                if word == "close":
                    return

    def _poll(self) -> None:
        message = self._consumer.poll(_POLL_S)
        if message is None:
            return
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is None:
            value = message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            self._positions[partition] = offset + 1
            self._say("record", partition=partition, offset=offset, value=value.decode())
        elif error.code() == KafkaError._PARTITION_EOF:
            self._say("end", partition=partition, offset=offset)
        else:
            self._say("error", partition=partition, name=name_of(error))

    # --- what it is told ------------------------------------------------------------------------

    def _idle(self) -> None:
        self._is_idle = True

    def _serve(self, commits_when_lost: bool) -> None:
        self._is_idle = False
        self._commits_when_lost = commits_when_lost

    def _commit(self, offsets: dict[str, int], metadata: str) -> str:
        places = [TopicPartition(self._topic, int(p), o, metadata) for p, o in offsets.items()]
        return outcome_of(lambda: self._consumer.commit(offsets=places, asynchronous=False))

    def _close(self) -> None:
        self._consumer.close()

    # --- callbacks ------------------------------------------------------------------------------

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._positions.clear()
        metadata: Any = consumer.consumer_group_metadata()
        self._say("assign", partitions=_numbers(partitions), identity=metadata.hex())
        consumer.assign(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._say("revoke", partitions=_numbers(partitions))
        if self._commits_on_revoke and self._positions:
            self._say("committed", outcome=self._commit_positions())
        consumer.unassign()

    def _on_lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._say("lost", partitions=_numbers(partitions))
        if self._commits_when_lost:
            self._say("committed", outcome=self._commit({"0": 0}, "lost"))
        consumer.unassign()

    def _commit_positions(self) -> str:
        return self._commit({str(p): offset for p, offset in self._positions.items()}, "")

    def _say(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "who": self._who, **facts}) + "\n"
        os.write(1, line.encode())


def _numbers(partitions: list[TopicPartition]) -> list[int]:
    return sorted(place.partition for place in partitions)


if __name__ == "__main__":
    _Program(json.loads(sys.argv[1])).run()
