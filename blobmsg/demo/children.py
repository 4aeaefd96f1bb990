"""Processes of the demo: started by exec, talked to over pipes, ended without exception.

Decides nothing about the run. Processes are started by a thread of their own: Ctrl-C interrupts
the main thread alone, and in the middle of a `Popen` it would leave a process that nobody knows.
A child is a session of its own, so that the terminal's Ctrl-C
reaches only the session's process, which ends its children; and it ends by itself when its
standard input does, so that even `kill -9` of the session leaves none behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any, Final

from blobmsg.demo.errors import DemoError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Child", "Children"]

# A worker says something several times a second; a machine that is that slow is not of use.
_SILENCE_S: Final = 120.0
_LOG_LINES: Final = 12


class Child:
    """One process.

    Args:
        name: For error texts.
        module: Run as `python -m`.
        arguments: Its command line.
        log_path: Takes its standard error.
        inbox: Gets (child, message) for each line that it prints, and (child, None) at its end.

    Threads: any, one at a time; a thread of its own reads its output. `launch` is the starter's.
    """

    _process: subprocess.Popen[bytes]
    _reader: threading.Thread

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        log_path: Path,
        inbox: queue.Queue[tuple[Child, dict[str, Any] | None]],
    ) -> None:
        self.name = name
        self.is_done = False  # it has said so, and may end
        self._command = [sys.executable, "-m", module, *arguments]
        self._log_path = log_path
        self._inbox = inbox
        self._launched = threading.Event()
        self._problem: OSError | None = None

    def launch(self) -> None:
        """Start the process."""
        try:
            with self._log_path.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603  (our own module, no shell)
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=_environment(),
                    start_new_session=True,
                )
        except OSError as problem:
            self._problem = problem
        else:
            self._reader = threading.Thread(target=self._read, name=self.name, daemon=True)
            self._reader.start()
        self._launched.set()

    def wait_launched(self) -> None:
        """Wait until it is started.

        Raises:
            DemoError: It could not be.
        """
        self._launched.wait()
        if self._problem is not None:
            raise DemoError(f"{self.name} can't be started: {self._problem}")

    def _read(self) -> None:
        for line in _pipe(self._process.stdout):
            self._inbox.put((self, json.loads(line)))
        self._inbox.put((self, None))

    def say(self, line: str) -> None:
        """Send one line.

        Raises:
            DemoError: It has ended.
        """
        pipe = _pipe(self._process.stdin)
        try:
            pipe.write(line.encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise self.failure("ended early") from None

    def failure(self, what: str) -> DemoError:
        """Return an error with the end of its log."""
        lines = self._log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return DemoError("\n  ".join([f"{self.name} {what}", *lines]))

    def end(self) -> None:
        """End it at once; a second call does nothing."""
        if not self._launched.is_set() or self._problem is not None:
            return
        self._process.kill()
        self._process.wait()
        self._reader.join()
        _pipe(self._process.stdout).close()
        with contextlib.suppress(BrokenPipeError):  # a line that it did not live to read
            _pipe(self._process.stdin).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("the child was started without a pipe")
    return pipe


def _environment() -> dict[str, str]:
    # The demo says all settings itself; the user's must not get between.
    return {name: value for name, value in os.environ.items() if not name.startswith("BLOBMSG_")}


class Children:
    """All processes of a demo; leaving the `with` block ends them.

    Args:
        folder: Takes their logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Child] = []
        self._inbox: queue.Queue[tuple[Child, dict[str, Any] | None]] = queue.Queue()
        self._to_launch: queue.SimpleQueue[Child | None] = queue.SimpleQueue()
        self._starter = threading.Thread(target=self._launch_all, name="starter", daemon=True)

    def _launch_all(self) -> None:
        while (child := self._to_launch.get()) is not None:
            child.launch()

    def start(self, name: str, module: str, arguments: Sequence[str] = ()) -> Child:
        """Start one.

        Raises:
            DemoError: It could not be started.
        """
        log_path = self._folder / f"{name}.log"
        child = Child(name, module, arguments, log_path, self._inbox)
        self._children.append(child)
        self._to_launch.put(child)
        child.wait_launched()
        return child

    def wait(
        self,
        kind: str,
        awaited: Sequence[Child],
        on_progress: Callable[[Child, dict[str, Any]], None] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Wait until each of these has sent a message of a kind.

        Args:
            kind: Of the messages.
            awaited: Who sends them.
            on_progress: Gets messages of other kinds.

        Returns:
            The messages by the children's names.

        Raises:
            DemoError: A child failed or ended, or nobody said anything for two minutes.
        """
        messages: dict[str, dict[str, Any]] = {}
        silent_since = time.monotonic()
        while len(messages) < len(awaited):
            try:
                # In slices: some systems run Ctrl-C's handler only between two waits.
                child, message = self._inbox.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() - silent_since > _SILENCE_S:
                    missing = [c.name for c in awaited if c.name not in messages]
                    raise DemoError(
                        f"no word from {', '.join(missing)} for {_SILENCE_S:.0f} s"
                    ) from None
                continue
            silent_since = time.monotonic()
            if message is None:
                if child in self._children and not child.is_done:
                    raise child.failure("ended early")
            elif message["kind"] == "failed":
                raise child.failure(f"failed: {message['why']}")
            elif message["kind"] == kind and child in awaited:
                child.is_done = kind == "done"
                messages[child.name] = message
            elif on_progress is not None:
                on_progress(child, message)
        return messages

    def end(self, children: Sequence[Child]) -> None:
        """End these; those that are done have nothing left to do."""
        for child in children:
            child.end()
            self._children.remove(child)

    def end_all(self) -> None:
        """End whoever is left, at once."""
        self.end(list(self._children))

    def __enter__(self) -> Self:
        self._starter.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._to_launch.put(None)
        self._starter.join()
        self.end_all()
