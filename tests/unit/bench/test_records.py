from __future__ import annotations

import itertools
import random
import zlib

import confluent_kafka
import pytest

from bench._records import (
    Tally,
    TallyMaker,
    Workload,
    differences,
    expected_tally,
    make_records,
)
from tests.helpers.stock import needs_consistent

PARTITIONS = 12


def read_back(records: list[tuple[int, bytes, bytes]]) -> Tally:
    """A tally of (partition, key, value) in this order, with offsets that grow."""
    maker = TallyMaker(PARTITIONS)
    for offset, (partition, key, value) in enumerate(records):
        maker.add(partition, offset, key, value)
    return maker.tally()


def produced(count: int) -> list[tuple[int, bytes, bytes]]:
    keys, values = make_records(count, Workload(seed=3))
    return [
        (zlib.crc32(key) % PARTITIONS, key, value) for key, value in zip(keys, values, strict=True)
    ]


def expected(count: int) -> Tally:
    return expected_tally(*make_records(count, Workload(seed=3)), PARTITIONS)


def test_same_seed_gives_same_records_and_another_seed_others() -> None:
    one, other = Workload(seed=1), Workload(seed=2)

    assert make_records(1500, one) == make_records(1500, one)
    assert make_records(1500, one)[1][0] != make_records(1500, other)[1][0]


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("value_bytes", [100, 1024, 3_000_000])
def test_fewer_records_are_a_prefix_of_more(value_bytes: int, is_text: bool) -> None:
    workload = Workload(value_bytes, is_text)
    keys, values = make_records(30, workload)

    assert make_records(10, workload) == (keys[:10], values[:10])
    assert {len(value) for value in values} == {value_bytes}


@pytest.mark.parametrize(("is_text", "least", "most"), [(False, 0.999, 1.01), (True, 0.1, 0.4)])
def test_values_are_all_different_and_text_alone_compresses(
    is_text: bool, least: float, most: float
) -> None:
    keys, values = make_records(3000, Workload(is_text=is_text))

    assert len(set(values)) == len(set(keys)) == 3000
    joined = b"".join(values)
    assert least < len(zlib.compress(joined)) / len(joined) < most


@needs_consistent
def test_expected_partition_is_the_one_of_librdkafka() -> None:
    key = b"00000007"
    counts = expected_tally([key], [b"x" * 1024], PARTITIONS).counts

    assert counts.index(1) == confluent_kafka.consistent(key, PARTITIONS)


def test_what_was_produced_differs_in_nothing() -> None:
    assert differences(expected(500), read_back(produced(500))) == []


def test_order_across_partitions_does_not_matter() -> None:
    records = sorted(produced(500), key=lambda record: record[0])

    assert differences(expected(500), read_back(records)) == []


def test_a_lost_record_is_found() -> None:
    records = produced(500)
    partition = records.pop(137)[0]

    (wrong,) = differences(expected(500), read_back(records))

    assert wrong.startswith(f"partition {partition}: 1 of ")
    assert wrong.endswith("records lost")


def test_a_doubled_record_is_found_as_too_many_and_out_of_order() -> None:
    records = produced(500)
    records.append(records[137])

    wrong = differences(expected(500), read_back(records))

    assert "1 of" in wrong[0]
    assert "too many" in wrong[0]
    assert wrong[1] == "1 records out of order"


def test_a_flipped_bit_is_found() -> None:
    records = produced(500)
    partition, key, value = records[137]
    records[137] = (partition, key, bytes([value[0] ^ 1]) + value[1:])

    (wrong,) = differences(expected(500), read_back(records))

    assert wrong.startswith(f"partition {partition}: ")
    assert wrong.endswith("but not those produced")


def test_two_records_with_swapped_values_are_found() -> None:
    records = produced(500)
    first, second = [at for at, record in enumerate(records) if record[0] == records[0][0]][:2]
    (partition, key, value), (_, other_key, other_value) = records[first], records[second]
    records[first], records[second] = (partition, key, other_value), (partition, other_key, value)

    assert len(differences(expected(500), read_back(records))) == 1


def test_a_record_in_the_wrong_partition_is_found_in_both() -> None:
    records = produced(500)
    partition, key, value = records[-1]
    records[-1] = ((partition + 1) % PARTITIONS, key, value)

    assert len(differences(expected(500), read_back(records))) == 2


def test_records_of_one_partition_in_another_order_are_found() -> None:
    records = produced(500)
    first, second = [at for at, record in enumerate(records) if record[0] == records[0][0]][:2]
    records[first], records[second] = records[second], records[first]

    assert differences(expected(500), read_back(records)) == ["1 records out of order"]


def test_offsets_that_do_not_grow_are_found() -> None:
    maker = TallyMaker(PARTITIONS)
    for (partition, key, value), offset in zip(produced(500), itertools.repeat(7)):
        maker.add(partition, offset, key, value)

    assert maker.tally().out_of_order == 500 - PARTITIONS


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025])
def test_the_count_is_exact_around_a_block(count: int) -> None:
    keys, values = make_records(count, Workload())

    assert len(keys) == len(values) == count


def test_the_sum_does_not_depend_on_order_within_a_partition() -> None:
    records = [(0, key, value) for _, key, value in produced(50)]
    shuffled = list(records)
    random.Random(5).shuffle(shuffled)

    assert read_back(records).sums == read_back(shuffled).sums
