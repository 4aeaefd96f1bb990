"""Objects in this process's memory, shared by name: `memory://name`.

For tests and examples. Two stores opened with one name see the same objects, as two clients of
one bucket would; nothing outlives the process, and nothing limits the memory taken.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from blobmsg.store.base import (
    Body,
    ObjectInfo,
    check_key,
    fill_targets,
    object_missing,
    pieces_of,
    range_outside_object,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blobmsg.format.ranges import ByteRange

__all__ = ["MemoryStore"]


class MemoryStore:
    """Objects in memory.

    Args:
        name: Stores of one name share their objects for the life of the process.

    Threads: any. `_names_lock` guards `_by_name`, and `put_if_absent` against itself; an object's
    bytes never change, and single dict operations are atomic, so objects need no other lock.
    """

    _names_lock: ClassVar[threading.Lock] = threading.Lock()
    _by_name: ClassVar[dict[str, dict[str, bytes]]] = {}

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_closed = False
        with self._names_lock:
            self._objects = self._by_name.setdefault(name, {})

    @classmethod
    def forget(cls, name: str) -> None:
        """Drop all objects of a name, e.g. at a test's end; open stores of it see none."""
        with cls._names_lock:
            objects = cls._by_name.pop(name, None)
        if objects is not None:
            objects.clear()

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        """See `Store.put`; immediate, whatever the deadline."""
        self._check_open()
        check_key(key)
        self._objects[key] = data if isinstance(data, bytes) else b"".join(pieces_of(data))

    def put_if_absent(self, key: str, data: Body, *, deadline_ms: int) -> bool:
        """See `Store.put_if_absent`; immediate, whatever the deadline."""
        self._check_open()
        check_key(key)
        content = data if isinstance(data, bytes) else b"".join(pieces_of(data))
        with self._names_lock:
            if key in self._objects:
                return False
            self._objects[key] = content
        return True

    def get_range(self, key: str, byte_range: ByteRange, *, deadline_ms: int) -> bytes:
        """See `Store.get_range`; immediate, whatever the deadline."""
        data = self._get(key, byte_range)
        if byte_range.end > len(data):
            raise range_outside_object(self.describe(), key, byte_range, len(data))
        return data[byte_range.start : byte_range.end]

    def read_range(
        self,
        key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        """See `Store.read_range`."""
        fill_targets(targets, self.get_range(key, byte_range, deadline_ms=deadline_ms))

    def size(self, key: str) -> int:
        """See `Store.size`."""
        return len(self._get(key))

    def get_tail(self, key: str, length_bytes: int) -> bytes:
        """See `Store.get_tail`."""
        data = self._get(key)
        return data[max(0, len(data) - length_bytes) :]

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list_keys`; a snapshot of the moment of the call."""
        self._check_open()
        after = start_after.encode()
        found = sorted(
            (key.encode(), len(data))
            for key, data in list(self._objects.items())
            if key.startswith(prefix)
        )
        return iter(
            [ObjectInfo(key.decode(), size) for key, size in found if not after or key > after]
        )

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store.delete`."""
        self._check_open()
        for key in keys:
            self._objects.pop(key, None)

    def describe(self) -> str:
        """The store's url."""
        return f"memory://{self._name}"

    def close(self) -> None:
        """Refuse further calls; the objects stay for other stores of the name."""
        self._is_closed = True

    def _get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self._check_open()
        check_key(key)
        data = self._objects.get(key)
        if data is None:
            raise object_missing(self.describe(), key, byte_range)
        return data

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"store {self.describe()} has been closed")
