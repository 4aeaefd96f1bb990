from __future__ import annotations

import itertools
import tracemalloc
from typing import TYPE_CHECKING, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from blobmsg.offsets import to_virtual
from blobmsg_spark import trigger_limits
from blobmsg_spark.trigger_limits import Allotment, Backlog, KafkaRecordSize, allot

if TYPE_CHECKING:
    import pytest

Key: TypeAlias = tuple[str, int]


def _backlog(*sizes: tuple[int, int], until: int | None = None, start: int = 0) -> Backlog:
    """Kafka records one after the other, each of so many records and bytes."""
    backlog = Backlog(start)
    for place, (records, size_bytes) in enumerate(sizes):
        backlog.add(KafkaRecordSize(start + place, records, size_bytes))
    backlog.nothing_until(start + len(sizes) if until is None else until)
    return backlog


def _allot(
    backlogs: dict[Key, Backlog],
    limit: int,
    *,
    by_bytes: bool = False,
    starts: dict[Key, int] | None = None,
    stops: dict[Key, int] | None = None,
) -> Allotment:
    if stops is None:
        stops = {key: backlog.known_until for key, backlog in backlogs.items()}
    return allot(
        backlogs,
        starts or dict.fromkeys(backlogs, 0),
        stops,
        max_records=None if by_bytes else limit,
        max_bytes=limit if by_bytes else None,
    )


A, B = ("t", 0), ("t", 1)


def test_records_are_limited_inside_a_notification() -> None:
    found = _allot({A: _backlog((10, 0), (10, 0), (10, 0))}, 14)

    assert found.ends == {A: to_virtual(2) - 6}
    assert not found.unknown


def test_the_rest_of_a_notification_comes_first_the_next_time() -> None:
    start = {A: to_virtual(2) - 6}

    found = _allot({A: _backlog((10, 0), (10, 0), (10, 0))}, 14, starts=start)

    assert found.ends == {A: to_virtual(3) - 2}


def test_all_is_taken_when_the_limit_is_not_reached_markers_included() -> None:
    found = _allot({A: _backlog((10, 0), until=4)}, 100)

    assert found.ends == {A: to_virtual(4)}


def test_partitions_share_by_what_lies_ready() -> None:
    found = _allot({A: _backlog(*[(1, 0)] * 30), B: _backlog(*[(1, 0)] * 10)}, 20)

    assert found.ends == {A: to_virtual(15), B: to_virtual(5)}


def test_what_one_partition_leaves_goes_to_the_others() -> None:
    found = _allot({A: _backlog((1, 0), until=30), B: _backlog(*[(1, 0)] * 30)}, 20)

    assert found.ends == {A: to_virtual(30), B: to_virtual(19)}


def test_bytes_are_limited_by_whole_notifications() -> None:
    found = _allot({A: _backlog((5, 60), (5, 60), (5, 60))}, 130, by_bytes=True)

    assert found.ends == {A: to_virtual(2)}


def test_one_notification_is_let_in_whatever_its_size() -> None:
    found = _allot({A: _backlog((5, 60)), B: _backlog((5, 60), (5, 60))}, 10, by_bytes=True)

    assert found.ends == {A: 0, B: to_virtual(1)}


def test_more_must_be_known_for_the_share_first() -> None:
    stops = {A: 30, B: 10}

    found = _allot({A: Backlog(0), B: Backlog(0)}, 20, stops=stops)

    assert found.unknown == {A: 15, B: 5}


def test_more_must_be_known_of_who_can_take_what_is_left() -> None:
    one, two = _backlog((1, 0), until=30), _backlog(*[(1, 0)] * 10)

    found = _allot({A: one, B: two}, 20, stops={A: 30, B: 30})

    assert found.unknown == {B: 9}


def test_a_partition_without_anything_new_stays_where_it_is() -> None:
    start = to_virtual(3)

    found = _allot({A: Backlog(3)}, 5, starts={A: start}, stops={A: 3})

    assert found.ends == {A: start}
    assert not found.unknown


def test_what_is_committed_is_forgotten() -> None:
    backlog = _backlog((1, 0), (1, 0), (1, 0))

    backlog.forget_before(2)

    assert not backlog.covers(1)
    assert backlog.covers(2)
    assert backlog.covers(3)


def test_with_both_limits_a_take_charges_both() -> None:
    backlogs = {A: _backlog(*[(1, 100)] * 10), B: _backlog((1, 10))}

    found = allot(backlogs, {A: 0, B: 0}, {A: 10, B: 1}, max_records=1, max_bytes=50)

    # The record limit alone would serve A, the byte limit alone B: a query that took the
    # smaller end of each would stand still.
    assert found.ends == {A: 0, B: to_virtual(1)}


def test_with_both_limits_the_one_that_is_let_in_holds_the_record_limit() -> None:
    backlogs = {A: _backlog((4000, 100 << 20), (4000, 100 << 20))}

    found = allot(backlogs, {A: 0}, {A: 2}, max_records=1000, max_bytes=1 << 20)

    assert found.ends == {A: to_virtual(1) - 3000}


def test_with_both_limits_no_more_is_looked_for_than_the_records_allow() -> None:
    found = allot({A: Backlog(0)}, {A: 0}, {A: 90_000}, max_records=5000, max_bytes=1 << 30)

    assert found.unknown == {A: 1 << 30}
    assert found.read_until == {A: 5000}


def test_large_notifications_get_their_turn_however_often_another_partition_is_refilled() -> None:
    position = {A: 0, B: 0}
    backlogs = {A: _backlog(*[(1, 70)] * 3), B: Backlog(0)}
    served = []
    for _ in range(6):
        for _ in range(9):
            backlogs[B].add(KafkaRecordSize(backlogs[B].known_until, 1, 10))
        found = _allot(backlogs, 60, by_bytes=True, starts=position)
        served.append({key for key, end in found.ends.items() if end > position[key]})
        position = dict(found.ends)

    assert served == [{B}, {A}] * 3


def test_who_waits_longest_is_served_first_among_many() -> None:
    keys = [("t", number) for number in range(5)]
    backlogs = {key: _backlog(*[(1, 100)] * 10) for key in keys}
    position = dict.fromkeys(keys, 0)
    for _ in range(len(keys)):
        position = dict(_allot(backlogs, 50, by_bytes=True, starts=position).ends)

    assert position == dict.fromkeys(keys, to_virtual(1))


def test_few_records_per_batch_go_around_too() -> None:
    backlogs = {A: _backlog(*[(1, 0)] * 100), B: _backlog((1, 0))}

    first = _allot(backlogs, 1)
    second = _allot(backlogs, 1, starts=dict(first.ends))

    assert first.ends == {A: to_virtual(1), B: 0}
    assert second.ends == {A: to_virtual(1), B: to_virtual(1)}


def test_of_a_partition_that_waits_one_kafka_record_must_be_known() -> None:
    waiting = Backlog(0)
    waiting.waited = 1

    found = _allot({A: waiting, B: Backlog(0)}, 1 << 30, by_bytes=True, stops={A: 9, B: 99})

    assert found.unknown == {A: 1}


def test_a_batch_ends_early_where_too_much_would_have_to_be_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trigger_limits, "_MOST_KNOWN", 40)
    stops = {A: 300, B: 100}

    first = _allot({A: Backlog(0), B: Backlog(0)}, 1000, stops=stops)
    known = {A: _backlog(*[(1, 0)] * 30), B: _backlog(*[(1, 0)] * 10)}
    second = _allot(known, 1000, stops=stops)

    assert first.read_until == {A: 30, B: 10}
    assert second.ends == {A: to_virtual(30), B: to_virtual(10)}


def test_a_known_kafka_record_takes_few_bytes() -> None:
    tracemalloc.start()
    try:
        backlog = _backlog(*itertools.repeat((1, 1000), 50_000), start=1 << 40)
        _allot({A: backlog}, 40_000, starts={A: to_virtual(1 << 40)})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # Three columns of 8 bytes, and what a growing array has too much; objects took 265. The
    # arguments of `_backlog` are 8 more.
    assert peak / 50_000 < 80


_SIZES = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 50)), max_size=12)


@given(
    st.lists(_SIZES, min_size=1, max_size=4),
    st.integers(1, 60) | st.none(),
    st.integers(1, 60) | st.none(),
)
def test_batches_within_the_limits_read_everything_once(
    partitions: list[list[tuple[int, int]]], max_records: int | None, max_bytes: int | None
) -> None:
    backlogs = {("t", number): _backlog(*sizes) for number, sizes in enumerate(partitions)}
    stops = {key: backlog.known_until for key, backlog in backlogs.items()}
    ends = {key: to_virtual(stop) for key, stop in stops.items()}
    position: dict[Key, int] = dict.fromkeys(backlogs, 0)
    batches = 0
    while position != ends:
        found = allot(backlogs, position, stops, max_records=max_records, max_bytes=max_bytes)
        assert not found.unknown
        records = size_bytes = kafka_records = 0
        for key, backlog in backlogs.items():
            assert found.ends[key] >= position[key]
            before = {left.size: left for left in backlog.sizes(position[key], stops[key])}
            after = {left.size: left for left in backlog.sizes(found.ends[key], stops[key])}
            for size, left in before.items():
                rest = after[size].records if size in after else 0
                assert rest <= left.records
                records += left.records - rest
                kafka_records += rest < left.records
                size_bytes += left.size_bytes - (after[size].size_bytes if rest else 0)
        assert max_records is None or records <= max_records
        assert max_bytes is None or size_bytes <= max_bytes or kafka_records == 1
        assert any(found.ends[key] > position[key] for key in backlogs)
        position = dict(found.ends)
        batches += 1
        assert batches < 1000


@given(st.lists(_SIZES, min_size=1, max_size=5), st.integers(1, 30), st.integers(1, 60))
def test_each_partition_gets_something_every_so_many_batches(
    partitions: list[list[tuple[int, int]]], max_records: int, max_bytes: int
) -> None:
    backlogs = {("t", number): _backlog(*sizes) for number, sizes in enumerate(partitions)}
    stops = {key: backlog.known_until for key, backlog in backlogs.items()}
    position: dict[Key, int] = dict.fromkeys(backlogs, 0)
    waited = dict.fromkeys(backlogs, 0)
    while any(to_virtual(stops[key]) > place for key, place in position.items()):
        ends = allot(backlogs, position, stops, max_records=max_records, max_bytes=max_bytes).ends
        for key, place in position.items():
            is_waiting = to_virtual(stops[key]) > place and ends[key] == place
            waited[key] = waited[key] + 1 if is_waiting else 0
        assert max(waited.values()) < len(backlogs)
        position = dict(ends)
