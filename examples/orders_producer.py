"""Sends orders, keyed by customer, and reports what became of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from blobmsg import BlobProducer as Producer  # was: from confluent_kafka import Producer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--orders", type=int, default=10_000)
    arguments = parser.parse_args()
    failed: list[str] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(f"{message.key()!r}: {error}")

    with Producer({"bootstrap.servers": os.environ["BLOBMSG_DEV_BOOTSTRAP"]}) as producer:
        for number in range(arguments.orders):
            order = {"order": number, "customer": number % 97, "cents": number * 31 % 10_000}
            while True:
                try:
                    producer.produce(
                        arguments.topic,
                        key=str(order["customer"]),
                        value=json.dumps(order),
                        on_delivery=on_delivery,
                    )
                    break
                except BufferError:  # the buffer is full: let deliveries make room
                    producer.poll(1.0)
            producer.poll(0)
        producer.flush()
    print(f"sent {arguments.orders - len(failed)} orders, {len(failed)} failed", *failed[:3])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
