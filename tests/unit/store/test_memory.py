"""What only memory has; what all stores promise is in `tests/contract`."""

from __future__ import annotations

import uuid

import pytest

from blobmsg.errors import ObjectMissing
from blobmsg.store.memory import MemoryStore


def test_forgetting_a_name_frees_its_objects_also_for_open_stores() -> None:
    name = uuid.uuid4().hex
    store = MemoryStore(name)
    store.put("k", b"data", deadline_ms=0)
    MemoryStore.forget(name)
    with pytest.raises(ObjectMissing):
        store.size("k")
    assert list(MemoryStore(name).list_keys()) == []
    MemoryStore.forget("never opened")


def test_names_are_apart() -> None:
    first, second = MemoryStore(uuid.uuid4().hex), MemoryStore(uuid.uuid4().hex)
    first.put("k", b"data", deadline_ms=0)
    assert list(second.list_keys()) == []


def test_bytes_are_kept_without_a_copy() -> None:
    store = MemoryStore(uuid.uuid4().hex)
    data = bytes(1000)
    store.put("k", data, deadline_ms=0)
    assert store.get_tail("k", 1000) is data
