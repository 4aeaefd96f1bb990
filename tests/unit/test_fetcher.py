"""The fetcher on a store that answers by script: what is cached, fetched again, refused."""

from __future__ import annotations

import errno
import mmap
import sys
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError

from blobmsg.cache.memory import MemoryCache
from blobmsg.clock import SystemClock
from blobmsg.core.debatcher import Entry, Failure, FailureKind, FetchSection, Flow
from blobmsg.fetcher import EntryContext, Fetcher
from blobmsg.format import ByteRange, Part, crc32
from blobmsg.format.segment import Columns, encode_segment
from blobmsg.message import RecordsView, SegmentMessage
from tests.helpers.consuming import notification, object_key, part
from tests.helpers.records import DEADLINE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

URL = "memory://fetcher"


class Store:
    """One object, and how the next answers differ from it."""

    url = URL

    def __init__(self, *segments: bytes) -> None:
        self.store = self  # also its own lease
        self.data = b"".join(segments)
        self.parts: list[Part] = []
        for segment in segments:
            place = ByteRange(self.parts[-1].byte_range.end if self.parts else 0, len(segment))
            self.parts.append(
                replace(
                    part(1),
                    byte_range=place,
                    uncompressed_bytes=len(segment),
                    checksum=crc32(segment),
                )
            )
        self.flipped: deque[int | None] = deque()  # bytes flipped in the next answers
        self.asked: list[ByteRange] = []

    def get(self, _name: str) -> Store:
        return self

    def read_range(
        self,
        _key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        assert deadline_ms > 0
        self.asked.append(byte_range)
        assert sum(map(len, targets)) == byte_range.length
        data = bytearray(self.data)
        flipped = self.flipped.popleft() if self.flipped else None
        if flipped is not None:
            data[flipped] ^= 1
        place = byte_range.start
        for target in targets:
            target[:] = data[place : place + len(target)]
            place += len(target)


def segment_of(value: bytes) -> bytes:
    return encode_segment(Columns([None], [value], [0]))


@pytest.fixture
def store() -> Store:
    return Store(*(segment_of(bytes([number]) * 100) for number in range(3)))


@pytest.fixture
def cache() -> MemoryCache:
    return MemoryCache(1 << 20)


def fetcher_of(store: Store, cache: MemoryCache) -> Fetcher:
    stores: Any = store
    return Fetcher(
        stores,
        cache,
        SystemClock(),
        threads=1,
        request_timeout_ms=1000,
        keep_bytes=1 << 20,
        name="test",
    )


def section_of(parts: Sequence[Part]) -> FetchSection:
    """One section over all of the parts."""
    told = notification(*parts)
    entry = Entry(Flow(("flights", 0), None), 7, told, len(parts))
    entry.context = EntryContext(TIMESTAMP_CREATE_TIME, None, None)
    whole = ByteRange(
        parts[0].byte_range.start, parts[-1].byte_range.end - parts[0].byte_range.start
    )
    return FetchSection(
        "", object_key(), whole, tuple((entry, index, each) for index, each in enumerate(parts))
    )


def fetch(store: Store, cache: MemoryCache, parts: Sequence[Part]) -> list[Any]:
    """Values of the parts, or their failures, by one section over all of them."""
    return [
        found.segment.value(0) if isinstance(found, RecordsView) else found
        for found in fetcher_of(store, cache).fetch(section_of(parts))
    ]


VALUES = [bytes([number]) * 100 for number in range(3)]


def cached(store: Store, cache: MemoryCache) -> list[bool]:
    """Of each part, whether the cache has it; what it has must be right."""
    found = [cache.get(URL, object_key(), each.byte_range) for each in store.parts]
    assert all(
        data is None or data == store.data[each.byte_range.start : each.byte_range.end]
        for data, each in zip(found, store.parts, strict=True)
    )
    return [data is not None for data in found]


def test_a_section_that_is_right_is_cached_by_parts(store: Store, cache: MemoryCache) -> None:
    assert fetch(store, cache, store.parts) == VALUES

    assert cached(store, cache) == [True, True, True]
    assert cache.stats()["entries"] == 3
    assert fetch(store, cache, store.parts) == VALUES
    assert len(store.asked) == 1


def test_a_thread_that_waits_keeps_nothing_that_it_has_fetched(
    store: Store, cache: MemoryCache
) -> None:
    fetcher = fetcher_of(store, cache)
    fetcher.start()
    section = section_of(store.parts)
    before = sys.getrefcount(section)
    fetcher.submit(section)
    fetcher.wait(DEADLINE_S)

    assert len(fetcher.take_results()) == 1
    wait_until(lambda: sys.getrefcount(section) == before, "let go")
    fetcher.stop(1.0)


def test_a_part_damaged_on_the_way_is_cached_as_it_came_the_second_time(
    store: Store, cache: MemoryCache
) -> None:
    store.flipped.append(store.parts[1].byte_range.end - 1)

    assert fetch(store, cache, store.parts) == VALUES

    assert store.asked[1:] == [store.parts[1].byte_range]
    assert cached(store, cache) == [True, True, True]


def test_a_part_damaged_in_the_store_is_not_cached_but_those_beside_it_are(
    store: Store, cache: MemoryCache
) -> None:
    store.flipped.extend([store.parts[1].byte_range.end - 1] * 3)

    first, failure, last = fetch(store, cache, store.parts)

    assert [first, last] == [VALUES[0], VALUES[2]]
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.MISSING
    assert failure.error.code() == KafkaError._BAD_MSG
    assert failure.error.str().count("flights [0] at Kafka offset 7") == 1
    assert len(store.asked) == 3
    assert cached(store, cache) == [True, False, True]


def test_a_cached_range_that_went_bad_is_dropped_and_fetched(
    store: Store, cache: MemoryCache
) -> None:
    whole = ByteRange(0, len(store.data))
    cache.fill(URL, object_key(), whole, bytes(len(store.data)))

    assert fetch(store, cache, store.parts) == VALUES

    assert cached(store, cache) == [True, True, True]


def test_a_segment_of_a_later_version_is_refused_at_once_by_name(cache: MemoryCache) -> None:
    later = bytearray(segment_of(b"v"))
    later[4] = 65
    store = Store(bytes(later))

    (failure,) = fetch(store, cache, store.parts)

    assert isinstance(failure, Failure)
    assert failure.error.code() == KafkaError._UNSUPPORTED_FEATURE
    assert len(store.asked) == 1
    assert failure.error.str().count("flights [0] at Kafka offset 7") == 1
    assert cached(store, cache) == [False]


def test_a_notification_that_came_twice_is_got_once(store: Store, cache: MemoryCache) -> None:
    twice = [store.parts[0], store.parts[0], store.parts[1]]

    assert fetch(store, cache, twice) == [VALUES[0], VALUES[0], VALUES[1]]

    assert len(store.asked) == 1


def test_a_part_that_overlaps_another_is_got_by_itself(store: Store, cache: MemoryCache) -> None:
    first, second, third = store.parts
    place = ByteRange(second.byte_range.start + 8, second.byte_range.length)
    within = replace(second, byte_range=place, checksum=crc32(store.data[place.start : place.end]))

    found = fetch(store, cache, [first, second, within, third])

    assert [found[0], found[1], found[3]] == VALUES
    assert isinstance(found[2], Failure)  # its bytes are there and no segment
    assert store.asked[1:] == [within.byte_range] * 3
    assert cached(store, cache) == [True, True, True]


def test_the_bytes_between_the_parts_are_passed_over(store: Store, cache: MemoryCache) -> None:
    assert fetch(store, cache, [store.parts[0], store.parts[2]]) == [VALUES[0], VALUES[2]]

    assert len(store.asked) == 1
    assert cached(store, cache) == [True, False, True]


def test_large_parts_have_buffers_that_are_used_again_when_their_records_are_gone() -> None:
    store = Store(*(segment_of(bytes([number]) * 300_000) for number in range(3)))
    stores: Any = store
    fetcher = Fetcher(
        stores,
        None,
        SystemClock(),
        threads=1,
        request_timeout_ms=1000,
        keep_bytes=1 << 20,
        name="test",
    )

    def views() -> list[RecordsView]:
        told = notification(*store.parts)
        entry = Entry(Flow(("flights", 0), None), 7, told, 3)
        entry.context = EntryContext(TIMESTAMP_CREATE_TIME, None, None)
        whole = ByteRange(0, len(store.data))
        items = tuple((entry, index, each) for index, each in enumerate(store.parts))
        found = fetcher.fetch(FetchSection("", object_key(), whole, items))
        assert all(isinstance(view, RecordsView) for view in found)
        return [view for view in found if isinstance(view, RecordsView)]

    first = views()
    memory = {id(view.segment.data) for view in first}
    kept = SegmentMessage(first[1], 0)
    del first
    second = views()

    assert kept.value() == bytes([1]) * 300_000
    assert len({id(view.segment.data) for view in second} & memory) == 2
    assert [view.segment.value(0) for view in second] == [bytes([n]) * 300_000 for n in range(3)]


def test_large_parts_are_read_also_when_no_more_mappings_are_to_be_had(
    cache: MemoryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    values = [bytes([number]) * 300_000 for number in range(3)]
    store = Store(*map(segment_of, values))

    assert fetch(store, cache, store.parts) == values
