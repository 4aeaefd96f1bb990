"""What runs inside a BlobConsumer's calls: the inner consumer, the debatcher core, the fetcher.

A shell. Only threads of the user call the inner consumer: whoever waits in `poll` or `consume`
also serves it, in slices, so that `max.poll.interval.ms` keeps its meaning while fetches go on.
Decides nothing about order, memory or positions.

Threads: any. `_service_lock` (first) lets one thread at a time talk to the inner consumer where
order matters; `_lock` (second) guards the cores. Rebalance callbacks run inside the inner
consumer's poll, so under `_service_lock`, never under `_lock`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import (
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from blobmsg.commits import RESOLVE_AGAIN_S, Commits
from blobmsg.core.debatcher import Debatcher, Entry, Failure, FailureKind, FlowKey, Run
from blobmsg.core.offsets import to_kafka
from blobmsg.intake import Intake
from blobmsg.interrupts import ctrl_c_waits
from blobmsg.message import Message, make_messages
from blobmsg.rare_log import RareLog
from blobmsg.undelivered import Gathering, Undelivered

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from blobmsg.clock import Clock
    from blobmsg.config import Settings
    from blobmsg.core.positions import CommitEntry
    from blobmsg.fetcher import Fetcher
    from blobmsg.kafka_settings import KafkaView

__all__ = ["Consumption"]

logger = logging.getLogger("blobmsg.consumer")

# The inner consumer is served this often at least while records are handed out from memory.
_SERVICE_EVERY_S: Final = 0.05
# So many messages `poll` makes at a time, most.
_AHEAD_RECORDS: Final = 64
# Longest single wait in the inner consumer: Ctrl-C, other threads and retries wait so long.
_SLICE_S: Final = 0.1
# While fetches are in flight, how long to wait for one of them between two looks at Kafka.
_FETCH_SLICE_S: Final = 0.02
# Notifications of one object reach a consumer from different brokers some ms one after the other;
# waiting for the next costs that much latency and saves most of the GETs.
_GATHER_MS: Final = 25
# Before 2.13.2 `consume` of a partition's end, or of an error, moves librdkafka's own place one
# record too far, and after a pause it reads on from there: one is lost (its issue 4844). Not so
# `poll`.
_CONSUME_SKIPS: Final = confluent_kafka.libversion()[1] < 0x020D0200


class Consumption:
    """The inner consumer and the cores, as one.

    Args:
        inner: The stock consumer; anything with its methods.
        fetcher: Fetches sections.
        settings: Ours.
        view: The user's librdkafka settings that we interpret.
        clock: Time.
        on_error: Hears that the store is away; must not raise. Called outside of `_lock`.
        on_commit: Hears of the synchronous commits that nobody asked for; must not raise.
        monotonic_s: The monotonic time in seconds, for waits; a test or simulation has its own.
    """

    def __init__(
        self,
        inner: Any,
        fetcher: Fetcher,
        settings: Settings,
        view: KafkaView,
        clock: Clock,
        *,
        on_error: Callable[[KafkaError], None],
        on_commit: Callable[[KafkaError | None, list[TopicPartition]], None] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self._monotonic_s = monotonic_s
        self._fetcher = fetcher
        self._view = view
        self._clock = clock
        self._on_error = on_error
        self._on_commit = on_commit
        self._service_lock = threading.RLock()
        self._lock = threading.RLock()
        self._core = Debatcher(
            prefetch_max_bytes=settings.prefetch_max_bytes,
            fetch_slots=settings.fetch_threads,
            max_section_bytes=max(settings.prefetch_max_bytes // 2, 1 << 20),
            gather_ms=_GATHER_MS,
            skips_missing=settings.on_missing == "skip",
            skips_expired=view.auto_offset_reset != "error",
            checks_positions=settings.offset_check,
        )
        self._log = RareLog(logger.warning)
        self.commits = Commits(inner, self._lock, self._log, monotonic_s)
        self.stores_automatically = view.enable_auto_offset_store
        self.commits_automatically = view.enable_auto_commit
        self._run: Run | None = None
        # From the inner consumer, not yet taken: an exception between the two must not lose them.
        self._received: deque[Any] = deque()
        self._undelivered = Undelivered()  # does not count in positions and commits
        self.callback_failures: deque[BaseException] = deque()  # raised once what came is taken
        self._loose: deque[Message] = deque()  # errors that belong to no assigned partition
        # Partitions whose committed position is not known yet, and when to ask for it again.
        self._unresolved: dict[FlowKey, float] = {}
        # As librdkafka, which keeps a pause until a resume, whoever has the partition meanwhile.
        self._paused_by_user: set[FlowKey] = set()
        self._expired_logged: set[FlowKey] = set()
        self._next_service = 0.0
        self._next_commit = 0.0
        self._intake = Intake(
            self._core,
            self._unresolved,
            clock,
            settings.record_max_bytes,
            tells_ends=view.enable_partition_eof,
        )
        self._taken = 0  # records, out of runs

    # --- handing out --------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> Message | None:
        """The next record or event; waits at most `timeout_s` (negative: no limit)."""
        now = self._monotonic_s()
        if now < self._next_service:
            try:
                for message in self._undelivered.pop_each:
                    return message
            except IndexError:  # nothing is there
                pass
        return self._poll_runs(timeout_s, now)

    def _poll_runs(self, timeout_s: float, now: float) -> Message | None:
        """As `poll`, which is the fast path of this."""
        deadline: float | None = None
        while True:
            if now >= self._next_service:
                self._service(0)
            with self._lock:
                if not self._undelivered.messages:
                    self._undelivered.forget_positions()
                    self._read_ahead()
            try:
                for message in self._undelivered.pop_each:
                    return message
            except IndexError:
                pass
            if deadline is None:
                deadline = float("inf") if timeout_s < 0 else now + timeout_s
            if not self._wait(deadline):
                return None
            now = self._monotonic_s()

    def _read_ahead(self) -> None:
        """Take the next few records of one run, or an event.

        Of one run, so that what they hold in memory stays charged.
        """
        while not self._undelivered.messages:
            run = self._run
            if run is not None and run.index < run.end:
                self._take(run, self._undelivered, _AHEAD_RECORDS)
            elif not self._take_next(self._undelivered):
                return

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        """Up to `count` records and events; waits for all of them at most `timeout_s`."""
        deadline = float("inf") if timeout_s < 0 else self._monotonic_s() + timeout_s
        gathering = Gathering()
        try:
            with self._lock:
                self._undelivered.gather(gathering)
            while len(gathering.messages) < count:
                if self._monotonic_s() >= self._next_service:
                    self._service(0)
                with ctrl_c_waits(), self._lock:  # once, and not for every run
                    took = self._take_many(gathering, count)
                if not took and not self._wait(deadline):
                    break
            messages = list(gathering.messages)
            with self._lock:
                self._undelivered.gathered(gathering)
        except BaseException:  # a user's callback, Ctrl-C: nobody gets what was gathered
            with ctrl_c_waits(), self._lock:
                self._undelivered.put_back(gathering)
            raise
        return messages

    def fill(self, count: int, timeout_s: float) -> None:
        """Have so many messages for `take_ahead`; wait for them at most `timeout_s`.

        Threads: one, and not inside of a callback.
        """
        deadline = self._monotonic_s() + timeout_s
        is_over = False  # not before Kafka was served once
        while True:
            if self.is_due:
                self._service(0)
            with self._lock:
                self._undelivered.forget_positions()
                self._take_ready(self._undelivered, max(count, _AHEAD_RECORDS))
                has_enough = len(self._undelivered.messages) >= count
            if has_enough or is_over:
                return
            is_over = self._monotonic_s() >= deadline
            self._wait(deadline)

    @property
    def is_due(self) -> bool:
        """Whether Kafka should be served before anything is handed out."""
        return self._monotonic_s() >= self._next_service

    def take_ahead(self, count: int, at_least: int) -> list[Message]:
        """What is there, if it is so much; never waits. Threads: any."""
        messages: list[Message] = []
        if len(self._undelivered.messages) < at_least:
            return messages
        with contextlib.suppress(IndexError):
            while len(messages) < count:
                for message in self._undelivered.pop_each:
                    messages.append(message)
                    break
        return messages

    def _wait(self, deadline: float) -> bool:
        """Serve the inner consumer until something may be ready; False when time is over."""
        remaining = deadline - self._monotonic_s()
        with self._lock:
            awaits_fetch = self._core.fetches_in_flight > 0 or self._core.has_waiting
        if awaits_fetch:
            self._service(0)
            self._fetcher.wait(max(0.0, min(_FETCH_SLICE_S, remaining)))
            with ctrl_c_waits():
                self._take_results()
        else:
            self._service(max(0.0, min(_SLICE_S, remaining)))
        with self._lock:
            return remaining > 0 or self._has_ready()

    def _has_ready(self) -> bool:
        run = self._run
        return (
            bool(self._undelivered.messages)
            or bool(self._loose)
            or self._core.has_ready
            or (run is not None and run.index < run.end)
        )

    def _take_many(self, gathering: Gathering, count: int) -> bool:
        """Gather what is ready; whether anything was."""
        before = len(gathering.messages)
        with contextlib.suppress(IndexError):
            while len(gathering.messages) < count:
                for message in self._undelivered.pop_each:
                    gathering.messages += (message,)
                    break
        self._take_ready(gathering, count)
        return len(gathering.messages) > before

    def _take_ready(self, target: Gathering | Undelivered, count: int) -> None:
        """Take what the runs have until there are so many messages."""
        while len(target.messages) < count:
            run = self._run
            if run is not None and run.index < run.end:
                self._take(run, target, count - len(target.messages))
            elif not self._take_next(target):
                return

    def _take(self, run: Run, target: Gathering | Undelivered, most: int) -> None:
        """Take the run's next records."""
        start, source = run.index, run.source
        end = min(run.end, start + most)
        flow = run.entry.flow
        place, position = (flow.key, run.position()), flow.position()
        made = make_messages(source.message_class, source, start, end)
        # All or nothing: signal handlers come behind calls, never between the next lines. One may
        # have sought or polled before.
        if self._run is run and run.index == start and end <= run.end:
            target.position_before[place] = position
            target.messages += made
            run.index = end
            self._taken += end - start

    def _take_next(self, target: Gathering | Undelivered) -> bool:
        """Set `_run` to what comes next, or take an event's message; whether there was any."""
        with ctrl_c_waits():
            self._run = None
            if self._loose:
                target.messages.append(self._loose.popleft())
                return True
            upcoming = self._core.next_run()
            if isinstance(upcoming, Run):
                self._run = upcoming
            elif upcoming is not None:
                target.messages.append(self._message_of(upcoming))
            return upcoming is not None

    def _message_of(self, entry: Entry) -> Message:
        if entry.event is not None:
            message: Message = entry.event
            return message
        topic, partition = entry.flow.key
        failure = entry.failure
        if failure is None:
            raise AssertionError("an entry without records, event or failure was handed out")
        error: KafkaError = failure.error
        return Message(
            topic, partition, entry.first_offset(), value=str(error.str()).encode(), error=error
        )

    # --- serving the inner consumer -----------------------------------------------------------

    def _service(self, timeout_s: float) -> None:
        """Take what Kafka and the fetcher have, plan fetches, commit when due.

        Ctrl-C waits for its end, one slice at most, so that all of this happens or nothing.
        """
        with ctrl_c_waits():
            if not self._service_lock.acquire(timeout=max(timeout_s, 0.001)):
                return  # another thread is at it
            try:
                self._serve(timeout_s)
            finally:
                self._service_lock.release()
        self.raise_callback_failures()

    def raise_callback_failures(self) -> None:
        """Raise what the user's callbacks raised since the last time: Ctrl-C, else the first."""
        if not self.callback_failures:
            return
        failures = list(self.callback_failures)
        self.callback_failures.clear()
        failures.sort(key=lambda error: isinstance(error, Exception))
        if len(failures) > 1:
            logger.error("callbacks failed also with %r", failures[1:])
        raise failures[0]

    def _serve(self, timeout_s: float) -> None:
        self._next_service = self._monotonic_s() + _SERVICE_EVERY_S
        self._take_results()
        self._take_received()
        first = self.inner.poll(timeout_s)
        if first is not None:
            self._received.append(first)
            if _is_of_the_member(first):
                # Behind it comes the rebalance that follows from it (the poll interval is
                # exceeded): its callbacks run in a later call than the one that hands out the
                # error, as in stock.
                self._next_service = self._monotonic_s() + _SERVICE_EVERY_S
            else:
                self._receive_more()
        self._take_received()
        if self._intake.is_fenced:
            self._forget_lost()
        now_ms = self._clock.now_ms()
        with self._lock:
            self._core.tick(now_ms)
            sections = self._core.plan(now_ms)
            pauses, resumes = self._core.take_pauses()
        for section in sections:
            self._fetcher.submit(section)
        self._apply_pauses(pauses, resumes)
        if self._unresolved:
            self._resolve_again()
        if self.commits_automatically:
            self._commit_when_due()

    def _receive_more(self) -> None:
        """Take from the inner consumer what is there besides the first message."""
        with self._lock:
            room_records = self._core.room_records()
        if _CONSUME_SKIPS:
            self._received.extend(islice(iter(partial(self.inner.poll, 0), None), room_records))
        else:
            self._received.extend(self.inner.consume(room_records, 0))

    def _take_received(self) -> None:
        with self._lock:
            while self._received:
                event = self._intake.take(self._received[0])
                if event is not None:
                    self._loose.append(event)
                self._received.popleft()

    def _forget_lost(self) -> None:
        """Drop what the inner consumer has lost without a callback, after a fatal error say."""
        assigned: list[TopicPartition] = self.inner.assignment()
        kept = {(place.topic, place.partition) for place in assigned}
        lost = [key for key in self.keys() if key not in kept]
        self._let_go(lost)

    def _take_results(self) -> None:
        results = self._fetcher.take_results()
        if not results:
            return
        transient: list[KafkaError] = []
        expired: dict[FlowKey, KafkaError] = {}
        now_ms = self._clock.now_ms()
        with self._lock:
            for result in results:
                self._core.fetched(result.section, result.outcomes, now_ms)
                transient += [
                    outcome.error
                    for outcome in result.outcomes
                    if isinstance(outcome, Failure)
                    and outcome.kind is FailureKind.TRANSIENT
                    and outcome.error is not None
                ]
                for (entry, _, _), outcome in zip(
                    result.section.parts, result.outcomes, strict=True
                ):
                    if isinstance(outcome, Failure) and outcome.kind is FailureKind.EXPIRED:
                        expired.setdefault(entry.flow.key, outcome.error)
            sections = self._core.plan(now_ms)
        for section in sections:
            self._fetcher.submit(section)
        for key, error in expired.items():
            if key not in self._expired_logged:
                self._expired_logged.add(key)
                logger.warning("%s (further ones of this partition are only counted)", error.str())
        for error in transient[:1]:
            self._log(f"the store can't be read now: {error}", cause=error.name())
            self._on_error(error)

    def _apply_pauses(self, pauses: list[FlowKey], resumes: list[FlowKey]) -> None:
        if pauses:
            self.inner.pause([TopicPartition(*key) for key in pauses])
        with self._lock:
            wanted = [
                key
                for key in resumes
                if (flow := self._core.flows.get(key)) is not None
                and not flow.is_paused_by_user
                and key not in self._unresolved
            ]
        if wanted:
            self.inner.resume([TopicPartition(*key) for key in wanted])

    # --- assignment ---------------------------------------------------------------------------

    def assign(self, partitions: list[TopicPartition], *, is_incremental: bool) -> None:
        """Read these partitions from the positions given or committed.

        Args:
            partitions: With virtual offsets; invalid and stored ones are looked up.
            is_incremental: Add to the assignment instead of replacing it.
        """
        with self._service_lock, ctrl_c_waits():
            if not is_incremental and self.commits_automatically:
                self.commit_stored(self.keys(), asynchronous=False)  # of what is replaced
            starts, unresolved = self._starts_of(partitions)
            inner_partitions = [
                TopicPartition(p.topic, p.partition, to_kafka(offset))
                for p, offset in zip(partitions, starts, strict=True)
            ]
            try:
                if is_incremental:
                    self.inner.incremental_assign(inner_partitions)
                else:
                    self.inner.assign(inner_partitions)
            except KafkaException:
                self._forget_lost()  # librdkafka may have unassigned all before it refused
                raise
            with self._lock:
                paused_for_us = [] if is_incremental else self._forget(list(self._core.flows))
                for partition, start in zip(partitions, starts, strict=True):
                    key = (partition.topic, partition.partition)
                    self._core.assigned(key, start if start >= 0 else None)
                    if key in self._paused_by_user:
                        self._core.paused_by_user(key, is_paused=True)
                self._unresolved.update(unresolved)
            if paused_for_us:
                self.inner.resume(paused_for_us)
            if unresolved:
                self.inner.pause([TopicPartition(*key) for key in unresolved])

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
        found, unresolved, refusals = self.commits.look_up(keys)
        with self._lock:
            self._loose.extend(refusals)
        return found, unresolved

    def _resolve_again(self) -> None:
        """Ask again for committed positions that did not come at assignment."""
        now = self._monotonic_s()
        keys = [key for key, again_at in self._unresolved.items() if now >= again_at]
        if not keys:
            return
        found, unresolved = self._look_up(keys)
        self._unresolved.update(unresolved)
        for key, position in found.items():
            if position >= 0:
                try:
                    self.inner.seek(TopicPartition(*key, to_kafka(position)))
                except KafkaException:  # its own look-up has not come to an end yet
                    self._unresolved[key] = self._monotonic_s() + RESOLVE_AGAIN_S
                    continue
            with self._lock:
                flow = self._core.flows[key]
                self._core.sought(key, position if position >= 0 else None)
                del self._unresolved[key]
            if not flow.is_paused_by_user:
                self.inner.resume([TopicPartition(*key)])

    def unassign(self, partitions: list[TopicPartition] | None) -> None:
        """Stop reading these partitions (None: all), committing what is stored first."""
        with self._service_lock, ctrl_c_waits():
            with self._lock:
                keys = (
                    list(self._core.flows)
                    if partitions is None
                    else [(p.topic, p.partition) for p in partitions]
                )
            if self.commits_automatically:
                self.commit_stored(keys, asynchronous=False)
            if partitions is None:
                self.inner.unassign()
            else:
                self.inner.incremental_unassign(
                    [TopicPartition(p.topic, p.partition) for p in partitions]
                )
            self._let_go(keys)

    @contextlib.contextmanager
    def keeping_failures(self) -> Generator[None]:
        """Around all that runs inside the inner client, which must not see it raise.

        The inner client would drop the messages that it has at hand; the exception surfaces from
        `poll`, `consume` or `close` once they are safe.
        """
        try:
            yield
        except BaseException as error:  # noqa: BLE001  (Ctrl-C too; `raise_callback_failures`)
            self.callback_failures.append(error)

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
        with self.keeping_failures():
            self.stop_delivery(partitions)
        call_user()
        with self.keeping_failures():
            if self.commits_automatically and not is_lost:
                self.commit_stored(keys, asynchronous=False)
        with self.keeping_failures():
            self._let_go(keys)

    def stop_delivery(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of partitions that are about to be revoked."""
        with self._lock:
            for partition in partitions:
                key = (partition.topic, partition.partition)
                if key in self._core.flows:
                    self._core.paused_by_user(key, is_paused=True)
                self._undelivered.pause(key)
                if self._run is not None and self._run.entry.flow.key == key:
                    self._run = None

    def _let_go(self, keys: Iterable[FlowKey]) -> None:
        """Drop partitions that are given up, and resume what of them is paused only for us.

        Behind the inner call, which may refuse, and behind the user's callback, who may resume what
        was paused by both.
        """
        with self._lock:
            paused_for_us = self._forget(keys)
        if paused_for_us:
            self.inner.resume(paused_for_us)

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
            self._drop_received(key)
            self._taken -= self._undelivered.forget(key)
            self._expired_logged.discard(key)
            self.commits.positions.forget(key)
            self._unresolved.pop(key, None)
        run = self._run
        if run is not None and run.entry.flow.key not in self._core.flows:
            self._run = None
        return paused_for_us

    def _drop_received(self, key: FlowKey) -> None:
        """Drop what came from Kafka before a seek or revocation."""
        if self._received:
            kept = [m for m in self._received if (m.topic(), m.partition()) != key]
            self._received.clear()
            self._received.extend(kept)

    def keys(self) -> list[FlowKey]:
        """The assigned partitions."""
        with self._lock:
            return list(self._core.flows)

    # --- positions ----------------------------------------------------------------------------

    def seek(self, partition: TopicPartition) -> None:
        """Go on at another virtual offset of an assigned partition."""
        key = (partition.topic, partition.partition)
        with self._service_lock, ctrl_c_waits():
            (start,), unresolved = self._starts_of([partition])
            self.inner.seek(TopicPartition(*key, to_kafka(start)))  # raises if it is not assigned
            with self._lock:
                flow = self._core.flows[key]
                positions = self._undelivered.positions()
                if key in positions:
                    self._core.taken_back(key, positions[key])
                self._drop_received(key)
                self._taken -= self._undelivered.drop(key)
                self._core.sought(key, start if start >= 0 else None)
                was_unresolved = self._unresolved.pop(key, None) is not None
                self._unresolved.update(unresolved)
            if unresolved:
                self.inner.pause([TopicPartition(*key)])
            elif was_unresolved and not flow.is_paused_by_user:
                self.inner.resume([TopicPartition(*key)])

    def pause(self, partitions: list[TopicPartition], *, is_paused: bool) -> None:
        """Stop or go on with some assigned partitions."""
        with self._service_lock, ctrl_c_waits():
            if is_paused:
                self.inner.pause(partitions)
            with self._lock:
                resumed: list[TopicPartition] = []
                for partition in partitions:
                    key = (partition.topic, partition.partition)
                    flow = self._core.flows.get(key)
                    if not is_paused:
                        self._paused_by_user.discard(key)
                    if flow is None:
                        resumed.append(partition)  # stock says what is wrong with it
                        continue
                    if is_paused:
                        self._paused_by_user.add(key)
                    self._core.paused_by_user(key, is_paused=is_paused)
                    if not flow.is_paused_by_us and key not in self._unresolved:
                        resumed.append(partition)
                    if not is_paused:
                        self._undelivered.resume(key)
                        continue
                    self._undelivered.pause(key)
                    if self._run is not None and self._run.entry.flow is flow:
                        self._run = None
            if not is_paused and resumed:
                self.inner.resume(resumed)

    def position_of(self, key: FlowKey) -> int:
        """Virtual offset after the last record handed out; OFFSET_INVALID before the first."""
        with self._lock:
            flow = self._core.flows.get(key)
            if flow is None:
                return OFFSET_INVALID
            position: int | None = self._undelivered.positions().get(key, flow.position())
            return OFFSET_INVALID if position is None else position

    def store(self, key: FlowKey, position: int, metadata: str | None) -> None:
        """Remember a position for the next commit.

        Raises:
            KafkaException: `_STATE` when the partition is not assigned.
        """
        with self._lock:
            if key not in self._core.flows:
                raise KafkaException(
                    KafkaError(KafkaError._STATE, f"{key[0]} [{key[1]}] is not assigned")
                )
            self.commits.positions.store(key, position, metadata)

    def stored_changes(self, keys: Iterable[FlowKey]) -> list[CommitEntry]:
        """What a commit of these partitions contains now."""
        with self._lock:
            wanted = [key for key in keys if key in self._core.flows]
            if self.stores_automatically:
                positions = self._undelivered.positions()
                for key in wanted:
                    flow = self._core.flows[key]
                    position: int | None = positions.get(key, flow.position())
                    if position is None:
                        position = flow.position_before_seek
                    if position is not None:
                        self.commits.positions.store(key, position)
            return self.commits.positions.changed(wanted)

    def commit_stored(self, keys: Iterable[FlowKey], *, asynchronous: bool) -> None:
        """Commit what changed; nobody waits for it, so `on_commit` hears of it, or the log."""
        entries = self.stored_changes(keys)
        if not entries:
            return
        try:
            answers = self.commits.commit(entries, asynchronous=asynchronous)
        except KafkaException as error:
            self._commit_answered(error.args[0], [])
        else:
            if answers is not None:
                self._commit_answered(None, answers)

    def _commit_answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if self._on_commit is None:
            self.commit_failed(error, partitions)
        else:
            self._on_commit(error, partitions)

    def commit_failed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Log what a commit that nobody waits for was answered, if it is an error."""
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            self._log(f"commit failed: {error}", cause="commit")
        for partition in partitions:
            if partition.error is not None:
                place = f"{partition.topic} [{partition.partition}]"
                self._log(f"commit of {place} failed: {partition.error}", cause=place)

    def _commit_when_due(self) -> None:
        if not self._view.auto_commit_interval_ms:
            return
        now = self._monotonic_s()
        if now < self._next_commit:
            return
        is_first = self._next_commit == 0.0
        self._next_commit = now + self._view.auto_commit_interval_ms / 1000
        if not is_first:
            self.commit_stored(self.keys(), asynchronous=True)

    # --- closing ------------------------------------------------------------------------------

    def close(self, *, commits_first: bool) -> None:
        """Close the inner consumer, once no other thread is in it, and commit before if asked."""
        with self._service_lock, ctrl_c_waits():
            try:
                if commits_first and self.commits_automatically:
                    self.commit_stored(self.keys(), asynchronous=False)
            finally:
                self.inner.close()

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        with self._lock:
            skipped = self._core.skipped_records
            return {
                "records": self._taken - self._undelivered.records(),
                **self._intake.counters,
                "held_bytes": self._core.held_bytes,
                "sequence_gaps": self._core.sequence_gaps,
                "missing_records": skipped.get(FailureKind.MISSING, 0),
                "expired_records": skipped.get(FailureKind.EXPIRED, 0),
                "cache_hits": self._fetcher.cache_hits,
                "mismatches": self._fetcher.mismatches,
            }


def _is_of_the_member(message: Any) -> bool:
    """Whether it is an error of the consumer and not of one of its partitions."""
    return message.error() is not None and message.topic() is None
