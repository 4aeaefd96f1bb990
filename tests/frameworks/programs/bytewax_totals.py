"""A bytewax dataflow: the running total of each customer's orders, with its recovery store.

With `patched` in its plan, bytewax works with our clients; nothing else here knows of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

plan: dict[str, Any] = json.loads(sys.argv[1])
if plan["patched"]:
    import blobmsg

    blobmsg.patch()

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSource, KafkaSourceMessage, operators
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main

processed: list[int] = []


def say(event: str, **facts: Any) -> None:
    os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


def add_up(total: int | None, message: KafkaSourceMessage) -> tuple[int, KafkaSinkMessage]:
    order = json.loads(message.value)
    processed.append(order["order"])
    if len(processed) == plan.get("stops_at"):
        say("stopped", processed=len(processed))
        threading.Event().wait()  # until it is killed
    total = (total or 0) + order["amount"]
    value = json.dumps({"order": order["order"], "total": total}).encode()
    return total, KafkaSinkMessage(message.key, value, headers=message.headers)


store = Path(plan["state_dir"])
if not store.exists():
    store.mkdir()
    init_db_dir(store, 1)

flow = Dataflow("totals")
# Until the end of what there is; a snapshot after every batch.
source = KafkaSource([plan["bootstrap_servers"]], [plan["orders"]], tail=False, batch_size=50)
orders = op.input("orders", flow, source)
keyed = op.key_on("customer", orders, lambda message: message.key.decode())
totals = op.stateful_map("add_up", keyed, add_up)
operators.output(
    "totals",
    op.map("unkey", totals, lambda item: item[1]),
    brokers=[plan["bootstrap_servers"]],
    topic=plan["totals"],
)
run_main(flow, epoch_interval=timedelta(0), recovery_config=RecoveryConfig(str(store)))
say("ended", processed=processed)
