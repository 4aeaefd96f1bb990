"""The applications that consume.

Decide what an application decides: how often it polls, when it commits, seeks and pauses.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition

from blobmsg.commits import commit_entries
from blobmsg.sim.consumer_process import ConsumerProcess

if TYPE_CHECKING:
    from blobmsg.core.positions import CommitEntry

__all__ = ["ConsumerApplication", "ConsumerHabits"]

_Place = tuple[str, int]
_BITS = 20
_IDLE_MS = 1000


@dataclass(frozen=True, slots=True)
class ConsumerHabits:
    """How an application uses its consumer.

    Attributes:
        commits: `auto`, `sync`, `async` (explicit positions), `stored` (what is stored).
        most_records: Of one `consume`.
        poll_ms: The longest pause between two polls.
        seek_share: How often it seeks, of its polls.
        pause_share: How often it pauses a partition.
        revoke_share: How often it commits when it hears that partitions are taken.
    """

    commits: str
    most_records: int
    poll_ms: int
    seek_share: float
    pause_share: float
    revoke_share: float


class ConsumerApplication(ConsumerProcess):
    """A process that polls, and commits now and then.

    Args:
        habits: How it does that.
        arguments: As `ConsumerProcess`.
        options: As `ConsumerProcess`.
    """

    def __init__(self, habits: ConsumerHabits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.habits = habits
        self._paused: set[_Place] = set()
        self._planned_ms = 0
        self._patience_ms = habits.poll_ms
        self.touch()

    def touch(self, at_ms: int = 0) -> None:
        """See `ConsumerProcess.touch`."""
        self._patience_ms = self.habits.poll_ms
        delay_ms = max(0, at_ms - self.world.now_ms) + self._rng.randint(0, self.habits.poll_ms)
        self._plan(delay_ms)

    def _plan(self, delay_ms: int) -> None:
        at_ms = self.world.now_ms + delay_ms
        if self._planned_ms <= self.world.now_ms or at_ms < self._planned_ms:
            self._planned_ms = at_ms
            self.after(delay_ms, partial(self._poll, at_ms))

    def _poll(self, planned_ms: int) -> None:
        if self.inner.is_closed or planned_ms != self._planned_ms:
            return  # an earlier one was planned meanwhile
        self._planned_ms = 0
        try:
            messages = self.consumption.consume(self._rng.randint(1, self.habits.most_records), 0.0)
        except KafkaException as failure:
            self.errors.append(failure.args[0])
            messages = []
        if self.take(messages):
            self._patience_ms = self.habits.poll_ms
            self._commit(messages)
        self.pass_over()
        if self._rng.random() < self.habits.seek_share:
            self._seek()
        if self._rng.random() < self.habits.pause_share:
            self._pause()
        self._plan(self._rng.randint(1, self._patience_ms))
        # An empty poll waits for what wakes it, as one with a time-out does.
        self._patience_ms = _IDLE_MS

    def hear_of_revocation(self, partitions: list[TopicPartition]) -> None:
        """Commit what it has, as most applications do."""
        if self._rng.random() >= self.habits.revoke_share:
            return
        readings = [self._history.reading(self.name, (p.topic, p.partition)) for p in partitions]
        last = [r for r in readings if r is not None and r.records]
        if last:
            self._send_commit(
                commit_entries([TopicPartition(*r.place, r.records[-1][0] + 1) for r in last]),
                asynchronous=False,
            )

    def _commit(self, messages: list[Any]) -> None:
        commits = self.habits.commits
        if commits == "auto" or self._rng.random() < 0.5:
            return
        consumption = self.consumption
        if commits == "stored":
            entries = consumption.commits.stored_changes(consumption.assignment.keys())
        else:
            last = {(m.topic(), m.partition()): m for m in messages if m.error() is None}
            owned = set(consumption.assignment.keys())
            entries = commit_entries(
                [
                    TopicPartition(topic, partition, message.offset() + 1)
                    for (topic, partition), message in last.items()
                    if (topic, partition) in owned
                ]
            )
        if entries:
            self._send_commit(entries, asynchronous=commits == "async")

    def _send_commit(self, entries: list[CommitEntry], *, asynchronous: bool) -> None:
        with contextlib.suppress(KafkaException):
            self.consumption.commits.commit(entries, asynchronous=asynchronous)

    def _seek(self) -> None:
        """Go back to a record that was read before, of any partition that it has."""
        readings = [r for r in self._history.of_consumer(self.name) if r.records]
        if not readings:
            return
        reading = self._rng.choice(readings)
        offset = self._rng.choice(reading.records[-50:])[0]
        if offset >> _BITS >= self._broker.log(reading.place).start:
            self.seek(reading.place, offset)

    def _pause(self) -> None:
        if self._paused:
            paused, self._paused = sorted(self._paused), set()
            self.consumption.assignment.pause(
                [TopicPartition(*place) for place in paused], is_paused=False
            )
            return
        keys = self.consumption.assignment.keys()
        if keys:
            place = self._rng.choice(keys)
            self._paused.add(place)
            self.consumption.assignment.pause([TopicPartition(*place)], is_paused=True)

    def wake(self) -> None:
        """See `ConsumerProcess.wake`."""
        self.habits = replace(self.habits, seek_share=0.0, pause_share=0.0)
        if self._paused:
            self._pause()
