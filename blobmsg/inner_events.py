"""Events of the inner clients: what we count, and callbacks that keep nothing alive."""

from __future__ import annotations

import json
import re
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["InnerStatistics", "weakly", "with_own_statistics"]


class InnerStatistics:
    """Wire bytes of a stock client, from its last statistics event.

    Threads: `take` in the thread that polls the client; reading any.
    """

    __slots__ = ("rx_bytes", "tx_bytes")

    def __init__(self) -> None:
        self.tx_bytes = 0  # sent to brokers, requests and all
        self.rx_bytes = 0

    def take(self, text: str) -> None:
        """Read a statistics event (librdkafka's JSON, STATISTICS.md).

        Not all of it: with a hundred partitions it has a hundred thousand characters, and
        these names are the client's alone (those of brokers and partitions have no underscore).
        """
        self.tx_bytes = _number_of("tx_bytes", text)
        self.rx_bytes = _number_of("rx_bytes", text)


def with_own_statistics(text: str, own: Mapping[str, int]) -> str:
    """The statistics event of librdkafka with ours as its member `blobmsg`."""
    members, brace, _ = text.rpartition("}")
    return f'{members}, "blobmsg": {json.dumps(own)} {brace}'


def _number_of(name: str, text: str) -> int:
    """The number of a name that stands behind the topics; 0 when it is not there."""
    _, _, rest = text.rpartition(f'"{name}":')
    digits = re.match(r"\s*(\d+)", rest)
    return int(digits[1]) if digits else 0


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
