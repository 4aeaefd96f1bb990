"""What the inner client tells by its statistics event, as far as we count it."""

from __future__ import annotations

import json

__all__ = ["InnerStatistics"]


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
