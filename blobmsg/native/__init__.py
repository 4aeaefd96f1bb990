"""The inner loops of the record path in C, where a compiler built them.

Each has a twin in Python that serves without (`record_step.py`, `message.py`, and in `format/`
`rows.py`, `segment.py`, `cells.py`, `crc32_combine.py`), so nothing but speed depends on it.
`BLOBMSG_PURE_PYTHON=1` in the environment leaves it out. Why it is there, and what it gives:
`docs/decisions/0007-native.md`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["native"]

#: `_native`, or None.
native: ModuleType | None = None
if os.environ.get("BLOBMSG_PURE_PYTHON", "") in ("", "0"):
    with suppress(ImportError):  # not built: no compiler, or a big-endian machine
        from blobmsg.native import _native as native
