"""Memory that fetched parts are read into, used again once nobody refers to one.

Pages that are fresh from the system cost more than the copy that fills them: on virtual machines a
page fault took 3 to 8 us, 1 to 2 us per KiB read. Decides which memory is kept for the next part;
never knows what is in it.
"""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SMALLEST_BYTES", "PartBuffer", "PartBuffers", "StoredPart"]

# The C library keeps memory of smaller pieces by itself, and every buffer is a mapping, of which a
# process may have 65,530.
SMALLEST_BYTES: Final = 128 << 10
_SIZES_PER_DOUBLING: Final = 8  # parts of one topic differ by some percent and share a size


class PartBuffer:
    """One part's memory; given back for reuse when the last reference to it goes.

    Whoever keeps `data`, or a view of it, keeps the PartBuffer as well. A slice of `data` is a copy
    in `bytes`, as of `bytes` itself.

    Args:
        data: At least `length_bytes` long.
        length_bytes: The part's length, `len()` of this.
        give_back: Called with `data` at the end, in any thread.

    Threads: one until it is filled, then any.
    """

    __slots__ = ("_give_back", "_length_bytes", "data")

    def __init__(
        self, data: mmap.mmap, length_bytes: int, give_back: Callable[[mmap.mmap], None]
    ) -> None:
        self.data = data
        self._length_bytes = length_bytes
        self._give_back = give_back

    def __len__(self) -> int:
        return self._length_bytes

    def __del__(self) -> None:
        self._give_back(self.data)

    def view(self) -> memoryview:
        """The part's bytes, to be filled."""
        return memoryview(self.data)[: self._length_bytes]


# As fetched: small parts are `bytes`.
StoredPart: TypeAlias = bytes | PartBuffer


class PartBuffers:
    """Buffers of a fetcher's parts.

    Args:
        keep_bytes: Free buffers together are not larger than this; further ones go to the system.

    Threads: any. `_lock` guards all fields. A buffer that comes back while somebody holds it is
    dropped instead of waited with, for Python may take any moment to end an object, one within
    `take` in the same thread included.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._free: dict[int, list[mmap.mmap]] = {}  # by capacity
        self._free_bytes = 0

    @property
    def free_bytes(self) -> int:
        """Capacity of the buffers that nobody uses."""
        return self._free_bytes

    def take(self, length_bytes: int) -> PartBuffer:
        """A buffer for a part of this length, which has whatever was there before."""
        capacity_bytes = _capacity_bytes(length_bytes)
        data: mmap.mmap | None = None
        with self._lock:
            free = self._free.get(capacity_bytes)
            if free:
                data = free.pop()
                self._free_bytes -= capacity_bytes
        if data is None:
            data = mmap.mmap(-1, capacity_bytes)  # takes no memory before something is written
        return PartBuffer(data, length_bytes, self._give_back)

    def drop_free(self) -> None:
        """Give the memory of all free buffers back to the system."""
        with self._lock:
            self._free.clear()
            self._free_bytes = 0

    def _give_back(self, data: mmap.mmap) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            capacity_bytes = len(data)
            if self._free_bytes + capacity_bytes <= self._keep_bytes:
                self._free.setdefault(capacity_bytes, []).append(data)
                self._free_bytes += capacity_bytes
        finally:
            self._lock.release()


def _capacity_bytes(length_bytes: int) -> int:
    """The size that a part of this length shares with others, at most an eighth larger."""
    step = max(mmap.PAGESIZE, (1 << (length_bytes.bit_length() - 1)) // _SIZES_PER_DOUBLING)
    return -(-length_bytes // step) * step
