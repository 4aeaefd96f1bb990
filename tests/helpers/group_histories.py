"""Histories of a consumer group, and the virtual brokers that carry them out.

A history is a list of steps of up to three members and of somebody outside of their group. After
each step everybody has done what follows from it. What can be seen then is a plain value: what the
step gave, the group as an admin client sees it, and of each member its callbacks and what it has
read since its partitions were assigned. What a member has read of an assignment that has ended
meanwhile is left out: how much that is, is chance.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, TopicPartition

from blobmsg.sim.inner_consumer import InnerConsumer
from blobmsg.sim.inner_producer import InnerProducer
from blobmsg.sim.network import Network
from blobmsg.sim.virtual_broker import VirtualBroker
from blobmsg.sim.world import Process, World
from tests.helpers.outcomes import name_of, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

#: The name of a step and its arguments.
Step = tuple[Any, ...]
#: What can be seen behind it.
View = dict[str, Any]

_LABELS = ("a", "b", "c")
# Each costs a session.
_MOST_EXPULSIONS = 2
_SESSION_MS = 1500
_TICK_MS = 20
_STEP_MS = 3000


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """What is to be done.

    Attributes:
        partitions: Of the topic.
        resets_to: The members' `auto.offset.reset`.
        steps: In order.
    """

    partitions: int
    resets_to: str
    steps: list[Step]


def draw_group_history(seed: int) -> GroupHistory:
    """The history of a seed."""
    rng = random.Random(f"group history {seed}")
    partitions = rng.randint(1, 4)
    drawing = _Drawing(rng, partitions, has_transactions=rng.random() < 0.4)
    for number in range(rng.randint(10, 14)):
        drawing.add(number)
    resets_to = rng.choice(("earliest", "earliest", "latest", "error"))
    return GroupHistory(partitions, resets_to, drawing.ended())


class _Drawing:
    """Draws steps after which everybody's state is certain.

    A member is `live`; or `idle`: nobody polls it, so it holds up a rebalance; or `late`: nobody
    has polled it since it gave its partitions up; or `paused`: it stands still and is expelled.
    """

    def __init__(self, rng: random.Random, partitions: int, *, has_transactions: bool) -> None:
        self._rng = rng
        self._partitions = partitions
        self._has_transactions = has_transactions
        self._steps: list[Step] = []
        self._members: dict[str, str] = {}
        self._new: set[str] = set()  # have had no assignment yet
        self._seen: list[str] = []  # have had one, living or not
        self._is_held = False
        self._has_ghost = False
        self._expulsions = 0

    def _are(self, state: str) -> list[str]:
        return [label for label, found in self._members.items() if found == state]

    def _kinds(self) -> list[str]:
        absent = len(_LABELS) - len(self._members)
        live = self._are("live")
        has_company = len(self._members) > 1
        may_expel = self._expulsions < _MOST_EXPULSIONS
        kinds = ["outside", "committed"]
        if len(live) < len(self._members) or self._rng.random() < 0.5:
            kinds += ["commit"] * (len(self._are("paused")) < len(self._members))
        if self._has_transactions and self._seen:
            kinds += ["transaction", "transaction"]
        if self._are("late"):
            # Whether it hears of an assignment that is over already, is chance.
            return [*kinds, *["commit"] * 4, "serve", "serve"]
        if self._has_ghost:
            return [*kinds, "serve", "serve"]
        if self._is_held:
            kinds += ["serve", "leave", *["join"] * absent, *["die"] * may_expel]
            kinds += ["ghost"] * 3 * (may_expel and self._oldest() in self._are("idle"))
            return kinds + ["late"] * 4 * bool(set(live) - self._new)
        if self._are("idle"):
            return kinds + ["serve", "leave"] + ["join"] * 4 * absent + ["die"] * may_expel
        kinds += ["produce"] * 3 + ["join"] * 3 * absent + ["back"] * 6 * bool(self._are("paused"))
        if live:
            kinds += ["idle"] * 3 + ["die", "pause"] * may_expel
            kinds += (["leave", "idle"] + ["pause"] * 4 * may_expel) * has_company
        return kinds

    def add(self, number: int) -> None:
        """Add a step."""
        kind = self._rng.choice(self._kinds()) if self._members else "join"
        method: Callable[[int], None] = getattr(self, f"_{kind}")
        method(number)

    def _any(self, *states: str) -> str:
        return self._rng.choice([label for s in states for label in self._are(s)])

    def _changed(self) -> None:
        """Members have come or gone: a rebalance, that is held up by who is idle."""
        self._is_held = bool(self._are("idle"))
        if not self._is_held:
            self._new.clear()
            self._has_ghost = False
        self._seen += [m for m in self._are("live") if m not in self._new | {*self._seen}]

    def _join(self, _: int) -> None:
        label = self._rng.choice([label for label in _LABELS if label not in self._members])
        self._members[label] = "live"
        self._new.add(label)
        self._steps.append(("join", label, False, self._rng.random() < 0.6))
        self._changed()

    def _leave(self, _: int) -> None:
        # Who waits for a rebalance to end can't leave: see `_ghost`.
        self._gone("leave", self._any("idle") if self._is_held else self._any("live", "idle"))

    def _gone(self, kind: str, label: str) -> None:
        self._steps.append((kind, label))
        del self._members[label]
        self._new.discard(label)
        self._changed()

    def _oldest(self) -> str:
        """Who leads the group: who has joined first, of those that are members."""
        return next(iter(self._members))

    def _ghost(self, _: int) -> None:
        """One that waits for a rebalance to end dies or closes: it stays in the group meanwhile."""
        # Not the leader, without whom nobody hears of the assignment.
        label = self._doomed(self._any("live"))
        self._has_ghost = True
        self._gone(self._rng.choice(("die", "leave")), label)

    def _doomed(self, label: str) -> str:
        """It will be expelled, and so has a short session from its beginning on."""
        self._expulsions += 1
        joins = [n for n, step in enumerate(self._steps) if step[:2] == ("join", label)]
        _, _, _, commits = self._steps[joins[-1]]
        self._steps[joins[-1]] = ("join", label, True, commits)
        return label

    def _die(self, _: int) -> None:
        self._gone("die", self._doomed(self._any("idle" if self._are("idle") else "live")))

    def _pause(self, _: int) -> None:
        label = self._doomed(self._any("live"))
        self._steps.append(("pause", label))
        self._members[label] = "paused"
        self._changed()

    def _back(self, number: int) -> None:
        label = self._any("paused")
        # Alone in its group, it may commit or not, by what it has noticed.
        commits = self._rng.choice(("", "first", "lost", "lost")) if self._are("live") else ""
        self._steps.append(("back", label, commits, self._offset(), f"b{number}"))
        self._members[label] = "live"
        self._changed()

    def _idle(self, _: int) -> None:
        label = self._any("live")
        self._steps.append(("idle", label))
        self._members[label] = "idle"

    def _late(self, _: int) -> None:
        label = self._rng.choice([m for m in self._are("live") if m not in self._new])
        self._steps.append(("late", label))
        self._members[label] = "late"
        [idle] = self._are("idle")
        self._serve_one(idle)

    def _serve(self, _: int) -> None:
        self._serve_one(self._any("late" if self._are("late") else "idle"))

    def _serve_one(self, label: str) -> None:
        self._steps.append(("serve", label))
        self._members[label] = "live"
        self._changed()

    def _produce(self, number: int) -> None:
        partitions = self._rng.sample(
            range(self._partitions), self._rng.randint(1, self._partitions)
        )
        values = {
            partition: [f"{number}-{n}" for n in range(self._rng.randint(1, 3))]
            for partition in sorted(partitions)
        }
        self._steps.append(("produce", values))

    def _offset(self) -> dict[int, int]:
        return {self._rng.randrange(self._partitions): self._rng.randint(0, 5)}

    def _commit(self, number: int) -> None:
        # Who waits for a rebalance to end is answered when it is over.
        states = (
            ("idle",) if self._is_held else ("late",) if self._are("late") else ("live", "idle")
        )
        label = self._any(*states)
        self._steps.append(("commit", label, self._offset(), f"c{number}"))

    def _outside(self, number: int) -> None:
        self._steps.append(("outside", self._offset(), f"o{number}"))

    def _committed(self, _: int) -> None:
        self._steps.append(("committed",))

    def _transaction(self, number: int) -> None:
        label = self._rng.choice([*self._seen, None])
        age = self._rng.choice(("first", "last"))
        self._steps.append(("transaction", label, age, self._offset(), f"t{number}"))

    def ended(self) -> list[Step]:
        """The steps; then all are served, and leave."""
        for label in self._are("idle") + self._are("late"):
            self._serve_one(label)
        self._committed(0)
        for label in list(self._members):
            if self._members[label] == "paused":
                self._steps.append(("end", label))
            else:
                self._gone("leave", label)
        return [*self._steps, ("committed",), ("outside", self._offset(), "last")]


@dataclass(slots=True)
class MemberView:
    """What a member has heard, and what it has read of its present assignment.

    Attributes:
        heard: Callbacks since they were taken last.
        identities: What commits in transactions carry, one for each assignment.
        reading: By partition, records, where the partition ended, and errors.
    """

    heard: list[Any] = field(default_factory=list[Any])
    identities: list[Any] = field(default_factory=list[Any])
    reading: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])

    def assigned(self, partitions: list[int], generation: int, identity: Any) -> None:
        """It has an assignment."""
        self.heard.append(("assign", partitions, generation))
        self.identities.append(identity)
        self.reading = {partition: [[], None, []] for partition in partitions}

    def taken(self, callback: str, partitions: list[int]) -> None:
        """Its partitions were revoked, or are lost."""
        self.heard.append((callback, partitions))
        self.reading = {}

    def record(self, partition: int, offset: int, value: str) -> None:
        """It has read a record."""
        self.reading[partition][0].append((offset, value))

    def end(self, partition: int, offset: int) -> None:
        """It has read a partition to its end."""
        self.reading[partition][1] = offset

    def error(self, partition: int, name: str) -> None:
        """It was told of an error."""
        self.reading[partition][2].append(name)


class VirtualMember:
    """A member on the virtual broker."""

    def __init__(
        self,
        label: str,
        world: World,
        broker: VirtualBroker,
        network: Network,
        resets_to: str,
        *,
        commits_on_revoke: bool,
    ) -> None:
        self.view = MemberView()
        self.process = Process(world, label)
        self.is_idle = False
        self.commits_when_lost = False
        self._commits_on_revoke = commits_on_revoke
        self._positions: dict[int, int] = {}
        self.consumer = InnerConsumer(
            self.process, broker, network, group="g", member=label, is_committed=True,
            reads_from=resets_to, on_commit=lambda _error, _partitions: None,
        )  # fmt: skip
        self.consumer.subscribe(
            ["t"], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self) -> None:
        """All that there is."""
        if self.is_idle or not self.process.is_running:
            return
        while (record := self.consumer.poll(0)) is not None:
            error, partition, offset = record.error(), record.partition(), record.offset()
            if error is None:
                self._positions[partition] = offset + 1
                self.view.record(partition, offset, (record.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                self.view.end(partition, offset)
            else:
                self.view.error(partition, name_of(error))

    def commit(self, offsets: dict[int, int], metadata: str) -> str:
        """Commit and wait."""
        places = [TopicPartition("t", p, offset, metadata) for p, offset in offsets.items()]
        return outcome_of(lambda: self.consumer.commit(offsets=places, asynchronous=False))

    def _on_assign(self, consumer: InnerConsumer, partitions: list[TopicPartition]) -> None:
        self._positions.clear()
        identity = consumer.group_metadata()
        self.view.assigned(_numbers(partitions), identity[2], identity)
        consumer.assign(partitions)

    def _on_revoke(self, consumer: InnerConsumer, partitions: list[TopicPartition]) -> None:
        self.view.taken("revoke", _numbers(partitions))
        if self._commits_on_revoke and self._positions:
            self.view.heard.append(("committed", self.commit(self._positions, "")))
        consumer.unassign()

    def _on_lost(self, consumer: InnerConsumer, partitions: list[TopicPartition]) -> None:
        self.view.taken("lost", _numbers(partitions))
        if self.commits_when_lost:
            self.view.heard.append(("committed", self.commit({0: 0}, "lost")))
        consumer.unassign()


def _numbers(partitions: list[TopicPartition]) -> list[int]:
    return sorted(place.partition for place in partitions)


class VirtualGroupHistory:
    """Carries a history out on the virtual broker."""

    def __init__(self, seed: int, history: GroupHistory) -> None:
        self._history = history
        self._world = World(f"group history {seed}")
        self._broker = VirtualBroker(self._world)
        self._broker.create_topic("t", history.partitions)
        self._network = Network(self._world, (1, 2))
        self._members: dict[str, VirtualMember] = {}
        self._views: dict[str, MemberView] = {}
        self._outsider = InnerConsumer(
            Process(self._world, "outside"), self._broker, self._network, group="g",
            member="outside", is_committed=True, reads_from="error",
            on_commit=lambda _error, _partitions: None,
        )  # fmt: skip
        self._producer = self._make_producer(None)
        self._transactional: InnerProducer | None = None
        self._tick()

    def _make_producer(self, transactional_id: str | None) -> InnerProducer:
        return InnerProducer(
            Process(self._world, "producer"), self._broker, self._network,
            message_timeout_ms=30_000, queue_limit=1000, transactional_id=transactional_id,
        )  # fmt: skip

    def _tick(self) -> None:
        for group in self._broker.groups.values():
            group.look(_SESSION_MS)
        for member in self._members.values():
            member.poll()
        self._world.after(_TICK_MS, self._tick)

    def do(self, step: Step) -> View:
        """One step, and all that follows from it."""
        method: Callable[..., Any] = getattr(self, f"_{step[0]}")
        outcome = method(*step[1:])
        self._world.run(self._world.now_ms + _STEP_MS, lambda: False)
        return view_of(outcome, self._described(), self._members, self._views)

    def _described(self) -> Any:
        group = self._broker.group("g")
        if not group.members:
            return "EMPTY", {}
        members = {member.name.partition("-")[0]: member for member in group.members.values()}
        if group.is_preparing:
            return "PREPARING_REBALANCING", dict.fromkeys(members)
        return "STABLE", {
            label: sorted(partition for _, partition in member.assignment)
            for label, member in members.items()
        }

    def _join(self, label: str, _is_doomed: bool, commits_on_revoke: bool) -> None:
        member = self._members[label] = VirtualMember(
            label, self._world, self._broker, self._network, self._history.resets_to,
            commits_on_revoke=commits_on_revoke,
        )  # fmt: skip
        self._views[label] = member.view

    def _leave(self, label: str) -> Any:
        self._members[label].consumer.close()
        del self._members[label]
        return take_heard(self._views[label])

    def _die(self, label: str) -> None:
        self._members.pop(label).process.kill()

    _end = _die

    def _pause(self, label: str) -> None:
        member = self._members[label]
        member.is_idle = True
        member.process.pause(1 << 40)

    def _back(self, label: str, commits: str, offsets: dict[int, int], metadata: str) -> Any:
        member = self._members[label]
        member.process.paused_until_ms = self._world.now_ms
        outcome = member.commit(offsets, metadata) if commits == "first" else None
        member.commits_when_lost = commits == "lost"
        member.is_idle = False
        return outcome

    def _idle(self, label: str) -> None:
        self._members[label].is_idle = True

    _late = _idle

    def _serve(self, label: str) -> None:
        self._members[label].is_idle = False

    def _produce(self, values: dict[int, list[str]]) -> Any:
        found: dict[int, list[Any]] = {partition: [] for partition in values}
        for partition, texts in values.items():
            for text in texts:
                self._producer.produce(
                    "t", value=text.encode(), partition=partition, timestamp=1,
                    on_delivery=partial(told, found[partition]),
                )  # fmt: skip
        self._producer.flush(0)
        self._world.run(self._world.now_ms + 1000, lambda: False)
        self._producer.poll(0)
        return found

    def _commit(self, label: str, offsets: dict[int, int], metadata: str) -> str:
        return self._members[label].commit(offsets, metadata)

    def _outside(self, offsets: dict[int, int], metadata: str) -> str:
        places = [TopicPartition("t", p, offset, metadata) for p, offset in offsets.items()]
        return outcome_of(lambda: self._outsider.commit(offsets=places, asynchronous=False))

    def _committed(self) -> Any:
        places = [TopicPartition("t", p) for p in range(self._history.partitions)]
        answers = self._outsider.committed(places, timeout=1.0)
        return [(answer.offset, answer.metadata or "") for answer in answers]

    def _transaction(
        self, label: str | None, age: str, offsets: dict[int, int], metadata: str
    ) -> Any:
        identity = (
            self._outsider.group_metadata()
            if label is None
            else self._views[label].identities[0 if age == "first" else -1]
        )
        if self._transactional is None:
            self._transactional = self._make_producer("x")
            self._transactional.init_transactions()
        places = [TopicPartition("t", p, offset, metadata) for p, offset in offsets.items()]
        return in_transaction(self._transactional, places, identity)


def in_transaction(producer: Any, places: list[TopicPartition], identity: Any) -> list[str]:
    """Commit positions in a transaction of their own; what each call gives."""
    producer.begin_transaction()
    sent = outcome_of(lambda: producer.send_offsets_to_transaction(places, identity, 30))
    ended = outcome_of(lambda: producer.commit_transaction(30))
    if ended == "ok":
        return [sent, ended]
    return [sent, ended, outcome_of(lambda: producer.abort_transaction(30))]


def told(found: list[Any], error: KafkaError | None, message: Any) -> None:
    """A delivery report: the offset or the error."""
    found.append(message.offset() if error is None else name_of(error))


def take_heard(view: MemberView) -> list[Any]:
    """What a member has heard since this was asked last."""
    heard, view.heard = view.heard, []
    return heard


def view_of(outcome: Any, described: Any, members: Any, views: dict[str, MemberView]) -> View:
    """All that can be seen behind a step; what was heard is taken."""
    return {
        "outcome": outcome,
        "group": described,
        "heard": {label: take_heard(views[label]) for label in members},
        "reading": {label: copy.deepcopy(views[label].reading) for label in members},
    }
