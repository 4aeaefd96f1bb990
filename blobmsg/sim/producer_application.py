"""The applications that produce: plain ones, and ones with transactions.

Decide what an application decides: what to produce, when to poll, when to flush, commit and abort.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from blobmsg.sim.fiber import sleep, start_fiber
from blobmsg.sim.history import Sent
from blobmsg.sim.transactional_client import TransactionalClient
from blobmsg.sim.world import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.sim.history import History, SimTransaction
    from blobmsg.sim.plan import Plan
    from blobmsg.sim.producer_process import ProducerProcess

__all__ = ["ProducerApplication", "TransactionalApplication"]

# Half of the longest time between two polls, which a report may have to wait for.
_SLOWEST_MS: Final = 200
# How long a flush may take; negative: until all is reported.
_FLUSHES_S: Final = (0.0, 0.0, 0.2, 3.0, -1.0)
_LATE_MS: Final = 1000
# Of transactions that could be committed.
_ABORTED_SHARE: Final = 0.2


class ProducerApplication:
    """Produces so many records, polls, and flushes at the end.

    Args:
        process: With its producer.
        plan: How much and how fast.
        history: Told of all it sees.
        records: How many.
        topics: Where to.
    """

    def __init__(
        self,
        process: ProducerProcess,
        plan: Plan,
        history: History,
        records: int,
        topics: list[str],
    ) -> None:
        self.process = process
        self._plan = plan
        self._history = history
        self._rng = process.world.rng
        self._left = records
        self._topics = topics
        self._number = 0
        self.transaction: SimTransaction | None = None
        self.pending: Sent | None = None
        self.full_buffers = 0
        self.produces_probes = False
        self._is_at_work = True
        self._pace_ms = min(
            _SLOWEST_MS, max(1, plan.span_ms // max(1, records // (8 * plan.density)))
        )
        process.after(self._rng.randint(0, 20), partial(start_fiber, self.process, self._live))

    @property
    def left(self) -> int:
        """How many records it has not produced."""
        return self._left

    @property
    def is_done(self) -> bool:
        """Whether all is produced and reported, or its process is dead."""
        return not self.process.is_alive or (
            self._left == 0 and self.process.pipeline.undelivered == 0
        )

    def probe(self, records: int) -> None:
        """All is well again: what is produced from here on must arrive."""
        self.produces_probes = True
        self._left += records
        if not self._is_at_work:
            self._is_at_work = True
            self.process.after(1, partial(start_fiber, self.process, self._live))

    def _live(self) -> None:
        flush_share = self._plan.flush_share
        while not self.is_done:
            self.process.poll()
            self.produce_some(self._rng.randint(1, 16 * self._plan.density))
            if flush_share and (self._left == 0 or self._rng.random() < flush_share):
                self._flush(self._rng.choice(_FLUSHES_S))
            self._pause()
        self._is_at_work = False

    def _pause(self) -> None:
        sleep(self.process, self._rng.randint(1, 2 * self._pace_ms) / 1000)

    def _flush(self, timeout_s: float) -> None:
        """Flush; it ends in time, and 0 means that all is reported."""
        world, process = self.process.world, self.process
        begun_ms, paused_ms = world.now_ms, process.paused_ms
        remaining = process.flush(timeout_s)
        late_ms = world.now_ms - begun_ms - round(timeout_s * 1000)
        if timeout_s >= 0 and late_ms > _LATE_MS and process.paused_ms == paused_ms:
            raise Violation(f"{process.name}: flush({timeout_s}) took {late_ms} ms longer")
        unreported_bytes = self._history.unreported_bytes.get(process.name, 0)
        if not remaining and unreported_bytes:
            raise Violation(f"{process.name} is flushed, {unreported_bytes} bytes are unreported")

    def produce_some(self, count: int) -> bool:
        """Produce a few; False: the buffer is full, or nothing is taken."""
        for _ in range(min(count, self._left)):
            sent = self.pending or self._made()
            self.pending = None
            callback: Callable[[Any, Any], None] = partial(self._history.reported, sent)
            try:
                self.process.produce(sent, callback)
            except BufferError:
                self.full_buffers += 1
                self.pending = sent
                return False
            except KafkaException as failure:
                self.process.world.note("refused", sent.key, failure.args[0].name())
                return False
            sent.accepted_ms = self.process.world.now_ms
            sent.transaction = self.transaction
            sent.is_probe = self.produces_probes
            self._history.accepted(sent)
            self._left -= 1
        return True

    def _made(self) -> Sent:
        rng = self._rng
        number = self._number
        self._number += 1
        size = rng.randint(0, self._plan.value_bytes)
        value: bytes | None = b"%d" % number * (size // 4 + 1)
        if rng.random() < 0.05:
            value = None
        headers: list[tuple[str, bytes | None]] | None = None
        if rng.random() < 0.1:
            headers = [("h", b"%d" % number)]
        topic = rng.choice(self._topics)
        partition = -1 if rng.random() < 0.3 else rng.randint(0, self._plan.partitions - 1)
        return Sent(
            source=self.process.name,
            number=number,
            topic=topic,
            partition=partition,
            key=f"{self.process.name}/{number}".encode(),
            value=value,
            headers=headers,
            timestamp_ms=self.process.timestamp_ms(),
            accepted_ms=0,
        )


class TransactionalApplication(ProducerApplication):
    """As above, in transactions: begin, some records, then commit or abort, again and again.

    Args:
        process: As `ProducerApplication`.
        plan: As `ProducerApplication`.
        history: As `ProducerApplication`.
        rest: As `ProducerApplication`.
    """

    def __init__(self, process: ProducerProcess, plan: Plan, history: History, *rest: Any) -> None:
        self._client = TransactionalClient(process, history)
        self._is_lost = False
        self._is_initialized = False
        super().__init__(process, plan, history, *rest)

    @property
    def is_done(self) -> bool:
        """Whether all is produced and no transaction is open, or its process is dead or fenced."""
        if not self.process.is_alive:
            return True
        if self.process.pipeline.undelivered:
            return False
        has_ended = self._is_initialized and self.left == 0 and self._client.transaction is None
        return self._is_lost or has_ended

    def _live(self) -> None:
        self._unless_fenced(self._produce_all)
        while not self.is_done:
            self._unless_fenced(self.process.poll)
            self._pause()
        self._is_at_work = False

    def _unless_fenced(self, do: Callable[[], object]) -> None:
        try:
            do()
        except KafkaException as failure:
            if not failure.args[0].fatal():
                raise
            # Whoever has fenced it has ended the transaction.
            self._is_lost = True
            self.process.world.note("lost", self.process.name)

    def _produce_all(self) -> None:
        if not self._is_initialized:
            self._client.init()
            self._is_initialized = True
        while self._left:
            self._transact()

    def _transact(self) -> None:
        self.transaction = self._client.begin()
        try:
            if self._fill() and not self._changes_its_mind():
                self._client.commit()
                return
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            if self.produces_probes:
                raise Violation(
                    f"{self.transaction.name} can't be committed ({failure}) though all was well "
                    "again"
                ) from failure
        self._client.abort()

    def _changes_its_mind(self) -> bool:
        return not self.produces_probes and self._rng.random() < _ABORTED_SHARE

    def _fill(self) -> bool:
        """Produce what belongs to this transaction; False: nothing is taken any more."""
        wanted = min(self._left, self._rng.randint(1, 30 * self._plan.density))
        until = self._left - wanted
        while self._left > until:
            self._pause()
            self.process.poll()
            some = self._rng.randint(1, 10 * self._plan.density)
            if not self.produce_some(min(self._left - until, some)) and self.pending is None:
                return False
        return True
