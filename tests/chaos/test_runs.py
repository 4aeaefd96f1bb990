from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.record import Identity, decode_record, encode_record
from tests.chaos.runs import Intervals, Run, RunBuilder

bounds = st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda b: (b[0], b[0] + b[1]))


def _numbers(intervals: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in intervals for number in range(first, last + 1)}


@given(st.lists(bounds), st.lists(bounds), bounds)
def test_intervals_are_a_set(
    mine: list[tuple[int, int]], others: list[tuple[int, int]], part: tuple[int, int]
) -> None:
    intervals = Intervals(mine)
    expected = _numbers(mine)

    assert _numbers(list(intervals)) == expected
    assert len(intervals) == len(expected)
    assert _numbers(intervals.within(*part)) == expected & _numbers([part])
    assert _numbers(intervals.missing(*part)) == _numbers([part]) - expected
    assert _numbers(intervals.minus(Intervals(others))) == expected - _numbers(others)
    lasts = [last for _, last in intervals][:-1]
    firsts = [first for first, _ in intervals][1:]
    assert all(last + 1 < first for last, first in zip(lasts, firsts, strict=True))


def test_records_that_follow_each_other_are_a_run() -> None:
    builder = RunBuilder()
    for number, offset in [(0, 7), (1, 8), (2, 20), (4, 21), (5, 22)]:
        builder.add("-", "a", number, offset)
    builder.add("-", "b", 6, 23)

    assert builder.runs == [
        Run("-", "a", 0, 1, 7),
        Run("-", "a", 2, 2, 20),
        Run("-", "a", 4, 5, 21),
        Run("-", "b", 6, 6, 23),
    ]


@given(st.integers(0, 10**9), st.integers(0, 99))
def test_a_record_says_which_it_is(number: int, partition: int) -> None:
    identity = Identity("t.1/3", "w.2", partition, number)

    assert decode_record(encode_record(identity)) == identity


@given(st.integers(0, 3000), st.data())
def test_any_changed_byte_of_a_record_is_noticed(number: int, data: st.DataObject) -> None:
    value = bytearray(encode_record(Identity("-", "w.2", 1, number)))
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    assert decode_record(bytes(value)) is None
    assert decode_record(bytes(value[:-1])) is None
    assert decode_record(None) is None
