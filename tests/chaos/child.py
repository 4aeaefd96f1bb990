"""What all children do alike: take a plan, tell records, time calls, stop, say their size."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaException

from tests.chaos.journal import Journal
from tests.chaos.record import decode_record
from tests.helpers.memory import rss_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.chaos.record import Identity

#: The exit code after a fatal error of a client, which says that only a new one can go on.
FATAL = 3

_T = TypeVar("_T")
# A call that takes so much longer than it was told is worth a line; the checker allows a second.
_WORTH_A_LINE_S = 0.5


class Child:
    """This process: its plan and its journal.

    Attributes:
        plan: What the conductor wants.
        journal: Told what happens.
        stopping: Set by SIGTERM.
    """

    def __init__(self) -> None:
        self.plan: dict[str, Any] = json.loads(sys.argv[1])
        self.journal = Journal(Path(self.plan["journal"]))
        self.stopping = threading.Event()
        self._callbacks_s = 0.0
        # For a run that gets stuck: every thread's stack goes to the child's log.
        faulthandler.register(signal.SIGUSR1)
        faulthandler.enable()  # a crash in C says which calls were under way
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the conductor's
        threading.Thread(target=_end_with_conductor, name="conductor-watch", daemon=True).start()

    @property
    def instance(self) -> str:
        """This process' name, never used twice."""
        name: str = self.plan["instance"]
        return name

    @property
    def is_stock(self) -> bool:
        """Whether to use the stock client."""
        return bool(self.plan["stock"])

    def constructed(self) -> None:
        """The clients are there; from here on memory counts."""
        self.journal.write("constructed", rss=rss_bytes())

    def identity_of(self, message: Any) -> Identity | None:
        """Which record a message is; None: an error, or corrupt, and the journal has it."""
        partition, offset = message.partition(), message.offset()
        error = message.error()
        if error is not None:
            self.journal.write(
                "error", p=partition, offset=offset, name=error.name(), text=error.str()
            )
            return None
        identity = decode_record(message.value())
        if identity is None:
            self.journal.write("corrupt", p=partition, offset=offset)
        return identity

    @contextlib.contextmanager
    def in_callback(self) -> Generator[None]:
        """Around what a callback of ours does: the call that runs it takes so much longer."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._callbacks_s += time.monotonic() - began

    def timed(self, name: str, limit_s: float, call: Callable[[], _T]) -> _T:
        """Make a call that promises to end within a time."""
        began, callbacks_s, starved_s = time.monotonic(), self._callbacks_s, _starved_s()
        try:
            return call()
        finally:
            took = time.monotonic() - began - (self._callbacks_s - callbacks_s)
            if took > limit_s + _WORTH_A_LINE_S:
                starved = round(_starved_s() - starved_s, 3)
                self.journal.write(
                    "late", call=name, limit=limit_s, took=round(took, 3), starved=starved
                )


def _starved_s() -> float:
    """How long this thread could have run and had no processor, since it began (Linux)."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def _end_with_conductor() -> None:
    """The conductor holds the other end of standard input, as long as it lives."""
    os.read(0, 1)
    os._exit(1)


def run_child(run: Callable[[Child], None]) -> int:
    """Run a child's program; its exit code."""
    child = Child()
    try:
        run(child)
    except KafkaException as failure:
        if not failure.args[0].fatal():
            raise
        child.journal.write("fatal", name=failure.args[0].name(), text=str(failure.args[0]))
        return FATAL
    return 0
