"""Which of librdkafka's clients live in this process."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import pytest

_TASKS: Final = Path("/proc/self/task")

#: Marks tests that ask.
needs_living_clients: Final = pytest.mark.skipif(not _TASKS.exists(), reason="not Linux")


def living_clients() -> set[str]:
    """The ids of librdkafka's main threads: each client has one, and others as it needs them."""
    clients: set[str] = set()
    for task in _TASKS.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            if (task / "comm").read_text().strip() == "rdk:main":
                clients.add(task.name)
    return clients
