"""The applications that produce: plain ones, and ones with transactions.

Decide what an application decides: what to produce, when to poll, when to flush, commit and abort.
What a transaction's calls do is `transactions`' and the core's; here they only come one event at a
time, for nobody in a simulation may wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from blobmsg.core.transaction import CommitStep
from blobmsg.producer_pipeline import InnerCall
from blobmsg.sim.history import Sent, SimTransaction
from blobmsg.transactions import (
    decide_begin,
    decide_commit,
    decide_drop,
    decide_end,
    decide_ended,
    decide_failed,
    decide_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.sim.history import History
    from blobmsg.sim.plan import Plan
    from blobmsg.sim.producer_process import ProducerProcess

__all__ = ["ProducerApplication", "TransactionalApplication"]

# Half of the longest time between two polls, which a report may have to wait for.
_SLOWEST_MS: Final = 200


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
        self._pace_ms = min(
            _SLOWEST_MS, max(1, plan.span_ms // max(1, records // (8 * plan.density)))
        )
        process.after(self._rng.randint(0, 20), self._turn)

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
        self.process.after(1, self._turn)

    def _turn(self) -> None:
        self.process.poll()
        self.produce_some(self._rng.randint(1, 16 * self._plan.density))
        if self._left == 0:
            if self._plan.flush_share:
                self.process.flush()
            if self.is_done:
                return
        elif self._rng.random() < self._plan.flush_share:
            self.process.flush()
        self.process.after(self._rng.randint(1, 2 * self._pace_ms), self._turn)

    def produce_some(self, count: int) -> bool:
        """Produce a few; False: the buffer is full, or nothing is taken."""
        for _ in range(min(count, self._left)):
            sent = self.pending or self._made()
            self.pending = None
            callback: Callable[[Any, Any], None] = partial(self._history.reported, sent)
            try:
                self.process.produce(
                    sent.topic,
                    sent.key,
                    sent.value,
                    sent.partition,
                    sent.timestamp_ms,
                    sent.headers,
                    callback,
                )
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
        partition = -1 if rng.random() < 0.3 else rng.randrange(self._plan.partitions)
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
        arguments: As `ProducerApplication`.
        options: As `ProducerApplication`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._is_lost = False
        self._in_this = 0
        self._step: Callable[[], None] = self._init
        super().__init__(*arguments, **options)

    @property
    def is_done(self) -> bool:
        """Whether all is produced and no transaction is open, or its process is dead or fenced."""
        if not self.process.is_alive:
            return True
        if self.process.pipeline.undelivered:
            return False
        return self._is_lost or (self.left == 0 and self.transaction is None)

    def _turn(self) -> None:
        if self.process.pipeline.is_fatal and not self._is_lost:
            # Fenced: whoever has done it has ended the transaction.
            self._is_lost = True
            self.process.world.note("lost", self.process.name)
        try:
            self.process.poll()
            if self._is_lost:
                self.process.flush()
            else:
                self._step()
        except KafkaException as failure:
            self._failed(failure)
        if not self.is_done:
            self.process.after(self._rng.randint(1, 2 * self._pace_ms), self._turn)

    def _failed(self, failure: KafkaException) -> None:
        error = failure.args[0]
        self.process.world.note("transaction", self.process.name, error.name())
        if error.txn_requires_abort():
            self._step = self._drop

    def _call(self, name: str, make: Callable[[], object], done: Callable[[], None]) -> None:
        """Have the notifier thread make a call, as `Transactions` does; again if it may pass."""
        again = self._step
        call = InnerCall(name, make)
        self.process.pipeline.make(call)
        self.process.touch()

        def look() -> None:
            if not call.is_over:
                return
            call.is_heard = True
            self._step = again
            if call.failure is not None:
                raise call.failure
            done()

        self._step = look

    def _init(self) -> None:
        self._call(
            "init_transactions",
            self.process.inner.init_transactions,
            partial(self._next, self._begin),
        )

    def _next(self, step: Callable[[], None]) -> None:
        self._step = step

    def _begin(self) -> None:
        self.process.inner.begin_transaction()
        self.process.pipeline.decide_here(decide_begin)
        self.transaction = SimTransaction(f"{self.process.name}#{self._number}")
        self._history.transactions.append(self.transaction)
        self._in_this = self._rng.randint(1, 30 * self._plan.density)
        self._step = self._fill

    def _fill(self) -> None:
        before = self.left
        taken = self.produce_some(min(self._in_this, self._rng.randint(1, 10 * self._plan.density)))
        self._in_this -= before - self.left
        if not self.process.pipeline.transaction.is_running:
            self._step = self._drop
        elif self._in_this <= 0 or self.left == 0:
            self._step = self._drop if self._rng.random() < 0.2 else self._deliver
        elif not taken and self.pending is None:
            self._step = self._drop  # nothing is taken any more

    def _deliver(self) -> None:
        """A commit, until all is delivered."""
        pipeline = self.process.pipeline
        transaction = pipeline.transaction
        pipeline.decide_here(decide_commit)
        pipeline.decide_here(partial(decide_time, self.process.now_ms()))
        step = transaction.commit_step(self.process.flush())
        if step is CommitStep.ABORT:
            self._step = self._drop
        elif step is CommitStep.END:
            self._step = self._end

    def _end(self) -> None:
        if self.transaction is not None:
            self.transaction.outcome = "unknown"
        self._call("commit_transaction", self._commit_inner, partial(self._ended, "committed"))

    def _commit_inner(self) -> None:
        pipeline = self.process.pipeline
        pipeline.decide_here(decide_end)
        try:
            self.process.inner.commit_transaction()
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                pipeline.decide_here(decide_failed)
            raise
        pipeline.decide_here(decide_ended)

    def _drop(self) -> None:
        """An abort: what is not sent is dropped, what was sent is answered, then Kafka forgets."""
        self._call("abort_transaction", self._abort_inner, self._aborted)

    def _abort_inner(self) -> None:
        pipeline = self.process.pipeline
        pipeline.decide_here(decide_drop)
        pipeline.purge_queued()
        self.process.inner.abort_transaction()
        pipeline.decide_here(decide_ended)

    def _aborted(self) -> None:
        # An abort behind a commit without an answer may come after Kafka has committed.
        was_committing = self.transaction is not None and self.transaction.outcome == "unknown"
        self._ended("unknown" if was_committing else "aborted")

    def _ended(self, outcome: str) -> None:
        if self.transaction is not None:
            self.transaction.outcome = outcome
            self.process.world.note("ended", self.transaction.name, outcome)
        self.transaction = None
        self._step = self._begin if self.left else self._rest

    def _rest(self) -> None:
        """All is produced."""
