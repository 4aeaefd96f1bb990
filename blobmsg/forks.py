"""What the child of a fork has of its parent's clients: it neither uses nor destroys them."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["forget_after_fork"]

# Bound at import: between fork and exec little is safe.
_keep_for_ever: Final = ctypes.pythonapi.Py_IncRef
_keep_for_ever.argtypes = (ctypes.py_object,)
_keep_for_ever.restype = None


def forget_after_fork(forget: Callable[[], object]) -> None:
    """Have a process's clients forgotten in every child that is forked from now on.

    Args:
        forget: Takes them from where they are kept and returns them. They are never destroyed, not
            even when the child's interpreter ends: librdkafka would wait for threads that only the
            parent has, and crash or hang.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _keep_for_ever(forget()))
