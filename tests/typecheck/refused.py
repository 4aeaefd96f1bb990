"""Mistakes that type checkers must find; each such line ends in `# refused`."""

from __future__ import annotations

from blobmsg import BlobConsumer, BlobProducer


def wrong(producer: BlobProducer, consumer: BlobConsumer) -> None:
    producer.produce("orders", value=5)  # refused
    producer.produce(b"orders")  # refused
    producer.produce("orders", on_delivery=print("x"), partition="3")  # refused
    producer.flush("10")  # refused
    consumer.subscribe("orders")  # refused
    consumer.assign(["orders"])  # refused
    consumer.poll("1")  # refused
    consumer.commit(message="m")  # refused
    consumer.seek("orders", 3)  # refused
    len(consumer)  # refused
