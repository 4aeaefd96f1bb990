"""The Protocol of a cache tier: ranges of immutable objects, by store name and object key.

Names are never reused and objects never change, so nothing here knows of invalidation or age;
`evict` is for bytes that turned out wrong. A tier never makes a read fail: what it can't give
is a miss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from blobmsg.cache.part_buffers import StoredPart
    from blobmsg.format.ranges import ByteRange

__all__ = ["Cache"]


class Cache(Protocol):
    """Keeps fetched ranges within a limit. Threads: any."""

    def get(self, store: str, key: str, byte_range: ByteRange) -> StoredPart | None:
        """The bytes of a range, out of any cached range that contains it; None for a miss.

        Args:
            store: The store's name as in notifications; empty for the default one.
            key: The object's key below the store's prefix.
            byte_range: Inside the object.

        Returns:
            What was filled when exactly this range is cached, else a copy out of the larger one.
        """
        ...

    def fill(self, store: str, key: str, byte_range: ByteRange, data: StoredPart) -> None:
        """Keep a fetched range, dropping what was not used for longest.

        Args:
            store: As in `get`.
            key: As in `get`.
            byte_range: Where in the object the data is.
            data: Its bytes, which never change from here on.

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
