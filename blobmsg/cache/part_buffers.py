"""Memory that fetched parts are read into, used again once nobody refers to it.

Pages that are fresh from the system cost more than the copy that fills them: on virtual machines a
page fault took 3 to 8 us, 1 to 2 us per KiB read. Decides which memory is kept for the next part;
never knows what is in it.
"""

from __future__ import annotations

import mmap
import sys
import threading
import time
from sys import getrefcount
from typing import Final, TypeAlias

__all__ = ["SMALLEST_BYTES", "PartBuffer", "PartBuffers", "StoredPart", "memory_of"]

# The C library keeps memory of smaller pieces by itself, and every buffer is a mapping, of which a
# process may have 65,530.
SMALLEST_BYTES: Final = 128 << 10
_SIZES_PER_DOUBLING: Final = 8  # parts of one topic differ by some percent and share a size
# Reference counts are exact only where one thread at a time runs Python.
_COUNTS_ARE_EXACT: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()


class PartBuffer:
    """One part's memory.

    Args:
        data: At least `length_bytes` long. A slice of it is a copy, as one of `bytes` is.
        length_bytes: The part's length, `len()` of this.

    Threads: one until it is filled, then any.
    """

    __slots__ = ("_length_bytes", "data")

    def __init__(self, data: mmap.mmap, length_bytes: int) -> None:
        self.data = data
        self._length_bytes = length_bytes

    def __len__(self) -> int:
        return self._length_bytes

    def view(self) -> memoryview:
        """The part's bytes, to be filled."""
        return memoryview(self.data)[: self._length_bytes]


# As fetched: small parts are `bytes`.
StoredPart: TypeAlias = bytes | PartBuffer


def memory_of(stored: StoredPart) -> bytes | mmap.mmap:
    """What holds a part's bytes, from its beginning; a slice of it is a copy in `bytes`."""
    return stored if isinstance(stored, bytes) else stored.data


class PartBuffers:
    """Buffers of a fetcher's parts.

    Memory is free when its reference count says that nobody but this pool has it: no message, no
    cache, no view, no garbage that a finalizer could still look at.

    Args:
        keep_bytes: With a new buffer, free ones beyond this go back to the system.

    Threads: any. `_lock` guards all fields.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._buffers: dict[int, list[mmap.mmap]] = {}  # all, by capacity
        self._taken_at_s = time.monotonic()

    @property
    def free_bytes(self) -> int:
        """Capacity of the buffers that nobody uses."""
        with self._lock:
            return sum(map(_free_bytes, self._buffers.values()))

    def take(self, length_bytes: int) -> PartBuffer:
        """A buffer for a part of this length, which has whatever was there before."""
        capacity_bytes = _capacity_bytes(length_bytes)
        with self._lock:
            self._taken_at_s = time.monotonic()
            data = _first_free(self._buffers.get(capacity_bytes, []))
            if data is None:
                data = _new_memory(capacity_bytes)
                self._drop_free(self._keep_bytes)
                if _COUNTS_ARE_EXACT:
                    self._buffers.setdefault(capacity_bytes, []).append(data)
            return PartBuffer(data, length_bytes)

    def drop_unused(self, for_s: float) -> None:
        """Give free memory back to the system when none was taken for so long."""
        with self._lock:
            if time.monotonic() - self._taken_at_s >= for_s:
                self._drop_free(0)

    def _drop_free(self, keep_bytes: int) -> None:
        for buffers in self._buffers.values():
            for place in range(len(buffers) - 1, -1, -1):
                if getrefcount(buffers[place]) == _REFERENCES_IN_A_LIST:
                    keep_bytes -= len(buffers[place])
                    if keep_bytes < 0:
                        del buffers[place]


def _first_free(buffers: list[mmap.mmap]) -> mmap.mmap | None:
    for data in buffers:
        if getrefcount(data) == _REFERENCES_IN_A_LOOP:
            return data
    return None


def _free_bytes(buffers: list[mmap.mmap]) -> int:
    return sum(len(data) for data in buffers if getrefcount(data) == _REFERENCES_IN_A_LOOP)


# What `getrefcount` says of an object that only a list has: the same expressions as above.
def _references_in_a_loop(objects: list[object]) -> int:
    for found in objects:
        return getrefcount(found)
    raise AssertionError("an empty list")


_REFERENCES_IN_A_LOOP: Final = _references_in_a_loop([object()])
_ONE_OBJECT: Final = [object()]
_REFERENCES_IN_A_LIST: Final = getrefcount(_ONE_OBJECT[0])


def _new_memory(capacity_bytes: int) -> mmap.mmap:
    """Memory that is taken from the system when something is written.

    Private: a process that was forked keeps what it had, whatever is read here later.
    """
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, capacity_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, capacity_bytes)


def _capacity_bytes(length_bytes: int) -> int:
    """The size that a part of this length shares with others, at most an eighth larger."""
    step = max(mmap.PAGESIZE, (1 << (length_bytes.bit_length() - 1)) // _SIZES_PER_DOUBLING)
    return -(-length_bytes // step) * step
