"""What the clients of one process share: store clients, the admin client, the memory cache.

Decides only who shares with whom: the same settings give the same object, which is closed when its
last user lets it go. Never reads settings beyond what tells resources apart.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from blobmsg.cache.memory import MemoryCache
from blobmsg.store.instrumented import StoreCounters
from blobmsg.store.open import open_store, resolve_store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from blobmsg.config import Settings
    from blobmsg.store.base import Store

__all__ = ["SharedResources", "StoreLease", "shared"]

_T = TypeVar("_T")


class StoreLease:
    """A store and its counters, shared by the clients with the same settings.

    Args:
        url: Where it is.
        store: With retries and counting.
        counters: Requests and bytes since it was opened, of all its users.
    """

    __slots__ = ("counters", "store", "url")

    def __init__(self, url: str, store: Store, counters: StoreCounters) -> None:
        self.url = url
        self.store = store
        self.counters = counters


class SharedResources:
    """A registry with a count of users per resource.

    Threads: any; the lock guards `_held`, and opening happens under it, so that two clients that
    start together share one resource.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Hashable, tuple[Any, int]] = {}

    def acquire(self, name: Hashable, open_resource: Callable[[], _T]) -> _T:
        """Share a resource.

        Args:
            name: What tells it apart.
            open_resource: Makes it, when nobody holds it yet.
        """
        with self._lock:
            held = self._held.get(name)
            resource: _T = open_resource() if held is None else held[0]
            self._held[name] = (resource, 1 if held is None else held[1] + 1)
            return resource

    def release(self, name: Hashable) -> Any | None:
        """Let go of a resource; returns it when nobody holds it any more, to be closed."""
        with self._lock:
            resource, users = self._held[name]
            if users > 1:
                self._held[name] = (resource, users - 1)
                return None
            del self._held[name]
            return resource

    def forget_all(self) -> None:
        """After a fork, in the child: what the parent holds is not ours to use or close."""
        self._lock = threading.Lock()
        self._held = {}


#: Of this process.
shared: Final = SharedResources()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.forget_all)


class Stores:
    """The stores that one client uses, by the name that notifications carry.

    Args:
        settings: The client's.

    Threads: any.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._leases: dict[str, StoreLease] = {}

    def get(self, name: str = "") -> StoreLease:
        """The store of this name, opened at the first call.

        Raises:
            ConfigError: The client's settings have no store of this name.
        """
        with self._lock:
            lease = self._leases.get(name)
            if lease is None:
                url = resolve_store_url(name, self._settings)
                lease = shared.acquire(self._name(url), lambda: self._open(url))
                self._leases[name] = lease
            return lease

    def _open(self, url: str) -> StoreLease:
        counters = StoreCounters()
        return StoreLease(url, open_store(url, self._settings, counters=counters), counters)

    def _name(self, url: str) -> Hashable:
        settings = self._settings
        threads = (settings.upload_threads, settings.fetch_threads, settings.request_timeout_ms)
        return ("store", url, settings.s3, threads)

    def totals(self) -> dict[str, int]:
        """Requests and bytes of the stores in use, by all clients that share them."""
        with self._lock:
            leases = list(self._leases.values())
        totals: dict[str, int] = {}
        for lease in leases:
            for name, amount in lease.counters.snapshot().as_dict().items():
                totals[name] = totals.get(name, 0) + amount
        return totals

    def close(self) -> None:
        """Let go of all; idempotent."""
        with self._lock:
            leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            if shared.release(self._name(lease.url)) is not None:
                lease.store.close()


def acquire_cache(limit_bytes: int) -> MemoryCache:
    """The process' memory cache of this size."""
    return shared.acquire(("cache", limit_bytes), lambda: MemoryCache(limit_bytes))


def release_cache(limit_bytes: int) -> None:
    """Let go of the cache of this size."""
    cache: MemoryCache | None = shared.release(("cache", limit_bytes))
    if cache is not None:
        cache.close()


def freeze(conf: Mapping[str, Any]) -> Hashable:
    """A settings dict as something hashable, to tell resources apart."""
    return tuple(sorted((key, str(value)) for key, value in conf.items()))
