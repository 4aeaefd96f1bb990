"""Byte ranges of objects, and which of them are worth one GET.

Decides how neighbouring ranges merge; never reads a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blobmsg.format.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_OBJECT_BYTES", "ByteRange", "coalesce"]

# The largest object S3 stores; also keeps every byte offset exact in a float64 (JavaScript).
MAX_OBJECT_BYTES = 5 << 40


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Some bytes of an object; ordered by start, then length.

    Attributes:
        start: First byte, from 0.
        length: How many bytes, at least 1.

    Raises:
        FormatError: It is empty, negative or ends past `MAX_OBJECT_BYTES`.

    Threads: any.
    """

    start: int
    length: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.length < 1 or self.start + self.length > MAX_OBJECT_BYTES:
            raise FormatError(
                f"no byte range: start {self.start}, length {self.length}"
                f" (start >= 0, length >= 1, end <= {MAX_OBJECT_BYTES})"
            )

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.start + self.length

    def contains(self, other: ByteRange) -> bool:
        """Whether every byte of `other` is in this range."""
        return self.start <= other.start and other.end <= self.end

    def slice_of(self, outer: ByteRange) -> slice:
        """Where this range lies in the bytes fetched for `outer`.

        Raises:
            FormatError: `outer` does not contain it.
        """
        if not outer.contains(self):
            raise FormatError(f"bytes {self} are not inside {outer}")
        return slice(self.start - outer.start, self.end - outer.start)


def coalesce(
    ranges: Iterable[ByteRange], max_gap_bytes: int, max_length_bytes: int
) -> list[ByteRange]:
    """Merge neighbouring ranges of one object, so that one GET fetches several.

    Args:
        ranges: In any order; may overlap.
        max_gap_bytes: Unwanted bytes between two ranges that are fetched along rather than
            paid for with another request; 0 merges only what touches.
        max_length_bytes: A merged range is no longer than this. A range that is longer by
            itself stays as it is.

    Returns:
        Sorted; every input lies wholly inside at least one of them.

    Threads: any.
    """
    merged: list[ByteRange] = []
    for wanted in sorted(ranges):
        if merged:
            last = merged[-1]
            if last.contains(wanted):
                continue
            end = max(last.end, wanted.end)
            if wanted.start - last.end <= max_gap_bytes and end - last.start <= max_length_bytes:
                merged[-1] = ByteRange(last.start, end - last.start)
                continue
        merged.append(wanted)
    return merged
