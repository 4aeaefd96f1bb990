from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from blobmsg.core.partitioner import PARTITIONER_NAMES, create_partitioner
from blobmsg.errors import BlobmsgError
from blobmsg.kafka_settings import KafkaView
from blobmsg_spark.sink_partitioner import SinkPartitioner

COUNT = 12
HASHED = {
    "random": "",
    "consistent": "null empty key",
    "consistent_random": "key",
    "murmur2": "null empty key",
    "murmur2_random": "empty key",
    "fnv1a": "null empty key",
    "fnv1a_random": "empty key",
}


def _partitioner(
    name: str, unavailable: frozenset[int] = frozenset(), *, linger_ms: int = 10
) -> SinkPartitioner:
    view = KafkaView.parse({"partitioner": name, "sticky.partitioning.linger.ms": linger_ms})
    return SinkPartitioner("t", view, COUNT, unavailable, np.random.default_rng(7))


def _assign(
    partitioner: SinkPartitioner, keys: list[bytes | None], size: int = 10, given: Any = None
) -> list[int]:
    sizes = np.full(len(keys), size, dtype=np.int64)
    found: list[int] = partitioner.partitions(pa.array(keys, pa.binary()), sizes, given).tolist()
    return found


@pytest.mark.parametrize("name", PARTITIONER_NAMES)
def test_where_a_hash_decides_it_is_the_producers(name: str) -> None:
    rng = random.Random(5)
    keys: list[bytes | None] = [rng.randbytes(rng.randint(1, 40)) for _ in range(300)]
    keys += [None, b""] * 5
    expected = create_partitioner(name, rng, 0)

    found = _assign(_partitioner(name), keys)

    kinds = ["null" if key is None else "key" if key else "empty" for key in keys]
    compared = 0
    for key, kind, partition in zip(keys, kinds, found, strict=True):
        if kind in HASHED[name].split():
            assert partition == expected.partition(key, COUNT, 0), (key, name)
            compared += 1
    assert compared == sum(kinds.count(kind) for kind in HASHED[name].split())


def test_missing_keys_stay_for_a_while_and_reach_all_partitions() -> None:
    found: list[int] = []
    partitioner = _partitioner("consistent_random")
    for _ in range(200):  # across batches as well
        found += _assign(partitioner, [None] * 100, 1024)

    runs = 1 + sum(one != other for one, other in pairwise(found))
    assert set(found) == set(range(COUNT))
    assert runs <= len(found) * 1024 // (256 << 10) + 1
    assert max(np.bincount(found)) < len(found) / COUNT * 3


def test_without_sticky_linger_each_record_is_thrown() -> None:
    partitioner = _partitioner("murmur2_random", linger_ms=0)

    found = _assign(partitioner, [None] * 1200)

    assert min(np.bincount(found, minlength=COUNT)) > 50


def test_random_throws_each_record_with_a_key() -> None:
    found = _assign(_partitioner("random"), [b"key"] * 1200 + [None] * 100)

    assert min(np.bincount(found[:1200], minlength=COUNT)) > 50
    assert len(set(found[1200:])) == 1


def test_chance_avoids_partitions_without_a_leader_and_hashes_do_not() -> None:
    partitioner = _partitioner("consistent_random", frozenset(range(1, COUNT)), linger_ms=0)

    assert set(_assign(partitioner, [None] * 100)) == {0}
    assert len(set(_assign(partitioner, [str(n).encode() for n in range(200)]))) == COUNT


def test_what_a_row_says_goes_before_the_partitioner() -> None:
    given = np.array([3, -1, 11], dtype=np.int32)
    hashed = _assign(_partitioner("consistent"), [b"b"])[0]

    assert _assign(_partitioner("consistent"), [b"a", b"b", None], given=given) == [3, hashed, 11]


def test_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(BlobmsgError, match=r"has 12, but topic t has 12 partitions") as raised:
        _assign(_partitioner("random"), [None], given=np.array([COUNT], dtype=np.int32))
    assert raised.value.kafka_error.code() == KafkaError._UNKNOWN_PARTITION


def test_no_records_have_no_partitions() -> None:
    assert _assign(_partitioner("consistent_random"), []) == []
