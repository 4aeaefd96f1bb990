"""A small process that stops a stack when the process that started it is gone, however it went.

A handler at exit does not run after `kill -9`; brokers in sessions of their own would stay. The
guardian holds the reading end of a pipe: end of file means that the owner has ended. It is in a
session of its own, so that Ctrl-C does not end it before its work is done.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

_DISMISSED = b"d"
_CHECK_SECONDS = 1.0


class Guardian:
    """The owner's end of a guardian.

    Args:
        name: The stack, whose state must be saved already.

    Threads: any, one at a time.
    """

    def __init__(self, name: str) -> None:
        program = "import sys; from blobmsg.lab.guardian import watch; watch(sys.argv[1])"
        self._process = subprocess.Popen(  # noqa: S603  (fixed program, a checked name)
            [sys.executable, "-c", program, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the guardian's process."""
        return self._process.pid

    def dismiss(self) -> None:
        """End the guardian without its stopping anything."""
        try:
            self._process.communicate(_DISMISSED, timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def watch(name: str) -> None:
    """Wait for the owner's end, then stop the stack `name`; the guardian's main function."""
    # Late: the owner waits for nothing here, and `stacks` imports this module.
    from blobmsg.lab.stacks import find_stack

    owner = os.getppid()
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], _CHECK_SECONDS)
        if readable:
            if os.read(sys.stdin.fileno(), 1) == _DISMISSED:
                return
            break
        # A forked child of the owner may hold the pipe open after the owner's end.
        if os.getppid() != owner:
            break
    stack = find_stack(name)
    if stack is not None:
        stack.stop()
