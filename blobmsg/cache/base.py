"""The Protocol of a cache tier: ranges of immutable objects, by store name and object key.

Names are never reused and objects never change, so nothing here knows of invalidation or age;
`evict` is for bytes that turned out wrong. A tier never makes a read fail: what it can't give
is a miss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from blobmsg.format.ranges import ByteRange

__all__ = ["Cache", "CachedBytes"]

CachedBytes: TypeAlias = "bytes | memoryview"


class Cache(Protocol):
    """Keeps fetched ranges within a limit. Threads: any."""

    def get(self, store: str, key: str, byte_range: ByteRange) -> CachedBytes | None:
        """The bytes of a range, out of any cached range that contains it; None for a miss.

        Args:
            store: The store's name as in notifications; empty for the default one.
            key: The object's key below the store's prefix.
            byte_range: Inside the object.

        Returns:
            `bytes` when exactly this range is cached, else a read-only view of the larger one,
            which stays in memory as long as the view does.
        """
        ...

    def fill(self, store: str, key: str, byte_range: ByteRange, data: bytes | memoryview) -> None:
        """Keep a fetched range, dropping what was not used for longest.

        Args:
            store: As in `get`.
            key: As in `get`.
            byte_range: Where in the object the data is.
            data: Its bytes. `bytes` are kept as they are, a view is copied, because it would
                keep all of its buffer alive.

        Raises:
            ValueError: The data is not `byte_range.length` long.
        """
        ...

    def evict(self, store: str, key: str, byte_range: ByteRange) -> None:
        """Drop every cached range that has a byte in common with this one."""
        ...

    def close(self) -> None:
        """Drop everything; later fills keep nothing."""
        ...
