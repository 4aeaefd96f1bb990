"""Ctrl-C in produce, flush and close: heard at once, nothing lost that was not given up."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer
from tests.helpers.child_process import ChildProgram
from tests.helpers.fault_proxy import Delay, FaultProxy
from tests.helpers.records import partition, read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

COUNT = 5000
# Long after any wait inside of the client, and far below what a user takes for a hung program.
PROMPT_S = 2.0


class ProducingChild(ChildProgram):
    """Runs `interrupted_producer`; see there."""

    def __init__(self, conf: dict[str, Any], topic: str, call: str) -> None:
        plan = {"conf": conf, "topic": topic, "call": call, "count": COUNT}
        super().__init__("tests.helpers.interrupted_producer", plan)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("call", ["produce", "flush", "close"])
def test_ctrl_c_is_heard_at_once_and_what_was_reported_is_there(
    conf: dict[str, Any], proxy: FaultProxy, make_topic: Callable[..., str], call: str
) -> None:
    topic = make_topic()
    if call != "produce":
        # Slow enough that the interrupt comes while it waits, and that it would wait on for long.
        proxy.rule = lambda request: Delay(5.0) if request.object_number >= 3 else None
    producer_conf = {
        **conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.route": "blob",
        "blobmsg.batch.size.bytes": 10_000,
        "queue.buffering.max.kbytes": 4096,
        "message.max.bytes": 100_000,
    }
    with ProducingChild(producer_conf, topic, call) as child:
        child.wait_for("ready")
        time.sleep(1.0)  # until it is in the middle of the call
        started = time.monotonic()
        child.interrupt()
        child.wait_for("interrupted")
        assert time.monotonic() - started < PROMPT_S
        outcome = child.wait_for("done")

    reader = {**conf, "group.id": topic, "enable.partition.eof": True}
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        values = [m.value().decode() for m in read_to_end(consumer, 1, batch=500).messages]
    assert outcome["errors"] == []
    assert outcome["remaining"] == 0
    assert len(outcome["delivered"]) > 0
    assert values == [str(number) for number in range(len(values))]  # in order, once each
    if call == "close":
        # Given up with the close; what was reported is there, and maybe some more.
        assert values[: len(outcome["delivered"])] == outcome["delivered"]
    else:
        # As with stock, an interrupt inside of a callback is the end of that call of it.
        missing = set(values) - set(outcome["delivered"])
        assert len(missing) <= 1
        assert [value for value in values if value not in missing] == outcome["delivered"]
    if call == "flush":
        assert len(values) == COUNT
