"""A program that ends without closing its clients: at once, with its own code, without a word."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.records import send

if TYPE_CHECKING:
    from tests.helpers.both import Both, Side

_PROGRAM = """
import json, sys
conf, topic, is_ours = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "ours"
if is_ours:
    from blobmsg import BlobConsumer as Consumer, BlobProducer as Producer
else:
    from confluent_kafka import Consumer, Producer

def consumer():
    group = {"group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    made = Consumer({**conf, **group})
    made.subscribe([topic])
    while (message := made.poll(60)).error():
        pass
    print(message.value().decode())
    return made

def producer():
    made = Producer({**conf, "log_level": 0})
    made.produce(topic, b"more")
    assert made.flush(60) == 0
    print("flushed")
    return made

def in_a_cycle():
    class Holder: pass
    holder = Holder()
    holder.itself, holder.client = holder, consumer()

"""
_ENDS = {
    "consumer": "kept = consumer()",
    "producer": "kept = producer()",
    "both": "kept = producer(), consumer()",
    "never used": "kept = Producer({**conf, 'log_level': 0})",
    "inside of a function": "(lambda: consumer())()",
    "in a cycle": "in_a_cycle()",
    "sys.exit": "kept = consumer(); sys.exit(0)",
    "an exception": "kept = consumer(), producer(); raise SystemExit(3)",
}
# librdkafka ends its threads meanwhile; stock takes as long.
_PROMPT_S = 30


@pytest.mark.parametrize("end", _ENDS)
def test_a_program_ends_with_clients_that_nobody_has_closed(readers: Both, end: str) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        with side.producer() as producer:
            assert send(producer, topic, [b"%d" % number for number in range(500)]).errors == []
        started = time.monotonic()
        done = subprocess.run(
            [
                sys.executable,
                *("-c", _PROGRAM + _ENDS[end]),
                json.dumps(side.settings()),
                *(topic, "ours" if side.is_ours else "stock"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        is_prompt = time.monotonic() - started < _PROMPT_S
        return done.returncode, done.stdout.split(), done.stderr, is_prompt

    code, said, errors, is_prompt = readers.agree(case)
    assert (code, errors, is_prompt) == (3 if end == "an exception" else 0, "", True)
    assert bool(said) == (end != "never used")
