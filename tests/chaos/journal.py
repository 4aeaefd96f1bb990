"""What a child did, one JSON object a line, whole up to the moment of a kill -9.

Each line is one write to a file opened for appending: the kernel has it when the call returns, and
only the last line can be cut. `t` is monotonic time of the machine, the same for all processes.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """A file of events that one process writes. Threads: any."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **facts: Any) -> None:
        """Append one event."""
        line = json.dumps({"event": event, "t": round(time.monotonic(), 4), **facts})
        os.write(self._file, line.encode() + b"\n")


class JournalTail:
    """Reads a journal while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = b""

    def more(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a journal; the last one may have been cut by the end of its writer."""
    return JournalTail(path).more()
