"""Events of the inner clients: what we count, and callbacks that keep nothing alive."""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InnerStatistics", "weakly"]


class InnerStatistics:
    """Wire bytes of a stock client, from its last statistics event.

    Threads: `take` in the thread that polls the client; reading any.
    """

    __slots__ = ("rx_bytes", "tx_bytes")

    def __init__(self) -> None:
        self.tx_bytes = 0  # sent to brokers, requests and all
        self.rx_bytes = 0

    def take(self, text: str) -> None:
        """Read a statistics event (librdkafka's JSON, STATISTICS.md)."""
        statistics = json.loads(text)
        self.tx_bytes = int(statistics.get("tx_bytes", 0))
        self.rx_bytes = int(statistics.get("rx_bytes", 0))


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A callback that calls a bound method while its object lives.

    The inner client and our threads hold callbacks; with a strong reference a client that is
    never closed would never be garbage, and nobody could warn of what it loses.
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        target = reference()
        if target is not None:
            target(*arguments)

    return call
