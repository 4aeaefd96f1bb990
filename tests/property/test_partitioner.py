from __future__ import annotations

import random

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobmsg.core.partitioner import PARTITIONER_NAMES, create_partitioner

keys = st.binary(max_size=64)
counts = st.integers(min_value=1, max_value=100_000)
hashes = pytest.mark.skipif(
    not hasattr(confluent_kafka, "murmur2"),
    reason="this confluent-kafka does not show librdkafka's hashes",
)


@hashes
@given(key=keys, count=counts)
def test_pure_hashes_equal_librdkafkas(key: bytes, count: int) -> None:
    rng = random.Random(0)

    for name, theirs in (
        ("consistent", confluent_kafka.consistent),
        ("murmur2", confluent_kafka.murmur2),
        ("fnv1a", confluent_kafka.fnv1a),
    ):
        assert create_partitioner(name, rng, 0).partition(key, count, 0) == theirs(key, count)


@given(
    name=st.sampled_from(PARTITIONER_NAMES),
    records=st.lists(
        st.tuples(st.none() | keys, counts, st.integers(0, 50), st.sets(st.integers(0, 20))),
        max_size=30,
    ),
    linger_ms=st.integers(0, 100),
    seed=st.integers(0, 2**32),
)
def test_every_choice_is_a_partition_of_the_topic(
    name: str,
    records: list[tuple[bytes | None, int, int, set[int]]],
    linger_ms: int,
    seed: int,
) -> None:
    partitioner = create_partitioner(name, random.Random(seed), linger_ms)
    now_ms = 0

    for key, count, step_ms, unavailable in records:
        now_ms += step_ms
        assert 0 <= partitioner.partition(key, count, now_ms, unavailable) < count


@given(
    name=st.sampled_from([name for name in PARTITIONER_NAMES if name != "random"]),
    key=st.binary(min_size=1, max_size=64),
    count=counts,
    seeds=st.tuples(st.integers(), st.integers()),
)
def test_a_key_has_one_partition_whatever_chance_and_time(
    name: str, key: bytes, count: int, seeds: tuple[int, int]
) -> None:
    one, other = (create_partitioner(name, random.Random(seed), 10) for seed in seeds)

    assert one.partition(key, count, 0) == other.partition(key, count, 10**9)
