"""Groups of the simulation: what real Kafka does, too, but not each time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.sim.inner_consumer import InnerConsumer
from blobmsg.sim.network import Network
from blobmsg.sim.virtual_broker import VirtualBroker, by_range
from blobmsg.sim.world import Process, World
from tests.helpers.group_histories import GroupHistory, Step, View, VirtualGroupHistory

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition


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


class CooperativeGroup:
    """Members of one group that polls all the time; who hears what, in order."""

    def __init__(self, partitions: int) -> None:
        self._world = World("cooperative")
        self.broker = VirtualBroker(self._world)
        self.broker.create_topic("t", partitions)
        self.members: dict[str, InnerConsumer] = {}
        self.silent: set[str] = set()  # those that don't poll
        self._poll()
        self.heard: list[tuple[str, str, list[int]]] = []

    def join(self, name: str) -> None:
        member = self.members[name] = InnerConsumer(
            Process(self._world, name), self.broker, Network(self._world, (1, 2)), group="g",
            member=name, is_committed=True, reads_from="earliest",
            on_commit=lambda _error, _partitions: None, is_cooperative=True,
        )  # fmt: skip
        member.subscribe(
            ["t"],
            on_assign=partial(self._on_assign, name),
            on_revoke=partial(self._hear, name, "revoke"),
            on_lost=partial(self._hear, name, "lost"),
        )

    def _hear(self, name: str, what: str, _inner: Any, partitions: list[TopicPartition]) -> None:
        self.heard.append((name, what, [place.partition for place in partitions]))

    def _on_assign(self, name: str, inner: Any, partitions: list[TopicPartition]) -> None:
        self._hear(name, "assign", inner, partitions)
        inner.incremental_assign(partitions)
        # Who is silent does not know yet that it was expelled.
        polling = [m for name, m in self.members.items() if name not in self.silent]
        in_hands = [p.partition for m in polling for p in m.assignment()]
        assert len(in_hands) == len(set(in_hands)), "two members read a partition"

    def _poll(self) -> None:
        for name, member in self.members.items():
            if name not in self.silent:
                member.poll()
        self._world.after(10, self._poll)

    def run(self) -> None:
        self._world.run(self._world.now_ms + 10_000, lambda: False)


def test_a_cooperative_member_gives_up_only_what_another_one_gets_and_that_before() -> None:
    group = CooperativeGroup(partitions=4)
    group.join("a")
    group.run()
    group.heard.clear()

    group.join("b")
    group.run()

    assert [event for event in group.heard if event[2]] == [
        ("a", "revoke", [2, 3]),
        ("b", "assign", [2, 3]),
    ]
    assert [p.partition for p in group.members["a"].assignment()] == [0, 1]


def test_what_a_cooperative_member_leaves_behind_comes_to_those_that_stay() -> None:
    group = CooperativeGroup(partitions=4)
    group.join("a")
    group.join("b")
    group.run()
    group.heard.clear()

    group.members["b"].close()
    group.run()

    assert [event for event in group.heard if event[2]] == [
        ("b", "revoke", [2, 3]),
        ("a", "assign", [2, 3]),
    ]


def test_a_cooperative_member_that_is_expelled_has_lost_its_partitions_though_it_heard_why() -> (
    None
):
    group = CooperativeGroup(partitions=4)
    group.join("a")
    group.run()
    group.heard.clear()
    group.silent.add("a")
    group.join("b")
    group.run()
    group.broker.group("g").look(session_timeout_ms=1)  # "a" hears of the rebalance, by a heartbeat
    group.broker.group("g").leave("a-1")
    group.run()

    group.silent.clear()
    group.run()

    events = [event for event in group.heard if event[2]]
    assert events[:2] == [("b", "assign", [0, 1, 2, 3]), ("a", "lost", [0, 1, 2, 3])]
