"""Server processes that outlive or obey us: started in sessions of their own, known by identity.

A pid alone is not an identity: after a crash the kernel may have given it to somebody else. So a
process is always named with its start time, and nothing is signalled whose start time differs.
Never kills by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: its pid and the moment it started, as the system writes that."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the identity of the process that has this pid now; None if there is none."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    def is_alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        # A child of ours that ended stays a zombie until somebody waits for it.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return _start_time(self.pid) == self.started

    def signal_group(self, number: int) -> None:
        """Send a signal to the process's whole session; nothing happens if it is gone."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def wait_gone(self, timeout_seconds: float) -> bool:
        """Wait until the process has ended; False if it has not in time."""
        deadline = time.monotonic() + timeout_seconds
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def pause_group(self, timeout_seconds: float = 10) -> None:
        """Stop the process and its children; returns when the process does nothing any more.

        A signal is only sent when `kill` returns: a thread on another core may still answer a
        request.
        """
        self.signal_group(signal.SIGSTOP)
        deadline = time.monotonic() + timeout_seconds
        while not _is_stopped(self.pid) and self.is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def kill_group(self, timeout_seconds: float = 10) -> None:
        """End the process and its children at once; a paused one, too."""
        self.signal_group(signal.SIGKILL)
        self.wait_gone(timeout_seconds)


def spawn(
    command: Sequence[str], environment: Mapping[str, str], log_path: Path, folder: Path
) -> ProcessId:
    """Start a server in a session of its own, its output appended to `log_path`.

    Its own session keeps the terminal's Ctrl-C from it and makes its pid its process group's.

    Args:
        command: Program and arguments.
        environment: Added to ours.
        log_path: Appended to.
        folder: Working folder.
    """
    with log_path.open("ab") as log:
        child = subprocess.Popen(  # noqa: S603  (the command is ours, no shell)
            list(command),
            env={**os.environ, **environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    identity = ProcessId.of(child.pid)
    # We wait for it ourselves, by identity: a Popen that is dropped while its process lives warns.
    child.returncode = 0
    return identity if identity is not None else ProcessId(child.pid, "ended at once")


def log_tail(log_path: Path, lines: int = 25) -> str:
    """Return the last lines of a log for an error text; a remark if there are none."""
    try:
        text = log_path.read_text(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


def _is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped; True where the system does not tell."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            if stat.read_text().rpartition(")")[2].split()[0] not in "TtZX":
                return False
    return True


def _start_time(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self").exists() else _start_time_from_ps(pid)
    except (ProcessLookupError, PermissionError):
        return None
    # "pid (name) state … starttime …": the name may hold spaces and brackets.
    fields = stat.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def _start_time_from_ps(pid: int) -> str | None:
    ps = shutil.which("ps")
    if ps is None:
        return None
    answer = subprocess.run(  # noqa: S603  (fixed arguments and a number)
        [ps, "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()
