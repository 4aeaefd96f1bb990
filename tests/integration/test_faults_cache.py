"""A memory cache that holds what is wrong, or is given it: nothing of that is delivered or kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.cache.memory import MemoryCache
from blobmsg.cache.part_buffers import memory_of
from tests.helpers.fault_proxy import FlipBit
from tests.helpers.records import partition, read, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.cache.part_buffers import StoredPart
    from blobmsg.format.ranges import ByteRange
    from tests.helpers.fault_proxy import Fault, FaultProxy, Request

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

OBJECTS = 3
RECORDS_PER_OBJECT = 10
COUNT = OBJECTS * RECORDS_PER_OBJECT
# Clients with caches of one size share one, so of a size that no other test has.
CACHE_BYTES = (8 << 20) + 15


@pytest.fixture
def reader_conf(group_conf: dict[str, Any], proxy: FaultProxy) -> dict[str, Any]:
    return {
        **group_conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.cache.memory.bytes": CACHE_BYTES,
        "enable.partition.eof": False,
    }


@pytest.fixture
def read_all(
    conf: dict[str, Any], reader_conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> Callable[[BlobConsumer], tuple[list[int], int]]:
    """Reads the topic from its start: the numbers that came, and how many GETs that took."""
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for first in range(0, COUNT, RECORDS_PER_OBJECT):
            send(producer, topic, [b"%d" % (first + n) for n in range(RECORDS_PER_OBJECT)])

    def read_from_the_start(consumer: BlobConsumer) -> tuple[list[int], int]:
        before = _gets(proxy)
        consumer.unassign()
        consumer.assign([partition(topic, 0, 0)])
        numbers = [int(message.value()) for message in read(consumer, COUNT)]
        return numbers, _gets(proxy) - before

    return read_from_the_start


def _gets(proxy: FaultProxy) -> int:
    return sum(request.method == "GET" for request in proxy.requests)


def test_what_went_wrong_in_the_cache_is_evicted_and_what_is_fetched_again_serves_from_then_on(
    reader_conf: dict[str, Any],
    read_all: Callable[[BlobConsumer], tuple[list[int], int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill = MemoryCache.fill

    def fill_with_a_flipped_bit(
        cache: MemoryCache, store: str, key: str, byte_range: ByteRange, data: StoredPart
    ) -> None:
        damaged = bytearray(memory_of(data))
        damaged[len(damaged) // 2] ^= 1
        fill(cache, store, key, byte_range, bytes(damaged))

    everything = list(range(COUNT))
    with BlobConsumer(reader_conf) as consumer:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryCache, "fill", fill_with_a_flipped_bit)
            assert read_all(consumer) == (everything, OBJECTS)
        assert consumer.stats()["mismatches"] == 0

        assert read_all(consumer) == (everything, OBJECTS)
        assert consumer.stats()["mismatches"] == OBJECTS
        assert consumer.stats()["cache_hits"] == 0

        assert read_all(consumer) == (everything, 0)
        assert consumer.stats()["mismatches"] == OBJECTS
        assert consumer.stats()["cache_hits"] == OBJECTS


def test_what_came_damaged_from_the_store_is_not_kept(
    reader_conf: dict[str, Any],
    read_all: Callable[[BlobConsumer], tuple[list[int], int]],
    proxy: FaultProxy,
) -> None:
    def flip_at_first(request: Request) -> Fault | None:
        return FlipBit(30) if request.method == "GET" and request.attempt == 0 else None

    proxy.rule = flip_at_first
    everything = list(range(COUNT))
    with BlobConsumer(reader_conf) as consumer:
        assert read_all(consumer) == (everything, 2 * OBJECTS)
        assert proxy.faults["FlipBit"] == OBJECTS
        assert consumer.stats()["mismatches"] == OBJECTS

        assert read_all(consumer) == (everything, 0)
        assert consumer.stats()["mismatches"] == OBJECTS
        assert consumer.stats()["cache_hits"] == OBJECTS
