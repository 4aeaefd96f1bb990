"""A FastStream application: orders are priced one by one, then shipped in batches.

With `patched` in its plan, FastStream works with our clients; nothing else here knows of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

plan: dict[str, Any] = json.loads(sys.argv[1])
if plan["patched"]:
    import blobmsg

    blobmsg.patch()

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker, KafkaMessage, KafkaPublishMessage, KafkaResponse

logger = logging.getLogger("chain")  # FastStream's own writes to where this program tells events
broker = KafkaBroker(plan["bootstrap_servers"], logger=logger)
app = FastStream(broker, logger=logger)
failures: list[int] = []
shipped: list[int] = []


def say(event: str, **facts: Any) -> None:
    os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


@broker.subscriber(
    plan["orders"],
    group_id=plan["group"],
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
@broker.publisher(plan["priced"])
async def price(order: dict[str, int], message: KafkaMessage) -> KafkaResponse:
    if order["order"] == plan["fails_at"] and not failures:
        failures.append(order["order"])
        raise RuntimeError("not yet")  # so it is read once more
    return KafkaResponse(
        {"order": order["order"], "price": order["amount"] * 2},
        key=message.raw_message.key(),
        headers={"trace": message.headers["trace"]},
    )


@broker.subscriber(
    plan["priced"],
    group_id=plan["group"] + "-shipping",
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.ACK,
    batch=True,
    max_records=20,
)
async def ship(orders: list[dict[str, int]], message: KafkaMessage) -> None:
    parcels = [
        KafkaPublishMessage({**order, "shipped": True}, key=raw.key())
        for order, raw in zip(orders, message.raw_message, strict=True)
    ]
    await broker.publish_batch(*parcels, topic=plan["shipped"], headers={"stage": "shipped"})
    shipped.extend(order["order"] for order in orders)
    if len(shipped) >= plan["count"]:
        app.exit()


@app.after_startup
async def order_all() -> None:
    """Every one of them waits for its delivery report."""
    await asyncio.gather(
        *(
            broker.publish(
                {"order": number, "amount": number * 31 % 997},
                plan["orders"],
                key=b"customer-%d" % (number % 5),
                headers={"trace": f"trace-{number}"},
                correlation_id=f"correlation-{number}",
            )
            for number in range(plan["count"])
        )
    )
    say("ordered")


asyncio.run(app.run())
say("ended", failures=failures, shipped=shipped)
