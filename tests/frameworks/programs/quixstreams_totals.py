"""A quixstreams application: the running total of each customer's orders, kept in a state store.

With `patched` in its plan, quixstreams works with our clients; nothing else here knows of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

plan: dict[str, Any] = json.loads(sys.argv[1])
if plan["patched"]:
    import blobmsg

    blobmsg.patch()

from quixstreams import Application, State


def say(event: str, **facts: Any) -> None:
    os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


processed = 0


def add_up(order: dict[str, int], state: State) -> dict[str, int]:
    global processed
    processed += 1
    if processed == plan.get("stops_at"):
        say("stopped", processed=processed)
        threading.Event().wait()  # until it is killed, in the midst of what it has not committed
    total: int = state.get("total", 0) + order["amount"]
    state.set("total", total)
    return {"order": order["order"], "total": total}


app = Application(
    broker_address=plan["bootstrap_servers"],
    consumer_group=plan["group"],
    auto_offset_reset="earliest",
    processing_guarantee=plan["guarantee"],
    commit_every=plan["commit_every"],
    state_dir=plan["state_dir"],
    producer_extra_config=plan.get("producer", {}),
    consumer_extra_config=plan.get("consumer", {}),
    loglevel="WARNING",
)
orders = app.topic(plan["orders"], key_deserializer="str", value_deserializer="json")
totals = app.topic(plan["totals"], key_serializer="str", value_serializer="json")
app.dataframe(orders).apply(add_up, stateful=True).to_topic(totals)
say(
    "starts",
    client=f"{app._producer._producer._producer.__class__}",
    type=type(app._producer._producer._producer).__name__,
)
app.run(count=plan.get("count", 0))
say("ended", processed=processed)
