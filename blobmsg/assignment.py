"""Which partitions a consumer reads, from where on, and which of them are paused.

A shell around the debatcher: tells it and the inner consumer of what a user or a rebalance says.
Decides nothing about order or memory.

A partition is paused in the inner consumer while the user has paused it, while memory is short, and
while its committed position is not known. It is resumed when none of these holds any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaException,
    TopicPartition,
)

from blobmsg.commits import RESOLVE_AGAIN_S
from blobmsg.core.offsets import to_kafka
from blobmsg.core.resets import EARLIEST, LATEST
from blobmsg.interrupts import ctrl_c_waits

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from blobmsg.callback_failures import CallbackFailures
    from blobmsg.commits import Commits
    from blobmsg.core.debatcher import Debatcher, FlowKey
    from blobmsg.core.resets import Resets
    from blobmsg.handout import Handout
    from blobmsg.intake import Intake
    from blobmsg.rare_log import RareLog

__all__ = ["Assignment"]

# What the inner consumer's own look-up of a committed offset takes at most, if ours has an answer.
_OWN_LOOK_UP_S: Final = 3.0
# By `auto.offset.reset`; with `error` the inner consumer reports it itself.
_POLICY_STARTS: Final = {EARLIEST: OFFSET_BEGINNING, LATEST: OFFSET_END}


class Assignment:
    """The partitions of one consumer.

    Args:
        inner: The stock consumer.
        core: Reads them.
        intake: Has what came of them and is not taken yet.
        handout: Has what was taken of them and is not the user's yet.
        commits: Knows the group's positions.
        resets: Knows which partitions the inner consumer reads elsewhere than it was sent.
        unresolved: Partitions whose committed position is not known yet, and when to ask for it
            again; filled here, read by others.
        failures: Keeps what may not be raised inside the inner consumer.
        log: Writes warnings.
        service_lock: Lets one thread at a time talk to the inner consumer; first.
        lock: Guards the cores; second.
        monotonic_s: The monotonic time in seconds.

    Threads: any.
    """

    def __init__(
        self,
        inner: Any,
        core: Debatcher,
        intake: Intake,
        handout: Handout,
        commits: Commits,
        resets: Resets,
        unresolved: dict[FlowKey, float],
        failures: CallbackFailures,
        *,
        log: RareLog,
        service_lock: threading.RLock,
        lock: threading.RLock,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._core = core
        self._intake = intake
        self._handout = handout
        self._commits = commits
        self._resets = resets
        self._unresolved = unresolved
        self._failures = failures
        self._log = log
        self._service_lock = service_lock
        self._lock = lock
        self._monotonic_s = monotonic_s
        # As librdkafka, which keeps a pause until a resume, whoever has the partition meanwhile, of
        # each that was ever assigned.
        self._paused_by_user: set[FlowKey] = set()
        self._ever_assigned: set[FlowKey] = set()
        self._is_giving_up = False
        self._is_incremental = False
        # Of partitions whose position is known and where the inner consumer could not be sent yet.
        self._not_sent_since: dict[FlowKey, float] = {}
        self._begun_by_policy: set[FlowKey] = set()  # of which nothing was committed

    def assigned(self) -> list[TopicPartition]:
        """The assignment as the inner consumer has it, with the offsets that stock shows."""
        partitions: list[TopicPartition] = self._inner.assignment()
        with self._lock:
            for partition in partitions:
                if (partition.topic, partition.partition) in self._begun_by_policy:
                    partition.offset = OFFSET_STORED
        return partitions

    def keys(self) -> list[FlowKey]:
        """The assigned partitions."""
        with self._lock:
            return list(self._core.flows)

    # --- given --------------------------------------------------------------------------------

    def assign(self, partitions: list[TopicPartition], *, is_incremental: bool) -> None:
        """Read these partitions from the positions given or committed.

        Args:
            partitions: With virtual offsets; invalid and stored ones are looked up.
            is_incremental: Add to the assignment instead of replacing it.
        """
        with self._service_lock, ctrl_c_waits():
            if not is_incremental and self._commits.is_automatic:
                self._commit_before_loss(self.keys())
            starts, unresolved = self._starts_of(partitions)
            inner_partitions = [
                TopicPartition(p.topic, p.partition, self._inner_start(start))
                for p, start in zip(partitions, starts, strict=True)
            ]
            try:
                if is_incremental:
                    self._inner.incremental_assign(inner_partitions)
                else:
                    self._inner.assign(inner_partitions)
            except KafkaException:
                self.forget_lost()  # librdkafka may have unassigned all before it refused
                raise
            self._is_incremental = is_incremental
            with self._lock:
                paused_for_us = [] if is_incremental else self._forget(list(self._core.flows))
                for partition, start in zip(partitions, starts, strict=True):
                    key = (partition.topic, partition.partition)
                    self._core.assigned(key, start if start >= 0 else None)
                    self._ever_assigned.add(key)
                    if start == OFFSET_INVALID:
                        self._begun_by_policy.add(key)
                    if key in self._paused_by_user:
                        self._core.paused_by_user(key, is_paused=True)
                self._unresolved.update(unresolved)
            if paused_for_us:
                self._inner.resume(paused_for_us)
            if unresolved:
                self._inner.pause([TopicPartition(*key) for key in unresolved])

    def _starts_of(
        self, partitions: list[TopicPartition]
    ) -> tuple[list[int], dict[FlowKey, float]]:
        """The virtual offset at which each partition begins; looks up what is not explicit.

        Returns:
            The offsets; and of what could not be looked up (OFFSET_STORED), when to ask again.
        """
        unknown = [
            (p.topic, p.partition)
            for p in partitions
            if p.offset in (OFFSET_INVALID, OFFSET_STORED)
        ]
        found, unresolved = self._look_up(unknown) if unknown else ({}, {})
        starts: list[int] = []
        for partition in partitions:
            key = (partition.topic, partition.partition)
            starts.append(OFFSET_STORED if key in unresolved else found.get(key, partition.offset))
        return starts, unresolved

    def _look_up(self, keys: list[FlowKey]) -> tuple[dict[FlowKey, int], dict[FlowKey, float]]:
        found, unresolved, refusals = self._commits.look_up(keys)
        with self._lock:
            self._handout.add_errors(refusals)
        return found, unresolved

    def _inner_start(self, start: int) -> int:
        """Where the inner consumer begins.

        Where nothing is committed it is told so: its own `auto.offset.reset` is not the user's, and
        it would look for a committed offset once more (see `_is_sent`).
        """
        return self._policy_start if start == OFFSET_INVALID else to_kafka(start)

    @property
    def _policy_start(self) -> int:
        return _POLICY_STARTS.get(self._resets.policy, OFFSET_INVALID)

    def resolve_again(self) -> None:
        """Ask again for committed positions that did not come at assignment."""
        now = self._monotonic_s()
        keys = [key for key, again_at in self._unresolved.items() if now >= again_at]
        if not keys:
            return
        found, unresolved = self._look_up(keys)
        self._unresolved.update(unresolved)
        for key, position in found.items():
            start = self._inner_start(position)
            if start != OFFSET_INVALID and not self._is_sent(key, start):
                self._unresolved[key] = self._monotonic_s() + RESOLVE_AGAIN_S
                continue
            with self._lock:
                flow = self._core.flows[key]
                self._core.sought(key, position if position >= 0 else None)
                del self._unresolved[key]
            if not flow.is_paused_by_user:
                self._inner.resume([TopicPartition(*key)])

    def _is_sent(self, key: FlowKey, kafka_offset: int) -> bool:
        """Send the inner consumer there; whether it goes.

        It does not before its own look-up has come to an end; and where that was answered by a
        broker that is no longer the group's coordinator, librdkafka (2.16) neither asks again nor
        ever reads the partition. So it is given the partition again, with the offset.
        """
        place = TopicPartition(*key, kafka_offset)
        now = self._monotonic_s()
        is_late = now - self._not_sent_since.setdefault(key, now) >= _OWN_LOOK_UP_S
        try:
            if not is_late:
                self._inner.seek(place)
            elif self._is_incremental:
                self._inner.incremental_unassign([TopicPartition(*key)])
                self._inner.incremental_assign([place])
            else:
                self._inner.assign([place, *self._inner_places_but(key)])
        except KafkaException:
            return False
        del self._not_sent_since[key]
        return True

    def _inner_places_but(self, key: FlowKey) -> list[TopicPartition]:
        """Where the inner consumer is in all other partitions."""
        others = [p for p in self._inner.assignment() if (p.topic, p.partition) != key]
        for place, position in zip(others, self._inner.position(others), strict=True):
            if (place.topic, place.partition) in self._unresolved:
                place.offset = OFFSET_STORED
            elif position.offset >= 0:
                place.offset = position.offset
        return others

    def send_back(self) -> None:
        """Send the inner consumer where it was sent before, or as the reset policy says."""
        with self._lock:
            restarts = self._resets.due(int(self._monotonic_s() * 1000))
        for restart in restarts:
            topic, partition = restart.flow.key
            offset = restart.kafka_offset
            if offset is None:
                offset = self._policy_start
                text = f"its position is not in the log: auto.offset.reset={self._resets.policy}"
            else:
                text = f"a broker says that Kafka offset {offset} is not in the log: asking again"
            try:
                self._inner.seek(TopicPartition(topic, partition, offset))
            except KafkaException:  # it does not read the partition now; asked again soon
                continue
            with self._lock:
                self._resets.restarted(restart)
            self._log(f"{topic} [{partition}]: {text}", cause=f"{restart.flow.key} {text}")

    # --- taken away ---------------------------------------------------------------------------

    def unassign(self, partitions: list[TopicPartition] | None) -> None:
        """Stop reading these partitions (None: all), committing what is stored first."""
        with self._service_lock, ctrl_c_waits():
            with self._lock:
                keys = (
                    list(self._core.flows)
                    if partitions is None
                    else [(p.topic, p.partition) for p in partitions]
                )
            if self._commits.is_automatic:
                self._commit_before_loss(keys)
            if partitions is None:
                self._inner.unassign()
            else:
                self._inner.incremental_unassign(
                    [TopicPartition(p.topic, p.partition) for p in partitions]
                )
            self._let_go(keys)

    def _commit_before_loss(self, keys: list[FlowKey]) -> None:
        """Commit what is stored of partitions that the user drops.

        Nobody takes them over at once, so nobody waits for Kafka, which may be away; but in a
        rebalance the next member reads this before it begins.
        """
        self._commits.commit_stored(keys, asynchronous=not self._is_giving_up)

    def give_up(
        self, partitions: list[TopicPartition], call_user: Callable[[], None], *, is_lost: bool
    ) -> None:
        """A rebalance takes partitions: stop, user's callback, commit, drop; then it unassigns.

        Args:
            partitions: Those that are taken.
            call_user: Runs the user's callback; must not raise.
            is_lost: They belong to another member already, so nothing is committed.
        """
        keys = [(p.topic, p.partition) for p in partitions]
        with self._failures.keeping():
            self.stop_delivery(partitions)
        self._is_giving_up = True
        try:
            call_user()
        finally:
            self._is_giving_up = False
        with self._failures.keeping():
            if self._commits.is_automatic and not is_lost:
                self._commits.commit_stored(keys, asynchronous=False)
        with self._failures.keeping():
            self._let_go(keys)

    def stop_delivery(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of partitions that are about to be revoked."""
        with self._lock:
            for partition in partitions:
                key = (partition.topic, partition.partition)
                if key in self._core.flows:
                    self._core.paused_by_user(key, is_paused=True)
                self._handout.pause(key)

    def forget_lost(self) -> None:
        """Drop what the inner consumer has lost without a callback, after a fatal error say."""
        assigned: list[TopicPartition] = self._inner.assignment()
        kept = {(place.topic, place.partition) for place in assigned}
        lost = [key for key in self.keys() if key not in kept]
        self._let_go(lost)

    def _let_go(self, keys: Iterable[FlowKey]) -> None:
        """Drop partitions that are given up, and resume what of them is paused only for us.

        Behind the inner call, which may refuse, and behind the user's callback, who may resume what
        was paused by both.
        """
        with self._lock:
            paused_for_us = self._forget(keys)
        if paused_for_us:
            self._inner.resume(paused_for_us)

    def forget(self, keys: Iterable[FlowKey]) -> None:
        """Drop partitions and all that was read ahead of them; the inner consumer is closed."""
        with self._lock:
            self._forget(keys)

    def _forget(self, keys: Iterable[FlowKey]) -> list[TopicPartition]:
        """Drop partitions.

        Returns:
            Those that the inner consumer has paused only for us. librdkafka keeps a pause when the
            partition is assigned again.
        """
        paused_for_us: list[TopicPartition] = []
        for key in keys:
            flow = self._core.flows.get(key)
            is_paused = flow is not None and (flow.is_paused_by_us or key in self._unresolved)
            if is_paused and key not in self._paused_by_user:
                paused_for_us.append(TopicPartition(*key))
            self._core.revoked(key)
            self._intake.drop(key)
            self._handout.forget(key)
            self._commits.positions.forget(key)
            self._unresolved.pop(key, None)
            self._not_sent_since.pop(key, None)
            self._begun_by_policy.discard(key)
        return paused_for_us

    # --- moved, paused ------------------------------------------------------------------------

    def seek(self, partition: TopicPartition) -> None:
        """Go on at another virtual offset of an assigned partition."""
        key = (partition.topic, partition.partition)
        with self._service_lock, ctrl_c_waits():
            (start,), unresolved = self._starts_of([partition])
            with self._lock:
                is_assigned = key in self._core.flows
            offset = self._inner_start(start) if is_assigned else to_kafka(start)
            self._inner.seek(TopicPartition(*key, offset))  # raises if it is not assigned
            with self._lock:
                flow = self._core.flows[key]
                self._handout.drop(key)
                self._intake.drop(key)
                self._core.sought(key, start if start >= 0 else None)
                was_unresolved = self._unresolved.pop(key, None) is not None
                self._not_sent_since.pop(key, None)
                self._unresolved.update(unresolved)
            if unresolved:
                self._inner.pause([TopicPartition(*key)])
            elif was_unresolved and not flow.is_paused_by_user:
                self._inner.resume([TopicPartition(*key)])

    def pause(self, partitions: list[TopicPartition], *, is_paused: bool) -> None:
        """Stop or go on with some assigned partitions."""
        with self._service_lock, ctrl_c_waits():
            if is_paused:
                self._inner.pause(partitions)
            with self._lock:
                resumed: list[TopicPartition] = []
                for partition in partitions:
                    key = (partition.topic, partition.partition)
                    flow = self._core.flows.get(key)
                    if not is_paused:
                        self._paused_by_user.discard(key)
                    if is_paused and key in self._ever_assigned:
                        self._paused_by_user.add(key)
                    if flow is None:
                        resumed.append(partition)  # stock says what is wrong with it
                        continue
                    self._core.paused_by_user(key, is_paused=is_paused)
                    if not flow.is_paused_by_us and key not in self._unresolved:
                        resumed.append(partition)
                    if is_paused:
                        self._handout.pause(key)
                    else:
                        self._handout.resume(key)
            if not is_paused and resumed:
                self._inner.resume(resumed)

    def pause_for_memory(self) -> None:
        """Pause and resume what the core asks for."""
        with self._lock:
            pauses, resumes = self._core.take_pauses()
        if pauses:
            self._inner.pause([TopicPartition(*key) for key in pauses])
        with self._lock:
            wanted = [
                key
                for key in resumes
                if (flow := self._core.flows.get(key)) is not None
                and not flow.is_paused_by_user
                and key not in self._unresolved
            ]
        if wanted:
            self._inner.resume([TopicPartition(*key) for key in wanted])
