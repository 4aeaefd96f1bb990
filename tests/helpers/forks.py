"""A child that is forked while its parent has clients of Kafka."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["KAFKA", "end_of_a_forked_child"]

#: Nobody listens there.
KAFKA = {"bootstrap.servers": "127.0.0.1:9", "log_level": "0"}

# The child ends as Python programs do, when everything that is left is destroyed. With more than
# five threads the first client that is destroyed has glibc free stacks, and a second one crashes as
# it waits for a thread that had one of those.
_FORK = """
import os, sys, threading
for _ in range(10):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
child = os.fork()
if child == 0:
    sys.exit(len(kept()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(kept()))
sys.stdout.flush()
os._exit(0)
"""


def end_of_a_forked_child(program: str) -> str:
    """Run a program, then fork.

    Args:
        program: Defines `kept()`, what this process keeps; at least two clients.

    Returns:
        What the child exited with, which is how many it kept, or the signal that it died of,
        negative; how many the parent keeps; and what was logged.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{program}\n{_FORK}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr
