"""The program of a consumer process that a test kills, stops and watches.

Started by `child_process.ChildConsumer` with one JSON argument; prints one JSON line per event and
takes commands, one word a line, from its standard input.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

from confluent_kafka import TopicPartition

from blobmsg import BlobConsumer


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    consumer: Any = BlobConsumer(plan["conf"])
    consumer.subscribe(
        [plan["topic"]],
        on_assign=lambda _, partitions: _say("assigned", partitions=_numbers(partitions)),
        on_revoke=lambda _, partitions: _say("revoked", partitions=_numbers(partitions)),
        on_lost=lambda _, partitions: _say("lost", partitions=_numbers(partitions)),
    )
    stop_after: int | None = plan["stop_after"]
    count = 0
    while True:
        message = consumer.poll(0.2)
        if message is not None:
            if message.error() is not None:
                _say("error", code=message.error().code(), text=str(message.error()))
                continue
            count += 1
            _say(
                "record",
                partition=message.partition(),
                offset=message.offset(),
                value=message.value()[:32].decode(),
            )
            if plan["mode"] == "store" or plan["mode"] == "store_message":
                _store(consumer, message, plan["mode"])
            if count == stop_after:
                _stop_reading(consumer, message, plan["mode"])
        word = _command()
        if word == "go":
            consumer.resume(consumer.assignment())
        elif word == "close":
            consumer.close()
            _say("closed")
            return


def _store(consumer: Any, message: Any, mode: str) -> None:
    if mode == "store_message":
        consumer.store_offsets(message=message)
        return
    behind = TopicPartition(message.topic(), message.partition(), message.offset() + 1)
    consumer.store_offsets(offsets=[behind])


def _stop_reading(consumer: Any, message: Any, mode: str) -> None:
    """Stop in the middle, commit as the plan says, and stay in the group."""
    consumer.pause(consumer.assignment())
    if mode == "message":
        consumer.commit(message=message, asynchronous=False)
    elif mode == "offsets":
        behind = TopicPartition(message.topic(), message.partition(), message.offset() + 1)
        consumer.commit(offsets=[behind], asynchronous=False)
    elif mode in ("position", "store", "store_message"):
        consumer.commit(asynchronous=False)
    _say("stopped", offset=message.offset())


def _command() -> str:
    if not select.select([sys.stdin], [], [], 0)[0]:
        return ""
    line = os.read(sys.stdin.fileno(), 100)
    if not line:
        sys.exit(0)  # the test is gone
    return line.decode().strip()


def _numbers(partitions: list[TopicPartition]) -> list[int]:
    return [found.partition for found in partitions]


def _say(event: str, **facts: Any) -> None:
    os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


if __name__ == "__main__":
    main()
