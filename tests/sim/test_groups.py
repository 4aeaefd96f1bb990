"""Groups of the simulation: what real Kafka does, too, but not each time."""

from __future__ import annotations

import pytest

from blobmsg.sim.virtual_broker import by_range
from tests.helpers.group_histories import GroupHistory, Step, View, VirtualGroupHistory


def _carry_out(*steps: Step) -> View:
    """What can be seen behind the last step."""
    history = VirtualGroupHistory(0, GroupHistory(2, "earliest", list(steps)))
    *_, last = [history.do(step) for step in steps]
    return last


@pytest.mark.parametrize(
    ("partitions", "members", "sizes"),
    [(4, 3, [2, 1, 1]), (1, 3, [1, 0, 0]), (6, 3, [2, 2, 2]), (5, 2, [3, 2])],
)
def test_range_gives_neighbours_and_the_first_ones_more(
    partitions: int, members: int, sizes: list[int]
) -> None:
    given = [by_range(partition, partitions, members, 7) for partition in range(partitions)]

    assert given == sorted(given)
    assert [given.count(member) for member in range(members)] == sizes


def test_who_heard_of_a_rebalance_before_it_was_expelled_is_told_of_a_revocation() -> None:
    view = _carry_out(
        ("join", "a", True, False),
        ("idle", "a"),
        ("join", "b", False, False),
        ("pause", "a"),
        ("back", "a", "", {}, ""),
    )

    assert view["heard"]["a"] == [("revoke", [0, 1]), ("assign", [0], 3)]


def test_a_commit_behind_a_join_is_of_an_old_generation() -> None:
    view = _carry_out(
        ("join", "a", False, False),
        ("join", "b", False, False),
        ("idle", "a"),
        ("join", "c", False, False),
        ("commit", "b", {0: 1}, ""),
    )

    assert view["outcome"] == "ILLEGAL_GENERATION"
    assert view["group"][0] == "PREPARING_REBALANCING"
