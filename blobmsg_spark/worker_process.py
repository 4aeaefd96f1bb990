"""What makes Spark's Python workers cheaper: less garbage collection, fewer new pages.

Touches the process that tasks run in, never the driver's.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache
from typing import Final

from pyspark import TaskContext

__all__ = ["tune_worker_process"]

# mallopt's; and the variables with which a user has decided all this for himself.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_VARIABLES: Final = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_KEPT_BYTES: Final = 64 << 20
_MOST_MMAP_THRESHOLD: Final = 32 << 20  # glibc takes no larger one


def tune_worker_process() -> None:
    """Called by tasks that move rows, first of all; does nothing outside of tasks."""
    if TaskContext.get() is not None:
        _keep_freed_memory()
        _spare_modules(len(sys.modules))


@cache
def _keep_freed_memory() -> None:
    """Let what a task has freed serve the next rows, instead of new pages from the kernel.

    Rows come and go in blocks of MiBs, and giving each pages of its own took more CPU than
    copying them. One arena for all threads: else each fetch thread keeps what it has freed. Only
    what is free at the end of the heap goes back, all but `_KEPT_BYTES`: a worker may keep as much
    as its tasks have had at most.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have no such arenas
    if mallopt is None or any(name in os.environ for name in _VARIABLES):
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _spare_modules(count: int) -> None:
    """Take what was imported out of the garbage collector's sight, again when there is more of it.

    Spark's worker collects after every task, and among all of numpy, pandas, pyarrow and botocore
    that took 50 ms each: more than a small task itself. All that is alive in that moment is frozen:
    of it, only what is in no reference cycle is ever freed.

    Args:
        count: Of the modules.
    """
    global _most_modules
    if count > _most_modules:
        _most_modules = count
        gc.collect()
        gc.freeze()


_most_modules = 0
