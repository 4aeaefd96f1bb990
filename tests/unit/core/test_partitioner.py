from __future__ import annotations

import random
from collections import Counter

import confluent_kafka
import pytest

from blobmsg.core.partitioner import (
    PARTITIONER_NAMES,
    create_partitioner,
    fnv1a,
    is_left_to_chance,
    murmur2,
)

NOTHING: frozenset[int] = frozenset()
STICKY = ("random", "consistent_random", "murmur2_random", "fnv1a_random")
HASHING = tuple(name for name in PARTITIONER_NAMES if name != "random")


def rng() -> random.Random:
    return random.Random(20240501)


# Published by the Java client's tests (UtilsTest.testMurmur2), as signed ints.
@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_the_java_clients(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


# Published by librdkafka's unit test, which took them from Sarama's hasher.
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"kafka", 0xD33C4E1),
        (b"giberish123456789", 0x77A58295),
        (b"1234", 0x23BDD03),
        (b"234", 0x2DEA3CD2),
        (b"34", 0x740FA83E),
        (b"4", 0x310CA263),
        (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x65CBD69C),
        (b"", 0x7EE3623B),
    ],
)
def test_fnv1a_is_saramas(key: bytes, expected: int) -> None:
    assert fnv1a(key) == expected


@pytest.mark.parametrize("name", STICKY)
def test_missing_keys_stick_until_the_linger_is_over(name: str) -> None:
    partitioner = create_partitioner(name, rng(), 10)

    first = partitioner.partition(None, 1_000_000, 5)

    assert {partitioner.partition(None, 1_000_000, now_ms) for now_ms in range(5, 16)} == {first}
    # More than the linger, not the linger: rd_interval compares with >.
    assert partitioner.partition(None, 1_000_000, 16) != first


@pytest.mark.parametrize("name", STICKY)
def test_missing_keys_are_spread_evenly_with_linger_0(name: str) -> None:
    partitioner = create_partitioner(name, rng(), 0)

    found = Counter(partitioner.partition(None, 10, 0) for _ in range(20_000))

    assert set(found) == set(range(10))
    # 20,000 throws of a die with 10 faces: 2000 ± 42 (one sigma).
    assert all(1_800 < count < 2_200 for count in found.values())


def test_sticky_partitions_are_spread_evenly_over_time() -> None:
    partitioner = create_partitioner("consistent_random", rng(), 10)

    found = Counter(partitioner.partition(None, 10, now_ms) for now_ms in range(0, 220_000, 11))

    assert all(1_800 < found[partition] < 2_200 for partition in range(10))


def test_an_empty_key_is_missing_for_consistent_random_only() -> None:
    empty = {
        name: {
            create_partitioner(name, random.Random(seed), 10).partition(b"", 1000, 0)
            for seed in range(20)
        }
        for name in PARTITIONER_NAMES
    }

    assert {name for name, found in empty.items() if len(found) > 1} == {
        "random",
        "consistent_random",
    }


def test_random_spreads_keys_even_while_missing_ones_stick() -> None:
    partitioner = create_partitioner("random", rng(), 10)

    assert len({partitioner.partition(b"key", 1000, 0) for _ in range(50)}) > 40
    assert len({partitioner.partition(b"", 1000, 0) for _ in range(50)}) > 40
    assert len({partitioner.partition(None, 1000, 0) for _ in range(50)}) == 1


def test_a_missing_key_is_hashed_as_empty_by_the_deterministic_ones() -> None:
    found = {
        name: create_partitioner(name, rng(), 10).partition(None, 12, 0)
        for name in ("consistent", "murmur2", "fnv1a")
    }

    assert found == {
        "consistent": 0,
        "murmur2": 275646681 % 12,  # the Java client's hash of nothing
        "fnv1a": 0x7EE3623B % 12,
    }


def test_a_partition_that_lost_its_leader_is_left_at_once() -> None:
    partitioner = create_partitioner("consistent_random", rng(), 1000)
    first = partitioner.partition(None, 1000, 0)

    second = partitioner.partition(None, 1000, 1, {first})

    assert second != first
    assert partitioner.partition(None, 1000, 2) == second


def test_partitions_without_leader_get_one_more_throw_and_no_search() -> None:
    partitioner = create_partitioner("random", rng(), 0)

    found = Counter(partitioner.partition(None, 2, 0, {0}) for _ in range(10_000))

    # Half of the first throws hit partition 0, half of their second ones as well.
    assert 2_300 < found[0] < 2_700


@pytest.mark.parametrize("name", ["consistent_random", "murmur2_random", "fnv1a_random"])
def test_a_key_stays_on_its_partition_while_that_has_no_leader(name: str) -> None:
    partitioner = create_partitioner(name, rng(), 10)
    home = partitioner.partition(b"key", 12, 0)

    assert partitioner.partition(b"key", 12, 0, set(range(12))) == home


def test_a_sticky_partition_that_no_longer_exists_is_left() -> None:
    partitioner = create_partitioner("consistent_random", rng(), 1000)
    assert partitioner.partition(None, 1000, 0) > 0

    assert partitioner.partition(None, 1, 0) == 0


def test_other_hashes_are_used_when_given() -> None:
    def always(_key: bytes, partition_count: int) -> int:
        return partition_count - 1

    for name in ("murmur2", "murmur2_random"):
        assert create_partitioner(name, rng(), 0, murmur2=always).partition(b"k", 7, 0) == 6
    for name in ("fnv1a", "fnv1a_random"):
        assert create_partitioner(name, rng(), 0, fnv1a=always).partition(b"k", 7, 0) == 6


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown partitioner 'round_robin': one of random"):
        create_partitioner("round_robin", rng(), 0)


# -- against librdkafka itself -----------------------------------------------------------------

KEYS: list[bytes | None] = [None, b"", b"a", b"ab", b"abc", b"abcd", b"\x00", b"\xff" * 33] + [
    f"key-{n}".encode() for n in range(200)
]


@pytest.fixture(scope="module", params=PARTITIONER_NAMES)
def delivered(request: pytest.FixtureRequest) -> tuple[str, int, list[int]]:
    """(partitioner, partition count, partition of each key) as real librdkafka chose them."""
    partitions = [-1] * len(KEYS)
    producer = confluent_kafka.Producer(
        {
            # An embedded broker on loopback; no network.
            "test.mock.num.brokers": 1,
            "partitioner": request.param,
            "sticky.partitioning.linger.ms": 60_000,
        }
    )
    count = len(producer.list_topics("topic", 10).topics["topic"].partitions)
    for index, key in enumerate(KEYS):

        def report(_error: object, message: confluent_kafka.Message, index: int = index) -> None:
            partition = message.partition()
            assert partition is not None
            partitions[index] = partition

        producer.produce("topic", b"", key, on_delivery=report)
    assert producer.flush(20) == 0
    return request.param, count, partitions


def test_keys_go_where_librdkafka_puts_them(delivered: tuple[str, int, list[int]]) -> None:
    name, count, partitions = delivered
    partitioner = create_partitioner(name, rng(), 60_000)
    assert count > 1

    ours = [partitioner.partition(key, count, 0) for key in KEYS]

    # Random choices can only be compared by distribution.
    chance: dict[str, set[bytes | None]] = {
        "random": set(KEYS),
        "consistent_random": {None, b""},
        "murmur2_random": {None},
        "fnv1a_random": {None},
    }
    left_to_chance = chance.get(name, set())
    for key, our, their in zip(KEYS, ours, partitions, strict=True):
        assert 0 <= their < count
        assert key in left_to_chance or our == their, key


def test_librdkafka_lets_missing_keys_stick_and_so_do_we() -> None:
    def chosen(linger_ms: int) -> set[int | None]:
        found: set[int | None] = set()
        producer = confluent_kafka.Producer(
            {"test.mock.num.brokers": 1, "sticky.partitioning.linger.ms": linger_ms}
        )
        # Until it knows a leader for every partition, it throws the dice for each record.
        producer.produce("topic", b"")
        assert producer.flush(20) == 0
        for n in range(200):
            producer.produce(
                "topic",
                b"",
                None if n % 2 else b"",
                on_delivery=lambda _error, message: found.add(message.partition()),
            )
        assert producer.flush(20) == 0
        return found

    def ours(linger_ms: int) -> set[int | None]:
        partitioner = create_partitioner("consistent_random", rng(), linger_ms)
        return {partitioner.partition(None if n % 2 else b"", 4, 0) for n in range(200)}

    assert len(chosen(60_000)) <= 2
    assert len(ours(60_000)) == 1
    assert chosen(0) == ours(0) == {0, 1, 2, 3}


def test_only_the_consistent_ones_hash_with_crc32() -> None:
    hashing = {
        name for name in PARTITIONER_NAMES if create_partitioner(name, rng(), 10).hashes_crc32
    }

    assert hashing == {"consistent", "consistent_random"}


@pytest.mark.parametrize("name", PARTITIONER_NAMES)
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_what_is_left_to_chance_differs_from_record_to_record(name: str, key: bytes | None) -> None:
    partitioner = create_partitioner(name, rng(), 0)
    found = {partitioner.partition(key, 8, 0) for _ in range(200)}

    assert is_left_to_chance(name, key) == (len(found) > 1)
