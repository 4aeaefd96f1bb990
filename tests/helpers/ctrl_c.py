"""Ctrl-C while a call waits."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_with_ctrl_c"]


def call_with_ctrl_c(call: Callable[[], object], after_s: float) -> tuple[bool, float]:
    """Press Ctrl-C some seconds after a call has begun; on the main thread.

    Returns:
        Whether it was heard, and how many seconds the call took.
    """
    started = time.monotonic()
    ctrl_c = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    ctrl_c.start()
    try:
        try:
            call()
        finally:
            took_s = time.monotonic() - started
            ctrl_c.join()  # pressed in any case, here at the latest
    except KeyboardInterrupt:
        return True, took_s
    return False, took_s
