"""What has to arrive, and whether it did: record by record, apart from the code under test.

Knows the records as the source gave them and the order in which each producer sent them; works
out partitions with zlib's CRC-32 instead of our partitioner. Reads no counter of ours.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from blobmsg.demo.job import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blobmsg.demo.flights import Flight
    from blobmsg.demo.job import Arrivals

__all__ = ["Expectation", "Verdict", "digest_of"]

_EXAMPLES: Final = 3
_ANY_PARTITION: Final = -1


def digest_of(key: bytes | None, value: bytes) -> int:
    """64 bits over key and value; a missing key is not an empty one."""
    content = b"-%b" % value if key is None else b"+%b\t%b" % (key, value)
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")


@dataclass(slots=True)
class Finding:
    """How often something was found, and where first."""

    count: int = 0
    examples: list[str] = field(default_factory=list[str])

    def add(self, where: str) -> None:
        """Note one more."""
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(where)


@dataclass(slots=True)
class Verdict:
    """What the comparison found.

    Attributes:
        arrived: Records that arrived, all of them.
        lost: Sent, never arrived.
        doubled: Arrived again.
        altered: Key or value differ from the source, or belong to no record.
        reordered: Arrived after a later one of the same producer and partition.
        misplaced: Has a key and was not in that key's partition.
    """

    arrived: int = 0
    lost: Finding = field(default_factory=Finding)
    doubled: Finding = field(default_factory=Finding)
    altered: Finding = field(default_factory=Finding)
    reordered: Finding = field(default_factory=Finding)
    misplaced: Finding = field(default_factory=Finding)


class Expectation:
    """The records that are sent.

    Args:
        partition_count: Of the topic.
    """

    def __init__(self, partition_count: int) -> None:
        self._partition_count = partition_count
        self._digests: array[int] = array("Q")
        self._partitions: array[int] = array("q")
        self._producers: list[str] = []
        self.payload_bytes = 0
        self.keyless = 0

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, flight: Flight) -> None:
        """One more record; a producer sends its own in this order.

        Raises:
            ValueError: Its number is not the next one.
        """
        if flight.number != len(self) + 1:
            raise ValueError(f"record {flight.number} after {len(self)}")
        self._digests.append(digest_of(flight.key, flight.value))
        self._producers.append(flight.zone)
        self.payload_bytes += len(flight.key or b"") + len(flight.value)
        if flight.key is None:
            self.keyless += 1
            self._partitions.append(_ANY_PARTITION)
        else:
            # librdkafka's consistent_random, its default.
            self._partitions.append(zlib.crc32(flight.key) % self._partition_count)

    def judge(self, arrivals: Iterable[Arrivals]) -> Verdict:
        """Compare what arrived at all consumers; a partition belongs to one of them."""
        verdict = Verdict()
        seen = bytearray(len(self) + 1)
        latest: dict[tuple[str, int], int] = {}
        for consumer in arrivals:
            self._judge_consumer(consumer, verdict, seen, latest)
        for number in range(1, len(self) + 1):
            if not seen[number]:
                verdict.lost.add(f"id {number}")
        return verdict

    def _judge_consumer(
        self,
        consumer: Arrivals,
        verdict: Verdict,
        seen: bytearray,
        latest: dict[tuple[str, int], int],
    ) -> None:
        for number, partition, digest in zip(
            consumer.numbers, consumer.partitions, consumer.digests, strict=True
        ):
            verdict.arrived += 1
            if number == UNREADABLE or number > len(self):
                verdict.altered.add(f"something without a valid id in partition {partition}")
                continue
            index = number - 1
            if digest != self._digests[index]:
                verdict.altered.add(f"id {number} in partition {partition}")
            if self._partitions[index] not in (_ANY_PARTITION, partition):
                verdict.misplaced.add(
                    f"id {number} in partition {partition}, not {self._partitions[index]}"
                )
            if seen[number]:
                verdict.doubled.add(f"id {number} in partition {partition}")
                continue
            seen[number] = 1
            lane = (self._producers[index], partition)
            before = latest.get(lane, 0)
            if number < before:
                verdict.reordered.add(f"id {number} after {before} in partition {partition}")
            else:
                latest[lane] = number
