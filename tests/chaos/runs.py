"""Consecutive records as one value, and sets of numbers as intervals: a million records stay small.

Pure; knows nothing of Kafka.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Run(NamedTuple):
    """Records of one maker that follow each other, by number and by offset.

    Attributes:
        transaction: As in `Identity`.
        instance: As in `Identity`.
        first: The first record's number.
        last: The last one's.
        offset: The first record's offset; the others' follow.
    """

    transaction: str
    instance: str
    first: int
    last: int
    offset: int

    @property
    def size(self) -> int:
        """How many records."""
        return self.last - self.first + 1


class RunBuilder:
    """Joins records, as they come, to runs."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def add(self, transaction: str, instance: str, number: int, offset: int) -> None:
        """One record more."""
        if self.runs:
            run = self.runs[-1]
            if (
                number == run.last + 1
                and offset == run.offset + run.size
                and instance == run.instance
                and transaction == run.transaction
            ):
                self.runs[-1] = run._replace(last=number)
                return
        self.runs.append(Run(transaction, instance, number, number, offset))


class Intervals:
    """A set of whole numbers, kept as intervals that neither touch nor overlap."""

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in intervals:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self)

    def add(self, first: int, last: int) -> None:
        """Put all numbers from first to last in."""
        if last < first:
            return
        low = bisect.bisect_left(self._lasts, first - 1)
        high = bisect.bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of first to last that are in the set."""
        low = bisect.bisect_left(self._lasts, first)
        found: list[tuple[int, int]] = []
        while low < len(self._firsts) and self._firsts[low] <= last:
            found.append((max(first, self._firsts[low]), min(last, self._lasts[low])))
            low += 1
        return found

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of first to last that are not in the set."""
        found: list[tuple[int, int]] = []
        begin = first
        for low, high in self.within(first, last):
            if begin < low:
                found.append((begin, low - 1))
            begin = high + 1
        if begin <= last:
            found.append((begin, last))
        return found

    def minus(self, other: Intervals) -> list[tuple[int, int]]:
        """The parts of this set that are not in the other."""
        return [part for first, last in self for part in other.missing(first, last)]
