"""Carries histories of a consumer group out with the stock client on real Kafka.

Each member is a process, so that it can die and stand still.
"""

from __future__ import annotations

import contextlib
import json
import queue
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from blobmsg.asking import insist
from tests.helpers.child_process import ChildProgram
from tests.helpers.group_histories import (
    GroupHistory,
    MemberView,
    Step,
    View,
    in_transaction,
    take_heard,
    told,
    view_of,
)
from tests.helpers.outcomes import outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

# What a step may take, on a busy machine.
_PATIENCE_S = 90.0
# Seen on a busy machine; librdkafka looks for the new one, and raises all the same.
_COORDINATOR_MOVES = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_LOOK_AGAIN_S = 0.05
# Of who will be expelled, but not before its time, for want of CPU; and of the others, who must
# not be expelled at all.
_SHORT_SESSION_MS = 6000
_LONG_SESSION_MS = 60_000


class MemberProcess(ChildProgram):
    """Runs `group_member`."""

    def __init__(self, plan: dict[str, Any], lines: queue.SimpleQueue[Any]) -> None:
        super().__init__("tests.helpers.group_member", plan, lines=lines)
        self.view = MemberView()

    def say(self, word: str, *arguments: Any) -> None:
        """Tell it what to do."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps([word, *arguments]).encode() + b"\n")
        stdin.flush()

    def kill(self) -> None:
        """SIGKILL; what it had still said is left to who reads the lines of all."""
        self._end_process()


class StockGroupHistory:
    """A context manager that kills what is left of the members.

    Args:
        admin: An AdminClient; its settings are those of the other clients.
        conf: How to reach the brokers.
        topic: The history's own.
        history: What is to be done.
    """

    def __init__(
        self, admin: AdminClient, conf: dict[str, Any], topic: str, history: GroupHistory
    ) -> None:
        self._admin = admin
        self._conf = {**conf, "log_level": 0}
        self._topic = topic
        self._history = history
        self._members: dict[str, MemberProcess] = {}
        self._views: dict[str, MemberView] = {}
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outcomes: list[Any] = []
        self._outsider = Consumer({**self._conf, "group.id": topic, "enable.auto.commit": False})
        self._producer: Producer | None = None
        self._transactional: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for member in self._members.values():
            member.kill()
        self._outsider.close()

    def do(self, step: Step, expected: View) -> View:
        """One step; what follows from it is waited for."""
        method: Callable[..., Any] = getattr(self, f"_{step[0]}")
        deadline = time.monotonic() + _PATIENCE_S
        outcome = method(*step[1:])
        heard: dict[str, list[Any]] = {label: [] for label in self._members}
        while True:
            view = view_of(outcome, expected["group"], self._members, self._views)
            for label, new in view["heard"].items():
                heard[label] += new
            view["heard"] = heard
            if view == expected:
                view["group"] = self._described()
            if view == expected or time.monotonic() > deadline:
                return view
            if step[0] == "committed":
                outcome = method()
            self._listen(_LOOK_AGAIN_S)

    # --- members --------------------------------------------------------------------------------

    def _listen(self, wait_s: float) -> None:
        """Take what the members say; wait for a first word."""
        with contextlib.suppress(queue.Empty):
            self._hear(self._said.get(timeout=wait_s))
            while True:
                self._hear(self._said.get_nowait())

    def _hear(self, said: dict[str, Any] | None) -> None:
        if said is None:
            return
        event = said["event"]
        view = self._views[said["who"]]
        if event == "assign":
            identity = bytes.fromhex(said["identity"])
            view.assigned(said["partitions"], _generation_of(identity), identity)
        elif event in ("revoke", "lost"):
            view.taken(event, said["partitions"])
        elif event == "record":
            view.record(said["partition"], said["offset"], said["value"])
        elif event == "end":
            view.end(said["partition"], said["offset"])
        elif event == "error" and said["partition"] is None:
            view.heard.append(("error", said["name"]))
        elif event == "error":
            view.error(said["partition"], said["name"])
        elif event == "committed":
            view.heard.append(("committed", said["outcome"]))
        else:
            self._outcomes.append(said["outcome"])

    def _ask(self, label: str, word: str, *arguments: Any) -> Any:
        """Have a member do something; what it gave, or that it is stuck."""
        self._members[label].say(word, *arguments)
        deadline = time.monotonic() + _PATIENCE_S
        while not self._outcomes:
            if time.monotonic() > deadline:
                return f"{label} has not done {word} in {_PATIENCE_S} s"
            self._listen(_LOOK_AGAIN_S)
        return self._outcomes.pop()

    def _tell(self, label: str, word: str, *arguments: Any) -> None:
        """The same with what gives nothing."""
        outcome = self._ask(label, word, *arguments)
        assert outcome is None, outcome

    def _described(self) -> Any:
        """The group, as an admin client sees it."""
        found = _asked(self._describe)
        is_stable = found.state.name == "STABLE"
        return found.state.name, {
            member.client_id: sorted(
                place.partition for place in member.assignment.topic_partitions
            )
            if is_stable
            else None
            for member in found.members
        }

    def _describe(self) -> Any:
        try:
            return self._admin.describe_consumer_groups([self._topic])[self._topic].result(30)
        except KafkaException:
            # An admin client asks the former coordinator for ever.
            self._admin = AdminClient(self._conf)
            raise

    def _join(self, label: str, is_doomed: bool, commits_on_revoke: bool) -> None:
        conf = {
            **self._conf,
            "group.id": self._topic,
            # The member id begins with it, so the assignor has the members in this order.
            "client.id": label,
            "session.timeout.ms": _SHORT_SESSION_MS if is_doomed else _LONG_SESSION_MS,
            "heartbeat.interval.ms": 100,
            "auto.offset.reset": self._history.resets_to,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
        }
        plan = {
            "who": label,
            "topic": self._topic,
            "commits_on_revoke": commits_on_revoke,
            "conf": conf,
        }
        member = self._members[label] = MemberProcess(plan, self._said)
        self._views[label] = member.view

    def _leave(self, label: str) -> Any:
        self._tell(label, "close")
        self._members.pop(label).kill()
        return take_heard(self._views[label])

    def _die(self, label: str) -> None:
        self._members.pop(label).kill()

    _end = _die

    def _pause(self, label: str) -> None:
        self._tell(label, "idle")
        self._members[label].stop()

    def _back(self, label: str, commits: str, offsets: dict[int, int], metadata: str) -> Any:
        self._members[label].resume()
        outcome = self._commit(label, offsets, metadata) if commits == "first" else None
        self._tell(label, "serve", commits == "lost")
        return outcome

    def _idle(self, label: str) -> None:
        self._tell(label, "idle")

    _late = _idle

    def _serve(self, label: str) -> None:
        self._tell(label, "serve", False)

    def _commit(self, label: str, offsets: dict[int, int], metadata: str) -> Any:
        return self._ask(label, "commit", offsets, metadata)

    # --- others ---------------------------------------------------------------------------------

    def _produce(self, values: dict[int, list[str]]) -> Any:
        if self._producer is None:
            self._producer = Producer({**self._conf, "linger.ms": 20})
        found: dict[int, list[Any]] = {partition: [] for partition in values}
        for partition, texts in values.items():
            for text in texts:
                self._producer.produce(
                    self._topic,
                    text,
                    partition=partition,
                    on_delivery=partial(told, found[partition]),
                )
        self._producer.flush(_PATIENCE_S)
        return found

    def _places(self, offsets: dict[int, int], metadata: str) -> list[TopicPartition]:
        return [TopicPartition(self._topic, p, offset, metadata) for p, offset in offsets.items()]

    def _outside(self, offsets: dict[int, int], metadata: str) -> str:
        places = self._places(offsets, metadata)
        return outcome_of(lambda: self._outsider.commit(offsets=places, asynchronous=False))

    def _committed(self) -> Any:
        places = [TopicPartition(self._topic, p) for p in range(self._history.partitions)]
        answers = _asked(lambda: self._outsider.committed(places, timeout=10))
        return [(answer.offset, answer.metadata or "") for answer in answers]

    def _transaction(
        self, label: str | None, age: str, offsets: dict[int, int], metadata: str
    ) -> Any:
        identity: Any = (
            self._outsider.consumer_group_metadata()
            if label is None
            else self._views[label].identities[0 if age == "first" else -1]
        )
        if self._transactional is None:
            self._transactional = Producer({**self._conf, "transactional.id": self._topic})
            self._transactional.init_transactions(30)
        return in_transaction(self._transactional, self._places(offsets, metadata), identity)


def _asked(question: Callable[[], Any]) -> Any:
    """The coordinator's answer, wherever it moves."""
    return insist(
        lambda _: question(),
        _PATIENCE_S,
        lambda _: False,
        passing=_COORDINATOR_MOVES,
        monotonic_s=time.monotonic,
    )


def _generation_of(identity: bytes) -> int:
    """Of a member, out of what librdkafka makes of its group's metadata."""
    head = b"CGMDv2:"
    assert identity.startswith(head)
    return int.from_bytes(identity[len(head) : len(head) + 4], "little", signed=True)
