"""A program that reads a topic while it gets Ctrl-C again and again, and reads on each time.

Takes one JSON argument, prints one JSON line per event. What a call returns goes to `received`
inside of C, so an interrupt hits the call or comes after it, never between the two.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import chain, starmap
from typing import Any

from blobmsg import BlobConsumer

may_raise = False
is_saying = False
is_announced = False
heard_early = False
heard_meanwhile = 0


def main() -> None:
    """Read `count` records with the plan's `call`, close, say what came."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, _on_ctrl_c)
    consumer: Any = BlobConsumer(plan["conf"])
    consumer.subscribe([plan["topic"]])
    _say("ready")
    received: list[Any] = []
    while _count(received) < plan["count"]:
        _attempt(lambda: _read(consumer, plan, received))
    if plan["waits"]:
        consumer.close()
    else:
        _announce("closing")
        _attempt(lambda: _close(consumer))
    messages = [message for message in received if message is not None]
    _say(
        "read",
        values=[m.value().decode() for m in messages if m.error() is None],
        errors=[str(m.error()) for m in messages if m.error() is not None],
    )


def _read(consumer: Any, plan: dict[str, Any], received: list[Any]) -> None:
    wanted = len(received) + plan["count"] - _count(received)
    timeout_s = -1 if plan["waits"] else 0.5
    while len(received) < wanted:
        if plan["call"] == "poll":
            received.extend(starmap(consumer.poll, ((timeout_s,),)))
        else:
            # Not more than there are: one that is interrupted each time before it has as many, or
            # its time is over, would never return.
            arguments = (min(40, wanted - len(received)), timeout_s)
            received.extend(chain.from_iterable(starmap(consumer.consume, (arguments,))))


def _count(received: list[Any]) -> int:
    return sum(1 for m in received if m is not None and m.error() is None)


def _announce(event: str) -> None:
    """Say what is attempted next: an interrupt from here on is of that, and not of this line."""
    global is_announced
    is_announced = True
    _say(event)


def _close(consumer: Any) -> None:
    global is_announced
    try:
        is_announced = False
        if heard_early:
            signal.raise_signal(signal.SIGINT)
        consumer.close()
        while True:  # until it comes, be it late
            time.sleep(0.05)
    except KeyboardInterrupt:
        consumer.close()
        raise


def _attempt(call: Any) -> None:
    global may_raise
    try:
        may_raise = True
        call()
        may_raise = False
    except KeyboardInterrupt:
        may_raise = False
        _say("interrupted")


def _on_ctrl_c(_number: int, _frame: object) -> None:
    if may_raise:
        raise KeyboardInterrupt
    # Outside of the client's calls: not what is tested.
    global heard_early, heard_meanwhile
    if is_announced:
        heard_early = True
    elif is_saying:
        heard_meanwhile += 1
    else:
        _say("interrupted")


def _say(event: str, **facts: Any) -> None:
    """Write a line whole: a signal may end a long write early, and have something to say itself."""
    global is_saying, heard_meanwhile
    line = (json.dumps({"event": event, **facts}) + "\n").encode()
    is_saying = True
    while line:
        line = line[os.write(1, line) :]
    is_saying = False
    while heard_meanwhile:
        heard_meanwhile -= 1
        _say("interrupted")


if __name__ == "__main__":
    main()
