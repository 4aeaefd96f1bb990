"""Counts what goes to a store: the numbers behind statistics and the bill.

One call is one request: this wrapper stands inside the retrying one, so every attempt counts,
as it does on the bill. It never changes a call, a result or an error.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from blobmsg.errors import BlobmsgError
from blobmsg.store.base import pieces_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from blobmsg.format.ranges import ByteRange
    from blobmsg.store.base import Body, ObjectInfo, Store

__all__ = ["CounterSnapshot", "InstrumentedStore", "StoreCounters"]

DELETE_KEYS_PER_REQUEST = 1000  # S3 DeleteObjects takes so many
LIST_KEYS_PER_REQUEST = 1000  # S3 ListObjectsV2 gives so many


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """What went to the store so far.

    Attributes:
        puts: PUT requests sent, failed ones included.
        gets: GET and HEAD requests sent (billed alike), failed ones included.
        deletes: Delete requests, each up to 1000 keys.
        lists: List requests, each up to 1000 keys.
        put_bytes: Bytes of the objects whose PUT succeeded.
        get_bytes: Bytes that GETs returned.
        errors: Requests that raised.
        retries: Requests repeated after an error.
    """

    puts: int = 0
    gets: int = 0
    deletes: int = 0
    lists: int = 0
    put_bytes: int = 0
    get_bytes: int = 0
    errors: int = 0
    retries: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)


class StoreCounters:
    """Counters that many threads add to.

    Threads: any. `_lock` guards `_counts`; a snapshot is of one moment.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = CounterSnapshot().as_dict()

    def add(self, **amounts: int) -> None:
        """Add to counters by name.

        Raises:
            KeyError: No such counter.
        """
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def snapshot(self) -> CounterSnapshot:
        """All counters at one moment."""
        with self._lock:
            return CounterSnapshot(**self._counts)


class InstrumentedStore:
    """A store whose requests are counted.

    Args:
        inner: Does the work.
        counters: Added to; may be shared by several stores.

    Threads: any.
    """

    def __init__(self, inner: Store, counters: StoreCounters) -> None:
        self._inner = inner
        self._counters = counters

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        """See `Store.put`."""
        self._counters.add(puts=1)
        with self._counted_errors():
            self._inner.put(key, data, deadline_ms=deadline_ms, crc32=crc32)
        self._counters.add(put_bytes=sum(piece.nbytes for piece in pieces_of(data)))

    def put_if_absent(self, key: str, data: Body, *, deadline_ms: int) -> bool:
        """See `Store.put_if_absent`; one that was refused counts as sent."""
        self._counters.add(puts=1)
        with self._counted_errors():
            is_stored = self._inner.put_if_absent(key, data, deadline_ms=deadline_ms)
        if is_stored:
            self._counters.add(put_bytes=sum(piece.nbytes for piece in pieces_of(data)))
        return is_stored

    def get_range(self, key: str, byte_range: ByteRange, *, deadline_ms: int) -> bytes:
        """See `Store.get_range`."""
        self._counters.add(gets=1)
        with self._counted_errors():
            data = self._inner.get_range(key, byte_range, deadline_ms=deadline_ms)
        self._counters.add(get_bytes=len(data))
        return data

    def read_range(
        self,
        key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        """See `Store.read_range`."""
        self._counters.add(gets=1)
        with self._counted_errors():
            self._inner.read_range(key, byte_range, targets, deadline_ms=deadline_ms)
        self._counters.add(get_bytes=byte_range.length)

    def size(self, key: str) -> int:
        """See `Store.size`."""
        self._counters.add(gets=1)
        with self._counted_errors():
            return self._inner.size(key)

    def get_tail(self, key: str, length_bytes: int) -> bytes:
        """See `Store.get_tail`."""
        self._counters.add(gets=1)
        with self._counted_errors():
            data = self._inner.get_tail(key, length_bytes)
        self._counters.add(get_bytes=len(data))
        return data

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list_keys`; a request is counted as its first key is asked for."""
        with self._counted_errors():
            self._counters.add(lists=1)
            listing = self._inner.list_keys(prefix, start_after)
            for number, info in enumerate(listing):
                if number and number % LIST_KEYS_PER_REQUEST == 0:
                    self._counters.add(lists=1)
                yield info

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store.delete`."""
        self._counters.add(deletes=-(-len(keys) // DELETE_KEYS_PER_REQUEST))
        with self._counted_errors():
            self._inner.delete(keys)

    def describe(self) -> str:
        """The inner store's."""
        return self._inner.describe()

    def close(self) -> None:
        """Close the inner store."""
        self._inner.close()

    @contextmanager
    def _counted_errors(self) -> Generator[None, None, None]:
        try:
            yield
        except BlobmsgError:
            self._counters.add(errors=1)
            raise
