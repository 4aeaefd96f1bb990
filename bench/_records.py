"""The records of the bench and the oracle that knows whether all of them arrived.

Decides what is sent and what must come back: how many records each partition has, what they add up
to, in which order they are. Knows no client of ours: partitions are CRC-32 of the key modulo their
number, as librdkafka's default partitioner has it.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Tally", "TallyMaker", "Workload", "differences", "expected_tally", "make_records"]

_BLOCK_BYTES = 1 << 20
_SUM_BITS = 128
# Its numbers are random, of 16 bits each.
_EVENT = (
    b'{"year":2013,"carrier":"UA","flight":%d,"tailnum":"N%dUA","origin":"EWR","dest":"IAH",'
    b'"dep_delay":%d,"arr_delay":%d,"air_time":%d,"distance":%d}'
)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent, and to how many partitions.

    Attributes:
        value_bytes: Of each record; its key has 8 more.
        is_text: JSON, which compresses; else random bytes, which don't.
        partitions: Of each topic.
        seed: The same seed gives the same records in every process.
    """

    value_bytes: int = 1024
    is_text: bool = False
    partitions: int = 12
    seed: int = 1

    def records_of(self, mebibytes: int) -> int:
        """How many values make up so much."""
        return (mebibytes << 20) // self.value_bytes


def make_records(count: int, workload: Workload) -> tuple[list[bytes], list[bytes]]:
    """Keys (the record's number, 8 digits) and values.

    Args:
        count: How many, up to 100 million.
        workload: Of what kind.
    """
    blocks = _text(workload.seed) if workload.is_text else _noise(workload.seed)
    size = workload.value_bytes
    values: list[bytes] = []
    rest = b""
    while len(values) < count:
        rest += next(blocks)
        whole = len(rest) // size * size
        values.extend(rest[at : at + size] for at in range(0, whole, size))
        rest = rest[whole:]
    del values[count:]
    return [b"%08d" % number for number in range(count)], values


def _noise(seed: int) -> Iterator[bytes]:
    # Twice as fast as `random.randbytes`, and every process makes them anew.
    for number in itertools.count():
        yield hashlib.shake_128(b"%d %d" % (seed, number)).digest(_BLOCK_BYTES)


def _text(seed: int) -> Iterator[bytes]:
    numbers_each = _EVENT.count(b"%d")
    for block in _noise(seed):
        numbers = array("H", block).tolist()
        yield b"".join(
            _EVENT % tuple(numbers[at : at + numbers_each])
            for at in range(0, len(numbers) - numbers_each, numbers_each)
        )


@dataclass(slots=True)
class Tally:
    """What was read, by partition.

    Attributes:
        counts: Records.
        sums: Sum of the records' hashes modulo 2^128, as hex: whatever their order.
        out_of_order: Records whose number or offset was not above the one before.
    """

    counts: list[int]
    sums: list[str]
    out_of_order: int


class TallyMaker:
    """Adds up records as they come.

    Args:
        partitions: How many the topic has.

    Threads: one.
    """

    __slots__ = ("_counts", "_last_numbers", "_last_offsets", "_out_of_order", "_sums")

    def __init__(self, partitions: int) -> None:
        self._counts = [0] * partitions
        self._sums = [0] * partitions
        self._last_numbers = [-1] * partitions
        self._last_offsets = [-1] * partitions
        self._out_of_order = 0

    def add(self, partition: int, offset: int, key: bytes, value: bytes) -> None:
        """Take one record.

        Args:
            partition: Its partition.
            offset: Its offset; must grow within a partition.
            key: From `make_records`.
            value: From `make_records`.
        """
        number = int(key)
        if number <= self._last_numbers[partition] or offset <= self._last_offsets[partition]:
            self._out_of_order += 1
        self._last_numbers[partition] = number
        self._last_offsets[partition] = offset
        self._counts[partition] += 1
        digest = hashlib.blake2b(key + value, digest_size=_SUM_BITS // 8).digest()
        self._sums[partition] += int.from_bytes(digest, "big")

    def tally(self) -> Tally:
        """What was added so far."""
        return Tally(
            counts=list(self._counts),
            sums=[f"{total % (1 << _SUM_BITS):032x}" for total in self._sums],
            out_of_order=self._out_of_order,
        )


def expected_tally(keys: list[bytes], values: list[bytes], partitions: int) -> Tally:
    """What must be read when exactly these records were produced, once each and in order."""
    maker = TallyMaker(partitions)
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        maker.add(zlib.crc32(key) % partitions, number, key, value)
    return maker.tally()


def differences(expected: Tally, found: Tally) -> list[str]:
    """Sentences about what is wrong; none when every record is there, once and in order."""
    wrong: list[str] = []
    for partition, (wanted, got) in enumerate(zip(expected.counts, found.counts, strict=True)):
        if got != wanted:
            kind = "lost" if got < wanted else "too many"
            wrong.append(f"partition {partition}: {abs(got - wanted)} of {wanted} records {kind}")
        elif expected.sums[partition] != found.sums[partition]:
            wrong.append(f"partition {partition}: {wanted} records, but not those produced")
    if found.out_of_order:
        wrong.append(f"{found.out_of_order} records out of order")
    return wrong
