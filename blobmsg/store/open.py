"""Builds a store from its url: the scheme's store, counted, with retries.

The only place that knows which schemes exist; `blobmsg.testing` adds its own. It reads no
environment and keeps no registry of open stores; who shares one store among several clients decides
that elsewhere.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from blobmsg.clock import SystemClock
from blobmsg.errors import ConfigError
from blobmsg.store.file import FileStore
from blobmsg.store.instrumented import InstrumentedStore, StoreCounters
from blobmsg.store.memory import MemoryStore
from blobmsg.store.retrying import RetryingStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.clock import Clock
    from blobmsg.config import Settings
    from blobmsg.store.base import Store

__all__ = ["open_raw_store", "open_store", "register_scheme", "resolve_store_url"]

# Schemes that others bring, and what opens the rest of such a url.
_more_schemes: dict[str, Callable[[str], Store]] = {}

SCHEMES = ("s3://bucket/prefix", "file:///folder", "memory://name")


def register_scheme(scheme: str, open_rest: Callable[[str], Store]) -> None:
    """Let urls of this scheme be opened; a second registration replaces the first.

    Args:
        scheme: None of `SCHEMES`.
        open_rest: Gets what stands behind `scheme://`.
    """
    _more_schemes[scheme] = open_rest


def resolve_store_url(name: str, settings: Settings) -> str:
    """The url of a store by the name that a notification carries.

    Only the reader's own settings count: a notification brings a name, never a place.

    Args:
        name: Empty for the default store.
        settings: The reader's.

    Raises:
        ConfigError: No store of this name; the text names the setting to add.
    """
    if not name:
        if settings.store_url is None:
            raise ConfigError(
                "blobmsg.store.url is not set: say where payload is, e.g. s3://bucket/prefix"
            )
        return settings.store_url
    try:
        return settings.stores[name]
    except KeyError:
        known = ", ".join(sorted(settings.stores)) or "none"
        raise ConfigError(
            f"no store is named {name!r} here (named stores: {known}): set "
            f"blobmsg.store.{name}.url to where its writers put their objects",
            store=name,
        ) from None


def open_store(
    url: str,
    settings: Settings,
    *,
    clock: Clock | None = None,
    counters: StoreCounters | None = None,
    rng: random.Random | None = None,
) -> RetryingStore:
    """Open the store at a url, with retries and counters.

    Nothing is sent yet: a wrong bucket or wrong credentials show at the first request.

    Args:
        url: `s3://bucket/prefix`, `file:///folder` or `memory://name`.
        settings: Timeouts, threads and the S3 settings.
        clock: For deadlines and back-off; the machine's by default.
        counters: Added to; new ones by default.
        rng: Jitter of the back-off.

    Raises:
        ConfigError: Unknown scheme or malformed url, or the scheme's extra is not installed.
    """
    clock = SystemClock() if clock is None else clock
    counters = StoreCounters() if counters is None else counters
    return RetryingStore(
        InstrumentedStore(open_raw_store(url, settings, clock=clock), counters),
        clock=clock,
        rng=random.Random() if rng is None else rng,  # noqa: S311  (jitter, not secrets)
        request_timeout_ms=settings.request_timeout_ms,
        max_concurrency=settings.upload_threads + settings.fetch_threads,
        counters=counters,
    )


def open_raw_store(url: str, settings: Settings, *, clock: Clock) -> Store:
    """Open the store at a url without wrappers: one request per call, errors as they come.

    Raises:
        ConfigError: As for `open_store`.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username or parts.password:
        raise ConfigError(
            f"blobmsg.store.url takes no user, query or fragment: {parts.scheme}://… (credentials "
            "go into blobmsg.s3.access.key.id and blobmsg.s3.secret.access.key)"
        )
    if parts.scheme == "memory":
        name = (parts.netloc + parts.path).rstrip("/")
        if not name:
            raise ConfigError(f"{url!r} names no memory store: write memory://name")
        return MemoryStore(name)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path:
            raise ConfigError(f"{url!r} is no folder of this machine: write file:///folder")
        return FileStore(unquote(parts.path))
    if parts.scheme == "s3":
        if not parts.netloc:
            raise ConfigError(f"{url!r} names no bucket: write s3://bucket/prefix")
        from blobmsg.store.s3 import S3Store

        return S3Store(
            parts.netloc,
            unquote(parts.path).strip("/"),
            settings.s3,
            request_timeout_ms=settings.request_timeout_ms,
            max_connections=settings.upload_threads + settings.fetch_threads,
            clock=clock,
        )
    if parts.scheme in _more_schemes:
        return _more_schemes[parts.scheme](parts.netloc + parts.path)
    raise ConfigError(
        f"blobmsg.store.url {url!r} has an unknown scheme {parts.scheme!r}; there are "
        f"{', '.join(SCHEMES)}"
    )
