"""What runs inside a consumer's `poll` and `consume`: the inner consumer, the core, the fetcher.

A shell. Only threads of the user call the inner consumer: whoever waits in `poll` or `consume`
also serves it, in slices, so that `max.poll.interval.ms` keeps its meaning while fetches go on.
Decides nothing about order, memory or positions.

Threads: any. `_service_lock` (first) lets one thread at a time talk to the inner consumer where
order matters; `_lock` (second) guards the cores. Rebalance callbacks run inside the inner
consumer's poll, so under `_service_lock`, never under `_lock`.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import OFFSET_INVALID, TopicPartition

from blobmsg.assignment import Assignment
from blobmsg.callback_failures import CallbackFailures
from blobmsg.commits import Commits
from blobmsg.core.debatcher import Debatcher, Failure, FailureKind, Flow, FlowKey
from blobmsg.core.resets import Resets
from blobmsg.handout import Handout
from blobmsg.intake import Intake
from blobmsg.interrupts import ctrl_c_waits
from blobmsg.rare_log import RareLog
from blobmsg.undelivered import Gathering

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError

    from blobmsg.clock import Clock
    from blobmsg.config import Settings
    from blobmsg.fetcher import Fetcher
    from blobmsg.kafka_settings import KafkaView
    from blobmsg.message import Message

__all__ = ["Consumption"]

logger = logging.getLogger("blobmsg.consumer")

# The inner consumer is served this often at least while records are handed out from memory.
_SERVICE_EVERY_S: Final = 0.05
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
        on_commit: See `Commits`.
        monotonic_s: The monotonic time in seconds, for waits; a test or simulation has its own.

    Attributes:
        assignment: Which partitions it reads.
        commits: The group's positions.
        failures: What callbacks have raised.
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
        self._clock = clock
        self._on_error = on_error
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
        self.failures = CallbackFailures()
        self._handout = Handout(self._core)
        self._undelivered = self._handout.undelivered
        self.commits = Commits(
            inner,
            self._core,
            self._handout,
            view,
            lock=self._lock,
            log=self._log,
            on_commit=on_commit,
            monotonic_s=monotonic_s,
        )
        self._unresolved: dict[FlowKey, float] = {}
        self._resets = Resets(view.auto_offset_reset, self._log_start)
        self._intake = Intake(
            self._core,
            self._handout,
            self._resets,
            self._unresolved,
            clock,
            settings.record_max_bytes,
            tells_ends=view.enable_partition_eof,
        )
        self.assignment = Assignment(
            inner,
            self._core,
            self._intake,
            self._handout,
            self.commits,
            self._resets,
            self._unresolved,
            self.failures,
            log=self._log,
            service_lock=self._service_lock,
            lock=self._lock,
            monotonic_s=monotonic_s,
        )
        self._expired_logged: set[Flow] = set()
        self._next_service = 0.0

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
        is_served = False
        while True:
            if now >= self._next_service:
                is_served = self._service(0)
            with self._lock:
                self._handout.read_ahead()
            try:
                for message in self._undelivered.pop_each:
                    return message
            except IndexError:
                pass
            if deadline is None:
                deadline = float("inf") if timeout_s < 0 else now + timeout_s
            if not self._wait(deadline, is_served=is_served):
                return None
            now = self._monotonic_s()

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        """Up to `count` records and events; waits for all of them at most `timeout_s`."""
        deadline = float("inf") if timeout_s < 0 else self._monotonic_s() + timeout_s
        gathering = Gathering()
        is_served = False
        try:
            with self._lock:
                self._undelivered.gather(gathering)
            while len(gathering.messages) < count:
                if self._monotonic_s() >= self._next_service:
                    is_served = self._service(0)
                with ctrl_c_waits(), self._lock:  # once, and not for every run
                    took = self._handout.gather(gathering, count)
                if not took and not self._wait(deadline, is_served=is_served):
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
                has_enough = self._handout.fill(count)
            if has_enough or is_over:
                return
            is_over = self._monotonic_s() >= deadline
            self._wait(deadline, is_served=False)

    @property
    def is_due(self) -> bool:
        """Whether Kafka should be served before anything is handed out."""
        return self._monotonic_s() >= self._next_service

    def take_ahead(self, count: int, at_least: int) -> list[Message]:
        """What is there, if it is so much; never waits. Threads: any."""
        return self._handout.take_ahead(count, at_least)

    def _wait(self, deadline: float, *, is_served: bool) -> bool:
        """Serve the inner consumer until something may be ready; False when time is over.

        Args:
            deadline: By the monotonic clock.
            is_served: It was served since the call began, which need not be done twice.
        """
        remaining = deadline - self._monotonic_s()
        if is_served and remaining <= 0:
            return False
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
            return remaining > 0 or self._handout.has_ready

    # --- serving the inner consumer -----------------------------------------------------------

    def _service(self, timeout_s: float) -> bool:
        """Take what Kafka and the fetcher have, plan fetches, commit when due.

        Ctrl-C waits for its end, one slice at most, so that all of this happens or nothing.

        Returns:
            False when another thread is at it.
        """
        with ctrl_c_waits():
            if not self._service_lock.acquire(timeout=max(timeout_s, 0.001)):
                return False
            try:
                self._serve(timeout_s)
            finally:
                self._service_lock.release()
        self.failures.raise_first()
        return True

    def _serve(self, timeout_s: float) -> None:
        self._next_service = self._monotonic_s() + _SERVICE_EVERY_S
        self._take_results()
        with self._lock:
            self._intake.take_all()
        first = self.inner.poll(timeout_s)
        if first is not None:
            self._intake.received.append(first)
            if _is_of_the_member(first):
                # Behind it comes the rebalance that follows from it (the poll interval is
                # exceeded): its callbacks run in a later call than the one that hands out the
                # error, as in stock.
                self._next_service = self._monotonic_s() + _SERVICE_EVERY_S
            else:
                self._receive_more()
        with self._lock:
            self._intake.take_all()
        if self._intake.is_fenced:
            self.assignment.forget_lost()
        now_ms = self._clock.now_ms()
        with self._lock:
            self._core.tick(now_ms)
            sections = self._core.plan(now_ms)
        for section in sections:
            self._fetcher.submit(section)
        self.assignment.pause_for_memory()
        self.assignment.resolve_again()
        self.assignment.send_back()
        if self.commits.is_automatic:
            self.commits.commit_when_due(self.assignment.keys)

    def _receive_more(self) -> None:
        """Take from the inner consumer what is there besides the first message."""
        with self._lock:
            room_records = self._core.room_records()
        if _CONSUME_SKIPS:
            self._intake.received.extend(
                islice(iter(partial(self.inner.poll, 0), None), room_records)
            )
        else:
            self._intake.received.extend(self.inner.consume(room_records, 0))

    def _log_start(self, key: FlowKey) -> int:
        """The first offset that Kafka had when the partition was last read; negative: unknown."""
        low, _ = self.inner.get_watermark_offsets(TopicPartition(*key), cached=True)
        return int(low)

    def _take_results(self) -> None:
        results = self._fetcher.take_results()
        if not results:
            return
        transient: list[KafkaError] = []
        expired: dict[Flow, KafkaError] = {}
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
                        expired.setdefault(entry.flow, outcome.error)
            sections = self._core.plan(now_ms)
        for section in sections:
            self._fetcher.submit(section)
        if expired:
            self._log_expired(expired)
        for error in transient[:1]:
            self._log(f"the store can't be read now: {error}", cause=error.name())
            self._on_error(error)

    def _log_expired(self, expired: dict[Flow, KafkaError]) -> None:
        with self._lock:
            assigned = set(self._core.flows.values())
            first = assigned.difference(self._expired_logged).intersection(expired)
            self._expired_logged = assigned.intersection(self._expired_logged).union(first)
        for flow in first:
            text = expired[flow].str()
            logger.warning("%s (further ones of this partition are only counted)", text)

    # --- told ---------------------------------------------------------------------------------

    def position_of(self, key: FlowKey) -> int:
        """Virtual offset after the last record handed out; OFFSET_INVALID before the first."""
        with self._lock:
            position = self._handout.positions([key]).get(key)
        return OFFSET_INVALID if position is None else position

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        with self._lock:
            skipped = self._core.skipped_records
            return {
                "records": self._handout.records,
                **self._intake.counters,
                "held_bytes": self._core.held_bytes,
                "sequence_gaps": self._core.sequence_gaps,
                "missing_records": skipped.get(FailureKind.MISSING, 0),
                "expired_records": skipped.get(FailureKind.EXPIRED, 0),
                "cache_hits": self._fetcher.cache_hits,
                "mismatches": self._fetcher.mismatches,
            }

    # --- closing ------------------------------------------------------------------------------

    def close(self, *, commits_first: bool) -> None:
        """Close the inner consumer, once no other thread is in it, and commit before if asked."""
        with self._service_lock, ctrl_c_waits():
            try:
                if commits_first and self.commits.is_automatic:
                    self.commits.commit_stored(self.assignment.keys(), asynchronous=False)
            finally:
                self.inner.close()


def _is_of_the_member(message: Any) -> bool:
    """Whether it is an error of the consumer and not of one of its partitions."""
    return message.error() is not None and message.topic() is None
