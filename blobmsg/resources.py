"""What the clients of one process share: store clients, the admin client, the memory cache.

Decides only who shares with whom: the same settings give the same object, which is closed when its
last user lets it go. Never reads settings beyond what tells resources apart.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka.admin import AdminClient

from blobmsg.cache.memory import MemoryCache
from blobmsg.ending import end_elsewhere
from blobmsg.forks import forget_after_fork
from blobmsg.inner_config import admin_config
from blobmsg.store.instrumented import StoreCounters
from blobmsg.store.open import open_store, resolve_store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from blobmsg.config import Settings
    from blobmsg.store.retrying import RetryingStore, Trouble

__all__ = ["SharedAdmin", "SharedResources", "StoreLease", "shared"]

_T = TypeVar("_T")
_CLOSED: Final = "the client is closed: its stores can't be used any more"


class StoreLease:
    """A store and its counters, shared by the clients with the same settings.

    Args:
        url: Where it is.
        store: With retries and counting.
        counters: Requests and bytes since it was opened, of all its users.
    """

    __slots__ = ("counters", "store", "url")

    def __init__(self, url: str, store: RetryingStore, counters: StoreCounters) -> None:
        self.url = url
        self.store = store
        self.counters = counters


class _Held:
    """A resource and the count of its users. Threads: under the registry's lock."""

    __slots__ = ("resource", "users")

    def __init__(self, resource: Any) -> None:
        self.resource = resource
        self.users = 1


class SharedResources:
    """A registry with a count of users per resource.

    Threads: any; the lock guards `_held` and `_opening`. A resource opens outside of it, while
    others that want the same one wait for the opener: so two clients that start together share it,
    and garbage collection meanwhile may end a forgotten client, which releases in the same thread.
    Such a release can also come amid the few lines under the lock, hence an RLock, and each change
    there is one step.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[Hashable, _Held] = {}
        self._opening: dict[Hashable, threading.Event] = {}

    def acquire(self, name: Hashable, open_resource: Callable[[], _T]) -> _T:
        """Share a resource.

        Args:
            name: What tells it apart.
            open_resource: Makes it, when nobody holds it yet. Must not acquire the same name.
        """
        opened = threading.Event()
        while True:
            with self._lock:
                held = self._held.get(name)
                if held is not None:
                    held.users += 1
                    if self._held.get(name) is held:
                        resource: _T = held.resource
                        return resource
                    continue  # its last user let go between the two lines above
                opening = self._opening.setdefault(name, opened)
            if opening is opened:
                return self._open(name, open_resource, opened)
            opening.wait()

    def _open(self, name: Hashable, open_resource: Callable[[], _T], opened: threading.Event) -> _T:
        try:
            resource = open_resource()
            held = _Held(resource)
            with self._lock:
                self._held[name] = held
            return resource
        finally:
            with self._lock:
                self._opening.pop(name, None)
            opened.set()

    def release(self, name: Hashable) -> Any | None:
        """Let go of a resource; returns it when nobody holds it any more, to be closed.

        Does nothing if nobody holds it, as in the child of a fork.
        """
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return None
            held.users = users = held.users - 1
            if users:
                return None
            del self._held[name]
            return held.resource

    def forget_all(self) -> object:
        """After a fork, in the child: what the parent holds is not ours to use or close.

        Returns:
            It.
        """
        self._lock = threading.RLock()
        held, self._held = self._held, {}
        self._opening = {}
        return held


#: Of this process.
shared: Final = SharedResources()
forget_after_fork(shared.forget_all)


class Stores:
    """The stores that one client uses, by the name that notifications carry.

    Args:
        settings: The client's.

    Threads: any; the lock guards `_leases` and `_is_closed`. It is not held while a store opens,
    and is an RLock: garbage collection can close a client's stores in a thread that is in here.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._leases: dict[str, StoreLease] = {}
        self._is_closed = False

    def get(self, name: str = "") -> StoreLease:
        """The store of this name, opened at the first call.

        Raises:
            ConfigError: The client's settings have no store of this name.
            RuntimeError: After `close`.
        """
        with self._lock:
            lease = self._leases.get(name)
            is_closed = self._is_closed
        if lease is not None:
            return lease
        if is_closed:
            raise RuntimeError(_CLOSED)
        url = resolve_store_url(name, self._settings)
        lease = shared.acquire(self._name(url), lambda: self._open(url))
        with self._lock:
            is_closed = self._is_closed
            is_surplus = is_closed or name in self._leases
            if not is_surplus:
                self._leases[name] = lease
        if is_surplus:  # another thread has taken this client's share, or closed it, meanwhile
            self._release(lease)
        if is_closed:
            raise RuntimeError(_CLOSED)
        return lease

    def _open(self, url: str) -> StoreLease:
        counters = StoreCounters()
        return StoreLease(url, open_store(url, self._settings, counters=counters), counters)

    def _name(self, url: str) -> Hashable:
        settings = self._settings
        threads = (settings.upload_threads, settings.fetch_threads, settings.request_timeout_ms)
        return ("store", url, settings.s3, threads)

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong with the default store now, if it is in use."""
        lease = self._leases.get("")
        return None if lease is None else lease.store.trouble

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
        """Let go of all; idempotent, and each share goes back once however many threads close."""
        with self._lock:
            self._is_closed = True
            leases, self._leases = self._leases, {}
        for lease in leases.values():
            self._release(lease)

    def _release(self, lease: StoreLease) -> None:
        if shared.release(self._name(lease.url)) is not None:
            lease.store.close()


class SharedAdmin:
    """One client's share of the AdminClient of all that connect alike.

    Args:
        kafka_conf: The client's settings for Kafka.

    Attributes:
        client: The AdminClient; None once it is released.

    Threads: any; the lock guards `_name`, `client` and `_is_released`, and is an RLock: a signal
    handler may release what is being changed over. No call lies between the look and the change.
    """

    def __init__(self, kafka_conf: Mapping[str, Any]) -> None:
        self._lock = threading.RLock()
        self._is_released = False
        self._conf = admin_config(kafka_conf)
        self._name: Hashable = ("admin", freeze(self._conf))
        self.client: Any = shared.acquire(self._name, lambda: AdminClient(self._conf))

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Change over to the AdminClient of those that have these credentials."""
        name = ("admin", freeze(self._conf), username, password)

        def connect() -> AdminClient:
            client = AdminClient(self._conf)
            client.set_sasl_credentials(username, password)
            return client

        client = shared.acquire(name, connect)
        with self._lock:
            surplus: Hashable = name
            if not self._is_released:
                self.client = client
                surplus, self._name = self._name, name
        del client
        end_elsewhere([shared.release(surplus)])

    def release(self) -> threading.Event:
        """Let go of it; a second call does nothing. See `end_elsewhere`."""
        with self._lock:
            was_released, self._is_released = self._is_released, True
            self.client = None
        return end_elsewhere([None if was_released else shared.release(self._name)])


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
