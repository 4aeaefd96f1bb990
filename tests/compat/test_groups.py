"""Groups: static members, cooperative rebalances and the newer protocol, with several members.

What is told of members one after the other is certain; who gets which partition is chance.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.helpers.records import next_error, produce, read, send, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

    Filled = Callable[[Side], str]

_PARTITIONS = 4
_PER_PARTITION = 60


def _group(**more: Any) -> dict[str, Any]:
    return {
        "auto.offset.reset": "earliest",
        "group.id": f"compat-{uuid.uuid4().hex}",
        "enable.auto.commit": False,
        **more,
    }


_CLASSIC = {"heartbeat.interval.ms": 200, "session.timeout.ms": 45_000}
_COOPERATIVE = {**_CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
_NEWER = {"group.protocol": "consumer"}


def _fill(side: Side, first: int = 0) -> str:
    """A topic with many records in each partition; of ours, in few notifications."""
    topic = side.topic(_PARTITIONS)
    with side.producer() as producer:
        for partition in range(_PARTITIONS):
            values = [b"%d.%d" % (partition, n) for n in range(first, first + _PER_PARTITION)]
            for value in values:
                produce(producer, topic, value, partition=partition)
        assert producer.flush(60) == 0
    return topic


_ALL = sorted(b"%d.%d" % (p, n) for p in range(_PARTITIONS) for n in range(_PER_PARTITION))


class _Member:
    """A member of a group: what its callbacks were told, what it owns and what it has read.

    Args:
        side: Whose client.
        conf: Its settings.
        assigns: Its callbacks assign and unassign by themselves, as the protocol wants it.
    """

    def __init__(self, side: Side, conf: dict[str, Any], *, assigns: bool = False) -> None:
        self.consumer: Any = side.consumer(conf)
        self.heard: list[tuple[str, list[int]]] = []
        self.values: list[bytes] = []
        self.errors: list[str] = []
        self._assigns = assigns

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        assert consumer is self.consumer
        self._hear("assign", partitions)
        if self._assigns:
            consumer.incremental_assign(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._hear("revoke", partitions)
        with contextlib.suppress(KafkaException):  # nothing is read of it yet
            consumer.commit(asynchronous=False)
        if self._assigns:
            consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        assert consumer is self.consumer
        self._hear("lost", partitions)

    def _hear(self, what: str, partitions: list[TopicPartition]) -> None:
        self.heard.append((what, sorted(place.partition for place in partitions)))

    @property
    def owned(self) -> list[int]:
        """The partitions that it has."""
        return sorted(place.partition for place in self.consumer.assignment())

    def poll(self, most: int = 1) -> None:
        """Take what there is, `most` at a time."""
        for message in self.consumer.consume(most, 0.05):
            if message.error() is None:
                self.values.append(message.value())
            else:
                self.errors.append(message.error().name())


def _serve(*members: _Member, most: int = 1) -> Callable[[], None]:
    def serve() -> None:
        for member in members:
            member.poll(most)

    return serve


# --- static members -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol", [_CLASSIC, _COOPERATIVE, _NEWER], ids=["range", "sticky", "newer"]
)
def test_a_static_member_that_comes_back_has_its_partitions_and_the_others_hear_nothing(
    readers: Both, protocol: dict[str, Any]
) -> None:
    def case(side: Side) -> Any:
        topic, group = _fill(side), _group(**protocol)
        with contextlib.ExitStack() as stack:
            stays = _Member(side, {**group, "group.instance.id": "stays"})
            stack.enter_context(stays.consumer)
            leaves = _Member(side, {**group, "group.instance.id": "leaves"})
            with leaves.consumer:
                stays.subscribe(topic)
                leaves.subscribe(topic)
                wait_until(
                    lambda: len(stays.owned) == len(leaves.owned) == _PARTITIONS // 2,
                    "both have a half",
                    serve=_serve(stays, leaves),
                )
                owned, heard = leaves.owned, len(stays.heard)
                read_before = len(leaves.values)
            comes_back = _Member(side, {**group, "group.instance.id": "leaves"})
            stack.enter_context(comes_back.consumer)
            comes_back.subscribe(topic)
            wait_until(
                lambda: len(stays.values) + read_before + len(comes_back.values) >= len(_ALL),
                "all is read",
                serve=_serve(stays, comes_back, most=50),
            )
            return [
                comes_back.owned == owned,
                # Of a round in which nothing moves it may hear: that is the broker's timing.
                [(what, numbers) for what, numbers in stays.heard[heard:] if numbers],
                sorted(stays.values + leaves.values + comes_back.values) == _ALL,
                [what for what, _ in comes_back.heard],
            ]

    assert readers.agree(case) == [True, [], True, ["assign"]]


@pytest.mark.parametrize("protocol", ["classic", "newer"])
def test_of_two_members_with_one_name_one_is_told_that_it_is_fenced(
    readers: Both, filled: Filled, protocol: str
) -> None:
    """The older one; in the newer protocol the newer one: there a name is free when given up."""
    calls = """
        poll(1)
        consume(1, 1)
        commit(asynchronous=False)
        committed(place, 20)
        position(place)
        assignment()
        unsubscribe()
        close()
        poll(1.0)
    """

    def case(side: Side) -> Any:
        errors: list[Any] = []
        group = _group(**(_NEWER if protocol == "newer" else _CLASSIC))
        group["group.instance.id"] = "one"
        more = {"error_cb": lambda error: errors.append((error.name(), error.fatal()))}
        older, newer = _Member(side, {**group, **more}), _Member(side, {**group, **more})
        fenced, stays = (newer, older) if protocol == "newer" else (older, newer)
        with stays.consumer:
            topic = filled(side)
            older.subscribe(topic)
            wait_until(lambda: len(older.values) == 20, "the older reads", serve=_serve(older))
            newer.subscribe(topic)
            wait_until(lambda: bool(fenced.errors), "one is fenced", serve=_serve(older, newer))
            seen: list[Any] = [sorted(set(fenced.errors)), errors, fenced.heard]
            place = [TopicPartition(topic, 0)]
            seen.append(side.outcomes(fenced.consumer, calls, place=place))
            wait_until(lambda: stays.owned == [0, 1], "the other one has all", serve=_serve(stays))
        return seen

    errors, *_ = readers.agree(case)
    assert errors == ["_FATAL"]


# --- cooperative rebalances, and the newer protocol -----------------------------------------------


@pytest.mark.parametrize("assigns", [False, True], ids=["by the client", "by the callbacks"])
@pytest.mark.parametrize("protocol", [_COOPERATIVE, _NEWER], ids=["sticky", "newer"])
def test_a_member_that_joins_and_leaves_moves_only_what_it_takes_and_nothing_is_lost_or_repeated(
    readers: Both, protocol: dict[str, Any], assigns: bool
) -> None:
    def case(side: Side) -> Any:
        topic, group = _fill(side), _group(**protocol)
        stays, leaves = (_Member(side, group, assigns=assigns) for _ in range(2))
        with stays.consumer:
            with leaves.consumer:
                stays.subscribe(topic)
                wait_until(
                    lambda: len(stays.values) > 20, "the first one reads", serve=_serve(stays)
                )
                leaves.subscribe(topic)
                wait_until(
                    lambda: len(stays.owned) == len(leaves.owned) == _PARTITIONS // 2,
                    "both have a half",
                    serve=_serve(stays, leaves),
                )
                kept, taken = stays.owned, leaves.owned
            wait_until(
                lambda: len(stays.owned) == _PARTITIONS, "the first has all", serve=_serve(stays)
            )
            wait_until(
                lambda: len(stays.values) + len(leaves.values) >= len(_ALL),
                "all is read",
                serve=_serve(stays, most=50),
            )
        # What it keeps is never taken from it before it closes: it hears only of what moves.
        told = [(what, numbers) for what, numbers in stays.heard if numbers]
        moves = [
            (what, [kept.count(n) for n in numbers], [taken.count(n) for n in numbers])
            for what, numbers in told
        ]
        heard = [what for what, numbers in leaves.heard if numbers]
        return moves, heard, Counter(stays.values + leaves.values) == Counter(_ALL)

    _, heard, is_exact = readers.agree(case)
    assert is_exact
    assert heard[0] == "assign"
    assert heard[-1] == "revoke"


def test_the_newer_protocol_refuses_settings_of_the_classic_one(readers: Both) -> None:
    settings: list[dict[str, Any]] = [
        {"session.timeout.ms": 6000},
        {"heartbeat.interval.ms": 200},
        {"partition.assignment.strategy": "cooperative-sticky"},
        {"group.protocol.type": "consumer"},
        {"group.remote.assignor": "uniform"},
        {"group.protocol": "newest"},
        {"group.protocol": "classic", "group.remote.assignor": "uniform"},
    ]

    def case(side: Side) -> Any:
        def made(more: dict[str, Any]) -> None:
            side.consumer(_group(**{**_NEWER, **more})).close()

        return [side.outcome(partial(made, more)) for more in settings]

    by_stock = readers.agree(case)
    assert by_stock[0][1][:2] == ("KafkaException", "_INVALID_ARG")
    assert by_stock[4] == ("returned", None)


@pytest.mark.parametrize("protocol", [_CLASSIC, _NEWER], ids=["classic", "newer"])
def test_a_group_goes_on_in_the_middle_of_what_was_sent_at_once(
    readers: Both, protocol: dict[str, Any]
) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        with side.producer() as producer:  # of ours, one notification
            send(producer, topic, [b"%d" % number for number in range(100)], partition=0)
        group = _group(**protocol)
        runs = []
        for count in (7, 30, 63):
            with side.consumer(group) as consumer:
                consumer.subscribe([topic])
                messages = read(consumer, count)
                runs.append([int(message.value()) for message in messages])
                [committed] = consumer.commit(message=messages[-1], asynchronous=False)
                assert committed.offset == messages[-1].offset() + 1
        with side.consumer({**group, "enable.partition.eof": True}) as consumer:
            consumer.subscribe([topic])
            end = next_error(consumer)
        return runs, end.error().code() == KafkaError._PARTITION_EOF

    runs, is_end = readers.agree(case)
    assert [number for run in runs for number in run] == list(range(100))
    assert is_end
