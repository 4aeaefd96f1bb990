from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import resources
from blobmsg.config import parse_settings
from blobmsg.errors import ConfigError
from blobmsg.resources import (
    SharedAdmin,
    SharedResources,
    Stores,
    acquire_cache,
    freeze,
    release_cache,
    shared,
)
from blobmsg.store.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from blobmsg.config import Settings


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Other tests leave clients to the garbage collector; here the process' registry begins empty.
    gc.collect()
    monkeypatch.setattr(shared, "_held", {})
    yield
    assert shared._held == {}


def settings(url: str = "memory://resources", **more: str) -> Settings:
    conf = {f"blobmsg.{key.replace('_', '.')}": value for key, value in more.items()}
    return parse_settings({"blobmsg.store.url": url, **conf}, {})[0]


class Opened:
    """Counts how often it was opened."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> object:
        self.count += 1
        return object()


# --- sharing --------------------------------------------------------------------------------------


def test_the_same_name_shares_one_resource() -> None:
    registry, opened = SharedResources(), Opened()

    first = registry.acquire("store", opened)
    second = registry.acquire("store", opened)
    other = registry.acquire("other", opened)

    assert first is second
    assert other is not first
    assert opened.count == 2


def test_the_last_user_gets_it_back_to_close() -> None:
    registry, opened = SharedResources(), Opened()
    resource = registry.acquire("store", opened)
    registry.acquire("store", opened)

    assert registry.release("store") is None
    assert registry.release("store") is resource
    assert registry.acquire("store", opened) is not resource


def test_what_failed_to_open_is_not_held() -> None:
    registry = SharedResources()

    def fails() -> object:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        registry.acquire("store", fails)

    opened = Opened()
    registry.acquire("store", opened)
    assert opened.count == 1


def test_a_resource_may_be_released_while_another_opens() -> None:
    # As garbage collection does that ends a forgotten client in the thread that opens.
    registry, opened = SharedResources(), Opened()
    first = registry.acquire("store", opened)
    released: list[object] = []

    def opens() -> object:
        released.append(registry.release("store"))
        return object()

    thread = threading.Thread(target=registry.acquire, args=("admin", opens), daemon=True)
    thread.start()
    thread.join(5)

    assert not thread.is_alive()
    assert released == [first]


def test_a_resource_may_be_released_amid_the_lock() -> None:
    registry, opened = SharedResources(), Opened()
    first = registry.acquire("store", opened)
    released: list[object] = []

    def release() -> None:
        with registry._lock:
            released.append(registry.release("store"))

    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    thread.join(5)

    assert released == [first]


def test_a_resource_whose_last_user_lets_go_while_it_is_acquired_is_opened_anew() -> None:
    class Collecting(dict[object, object]):
        """Lets go at the first look, as garbage collection may between two lines."""

        armed = False

        def get(self, name: object, default: object = None) -> object:
            found = super().get(name, default)
            if self.armed:
                self.armed = False
                registry.release(name)
            return found

    registry, opened = SharedResources(), Opened()
    first = registry.acquire("store", opened)
    held = Collecting(registry._held)
    registry._held = held  # type: ignore[assignment]
    held.armed = True

    second = registry.acquire("store", opened)

    assert second is not first
    assert registry.release("store") is second


def test_a_resource_opens_while_another_does() -> None:
    registry, opened = SharedResources(), Opened()
    opening, go_on = threading.Event(), threading.Event()

    def opens() -> object:
        opening.set()
        assert go_on.wait(5)
        return object()

    thread = threading.Thread(target=registry.acquire, args=("slow", opens))
    thread.start()
    assert opening.wait(5)
    registry.acquire("quick", opened)
    go_on.set()
    thread.join()

    assert opened.count == 1
    assert set(registry._held) == {"slow", "quick"}


def test_who_waits_for_an_open_that_fails_tries_it_himself() -> None:
    registry, opened = SharedResources(), Opened()
    opening, go_on = threading.Event(), threading.Event()
    errors: list[OSError] = []

    def fails() -> object:
        opening.set()
        assert go_on.wait(5)
        raise OSError("away")

    def first() -> None:
        try:
            registry.acquire("store", fails)
        except OSError as error:
            errors.append(error)

    threads = [
        threading.Thread(target=first),
        threading.Thread(target=registry.acquire, args=("store", opened)),
    ]
    threads[0].start()
    assert opening.wait(5)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()

    assert len(errors) == 1
    assert opened.count == 1


def test_a_release_of_what_nobody_holds_does_nothing() -> None:
    assert SharedResources().release("store") is None


def test_clients_that_start_together_share_one_resource() -> None:
    registry, opened = SharedResources(), Opened()
    start = threading.Barrier(8)
    got: list[object] = []

    def acquire() -> None:
        start.wait()
        got.append(registry.acquire("store", opened))

    threads = [threading.Thread(target=acquire) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert opened.count == 1
    assert len(set(map(id, got))) == 1


def test_a_child_process_holds_nothing_of_its_parents() -> None:
    registry, opened = SharedResources(), Opened()
    registry.acquire("store", opened)
    other = threading.Thread(target=registry._lock.acquire)
    other.start()  # another thread of the parent was at it when it forked
    other.join()

    registry.forget_all()

    registry.acquire("store", opened)
    assert opened.count == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # 3.12 on: it has threads
def test_a_fork_forgets_what_the_process_shares() -> None:
    acquire_cache(1000)
    try:
        child = os.fork()
        if child == 0:
            os._exit(len(shared._held))
        _, status = os.waitpid(child, 0)
    finally:
        release_cache(1000)

    assert os.waitstatus_to_exitcode(status) == 0


# --- stores ---------------------------------------------------------------------------------------


def test_a_store_is_opened_at_its_first_use_and_then_kept() -> None:
    stores = Stores(settings())
    assert shared._held == {}

    lease = stores.get()

    assert stores.get() is lease
    assert lease.url == "memory://resources"
    stores.close()


def test_clients_with_the_same_settings_share_a_store() -> None:
    one, two = Stores(settings()), Stores(settings())

    assert one.get() is two.get()

    one.close()
    two.get().store.put("key", b"data", deadline_ms=1 << 60)  # still open for the other
    two.close()


@pytest.mark.parametrize(
    "other",
    [
        {"url": "memory://elsewhere"},
        {"upload_threads": "3"},
        {"fetch_threads": "3"},
        {"request_timeout_ms": "1234"},
        {"s3_region": "eu-west-1"},
    ],
)
def test_clients_with_other_settings_do_not(other: dict[str, str]) -> None:
    one, two = Stores(settings()), Stores(settings(**other))

    assert one.get() is not two.get()

    one.close()
    two.close()


def test_further_stores_are_found_by_name(tmp_path: Path) -> None:
    stores = Stores(settings(store_archive_url=tmp_path.as_uri()))

    assert stores.get("archive").url == tmp_path.as_uri()
    assert stores.get().url == "memory://resources"
    stores.close()


def test_a_store_without_settings_is_refused_by_name() -> None:
    stores = Stores(settings())

    with pytest.raises(ConfigError, match="unheard"):
        stores.get("unheard")


def test_totals_add_up_over_the_stores_in_use(tmp_path: Path) -> None:
    stores = Stores(settings("memory://totals", store_archive_url=tmp_path.as_uri()))
    assert stores.totals() == {}
    for name in ("", "archive"):
        stores.get(name).store.put("key", b"1234", deadline_ms=1 << 60)

    totals = stores.totals()

    assert (totals["puts"], totals["put_bytes"]) == (2, 8)
    stores.close()
    assert stores.totals() == {}


def test_the_last_user_closes_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closable:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    store = Closable()
    monkeypatch.setattr(resources, "open_store", lambda *_args, **_options: store)
    one, two = Stores(settings()), Stores(settings())
    one.get()
    two.get()
    counts = []

    for stores in (one, one, two, two):
        stores.close()
        counts.append(store.closed)

    assert counts == [0, 0, 1, 1]


def test_a_closed_client_opens_no_store() -> None:
    unused, used = Stores(settings()), Stores(settings())
    used.get()

    for stores in (unused, used):
        stores.close()
        with pytest.raises(RuntimeError, match="closed"):
            stores.get()

    assert shared._held == {}


def test_a_store_that_opens_while_its_client_closes_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = Stores(settings())

    def closes(*args: Any, **options: Any) -> Any:
        stores.close()
        return open_store(*args, **options)

    monkeypatch.setattr(resources, "open_store", closes)

    with pytest.raises(RuntimeError, match="closed"):
        stores.get()

    assert shared._held == {}


def test_threads_of_one_client_take_one_share_and_give_it_back_once() -> None:
    stores, other = Stores(settings()), Stores(settings())
    kept = other.get()

    _at_once(stores.get)
    (held,) = shared._held.values()
    assert held.users == 2
    _at_once(stores.close)

    assert held.users == 1
    assert other.get() is kept
    other.close()


def _at_once(call: Callable[[], object]) -> None:
    start = threading.Barrier(8)

    def run() -> None:
        start.wait()
        call()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- cache and names ------------------------------------------------------------------------------


def test_caches_of_one_size_are_one_cache() -> None:
    one, two, other = acquire_cache(1000), acquire_cache(1000), acquire_cache(2000)

    assert one is two
    assert other is not one

    for size in (1000, 1000, 2000):
        release_cache(size)


def test_a_cache_in_use_stays_open() -> None:
    acquire_cache(1000)
    acquire_cache(1000)
    release_cache(1000)

    again = acquire_cache(1000)

    release_cache(1000)
    release_cache(1000)
    assert again is not acquire_cache(1000)
    release_cache(1000)


def test_settings_are_told_apart_by_content() -> None:
    assert freeze({"a": 1, "b": "x"}) == freeze({"b": "x", "a": 1})
    assert freeze({"a": 1}) != freeze({"a": 2})
    assert hash(freeze({"a": [1], "b": None})) == hash(freeze({"b": None, "a": [1]}))


# --- the admin client -----------------------------------------------------------------------------

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT",
           "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}  # fmt: skip


def test_new_credentials_are_shared_by_those_that_have_them() -> None:
    first, second, former = (SharedAdmin(NOWHERE) for _ in range(3))
    assert first.client is second.client

    first.set_sasl_credentials("u", "new")
    second.set_sasl_credentials("u", "new")

    assert first.client is second.client
    assert first.client is not former.client
    for each in (first, second, former, former):  # the second call does nothing
        each.release()


def test_credentials_that_come_while_the_client_closes_hold_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closing, other = SharedAdmin(NOWHERE), SharedAdmin(NOWHERE)
    acquire = shared.acquire

    def close_meanwhile(*arguments: Any) -> Any:
        closing.release()
        return acquire(*arguments)

    monkeypatch.setattr(shared, "acquire", close_meanwhile)
    closing.set_sasl_credentials("u", "new")

    assert [held.resource for held in shared._held.values()] == [other.client]
    other.release()
