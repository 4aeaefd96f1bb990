"""Programs in processes of their own, to be killed, stopped and continued by a test."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

_REPOSITORY = Path(__file__).parents[2]


class ChildProgram:
    """A program that prints JSON events; a context manager that kills what is left of it.

    Args:
        module: What to run.
        plan: Its argument.
        python: Which one runs it; None: the tests' own.
        environ: Its environment; None: the tests' own.
        lines: Takes what it says, and None when it ends; to be shared by several. None: its own.
    """

    def __init__(
        self,
        module: str,
        plan: Mapping[str, Any],
        *,
        python: str | None = None,
        environ: Mapping[str, str] | None = None,
        lines: queue.SimpleQueue[dict[str, Any] | None] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", module, json.dumps(plan)],
            cwd=_REPOSITORY,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._lines = queue.SimpleQueue() if lines is None else lines
        self.events: list[dict[str, Any]] = []
        self._is_dead = False
        threading.Thread(target=self._read, name="child-output", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            for line in output:
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_for(self, event: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Take what the child says until it says this."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                said = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {event!r} in {timeout_s} s: {self.events[-5:]}") from None
            if said is None:
                raise AssertionError(f"the child ended without {event!r}: {self.events[-5:]}")
            self.events.append(said)
            if said["event"] == event:
                return said
            assert said["event"] != "error", said

    def kill(self) -> None:
        """SIGKILL; takes what it had still said. A second call is fine."""
        if self._is_dead:
            return
        self._is_dead = True
        self._end_process()
        while (said := self._rest()) is not None:
            self.events.append(said)

    def _end_process(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """SIGSTOP: it stands still, as a machine that hangs."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def ask_to_end(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, as who stops a service sends it; the code with which it ends."""
        self._process.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 60.0) -> int:
        """The code with which it ends."""
        return self._process.wait(timeout_s)

    def _rest(self) -> dict[str, Any] | None:
        try:
            return self._lines.get(timeout=10)
        except queue.Empty:
            return None


class ChildConsumer(ChildProgram):
    """Runs `consumer_child`.

    Args:
        conf: The BlobConsumer's settings.
        topic: What it subscribes to.
        mode: How it commits once it stops: `message`, `offsets`, `position`, `store`,
            `store_message` (synchronously), or `auto` (not itself).
        stop_after: It pauses after so many records and says `stopped`; None: never.
    """

    def __init__(
        self, conf: Mapping[str, Any], topic: str, *, mode: str = "auto", stop_after: int | None
    ) -> None:
        plan = {"conf": dict(conf), "topic": topic, "mode": mode, "stop_after": stop_after}
        super().__init__("tests.helpers.consumer_child", plan)

    def records(self) -> list[dict[str, Any]]:
        """The records that the child has told of so far."""
        return [said for said in self.events if said["event"] == "record"]

    def say(self, word: str) -> None:
        """Give a command: `go` reads on, `close` closes and ends."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(f"{word}\n".encode())
        stdin.flush()


class InterruptedChild(ChildProgram):
    """Runs `interrupted_child`.

    Args:
        conf: The BlobConsumer's settings.
        topic: What it subscribes to.
        call: `poll` or `consume`.
        count: How many records to read before it closes.
        waits: Its calls wait without a limit, and close is not interrupted.
    """

    def __init__(
        self, conf: Mapping[str, Any], topic: str, *, call: str, count: int, waits: bool = False
    ) -> None:
        plan = {"conf": dict(conf), "topic": topic, "call": call, "count": count, "waits": waits}
        super().__init__("tests.helpers.interrupted_child", plan)

    def interrupt(self) -> None:
        """Ctrl-C. It says `interrupted` when it hears it."""
        self._process.send_signal(signal.SIGINT)

    def said(self, event: str) -> bool:
        """Whether it has said this while it was waited for."""
        return any(said["event"] == event for said in self.events)
