"""A program that produces and gets Ctrl-C in one of its calls.

Takes one JSON argument: `conf`, `topic`, `call` (`produce`, `flush` or `close`) and `count`, how
many records it produces before the other two. Prints one JSON line per event.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

from blobmsg import BlobProducer
from tests.helpers.records import produce

if TYPE_CHECKING:
    from collections.abc import Iterable


def main() -> None:
    """Produce, say when it is interrupted, flush or close again, say what was reported."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    producer: Any = BlobProducer(plan["conf"])
    delivered: list[str] = []
    errors: list[str] = []

    def heard(error: Any, message: Any) -> None:
        if error is None:
            delivered.append(message.value().decode())
        else:
            errors.append(str(error))

    def produce_all(numbers: Iterable[int]) -> None:
        for number in numbers:
            produce(producer, plan["topic"], b"%d" % number, on_delivery=heard)

    try:
        if plan["call"] == "produce":
            _say("ready")
            produce_all(itertools.count())
        produce_all(range(plan["count"]))
        _say("ready")
        if plan["call"] == "flush":
            producer.flush()
        else:
            producer.close()
    except KeyboardInterrupt:
        _say("interrupted")
    remaining = 0 if plan["call"] == "close" else producer.flush(60)
    producer.close()
    _say("done", delivered=delivered, errors=errors, remaining=remaining)


def _say(event: str, **details: Any) -> None:
    print(json.dumps({"event": event, **details}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
