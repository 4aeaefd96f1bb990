"""Reads orders and writes a payment for each, exactly once.

What was read and what was written for it are committed together, or not at all: kill it at any
moment and start it again, or start several. Readers of the payments set
`isolation.level=read_committed`, which is librdkafka's default.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from blobmsg import BlobConsumer as Consumer  # was: from confluent_kafka import Consumer
from blobmsg import BlobProducer as Producer  # was: from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

TRANSACTION_SECONDS = 2.0
INSIST_SECONDS = 120.0  # then a new process, with a new producer, goes on


def insist(call: Callable[..., None], *arguments: Any) -> None:
    """Make a call of the transaction, again while its error says that it may be made again."""
    deadline = time.monotonic() + INSIST_SECONDS
    while (failure := failure_of(call, *arguments)) is not None:
        if not failure.args[0].retriable() or time.monotonic() >= deadline:
            raise failure


def failure_of(call: Callable[..., None], *arguments: Any) -> KafkaException | None:
    try:
        call(*arguments)
    except KafkaException as failure:
        return failure
    return None


class Payments:
    """The payments that are not committed yet."""

    def __init__(self, consumer: Consumer, producer: Producer, topic: str) -> None:
        self.consumer = consumer
        self.producer = producer
        self.topic = topic
        self.count = 0

    def add(self, message: Any) -> None:
        """Write the payment of one order."""
        if not self.count:
            self.producer.begin_transaction()
        self.count += 1
        order = json.loads(message.value())
        payment = json.dumps({"order": order["order"], "cents": order["cents"]})
        while True:
            try:
                self.producer.produce(self.topic, payment, str(order["customer"]))
                break
            except BufferError:  # the buffer is full: let deliveries make room
                self.producer.poll(1.0)

    def commit(self) -> int:
        """Commit the payments, and the positions behind their orders; how many there were."""
        if not self.count:
            return 0
        positions = self.consumer.position(self.consumer.assignment())
        metadata = self.consumer.consumer_group_metadata()
        insist(self.producer.send_offsets_to_transaction, positions, metadata)
        insist(self.producer.commit_transaction)
        committed, self.count = self.count, 0
        return committed

    def drop(self, *_revoked: object) -> None:
        """Forget the payments that are not committed, and read their orders again.

        Also when partitions are taken away: their next owner begins at the committed positions and
        writes the same payments.
        """
        if not self.count:
            return
        insist(self.producer.abort_transaction)
        self.count = 0
        for partition in self.consumer.committed(self.consumer.assignment(), 30):
            if partition.offset < 0:  # nothing committed yet
                partition.offset, _ = self.consumer.get_watermark_offsets(partition, 30)
            self.consumer.seek(partition)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", default="orders", help="read from")
    parser.add_argument("--to", default="payments", help="written to")
    parser.add_argument("--group", default="payments")
    parser.add_argument("--instance", default="1", help="each of a group has its own")
    parser.add_argument("--orders", type=int, default=10_000, help="stop after so many")
    arguments = parser.parse_args()
    kafka = {"bootstrap.servers": os.environ["BLOBMSG_DEV_BOOTSTRAP"]}
    producer = Producer({**kafka, "transactional.id": f"{arguments.group}-{arguments.instance}"})
    producer.init_transactions()
    consumer = Consumer(
        {
            **kafka,
            "group.id": arguments.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # positions go with the transaction
            "session.timeout.ms": 10_000,  # then others get the orders of one that was killed
        }
    )
    payments = Payments(consumer, producer, arguments.to)
    consumer.subscribe([arguments.topic], on_revoke=payments.drop, on_lost=payments.drop)
    committed = 0
    commit_at = time.monotonic() + TRANSACTION_SECONDS
    deadline = time.monotonic() + 60
    try:
        while committed < arguments.orders and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error():
                print(message.error(), file=sys.stderr)
                continue
            try:
                if message is not None:
                    payments.add(message)
                is_last = committed + payments.count == arguments.orders
                if is_last or time.monotonic() >= commit_at:
                    committed += payments.commit()
                    commit_at = time.monotonic() + TRANSACTION_SECONDS
            except KafkaException as failure:
                print(f"aborting: {failure}", file=sys.stderr)
                payments.drop()  # raises if only a new producer helps: fenced, or an unknown end
    finally:
        producer.close()  # aborts what is open
        consumer.close()
    print(f"committed {committed} payments")
    return 0 if committed == arguments.orders else 1


if __name__ == "__main__":
    sys.exit(main())
