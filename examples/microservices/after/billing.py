"""Billing: reads orders and publishes an invoice for each.

At least once: offsets are committed when the invoices of all orders before them are delivered.
SIGTERM ends it between two batches.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from blobmsg import BlobConsumer as Consumer
from blobmsg import BlobProducer as Producer

if TYPE_CHECKING:
    from confluent_kafka import Message

ORDERS = os.environ.get("ORDERS_TOPIC", "orders")
INVOICES = os.environ.get("INVOICES_TOPIC", "invoices")
TAX_PERCENT = 19
CONF: dict[str, Any] = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"]}


class Billing:
    """Turns orders into invoices."""

    def __init__(self) -> None:
        self._producer = Producer({**CONF, "enable.idempotence": True})
        self.invoices = 0

    def take(self, message: Message) -> None:
        """Publish the invoice of an order."""
        order = json.loads(message.value() or b"")
        tax = order["cents"] * TAX_PERCENT // 100
        self._producer.produce(
            INVOICES,
            key=message.key(),
            value=json.dumps({**order, "tax": tax}),
            on_delivery=self._on_delivery,
        )

    def deliver(self) -> None:
        """Wait until every invoice is delivered."""
        if self._producer.flush(60):
            raise TimeoutError("invoices are still undelivered after a minute")

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self.invoices += 1


def main() -> int:
    is_stopping = False

    def stop(*_arguments: object) -> None:
        nonlocal is_stopping
        is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    billing = Billing()
    group = os.environ.get("GROUP_ID", "billing")
    consumer = Consumer(
        {
            **CONF,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    orders = 0
    try:
        consumer.subscribe([ORDERS])
        print("reading", flush=True)
        while not is_stopping:
            taken = 0
            for message in consumer.consume(500, timeout=0.5):
                error = message.error()
                if error is None:
                    billing.take(message)
                    taken += 1
                elif error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # no order was ever taken
                    raise KafkaException(error)
            if taken:
                billing.deliver()
                consumer.commit(asynchronous=False)
                orders += taken
                print(f"{orders} orders, {billing.invoices} invoices", flush=True)
    finally:
        consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
