from __future__ import annotations

from typing import TYPE_CHECKING

import confluent_kafka
import pytest

from blobmsg.demo.flights import Flight
from blobmsg.demo.job import UNREADABLE, Arrivals
from blobmsg.demo.oracle import Expectation, digest_of
from tests.helpers.stock import needs_consistent

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = 4

Record = tuple[int, int, int]  # number, partition, digest


def flight(number: int, *, key: bytes | None = b"N1", zone: str = "az1") -> Flight:
    return Flight(number, zone, key, b'{"id":%d,"x":1}' % number)


def expect(*flights: Flight) -> Expectation:
    expectation = Expectation(PARTITIONS)
    for each in flights:
        expectation.add(each)
    return expectation


def records(*flights: Flight) -> list[Record]:
    # Partition of N1 by hand: crc32(b"N1") = 0x7efd704e.
    return [(f.number, 0x7EFD704E % PARTITIONS, digest_of(f.key, f.value)) for f in flights]


def arrived(*what: Record) -> Arrivals:
    arrivals = Arrivals()
    for number, partition, digest in what:
        arrivals.numbers.append(number)
        arrivals.partitions.append(partition)
        arrivals.digests.append(digest)
        arrivals.latencies_ms.append(1)
    return arrivals


FLIGHTS = [flight(number) for number in (1, 2, 3)]


def test_everything_in_order_finds_nothing() -> None:
    verdict = expect(*FLIGHTS).judge([arrived(*records(*FLIGHTS))])

    assert verdict.arrived == 3
    for finding in (
        verdict.lost,
        verdict.doubled,
        verdict.altered,
        verdict.reordered,
        verdict.misplaced,
    ):
        assert finding.count == 0


def swap_last_two(found: list[Record]) -> list[Record]:
    return [found[0], found[2], found[1]]


def alter_one(found: list[Record]) -> list[Record]:
    return [found[0], (2, found[1][1], found[1][2] ^ 1), found[2]]


def misplace_one(found: list[Record]) -> list[Record]:
    return [found[0], (2, (found[1][1] + 1) % PARTITIONS, found[1][2]), found[2]]


@pytest.mark.parametrize(
    ("damage", "name", "example"),
    [
        (lambda found: found[:1] + found[2:], "lost", "id 2"),
        (lambda found: [*found, found[2]], "doubled", "id 3 in partition 2"),
        (swap_last_two, "reordered", "id 2 after 3 in partition 2"),
        (alter_one, "altered", "id 2 in partition 2"),
        (misplace_one, "misplaced", "id 2 in partition 3, not 2"),
    ],
)
def test_each_kind_of_damage_is_found_and_only_that(
    damage: Callable[[list[Record]], list[Record]], name: str, example: str
) -> None:
    verdict = expect(*FLIGHTS).judge([arrived(*damage(records(*FLIGHTS)))])

    findings = {
        kind: getattr(verdict, kind)
        for kind in ("lost", "doubled", "altered", "reordered", "misplaced")
    }
    assert {kind: finding.count for kind, finding in findings.items() if finding.count} == {name: 1}
    assert findings[name].examples == [example]


def test_a_record_that_was_never_sent_is_altered() -> None:
    stray = [(4, 2, 5), (UNREADABLE, 2, 5)]

    verdict = expect(*FLIGHTS).judge([arrived(*records(*FLIGHTS), *stray)])

    assert verdict.altered.count == 2
    assert verdict.lost.count == 0


def test_a_record_that_two_consumers_got_is_doubled() -> None:
    found = records(*FLIGHTS)

    verdict = expect(*FLIGHTS).judge([arrived(*found), arrived(found[0])])

    assert verdict.doubled.count == 1


def test_order_is_asked_for_within_a_producer_only() -> None:
    flights = [flight(1, zone="az1"), flight(2, zone="az2")]

    verdict = expect(*flights).judge([arrived(*records(flights[1], flights[0]))])

    assert verdict.reordered.count == 0


def test_a_record_without_a_key_may_be_in_any_partition() -> None:
    keyless = flight(1, key=None)

    verdict = expect(keyless).judge([arrived((1, 3, digest_of(None, keyless.value)))])

    assert verdict.misplaced.count == 0
    assert verdict.altered.count == 0


def test_a_missing_and_an_empty_key_differ() -> None:
    assert digest_of(None, b"v") != digest_of(b"", b"v")


def test_key_and_value_do_not_run_into_each_other() -> None:
    assert digest_of(b"a", b"bc") != digest_of(b"ab", b"c")


def test_examples_are_few() -> None:
    flights = [flight(number) for number in range(1, 11)]

    verdict = expect(*flights).judge([])

    assert verdict.lost.count == 10
    assert verdict.lost.examples == ["id 1", "id 2", "id 3"]


def test_a_gap_in_the_source_is_refused() -> None:
    with pytest.raises(ValueError, match="record 3 after 1"):
        expect(flight(1), flight(3))


@needs_consistent
def test_partitions_are_those_of_librdkafka() -> None:
    keys = [b"N%d" % number for number in range(100)]
    expectation = expect(*(flight(n, key=key) for n, key in enumerate(keys, 1)))

    assert list(expectation._partitions) == [
        confluent_kafka.consistent(key, PARTITIONS)  # type: ignore[attr-defined,unused-ignore]
        for key in keys
    ]
