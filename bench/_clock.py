"""Wall and CPU seconds of this process, all its threads included, and of servers beside it."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Stopwatch", "cpu_seconds"]


def cpu_seconds() -> float:
    """User and system seconds of this process since its start."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _cpu_seconds_of(pids: Iterable[int]) -> float:
    """User and system seconds of other processes since their start, by ticks (10 ms) of Linux."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Started when made.

    Args:
        servers: Processes on this Linux machine whose CPU is told as well, by a name for them.
    """

    __slots__ = ("_cpu", "_servers", "_servers_cpu", "_wall")

    def __init__(self, servers: Mapping[str, Iterable[int]] | None = None) -> None:
        self._servers = servers or {}
        self._servers_cpu = {name: _cpu_seconds_of(pids) for name, pids in self._servers.items()}
        self._cpu = cpu_seconds()
        self._wall = time.perf_counter()

    def read(self) -> dict[str, float]:
        """Seconds so far: `wall_s`, `cpu_s`, and `<name>_cpu_s` of the servers."""
        wall_s = time.perf_counter() - self._wall
        seconds = {"wall_s": wall_s, "cpu_s": cpu_seconds() - self._cpu}
        for name, pids in self._servers.items():
            seconds[f"{name}_cpu_s"] = _cpu_seconds_of(pids) - self._servers_cpu[name]
        return seconds
