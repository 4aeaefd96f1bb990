"""CPU and memory of a process and all that it has started: a JVM, its executors, their workers.

Linux only. Children that have ended count with whoever waited for them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["processes_below", "tree_cpu_seconds"]

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(root: int) -> float:
    """User and system seconds of a process and everything below it, by ticks of Linux (10 ms).

    Args:
        root: Its number.
    """
    stats = dict(_stats())
    # utime, stime, and both of children that were waited for.
    ticks = sum(sum(map(int, stats[pid][11:15])) for pid in _below(root, stats))
    return ticks / _TICKS


def processes_below(root: int) -> dict[int, str]:
    """The command line of a process and of everything below it."""
    found: dict[int, str] = {}
    for pid in _below(root, dict(_stats())):
        with contextlib.suppress(OSError):  # it has ended
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            found[pid] = line.replace(b"\0", b" ").decode(errors="replace")
    return found


def _stats() -> Iterator[tuple[int, list[str]]]:
    """The fields of each process that come behind its name, the state first."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield int(folder.name), fields


def _below(root: int, stats: dict[int, list[str]]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = [root] if root in stats else []
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, ())
    return found
