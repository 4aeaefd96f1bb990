"""Object stores behind one small Protocol, and wrappers that add one concern each.

`open_store` builds what a client uses: retrying around instrumented around S3, files or
memory. The modules of this package never know about Kafka, segments or notifications.
"""

from __future__ import annotations

from blobmsg.store.base import Body, Buffer, ObjectInfo, Store
from blobmsg.store.instrumented import CounterSnapshot, InstrumentedStore, StoreCounters
from blobmsg.store.open import open_store, resolve_store_url
from blobmsg.store.retrying import RetryingStore

__all__ = [
    "Body",
    "Buffer",
    "CounterSnapshot",
    "InstrumentedStore",
    "ObjectInfo",
    "RetryingStore",
    "Store",
    "StoreCounters",
    "open_store",
    "resolve_store_url",
]
