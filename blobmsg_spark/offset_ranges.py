"""Which offsets a batch reads: from the checkpoint's form to ranges for tasks.

Decides how offsets are written down, which of them Kafka no longer has, and how many tasks share a
partition. Never asks Kafka, never counts records: all offsets are virtual unless they are called
Kafka's, and those of Kafka's log come in as arguments.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

from blobmsg.core.offsets import remaining_records, to_kafka, to_virtual

__all__ = [
    "Key",
    "LogBounds",
    "OffsetRange",
    "Offsets",
    "decode_offsets",
    "encode_offsets",
    "looks_like_kafka_offset",
    "readable_ranges",
    "split_ranges",
]

Key: TypeAlias = tuple[str, int]  # topic, partition
Offsets: TypeAlias = Mapping[Key, int]

_EXAMPLE: Final = '{"topic": {"0": 1048576}}'


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What Kafka's log of a partition has, in Kafka's own offsets.

    Attributes:
        low: Of the first record.
        high: Behind the last one that may be read.
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Consecutive records of one partition, which one task reads.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        start: Virtual offset of the first record, or before it.
        end: Virtual offset behind the last record.

    Raises:
        ValueError: It ends before it starts.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"no range of offsets: {self.start} to {self.end}")

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def kafka_start(self) -> int:
        """The first Kafka offset to read."""
        return to_kafka(self.start)

    @property
    def kafka_stop(self) -> int:
        """Behind the last Kafka offset to read, some of whose records may lie behind `end`."""
        return to_kafka(self.end) + (remaining_records(self.end) is not None)

    @property
    def kafka_offsets(self) -> int:
        """How many of Kafka's offsets are read."""
        return self.kafka_stop - self.kafka_start

    def __str__(self) -> str:
        return f"{self.topic} [{self.partition}], virtual offsets {self.start} to {self.end}"


def encode_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    """The checkpoint's form: topic, partition, virtual offset.

    In order of their names and numbers: Spark tells offsets apart by their text.
    """
    encoded: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        encoded.setdefault(topic, {})[str(partition)] = offset
    return encoded


def decode_offsets(encoded: Mapping[str, Any]) -> dict[Key, int]:
    """The offsets of a checkpoint.

    Raises:
        ValueError: They are not in that form.
    """
    offsets: dict[Key, int] = {}
    for topic, partitions in encoded.items():
        if not isinstance(partitions, Mapping):
            raise ValueError(f"offsets look like {_EXAMPLE}, not {dict(encoded)}")  # noqa: TRY004
        for partition, offset in partitions.items():
            is_number = partition.isascii() and partition.isdigit()
            if not is_number or type(offset) is not int or offset < 0:
                raise ValueError(f"offsets look like {_EXAMPLE}, not {dict(encoded)}")
            offsets[topic, int(partition)] = offset
    return offsets


def looks_like_kafka_offset(offset: int, bounds: LogBounds) -> bool:
    """Whether an offset that a user gave is Kafka's own and was not converted.

    As `blobmsg.offset.check` of the consumer: it lies in Kafka's log, and as a virtual offset
    before it.
    """
    return bounds.low <= offset <= bounds.high and to_kafka(offset) < bounds.low


def _find_losses(ranges: list[OffsetRange], bounds: Mapping[Key, LogBounds]) -> dict[Key, str]:
    """What can't be read of these ranges, in words.

    Args:
        ranges: At most one per partition.
        bounds: Of the partitions that exist.
    """
    losses: dict[Key, str] = {}
    for wanted in ranges:
        bound = bounds.get(wanted.key)
        if wanted.start == wanted.end and bound is not None and wanted.kafka_start <= bound.high:
            continue  # nothing to read: a partition that rests while its records grow old
        if bound is None:
            losses[wanted.key] = f"{wanted}: the partition is gone"
        elif wanted.kafka_start < bound.low:
            losses[wanted.key] = (
                f"{wanted}: Kafka has deleted what lies before {to_virtual(bound.low)}"
            )
        elif wanted.kafka_stop > bound.high:
            losses[wanted.key] = (
                f"{wanted}: the log ends at {to_virtual(bound.high)} (the topic was made anew, or "
                "an election has cut its log)"
            )
    return losses


def _clamp(wanted: OffsetRange, bounds: LogBounds | None) -> OffsetRange | None:
    """What of a range can be read; None: nothing."""
    if bounds is None:
        return None
    start = max(wanted.start, to_virtual(bounds.low))
    end = min(wanted.end, to_virtual(bounds.high))
    return OffsetRange(wanted.topic, wanted.partition, start, end) if start < end else None


def split_ranges(ranges: list[OffsetRange], at_least: int) -> list[OffsetRange]:
    """Cut ranges until there are so many, or each has one Kafka offset.

    The one with the most Kafka offsets to a piece is cut first. Always between Kafka's offsets:
    two tasks that share a notification would fetch its segment twice.

    Args:
        ranges: None of them empty.
        at_least: `minPartitions`.
    """
    pieces = [1] * len(ranges)
    heap = [(-float(found.kafka_offsets), place) for place, found in enumerate(ranges)]
    heapq.heapify(heap)
    missing = at_least - len(ranges)
    while missing > 0 and heap:
        _, place = heapq.heappop(heap)
        count = ranges[place].kafka_offsets
        if pieces[place] < count:
            pieces[place] += 1
            missing -= 1
            heapq.heappush(heap, (-count / pieces[place], place))
    return [
        piece for found, count in zip(ranges, pieces, strict=True) for piece in _cut(found, count)
    ]


def _cut(found: OffsetRange, pieces: int) -> list[OffsetRange]:
    first, count = found.kafka_start, found.kafka_offsets
    inner = [to_virtual(first + count * number // pieces) for number in range(1, pieces)]
    borders = [found.start, *inner, found.end]
    return [
        OffsetRange(found.topic, found.partition, start, end) for start, end in pairwise(borders)
    ]


def readable_ranges(
    wanted: list[OffsetRange], bounds: Mapping[Key, LogBounds]
) -> tuple[list[OffsetRange], dict[Key, str]]:
    """What is there of some ranges, and in words what is not.

    Args:
        wanted: At most one per partition.
        bounds: Of the partitions that exist.

    Returns:
        Ranges with something in them; losses by partition.
    """
    clamped = (_clamp(found, bounds.get(found.key)) for found in wanted)
    return [found for found in clamped if found is not None], _find_losses(wanted, bounds)
