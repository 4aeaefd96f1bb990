"""What one broker knows of a topic: librdkafka does not say which broker it asked.

A topic that was made a moment ago may be unknown to any other broker than the one that answered
last, and a test that asks that one finds no partitions.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from itertools import count

__all__ = ["wait_until_all_know"]

_METADATA = 3
_VERSION = 1
_WAIT_S = 20.0  # below pytest's own limit, so that it says what is wrong
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
        while (found := _leaders(broker, topic)) is not None and found < partitions:
            if time.monotonic() > deadline:
                raise AssertionError(f"{broker} knows {found} leaders of {topic}: {partitions}?")
            look_again.wait(0.02)  # metadata spreads from the controller; no event tells of it


def _leaders(broker: str, topic: str) -> int | None:
    """How many of the topic's partitions have a leader, as one broker knows; None: it is away."""
    host, _, port = broker.rpartition(":")
    name = topic.encode()
    number = next(_numbers)
    request = struct.pack(
        f">hhihih{len(name)}s", _METADATA, _VERSION, number, -1, 1, len(name), name
    )  # null for the client's name, and one topic
    try:
        with socket.create_connection((host, int(port)), timeout=_WAIT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                (size,) = struct.unpack(">i", answer.read(4))
                fields = _Fields(answer.read(size))
    except (ConnectionError, struct.error):  # the latter: it closed the connection
        return None
    assert fields.int32() == number
    for _ in range(fields.int32()):
        _pass_over_broker(fields)
    fields.int32()  # the controller
    assert fields.int32() == 1
    fields.int16()  # the topic's error
    fields.text()  # its name
    fields.int8()  # whether it is internal
    return sum(_has_leader(fields) for _ in range(fields.int32()))


def _pass_over_broker(broker: _Fields) -> None:
    broker.int32()  # its id
    broker.text()  # its host
    broker.int32()  # its port
    broker.text()  # its rack


def _has_leader(partition: _Fields) -> bool:
    partition.int16()  # its error
    partition.int32()  # its number
    leader = partition.int32()
    for _ in ("replicas", "in sync"):
        for _ in range(partition.int32()):
            partition.int32()
    return leader >= 0


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
