"""What one broker knows of a topic: librdkafka does not say which broker it asked.

A topic that was made a moment ago may be unknown to any other broker than the one that answered
last, and a test that asks that one finds no partitions.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from itertools import count, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["difference_on_steady_leaders", "wait_until_all_know"]

_METADATA = 3
_VERSION = 7
_WAIT_S = 20.0  # below pytest's own limit, so that it says what is wrong
_INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
_MOST_ATTEMPTS = 5
_numbers = count(1)


def wait_until_all_know(brokers: str, topic: str, partitions: int) -> None:
    """Return when every broker that runs names a leader for each partition.

    Args:
        brokers: All of them, as in `bootstrap.servers`; without TLS and passwords.
        topic: Its name.
        partitions: How many it has.
    """
    deadline = time.monotonic() + _WAIT_S
    look_again = threading.Event()
    for broker in brokers.split(","):
        while (found := _leader_epochs(broker, topic)) is not None and len(found) < partitions:
            if time.monotonic() > deadline:
                raise AssertionError(f"{broker} knows leaders of {topic} {found}: {partitions}?")
            look_again.wait(0.02)  # metadata spreads from the controller; no event tells of it


def difference_on_steady_leaders(
    brokers: str, places: Iterator[tuple[str, int]], compare: Callable[[str, int], str]
) -> str:
    """What a comparison with a cluster finds while none of the partitions it needs moves.

    A new leader, also a group's or a transaction's coordinator, forgets sessions and who waits to
    join, so what is seen then is another history's.

    Args:
        brokers: As of `wait_until_all_know`.
        places: Topics and partitions, as many as are needed; each is used once.
        compare: Takes one of them, gives what differs or "".
    """
    found = ""
    for place in islice(places, _MOST_ATTEMPTS):
        before = _newest_epochs(brokers, place[0])
        try:
            found = compare(*place)
        except Exception as failure:
            if _newest_epochs(brokers, place[0]) == before:
                raise
            found = repr(failure)
            continue
        if not found or _newest_epochs(brokers, place[0]) == before:
            return found
    return f"leaders have moved in each of {_MOST_ATTEMPTS} attempts; at last: {found}"


def _newest_epochs(brokers: str, topic: str) -> list[dict[int, int]]:
    """The newest leader epochs that any broker knows."""
    newest: list[dict[int, int]] = []
    for name in (topic, *_INTERNAL_TOPICS):
        known = [_leader_epochs(broker, name) or {} for broker in brokers.split(",")]
        numbers = {number for epochs in known for number in epochs}
        newest.append({n: max(epochs.get(n, -1) for epochs in known) for n in numbers})
    return newest


def _leader_epochs(broker: str, topic: str) -> dict[int, int] | None:
    """Of the topic's partitions that have a leader, as one broker knows; None: it is away."""
    host, _, port = broker.rpartition(":")
    name = topic.encode()
    number = next(_numbers)
    request = struct.pack(
        f">hhihih{len(name)}s?", _METADATA, _VERSION, number, -1, 1, len(name), name, False
    )  # null for the client's name, one topic, which is not to be made
    try:
        with socket.create_connection((host, int(port)), timeout=_WAIT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                (size,) = struct.unpack(">i", answer.read(4))
                fields = _Fields(answer.read(size))
    except (ConnectionError, struct.error):  # the latter: it closed the connection
        return None
    assert fields.int32() == number
    fields.int32()  # for how long it throttles
    for _ in range(fields.int32()):
        _pass_over_broker(fields)
    fields.text()  # the cluster's id
    fields.int32()  # the controller
    assert fields.int32() == 1
    fields.int16()  # the topic's error
    fields.text()  # its name
    fields.int8()  # whether it is internal
    partitions = [_partition(fields) for _ in range(fields.int32())]
    return {number: epoch for number, leader, epoch in partitions if leader >= 0}


def _pass_over_broker(broker: _Fields) -> None:
    broker.int32()  # its id
    broker.text()  # its host
    broker.int32()  # its port
    broker.text()  # its rack


def _partition(partition: _Fields) -> tuple[int, int, int]:
    """Its number, leader and leader epoch."""
    partition.int16()  # its error
    number, leader, epoch = (partition.int32() for _ in range(3))
    for _ in ("replicas", "in sync", "offline"):
        for _ in range(partition.int32()):
            partition.int32()
    return number, leader, epoch


class _Fields:
    """Reads Kafka's primitive types one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def _take(self, code: str) -> int:
        (value,) = struct.unpack_from(code, self._data, self._place)
        self._place += struct.calcsize(code)
        return int(value)

    def int8(self) -> int:
        return self._take(">b")

    def int16(self) -> int:
        return self._take(">h")

    def int32(self) -> int:
        return self._take(">i")

    def text(self) -> None:
        """Pass over a string, which may be null."""
        length = max(0, self.int16())
        self._place += length
