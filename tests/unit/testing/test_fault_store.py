from __future__ import annotations

import threading
import uuid

import pytest

from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.errors import (
    BlobmsgError,
    ConfigError,
    ObjectMissing,
    StoreDenied,
    StoreTimeout,
    StoreUnavailable,
)
from blobmsg.format.ranges import ByteRange
from blobmsg.store.open import open_store
from blobmsg.testing import Fault, FaultStore, ManualClock, MemoryStore

LATER_MS = 10_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> FaultStore:
    store = FaultStore(MemoryStore(uuid.uuid4().hex), clock)
    store.put("a/1", b"0123456789", deadline_ms=LATER_MS)
    return store


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("scripted")


def test_without_faults_it_is_the_inner_store(store: FaultStore) -> None:
    assert store.get_range("a/1", ByteRange(2, 3), deadline_ms=LATER_MS) == b"234"
    assert store.size("a/1") == 10
    assert store.get_tail("a/1", 2) == b"89"
    assert [info.key for info in store.list_keys()] == ["a/1"]
    store.delete(["a/1"])
    assert list(store.list_keys()) == []
    assert store.calls[0] == ("put", "a/1")
    assert store.calls[-2:] == [("delete", "a/1"), ("list_keys", "")]


def test_a_fault_hits_as_often_as_it_says_and_only_its_keys(store: FaultStore) -> None:
    fault = Fault("size", times=2, key_part="/1", error=unavailable)
    store.add(fault)
    with pytest.raises(ObjectMissing):
        store.size("a/2")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            store.size("a/1")
    assert store.size("a/1") == 10
    assert fault.hits == 2


def test_cleared_faults_hit_no_more(store: FaultStore) -> None:
    store.add(Fault("size", times=None, error=unavailable))
    store.clear()
    assert store.size("a/1") == 10


def test_a_put_whose_answer_is_lost_is_stored(store: FaultStore) -> None:
    store.add(Fault("put", error=unavailable, after=True))
    with pytest.raises(StoreUnavailable):
        store.put("a/2", b"x", deadline_ms=LATER_MS)
    assert store.size("a/2") == 1


def test_a_put_that_fails_is_not_stored(store: FaultStore) -> None:
    store.add(Fault("put", error=unavailable))
    with pytest.raises(StoreUnavailable):
        store.put("a/2", b"x", deadline_ms=LATER_MS)
    with pytest.raises(ObjectMissing):
        store.size("a/2")


def test_missing_objects_and_corrupt_bytes(store: FaultStore) -> None:
    store.add(
        Fault("get_range", missing=True),
        Fault("get_range", corrupt=lambda data: data[::-1]),
        Fault("put", corrupt=bytes.upper),
    )
    with pytest.raises(ObjectMissing) as caught:
        store.get_range("a/1", ByteRange(2, 3), deadline_ms=LATER_MS)
    assert caught.value.details["start"] == 2
    assert store.get_range("a/1", ByteRange(2, 3), deadline_ms=LATER_MS) == b"432"
    store.put("a/2", b"abc", deadline_ms=LATER_MS)
    assert store.inner.get_tail("a/2", 9) == b"ABC"


def test_a_delay_takes_time_on_the_clock(store: FaultStore, clock: ManualClock) -> None:
    store.add(Fault("put", delay_ms=700))
    before_ms = clock.now_ms()
    store.put("a/2", b"x", deadline_ms=before_ms + 1000)
    assert clock.now_ms() == before_ms + 700


def test_a_delay_past_the_deadline_is_a_timeout_at_the_deadline(
    store: FaultStore, clock: ManualClock
) -> None:
    store.add(Fault("put", delay_ms=700))
    before_ms = clock.now_ms()
    with pytest.raises(StoreTimeout):
        store.put("a/2", b"x", deadline_ms=before_ms + 500)
    assert clock.now_ms() == before_ms + 500


def test_a_gate_holds_the_call_until_it_opens(store: FaultStore) -> None:
    gate = threading.Event()
    store.add(Fault("put", gate=gate))
    thread = threading.Thread(
        target=lambda: store.put("a/2", b"x", deadline_ms=LATER_MS), daemon=True
    )
    thread.start()
    assert store.arrived.wait(10)
    with pytest.raises(ObjectMissing):
        store.size("a/2")
    gate.set()
    thread.join(10)
    assert store.size("a/2") == 1


def test_a_listing_can_break_off_behind_its_first_key(store: FaultStore) -> None:
    store.add(Fault("list_keys", error=unavailable, after=True))
    listing = store.list_keys()
    assert next(listing).key == "a/1"
    with pytest.raises(StoreUnavailable):
        next(listing)


def _outcome_of_a_put(store: FaultStore, key: str) -> type[Exception] | None:
    try:
        store.put(key, b"x", deadline_ms=LATER_MS)
    except BlobmsgError as error:
        return type(error)
    return None


def test_the_shorthands_do_what_their_names_say(store: FaultStore) -> None:
    store.refuse("put")
    store.time_out("put")
    store.deny("put")
    store.lose_answers()
    outcomes = [_outcome_of_a_put(store, f"a/{number}") for number in range(2, 7)]
    store.hide()
    with pytest.raises(ObjectMissing):
        store.get_range("a/1", ByteRange(0, 4), deadline_ms=LATER_MS)
    store.flip_bits()
    assert store.get_range("a/1", ByteRange(0, 4), deadline_ms=LATER_MS) == b"0122"
    assert store.get_range("a/1", ByteRange(0, 4), deadline_ms=LATER_MS) == b"0123"

    assert outcomes == [StoreUnavailable, StoreTimeout, StoreDenied, StoreTimeout, None]
    assert store.keys() == ["a/1", "a/5", "a/6"]  # 5: stored, the answer was lost


def test_a_hang_ends_when_the_store_is_well_again() -> None:
    store = FaultStore()
    store.hang("put", times=None)
    thread = threading.Thread(
        target=lambda: store.put("k", b"x", deadline_ms=SystemClock().now_ms() + LATER_MS),
        daemon=True,
    )
    thread.start()
    store.wait_for_calls("put")
    assert store.arrived.wait(10)
    assert store.keys() == []

    store.clear()
    thread.join(10)

    assert store.keys() == ["k"]


def test_a_hang_is_a_timeout_at_the_deadline() -> None:
    store = FaultStore()
    store.hang("put")

    with pytest.raises(StoreTimeout):
        store.put("k", b"x", deadline_ms=SystemClock().now_ms() + 50)


def test_waiting_for_calls_that_do_not_come_ends(store: FaultStore) -> None:
    with pytest.raises(TimeoutError, match="1 of 2 calls of put"):
        store.wait_for_calls("put", 2, timeout_s=0.01)


def test_clients_that_have_its_url_use_it_and_closing_theirs_closes_nothing() -> None:
    store = FaultStore()
    settings, _ = parse_settings({"blobmsg.store.url": store.url}, {})
    one, other = (open_store(store.url, settings) for _ in range(2))
    store.refuse("put", times=1)

    one.put("k", b"x", deadline_ms=SystemClock().now_ms() + LATER_MS)
    one.close()

    assert other.size("k") == 1
    assert store.calls == [("put", "k"), ("put", "k"), ("size", "k")]


def test_the_url_of_a_store_that_was_closed_leads_nowhere() -> None:
    store = FaultStore()
    settings, _ = parse_settings({"blobmsg.store.url": store.url}, {})
    store.close()

    with pytest.raises(ConfigError, match="no FaultStore of this process"):
        open_store(store.url, settings)
