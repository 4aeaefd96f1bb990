from __future__ import annotations

import pytest

from blobmsg.time_limit import TimeLimit


class _Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_left_shrinks_to_nothing() -> None:
    time = _Time()
    limit = TimeLimit(2.5, time)
    assert (limit.rest_s(), limit.is_over) == (2.5, False)

    time.now_s += 2
    assert (limit.rest_s(), limit.is_over) == (0.5, False)
    time.now_s += 2
    assert (limit.rest_s(), limit.is_over) == (0.0, True)


def test_a_call_that_may_not_wait_is_over_at_once() -> None:
    assert TimeLimit(0).is_over


@pytest.mark.parametrize("timeout_s", [-0.1, float("nan")])
def test_without_a_limit_it_is_never_over(timeout_s: float) -> None:
    time = _Time()
    limit = TimeLimit(timeout_s, time)
    time.now_s += 1e9

    assert limit.rest_s() < 0
    assert limit.patience_s() is None
    assert limit.slice_s(3) == 3
    assert not limit.is_over


def test_a_slice_is_no_longer_than_what_is_left() -> None:
    time = _Time()
    limit = TimeLimit(2.5, time)
    assert (limit.slice_s(1), limit.slice_s(3)) == (1, 2.5)

    time.now_s += 2
    assert (limit.slice_s(1), limit.patience_s()) == (0.5, 0.5)
