"""One simulation: lets the system of a plan run, hurts and heals it, and checks the rules.

A run ends when all that was taken is reported and all that is in the log is read, or with the first
`Violation`; one that does not end is a violation, too (nobody may be stuck).
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from blobmsg.format.batch_object import decode_batch_object_index
from blobmsg.format.object_key import ObjectKey
from blobmsg.interrupts import ctrl_c_waits
from blobmsg.sim.checker import (
    check_cost,
    check_deadlines,
    check_log,
    check_readings,
    check_reports,
    check_sequences,
    check_transactions,
    check_transformed,
)
from blobmsg.sim.client_settings import TRANSACTION_MS, UPLOAD_THREADS
from blobmsg.sim.faults import Faults
from blobmsg.sim.fiber import end_fibers
from blobmsg.sim.history import Sent, committed_position
from blobmsg.sim.system import UPLOAD_MS, System, producer_id_of
from blobmsg.sim.transformer import BUSY_MS, TRANSFORMED, Transformer
from blobmsg.sim.world import START_MS, Violation

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from blobmsg.sim.consumer_process import ConsumerProcess
    from blobmsg.sim.partition_log import SentMessage
    from blobmsg.sim.plan import Plan
    from blobmsg.sim.producer_process import ProducerProcess
    from blobmsg.sim.truth import Fact

__all__ = ["Outcome", "Simulation", "run_plan"]

_Place = tuple[str, int]
_BITS: Final = 20
_SESSION_MS: Final = 1500
# Longer than every time-out and back-off of the system together: whoever is not done by then is
# stuck. Virtual time costs nothing.
_STUCK_MS: Final = 120_000
_LOOK_MS: Final = 100
# Past the expiry hour of every object: retention class, log segment, the hour itself.
_EXPIRY_MS: Final = 6 * 3_600_000
# Records that each producer sends when all is well again.
_PROBES: Final = 10
# What a report may come later than its time: polls, rounds of the notifier, scans.
_SLACK_MS: Final = 1500


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has shown.

    Attributes:
        plan: What was run.
        violation: "" if all rules hold.
        records: How many were taken.
        virtual_ms: How long it took in there.
        trace: What happened.
    """

    plan: Plan
    violation: str
    records: int
    virtual_ms: int
    trace: list[tuple[Any, ...]]

    @property
    def digest(self) -> str:
        """A hash of the trace."""
        found = blake2b(digest_size=16)
        for line in self.trace:
            found.update(repr(line).encode())
        return found.hexdigest()


class Simulation:
    """Lets the system of one plan run, and holds it to the rules.

    Args:
        plan: What to do.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._system = system = System(plan)
        self.world = system.world
        self.broker = system.broker
        self.store = system.store
        self.history = system.history
        self.truth = system.truth
        self._faults = Faults(system)
        self._reported_ms: dict[bytes, int] = {}
        self._fallback_since_ms: dict[str, int] = {}  # before which nothing fell back
        self._next_look_ms = 0
        self.broker.on_append = self._appended
        self.broker.on_commit = self.history.checked_commit
        self.broker.on_rebalance = self.broker.on_end = self._wake_consumers
        self.history.may_pass = self._may_pass
        self.history.told = self._told
        self.history.may_fail = self._may_fail
        self.history.is_forged = self.truth.is_forged
        self._watch_reports()
        system.start()
        for fault in plan.faults:
            self._faults.schedule(fault)
        self.world.after(_LOOK_MS, self._look)

    # --- watching -------------------------------------------------------------------------------

    def _watch_reports(self) -> None:
        reported = self.history.reported

        def watched(sent: Sent, error: Any, message: Any) -> None:
            self._reported_ms[sent.key] = self.world.now_ms
            self.world.note("report", sent.key, None if error is None else error.name())
            reported(sent, error, message)

        self.history.reported = watched  # type: ignore[method-assign]

    def _look(self) -> None:
        self.broker.look()
        for group in self.broker.groups.values():
            group.look(_SESSION_MS)
        for process in self._system.producers:
            self._check_memory(process)
            self._check_fallback(process)
        self._system.replace_lost_transformers()
        self.world.after(_LOOK_MS, self._look)

    def _check_memory(self, process: ProducerProcess) -> None:
        """Rule 6: what a producer has taken and not reported."""
        if not process.is_alive:
            return
        held_bytes = self.history.unreported_bytes.get(process.name, 0)
        limit_bytes = self._plan.queue_kbytes * 1024
        if held_bytes > limit_bytes:
            raise Violation(
                f"{process.name} holds {held_bytes} bytes of records, {limit_bytes} are allowed"
            )

    def _check_fallback(self, process: ProducerProcess) -> None:
        """What goes through Kafka because the store fails has its rate."""
        sent_bytes = process.pipeline.counters["fallback_bytes"]
        if not sent_bytes:
            self._fallback_since_ms[process.name] = self.world.now_ms
            return
        since_ms = self._fallback_since_ms.setdefault(process.name, self.world.now_ms - _LOOK_MS)
        elapsed_ms = self.world.now_ms - since_ms
        bytes_per_second = self._plan.inline_bytes_per_second
        # A tenth of a second may be drawn in advance, and the segment that begins in it.
        limit_bytes = (elapsed_ms + 100) * bytes_per_second // 1000 + self._plan.message_bytes
        if sent_bytes > limit_bytes:
            raise Violation(
                f"{process.name} has sent {sent_bytes} bytes through Kafka in {elapsed_ms} ms, at "
                f"{bytes_per_second} a second"
            )

    def _wake_consumers(self, _what: object) -> None:
        for consumer in self._system.consumers:
            consumer.touch()

    def _appended(
        self, place: _Place, offset: int, messages: Sequence[SentMessage], visible_ms: int
    ) -> None:
        """Rule 1: the object of a notification is there before the notification is."""
        for consumer in self._system.consumers:
            if self.history.reading(consumer.name, place) is not None:
                consumer.touch(visible_ms)
        self.world.note("append", *place, offset, len(messages))
        for message in messages:
            key = self.truth.object_key_of(message)
            if key is not None and key not in self.store.objects:
                raise Violation(f"{place} has a notification of {key}, which is not stored")

    # --- running --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end.

        Raises:
            Violation: A rule does not hold.
        """
        plan = self._plan
        last_fault_ms = max((f.at_ms + f.duration_ms for f in plan.faults), default=0)
        horizon_ms = START_MS + max(last_fault_ms, plan.span_ms)
        self.world.run(horizon_ms, lambda: False)
        self._system.heal()
        stuck_ms = self.world.now_ms + _STUCK_MS
        if not self.world.run(stuck_ms, self._is_produced):
            left = [a.process.name for a in self._system.applications if not a.is_done]
            raise Violation(f"producers {left} are stuck")
        for application in self._system.lasting_applications():
            application.probe(_PROBES)
        if not self.world.run(self.world.now_ms + _STUCK_MS, self._is_produced):
            raise Violation("producers are stuck after all was well again")
        if plan.transformers:
            self._end_transformers()
        facts = {place: self.truth.facts(place) for place in self.truth.places()}
        check_reports(self.history)
        check_log(self.history, facts)
        failed = {sent.source for sent in self.history.sent.values() if sent.error is not None}
        may_have_gaps = {producer_id_of(source) for source in failed | self.history.dead}
        for place in self.truth.places():
            check_sequences(place, self.truth.sequences(place), may_have_gaps)
        if self.store.overwritten:
            raise Violation(f"{self.store.overwritten[0]} was written twice with other bytes")
        self._check_costs()
        self._check_deadlines()
        self.world.run(self.world.now_ms + TRANSACTION_MS + 1000, self._are_transactions_over)
        facts = {place: self.truth.facts(place) for place in self.truth.places()}
        check_transactions(self.history, facts)
        readable = self._readable()
        self._check_readings(readable)
        stuck_ms = self.world.now_ms + _STUCK_MS
        self._next_look_ms = 0
        if not self.world.run(stuck_ms, partial(self._is_consumed, readable)):
            raise Violation(f"consumers are stuck: {self._behind(readable)}")
        self._check_readings(readable)
        self._check_positions()
        self._close_consumers()
        if plan.expires:
            self._check_expiry(readable)

    def _check_costs(self) -> None:
        careful = [p for p in self._system.producers if p.route == "auto"]
        writers = {producer_id_of(process.name).hex() for process in careful}
        for key, content in self.store.objects.items():
            if ObjectKey.decode(key).writer_id in writers:
                entries = decode_batch_object_index(content, len(content))
                check_cost(key, [entry.byte_range.length for entry in entries])

    def _check_deadlines(self) -> None:
        plan = self._plan
        consumers = self._system.consumers
        transformers = {c.producer.name for c in consumers if isinstance(c, Transformer)}
        of: dict[str, list[Sent]] = {process.name: [] for process in self._system.producers}
        for sent in self.history.sent.values():
            of[sent.source].append(sent)
        waiting_ms = TRANSACTION_MS if any(f.kind == "net-calls" for f in plan.faults) else 0
        for process in self._system.producers:
            timeout_ms, slack_ms = plan.message_timeout_ms, _SLACK_MS + process.paused_ms
            if process.inner.is_transactional:
                timeout_ms = min(timeout_ms, TRANSACTION_MS)
            if process.name in transformers:
                # Who is busy, or waits for its positions to be taken, hears nothing meanwhile.
                slack_ms += BUSY_MS + waiting_ms
            check_deadlines(of[process.name], self._reported_ms, timeout_ms, slack_ms)
            if not plan.faults and plan.queue_kbytes > 1000 and not process.inner.is_transactional:
                # Objects wait for one another: three are uploaded at once.
                slack_ms += len(self.store.objects) * UPLOAD_MS[1] // UPLOAD_THREADS
                check_deadlines(of[process.name], self._reported_ms, plan.interval_ms, slack_ms)

    def _end_transformers(self) -> None:
        """Exactly once: a committed copy of each record, and nothing else."""
        self.world.run(self.world.now_ms + TRANSACTION_MS + 1000, self._are_inputs_over)
        self._next_look_ms = 0
        if not self.world.run(self.world.now_ms + _STUCK_MS, self._is_transformed):
            copies, wanted = self._transformed()
            left = [key for key, is_wanted in wanted.items() if is_wanted and key not in copies]
            raise Violation(f"transformers are stuck: {left[:5]} and others are not copied")
        if not self.world.run(self.world.now_ms + _STUCK_MS, self._have_transformers_left):
            raise Violation("transformers do not end")
        self.world.run(self.world.now_ms + TRANSACTION_MS + 1000, self._are_transactions_over)
        check_transformed(*self._transformed())

    def _have_transformers_left(self) -> bool:
        remaining = self._system.living_transformers()
        for transformer in remaining:
            transformer.leave()
        return not remaining

    def _transformed(self) -> tuple[list[bytes | None], dict[bytes | None, bool]]:
        """What the committed copies are of; and all committed records: whether one is wanted."""
        copies: list[bytes | None] = []
        wanted: dict[bytes | None, bool] = {}
        for place in self.truth.places():
            facts = self.truth.readable(place, is_committed=True)
            if place[0] == TRANSFORMED:
                copies += [fact.value for fact in facts]
            else:
                start = self.broker.log(place).start
                wanted |= {fact.key: fact.kafka_offset >= start for fact in facts}
        return copies, wanted

    def _is_transformed(self) -> bool:
        if self.world.now_ms < self._next_look_ms:
            return False
        self._next_look_ms = self.world.now_ms + _LOOK_MS
        copies, wanted = self._transformed()
        return {key for key, is_wanted in wanted.items() if is_wanted} <= set(copies)

    def _are_inputs_over(self) -> bool:
        places = [place for place in self.truth.places() if place[0] != TRANSFORMED]
        return not any(self.broker.log(place).open_since for place in places)

    def _check_expiry(self, readable: dict[_Place, list[Fact]]) -> None:
        """Rule 9: what is gone after its expiry hour is passed over and counted."""
        self.world.skip(_EXPIRY_MS)
        self.store.expire(self.world.timestamp_ms())
        group = "late"
        self._system.start_consumer(group)
        [consumer] = [c for c in self._system.consumers if c.group == group]
        consumer.wake()
        gone = frozenset(self.store.deleted)
        live = {
            place: [fact for fact in facts if fact.object_key not in gone]
            for place, facts in readable.items()
        }
        if not self.world.run(self.world.now_ms + _STUCK_MS, partial(self._is_consumed, live)):
            raise Violation(f"a late consumer is stuck: {self._behind(live)}")
        # What has expired behind the last live record is passed over, too.
        self.world.run(self.world.now_ms + _STUCK_MS // 4, lambda: False)
        late = [reading for reading in self.history.readings if reading.group == group]
        starts = {place: self.broker.log(place).start for place in self.truth.places()}
        check_readings(late, live, log_starts=starts)
        expired = sum(
            fact.object_key in gone and fact.kafka_offset >= starts[place]
            for place, facts in readable.items()
            for fact in facts
        )
        counted = consumer.consumption.stats()["expired_records"]
        if counted != expired:
            raise Violation(f"{expired} records have expired, the consumer has counted {counted}")
        self._close_consumers()

    def _is_produced(self) -> bool:
        return all(application.is_done for application in self._system.applications)

    def _are_transactions_over(self) -> bool:
        return not any(self.broker.log(place).open_since for place in self.truth.places())

    def _readable(self) -> dict[_Place, list[Fact]]:
        is_committed = self._plan.isolation == "read_committed"
        return {
            place: self.truth.readable(place, is_committed=is_committed)
            for place in self.truth.places()
        }

    def _may_miss(self) -> frozenset[str]:
        """Objects that consumers may pass over: with `skip`, those that were missing or wrong."""
        skips = self._plan.on_missing == "skip"
        skipped = self._faults.hidden | self.store.corrupted if skips else set[str]()
        return frozenset(skipped | self.store.deleted)

    def _check_readings(self, readable: dict[_Place, list[Fact]]) -> None:
        check_readings(
            self.history.readings,
            readable,
            may_miss=self._may_miss(),
            log_starts={place: self.broker.log(place).start for place in self.truth.places()},
        )

    def _check_positions(self) -> None:
        """What lies before a consumer's position was handed out: nothing is passed over."""
        for consumer in self._system.living_consumers():
            for reading in self.history.of_consumer(consumer.name):
                place, got = reading.place, self.history.position_of(reading)
                position = consumer.consumption.position_of(place)
                if got is not None and not self._may_pass(place, got, position):
                    raise Violation(f"{consumer.name} is at {position} of {place}, has got {got}")

    def _may_pass(self, place: _Place, first: int, end: int) -> bool:
        """Whether all that lies between may have been missing for a consumer that skips."""
        facts = self.truth.readable(place, is_committed=self._plan.isolation == "read_committed")
        may_miss, start = self._may_miss(), self.broker.log(place).start
        return all(
            fact.object_key in may_miss or fact.kafka_offset < start
            for fact in facts
            if first <= fact.offset < end
        )

    def _may_fail(self, place: _Place, offset: int) -> bool:
        """Whether the object of this record, or its notification, was ever missing or wrong."""
        if self.truth.is_forged(place, offset >> _BITS):
            return True
        wrong = self._faults.hidden | self.store.corrupted
        return any(f.offset == offset and f.object_key in wrong for f in self.truth.facts(place))

    def _told(self, name: str, place: _Place) -> int | None:
        consumer = next((c for c in self._system.consumers if c.name == name), None)
        return None if consumer is None else consumer.begins_at(place)

    def _is_consumed(self, readable: dict[_Place, list[Fact]]) -> bool:
        if self.world.now_ms < self._next_look_ms:
            return False
        self._next_look_ms = self.world.now_ms + _LOOK_MS
        return not self._behind(readable)

    def _behind(self, readable: dict[_Place, list[Fact]]) -> list[str]:
        """Which partitions of which groups are not read to their end."""
        behind: list[str] = []
        # Transformers have done their part; one that was started for another only idles.
        living = [c for c in self._system.living_consumers() if not isinstance(c, Transformer)]
        for group in sorted({consumer.group for consumer in living}):
            for place, facts in readable.items():
                start = self.broker.log(place).start
                last = next((f for f in reversed(facts) if f.kafka_offset >= start), None)
                if last is None:
                    continue
                members = [c for c in living if c.group == group]
                at = max((self._position(c, place) for c in members), default=-1)
                if at <= last.offset:
                    behind.append(f"{group} at {at} of {place}, not behind {last.offset}")
        return behind

    def _position(self, consumer: ConsumerProcess, place: _Place) -> int:
        """How far a consumer has got: its position, or where it will begin."""
        if self.history.reading(consumer.name, place) is None:
            return -1
        position = consumer.consumption.position_of(place)
        if position >= 0:
            return position
        reading = self.history.reading(consumer.name, place)
        if reading is not None and reading.start is not None:
            return reading.start
        offset, metadata, _ = consumer.inner.told.get(place, (-1, "", 0))
        told = committed(offset, metadata)
        return -1 if told is None else told

    def _close_consumers(self) -> None:
        for consumer in self._system.living_consumers():
            self.world.run(self.world.now_ms + _STUCK_MS, consumer.fetcher.is_idle)
            consumer.close()
            held = consumer.consumption.stats()["held_bytes"]
            if held:
                raise Violation(f"{consumer.name} holds {held} bytes of nothing")

    def end(self) -> None:
        """Let go of all that would outlive the run."""
        end_fibers([*self._system.producers, *self._system.consumers])


def committed(offset: int, metadata: str) -> int | None:
    """See `committed_position`; None when nothing is committed."""
    return None if offset < 0 else committed_position(offset, metadata)


@contextmanager
def _undisturbed() -> Generator[None]:
    """No log lines, for a simulation breaks everything on purpose; garbage waits for its end.

    So does Ctrl-C, which every poll in there would hold back and let go by itself.
    """
    logger = logging.getLogger("blobmsg")
    before = logger.disabled, logger.level
    is_collecting = gc.isenabled()
    logger.setLevel(logging.CRITICAL + 1)
    gc.disable()
    try:
        with ctrl_c_waits():
            yield
    finally:
        logger.disabled, level = before
        logger.setLevel(level)
        if is_collecting:
            gc.enable()


def run_plan(plan: Plan) -> Outcome:
    """Run a plan; a violation, or a defect that shows as an exception, is in the outcome."""
    with _undisturbed():
        return _run(plan)  # which leaves nothing but garbage behind, so that it is young


def _run(plan: Plan) -> Outcome:
    simulation: Simulation | None = None
    violation = ""
    try:
        simulation = Simulation(plan)
        simulation.run()
    except Violation as broken:
        violation = str(broken)
    except Exception as defect:  # noqa: BLE001  (whatever it is, it is what was looked for)
        violation = f"{type(defect).__name__}: {defect}"
    if simulation is None:
        return Outcome(plan, violation, 0, 0, [])
    world = simulation.world
    outcome = Outcome(
        plan=plan,
        violation=violation,
        records=len(simulation.history.sent),
        virtual_ms=world.now_ms - START_MS,
        trace=list(world.trace),  # garbage may write on
    )
    simulation.end()
    return outcome
