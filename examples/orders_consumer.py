"""Adds up orders by customer; commits every 500 orders, exact to the record."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter

from blobmsg import BlobConsumer as Consumer  # was: from confluent_kafka import Consumer

COMMIT_EVERY = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="totals")
    parser.add_argument("--orders", type=int, default=10_000, help="stop after so many")
    arguments = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BLOBMSG_DEV_BOOTSTRAP"],
            "group.id": arguments.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([arguments.topic])
    cents: Counter[int] = Counter()
    count = 0
    deadline = time.monotonic() + 60
    try:
        while count < arguments.orders and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                print(message.error(), file=sys.stderr)
                continue
            order = json.loads(message.value() or b"{}")
            cents[order["customer"]] += order["cents"]
            count += 1
            if count % COMMIT_EVERY == 0:
                consumer.commit()
    finally:
        consumer.close()
    print(f"read {count} orders of {len(cents)} customers, {sum(cents.values()) / 100:.2f} in all")
    return 0 if count == arguments.orders else 1


if __name__ == "__main__":
    sys.exit(main())
