from __future__ import annotations

import threading
import uuid

import pytest

from blobmsg.errors import ObjectMissing, StoreUnavailable
from blobmsg.format.ranges import ByteRange
from blobmsg.store.instrumented import CounterSnapshot, InstrumentedStore, StoreCounters
from blobmsg.testing import Fault, FaultStore, ManualClock, MemoryStore


@pytest.fixture
def counters() -> StoreCounters:
    return StoreCounters()


@pytest.fixture
def faults() -> FaultStore:
    return FaultStore(MemoryStore(uuid.uuid4().hex), ManualClock())


@pytest.fixture
def store(faults: FaultStore, counters: StoreCounters) -> InstrumentedStore:
    return InstrumentedStore(faults, counters)


def test_requests_and_bytes_are_counted(store: InstrumentedStore, counters: StoreCounters) -> None:
    store.put("k", b"0123456789", deadline_ms=0)
    store.put("l", memoryview(b"01234567").cast("Q"), deadline_ms=0)
    assert store.get_range("k", ByteRange(1, 3), deadline_ms=0) == b"123"
    assert store.get_tail("k", 2) == b"89"
    assert store.size("k") == 10
    assert [info.key for info in store.list_keys("k")] == ["k"]
    store.delete(["k"])
    assert counters.snapshot() == CounterSnapshot(
        puts=2, gets=3, deletes=1, lists=1, put_bytes=18, get_bytes=5
    )


def test_failed_requests_count_as_requests_and_errors_but_move_no_bytes(
    store: InstrumentedStore, faults: FaultStore, counters: StoreCounters
) -> None:
    faults.add(Fault("put", error=lambda: StoreUnavailable("x")))
    with pytest.raises(StoreUnavailable):
        store.put("k", b"abc", deadline_ms=0)
    with pytest.raises(ObjectMissing):
        store.get_range("k", ByteRange(0, 1), deadline_ms=0)
    assert counters.snapshot() == CounterSnapshot(puts=1, gets=1, errors=2)


def test_long_listings_and_deletions_take_a_request_per_thousand(
    store: InstrumentedStore, faults: FaultStore, counters: StoreCounters
) -> None:
    keys = [f"k{number:05}" for number in range(2001)]
    for key in keys:
        faults.inner.put(key, b"", deadline_ms=0)
    assert len(list(store.list_keys())) == 2001
    assert counters.snapshot().lists == 3
    store.delete(keys)
    assert counters.snapshot().deletes == 3


def test_counts_of_many_threads_add_up(counters: StoreCounters) -> None:
    def work() -> None:
        for _ in range(2000):
            counters.add(puts=1, put_bytes=3)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert counters.snapshot().as_dict() == CounterSnapshot(puts=8000, put_bytes=24_000).as_dict()


def test_a_counter_that_is_not_there_is_a_mistake(counters: StoreCounters) -> None:
    with pytest.raises(KeyError):
        counters.add(post=1)
