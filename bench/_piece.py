"""One measured piece in a process of its own: a task on stdin, its figures on stdout, as JSON.

Decides nothing. What is timed is in `_producing`, `_consuming` and `_ceiling`; records, clients,
connections and imports are made before the clock starts, checks follow after it stopped.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

from bench import _ceiling, _consuming, _memory, _producing

if TYPE_CHECKING:
    from collections.abc import Callable

_TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "produce": _producing.measure,
    "consume": _consuming.measure,
    "verify": _consuming.verify,
    "put": _ceiling.measure,
    "produce_through_outage": _memory.produce_through_outage,
    "produce_in_loop_through_outage": _memory.produce_in_loop_through_outage,
    "fill": _memory.fill,
    "consume_slowly": _memory.consume_slowly,
    "consume_slowly_in_loop": _memory.consume_slowly_in_loop,
}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    task = json.loads(sys.stdin.read())
    figures = _TASKS[task.pop("task")](**task)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
