"""The nearest tier: a least-recently-used cache of ranges in this process, limited in bytes.

Decides what is kept: the ranges used last whose bytes, with what Python needs around them, fit
the limit; a range that alone is over the limit is not kept at all. It never copies what it
keeps, and never holds two ranges of which one contains the other.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

from blobmsg.cache.part_buffers import memory_of

if TYPE_CHECKING:
    from blobmsg.cache.part_buffers import StoredPart
    from blobmsg.format.ranges import ByteRange

__all__ = ["ENTRY_OVERHEAD_BYTES", "MemoryCache"]

# 450 to 575 measured with tracemalloc (dicts double) for entries of one byte in objects of their
# own, the worst case: dict nodes, tuples, lists, the key's text and the bytes object's header.
ENTRY_OVERHEAD_BYTES = 640


class MemoryCache:
    """A byte-bounded LRU of ranges.

    Args:
        limit_bytes: Upper bound of what the entries take, overhead included; 0 keeps nothing.

    Threads: any. `_lock` guards all fields and is held for dict and list operations only.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        # Least recently used first: (store, key, start) -> data.
        self._entries: OrderedDict[tuple[str, str, int], StoredPart] = OrderedDict()
        # Starts per object, ascending. No range contains another, so the ends ascend as well.
        self._starts: dict[tuple[str, str], list[int]] = {}
        self._used_bytes = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0

    @property
    def used_bytes(self) -> int:
        """Bytes that the entries take, overhead included; never over the limit."""
        with self._lock:
            return self._used_bytes

    def stats(self) -> dict[str, int]:
        """Counters: `hits`, `misses`, `evictions`, `entries`, `used_bytes`."""
        with self._lock:
            return {
                "hits": self._hits,
                "misses": self._misses,
                "evictions": self._evictions,
                "entries": len(self._entries),
                "used_bytes": self._used_bytes,
            }

    def get(self, store: str, key: str, byte_range: ByteRange) -> StoredPart | None:
        """See `Cache.get`."""
        with self._lock:
            start = self._container_start(store, key, byte_range)
            if start is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end((store, key, start))
            data = self._entries[store, key, start]
        if start == byte_range.start and len(data) == byte_range.length:
            return data
        skipped = byte_range.start - start
        return memory_of(data)[skipped : skipped + byte_range.length]

    def fill(self, store: str, key: str, byte_range: ByteRange, data: StoredPart) -> None:
        """See `Cache.fill`."""
        if len(data) != byte_range.length:
            raise ValueError(
                f"{len(data)} bytes given for a range of {byte_range.length} of {key!r}"
            )
        cost_bytes = _cost_bytes(data)
        with self._lock:
            if cost_bytes > self._limit_bytes:
                return
            container = self._container_start(store, key, byte_range)
            if container is not None:
                self._entries.move_to_end((store, key, container))
                return
            for start in self._contained_starts(store, key, byte_range):
                self._remove(store, key, start)
            while self._used_bytes + cost_bytes > self._limit_bytes:
                self._remove(*next(iter(self._entries)))
                self._evictions += 1
            self._entries[store, key, byte_range.start] = data
            starts = self._starts.setdefault((store, key), [])
            starts.insert(bisect_right(starts, byte_range.start), byte_range.start)
            self._used_bytes += cost_bytes

    def evict(self, store: str, key: str, byte_range: ByteRange) -> None:
        """See `Cache.evict`."""
        with self._lock:
            for start in list(self._starts.get((store, key), ())):
                end = start + len(self._entries[store, key, start])
                if start < byte_range.end and byte_range.start < end:
                    self._remove(store, key, start)
                    self._evictions += 1

    def close(self) -> None:
        """See `Cache.close`."""
        with self._lock:
            self._limit_bytes = 0
            self._entries.clear()
            self._starts.clear()
            self._used_bytes = 0

    def _container_start(self, store: str, key: str, byte_range: ByteRange) -> int | None:
        starts = self._starts.get((store, key))
        if not starts:
            return None
        index = bisect_right(starts, byte_range.start)
        if index == 0:
            return None
        # Ends ascend with the starts, so the last range that begins early enough reaches furthest.
        start = starts[index - 1]
        is_inside = byte_range.end <= start + len(self._entries[store, key, start])
        return start if is_inside else None

    def _contained_starts(self, store: str, key: str, byte_range: ByteRange) -> list[int]:
        return [
            start
            for start in self._starts.get((store, key), ())
            if byte_range.start <= start
            and start + len(self._entries[store, key, start]) <= byte_range.end
        ]

    def _remove(self, store: str, key: str, start: int) -> None:
        data = self._entries.pop((store, key, start))
        starts = self._starts[store, key]
        starts.remove(start)
        if not starts:
            del self._starts[store, key]
        self._used_bytes -= _cost_bytes(data)


def _cost_bytes(data: StoredPart) -> int:
    return len(memory_of(data)) + ENTRY_OVERHEAD_BYTES
