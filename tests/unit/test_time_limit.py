from __future__ import annotations

import pytest

from blobmsg.time_limit import TimeLimit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_what_is_left_shrinks_to_nothing(clock: list[float]) -> None:
    limit = TimeLimit(2.5)
    assert (limit.rest_s(), limit.is_over) == (2.5, False)

    clock[0] += 2
    assert (limit.rest_s(), limit.is_over) == (0.5, False)
    clock[0] += 2
    assert (limit.rest_s(), limit.is_over) == (0.0, True)


def test_a_call_that_may_not_wait_is_over_at_once(clock: list[float]) -> None:
    del clock
    assert TimeLimit(0).is_over


def test_without_a_limit_it_is_never_over(clock: list[float]) -> None:
    limit = TimeLimit(-0.1)
    clock[0] += 1e9

    assert limit.rest_s() < 0
    assert not limit.is_over
