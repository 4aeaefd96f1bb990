"""The program of a producer process that a test kills: it says which records are acknowledged.

Takes one JSON argument: `conf`, `topic`, `count` (None: until it is killed) and `ends`, how it
ends: `killed` (polls until then), `exit` (at once, with what is buffered), `sigterm` (closes when
it is told to end). Prints one JSON line per event.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from typing import Any

from blobmsg import BlobProducer
from tests.helpers.records import produce

_kept: list[Any] = []  # until the interpreter ends, so that it is not garbage before


def main() -> None:
    """Produce 0, 1, 2 … and end as told."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, _on_sigterm)
    producer: Any = BlobProducer(plan["conf"])
    _kept.append(producer)
    numbers = itertools.count() if plan["count"] is None else range(plan["count"])
    try:
        for number in numbers:
            produce(producer, plan["topic"], b"%d" % number, on_delivery=_heard)
            producer.poll(0)
        _say("produced")
        while plan["ends"] != "exit":
            producer.poll(0.1)
            _say("polled")
    except SystemExit:
        _say("closing")
        producer.close()
        _say("closed")


def _on_sigterm(_number: int, _frame: object) -> None:
    sys.exit(0)


def _heard(error: Any, message: Any) -> None:
    if error is None:
        _say("delivered", value=message.value().decode())
    else:
        _say("failed", value=message.value().decode(), code=error.code())


def _say(event: str, **facts: Any) -> None:
    os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


if __name__ == "__main__":
    main()
