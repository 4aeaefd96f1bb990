"""The services of `examples/microservices`, run as processes, and orders for them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

__all__ = ["SERVICES", "Service", "post_orders"]

SERVICES = Path(__file__).parents[2] / "examples" / "microservices"


class Service:
    """One service in a process of its own; its lines are read as they come."""

    def __init__(self, program: Path, environ: dict[str, str]) -> None:
        self._name = program.name
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read lines until one is like this; the test's own time limit ends the wait."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"{self._name} ended without {pattern!r}")

    def terminate(self) -> tuple[int, str]:
        """SIGTERM; the exit code and what it said last."""
        self._process.send_signal(signal.SIGTERM)
        output, _ = self._process.communicate(timeout=60)
        return self._process.returncode, output


def post_orders(port: int, orders: Sequence[Any]) -> list[int]:
    """POST each of them to checkout; the statuses."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    statuses: list[int] = []
    for order in orders:
        connection.request("POST", "/orders", json.dumps(order))
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    return statuses
