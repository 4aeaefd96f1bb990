from __future__ import annotations

import random
import threading
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from blobmsg.cache.memory import ENTRY_OVERHEAD_BYTES, MemoryCache
from blobmsg.cache.part_buffers import PartBuffers
from blobmsg.format.ranges import ByteRange

if TYPE_CHECKING:
    from blobmsg.cache.base import Cache

OBJECT = bytes(range(256)) * 40


def fill(cache: Cache, start: int, length: int, *, store: str = "", key: str = "k") -> None:
    cache.fill(store, key, ByteRange(start, length), OBJECT[start : start + length])


def cache_for(*lengths: int) -> MemoryCache:
    """A cache that has room for exactly these entries."""
    return MemoryCache(sum(lengths) + len(lengths) * ENTRY_OVERHEAD_BYTES)


def test_a_filled_range_is_given_back_without_a_copy() -> None:
    cache = MemoryCache(1 << 20)
    data = b"x" * 100
    cache.fill("", "k", ByteRange(7, 100), data)
    assert cache.get("", "k", ByteRange(7, 100)) is data


def test_a_range_inside_a_cached_one_is_served_from_it() -> None:
    cache = MemoryCache(1 << 20)
    fill(cache, 100, 200)
    assert cache.get("", "k", ByteRange(150, 20)) == OBJECT[150:170]


@pytest.mark.parametrize("byte_range", [(99, 2), (299, 2), (0, 50), (300, 5), (99, 202)])
def test_a_range_that_is_not_wholly_inside_is_a_miss(byte_range: tuple[int, int]) -> None:
    cache = MemoryCache(1 << 20)
    fill(cache, 100, 200)
    assert cache.get("", "k", ByteRange(*byte_range)) is None


def test_stores_and_keys_are_kept_apart() -> None:
    cache = MemoryCache(1 << 20)
    fill(cache, 0, 10, store="a", key="k")
    assert cache.get("", "k", ByteRange(0, 10)) is None
    assert cache.get("a", "l", ByteRange(0, 10)) is None
    assert cache.get("a", "k", ByteRange(0, 10)) is not None


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = cache_for(100, 100)
    fill(cache, 0, 100)
    fill(cache, 200, 100)
    cache.get("", "k", ByteRange(10, 5))
    fill(cache, 400, 100)
    assert cache.get("", "k", ByteRange(0, 100)) is not None
    assert cache.get("", "k", ByteRange(200, 100)) is None
    assert cache.stats()["evictions"] == 1


def test_filling_what_is_there_counts_as_a_use() -> None:
    cache = cache_for(100, 100)
    fill(cache, 0, 100)
    fill(cache, 200, 100)
    fill(cache, 10, 20)
    fill(cache, 400, 100)
    assert cache.get("", "k", ByteRange(0, 100)) is not None
    assert cache.get("", "k", ByteRange(200, 100)) is None


def test_a_range_over_the_limit_is_not_kept_and_drops_nothing() -> None:
    cache = cache_for(100)
    fill(cache, 0, 100)
    fill(cache, 0, 101)
    assert cache.get("", "k", ByteRange(0, 101)) is None
    assert cache.get("", "k", ByteRange(0, 100)) is not None


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache = MemoryCache(0)
    fill(cache, 0, 1)
    assert cache.get("", "k", ByteRange(0, 1)) is None


def test_a_larger_range_replaces_those_inside_it() -> None:
    cache = MemoryCache(1 << 20)
    fill(cache, 10, 10)
    fill(cache, 30, 10)
    fill(cache, 45, 10)
    fill(cache, 5, 40)
    assert cache.stats()["entries"] == 2
    assert cache.used_bytes == 50 + 2 * ENTRY_OVERHEAD_BYTES
    assert cache.get("", "k", ByteRange(12, 6)) == OBJECT[12:18]
    assert cache.get("", "k", ByteRange(45, 10)) == OBJECT[45:55]


def test_overlapping_ranges_serve_what_each_contains() -> None:
    cache = MemoryCache(1 << 20)
    fill(cache, 0, 100)
    fill(cache, 50, 100)
    assert cache.get("", "k", ByteRange(40, 20)) == OBJECT[40:60]
    assert cache.get("", "k", ByteRange(90, 20)) == OBJECT[90:110]
    assert cache.get("", "k", ByteRange(40, 70)) is None


def test_evicting_drops_every_range_with_a_byte_in_common() -> None:
    cache = MemoryCache(1 << 20)
    fill(cache, 0, 100)
    fill(cache, 50, 100)
    fill(cache, 150, 10)
    cache.evict("", "k", ByteRange(99, 51))
    assert cache.get("", "k", ByteRange(0, 10)) is None
    assert cache.get("", "k", ByteRange(140, 10)) is None
    assert cache.get("", "k", ByteRange(150, 10)) is not None


def test_evicting_what_is_not_there_is_fine() -> None:
    cache = MemoryCache(1 << 20)
    cache.evict("", "k", ByteRange(0, 10))
    assert cache.used_bytes == 0


def test_a_parts_buffer_is_kept_as_it_is_and_free_again_once_it_is_evicted() -> None:
    buffers = PartBuffers(1 << 20)
    cache = MemoryCache(1 << 20)
    part = buffers.take(200_000)
    part.view()[:] = bytes(range(250)) * 800
    cache.fill("", "k", ByteRange(1000, 200_000), part)
    assert cache.get("", "k", ByteRange(1000, 200_000)) is part
    assert cache.get("", "k", ByteRange(1500, 5)) == bytes(range(5))
    assert cache.used_bytes == len(part.data) + ENTRY_OVERHEAD_BYTES
    del part
    assert buffers.free_bytes == 0
    cache.evict("", "k", ByteRange(1000, 1))
    assert cache.used_bytes == 0
    assert buffers.free_bytes >= 200_000


def test_data_of_another_length_than_the_range_is_refused() -> None:
    cache = MemoryCache(1 << 20)
    with pytest.raises(ValueError, match="3 bytes given for a range of 4"):
        cache.fill("", "k", ByteRange(0, 4), b"abc")
    with pytest.raises(ValueError, match="200000 bytes given for a range of 2"):
        cache.fill("", "k", ByteRange(0, 2), PartBuffers(0).take(200_000))


def test_a_closed_cache_is_empty_and_stays_so() -> None:
    cache = MemoryCache(1 << 20)
    fill(cache, 0, 10)
    cache.close()
    fill(cache, 20, 10)
    assert cache.stats() == {
        "hits": 0,
        "misses": 0,
        "evictions": 0,
        "entries": 0,
        "used_bytes": 0,
    }
    assert cache.get("", "k", ByteRange(0, 10)) is None


def test_hits_and_misses_are_counted() -> None:
    cache = MemoryCache(1 << 20)
    fill(cache, 0, 10)
    cache.get("", "k", ByteRange(0, 10))
    cache.get("", "k", ByteRange(2, 3))
    cache.get("", "k", ByteRange(2, 30))
    assert (cache.stats()["hits"], cache.stats()["misses"]) == (2, 1)


def test_any_sequence_of_calls_gives_right_bytes_within_the_limit(seed: int) -> None:
    rng = random.Random(seed)
    cache = MemoryCache(8 * 1024 + 5 * ENTRY_OVERHEAD_BYTES)
    for _ in range(3000):
        key = rng.choice("ab")
        start = rng.randrange(len(OBJECT) - 1)
        byte_range = ByteRange(start, rng.randint(1, min(4000, len(OBJECT) - start)))
        action = rng.random()
        if action < 0.5:
            fill(cache, byte_range.start, byte_range.length, key=key)
        elif action < 0.95:
            found = cache.get("", key, byte_range)
            assert found is None or found == OBJECT[byte_range.start : byte_range.end]
        else:
            cache.evict("", key, byte_range)
            assert cache.get("", key, byte_range) is None
        assert cache.used_bytes <= 8 * 1024 + 5 * ENTRY_OVERHEAD_BYTES
        held = sum(len(data) + ENTRY_OVERHEAD_BYTES for data in cache._entries.values())
        assert cache.used_bytes == held


@pytest.fixture(params=[1, 2, 3])
def seed(request: pytest.FixtureRequest) -> int:
    seed: int = request.param
    return seed


def test_the_limit_holds_for_real_memory_even_with_tiny_entries() -> None:
    tracemalloc.start()
    try:
        cache = MemoryCache(8 << 20)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(30_000):
            key = f"shared/0/2026010100/az1/{number:032x}-{number}"
            cache.fill("", key, ByteRange(number, 1), bytes([number % 251]))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.stats()["entries"] == (8 << 20) // (ENTRY_OVERHEAD_BYTES + 1)
    assert after - before <= 8 << 20


def test_threads_that_fill_get_and_evict_together_leave_it_consistent() -> None:
    cache = MemoryCache(20 * 1024 + 8 * ENTRY_OVERHEAD_BYTES)
    wrong: list[ByteRange] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(1500):
            start = rng.randrange(9000)
            byte_range = ByteRange(start, rng.randint(1, 1000))
            if rng.random() < 0.5:
                fill(cache, byte_range.start, byte_range.length)
            elif rng.random() < 0.9:
                found = cache.get("", "k", byte_range)
                if found is not None and found != OBJECT[byte_range.start : byte_range.end]:
                    wrong.append(byte_range)
            else:
                cache.evict("", "k", byte_range)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []
    held = sum(len(data) + ENTRY_OVERHEAD_BYTES for data in cache._entries.values())
    assert cache.used_bytes == held
    assert sorted(start for _, _, start in cache._entries) == cache._starts.get(("", "k"), [])
