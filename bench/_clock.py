"""Wall and CPU seconds of this process, all its threads included."""

from __future__ import annotations

import resource
import time

__all__ = ["Stopwatch", "cpu_seconds"]


def cpu_seconds() -> float:
    """User and system seconds of this process since its start."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Stopwatch:
    """Started when made."""

    __slots__ = ("_cpu", "_wall")

    def __init__(self) -> None:
        self._cpu = cpu_seconds()
        self._wall = time.perf_counter()

    def read(self) -> dict[str, float]:
        """Seconds so far."""
        wall = time.perf_counter() - self._wall
        return {"wall_s": wall, "cpu_s": cpu_seconds() - self._cpu}
