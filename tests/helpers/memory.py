"""What a process has in memory, as Linux counts it."""

from __future__ import annotations

import os
from pathlib import Path


def rss_bytes() -> int:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
