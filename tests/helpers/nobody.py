"""Settings of a client that meets nobody: no broker listens, and its store is its own memory."""

from __future__ import annotations

from typing import Any, Final

NOBODY: Final[dict[str, Any]] = {
    "bootstrap.servers": "127.0.0.1:1",
    "log_level": 0,
    "error_cb": lambda _: None,
    "blobmsg.store.url": "memory://nobody",
}
