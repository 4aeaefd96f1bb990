"""The inner producer: what librdkafka shows of an idempotent producer, on the virtual network.

Behaves as the stock client does where `Outbox`, `ProducerPipeline` and `Transactions` look:
messages wait until a flush, leave as one batch for each partition, are sent again under the same
sequence while no answer comes, and time out. After a time-out of a batch that may have arrived the
epoch is bumped, so that what is still on the wire is refused.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.sim.fiber import in_fiber, sleep
from blobmsg.sim.partition_log import SentMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from blobmsg.sim.network import Network
    from blobmsg.sim.virtual_broker import ProducerIdentity, VirtualBroker
    from blobmsg.sim.world import Process

__all__ = ["Delivered", "InnerProducer"]

_RETRY_MS: Final = 100
_REQUEST_TIMEOUT_MS: Final = 1000
_FENCED: Final = KafkaError._FENCED  # noqa: SLF001
_FENCED_CODES: Final = frozenset({KafkaError.INVALID_PRODUCER_EPOCH})


class Delivered:
    """What a delivery report carries; only the offset is asked for."""

    __slots__ = ("_offset",)

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        """Kafka's offset; None: not known."""
        return self._offset


@dataclass(slots=True, eq=False)
class _Queued:
    message: SentMessage
    report: Callable[[KafkaError | None, Any], None]
    deadline_ms: int


@dataclass(slots=True, eq=False)
class _Batch:
    place: tuple[str, int]
    queued: list[_Queued]
    identity: ProducerIdentity | None = None
    first_sequence: int = -1
    attempt: int = 0
    is_over: bool = False
    was_sent: bool = False


class InnerProducer:
    """Stands for `confluent_kafka.Producer`.

    Args:
        process: Whose it is.
        broker: The cluster.
        network: Between the two.
        message_timeout_ms: 0: no limit.
        queue_limit: Messages that it takes.
        transactional_id: None: it has no transactions.
        transaction_timeout_ms: As the setting.
        woken: Called when there is something to serve.

    Attributes:
        fatal: What ended it.
        abortable: Why the transaction must be aborted.
        on_commit: Called when Kafka is asked to commit.
    """

    def __init__(
        self,
        process: Process,
        broker: VirtualBroker,
        network: Network,
        *,
        message_timeout_ms: int,
        queue_limit: int,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        woken: Callable[[], None] = lambda: None,
    ) -> None:
        self._process = process
        self._world = process.world
        self._broker = broker
        self._network = network
        self._message_timeout_ms = message_timeout_ms
        self._queue_limit = queue_limit
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._woken = woken
        self._lingering: dict[tuple[str, int], list[_Queued]] = {}
        self._batches: deque[_Batch] = deque()  # not answered, in order
        self._due: deque[Callable[[], None]] = deque()
        self._messages = 0
        self._sequences: dict[tuple[str, int], int] = {}
        self._identity: ProducerIdentity | None = None
        self._is_bumping = False
        self._needs_bump = False
        self.is_in_transaction = False
        self._has_asked = False  # a broker has something of the transaction
        self.fatal: KafkaError | None = None
        self.abortable: KafkaError | None = None
        self.on_commit: Callable[[], None] = lambda: None
        if transactional_id is None:
            self._ask_identity()

    # --- the stock client's calls ---------------------------------------------------------------

    def produce(
        self,
        topic: str,
        *,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int,
        headers: Any = None,
        timestamp: int = 0,
        on_delivery: Callable[[KafkaError | None, Any], None],
    ) -> None:
        """Queue a message."""
        if self.fatal is not None:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        if self._transactional_id is not None and not self.is_in_transaction:
            raise KafkaException(KafkaError(KafkaError._STATE))
        if self._messages >= self._queue_limit:
            raise BufferError("Local: Queue full")
        message = SentMessage(key, value, None if headers is None else list(headers), timestamp)
        deadline_ms = 1 << 60
        if self._message_timeout_ms:
            deadline_ms = self._world.now_ms + self._message_timeout_ms
        queued = _Queued(message, on_delivery, deadline_ms)
        self._messages += 1
        self._lingering.setdefault((topic, partition), []).append(queued)

    def flush(self, timeout_s: float = -1) -> int:
        """End the lingering, and serve what is due; waits in a fiber only, but not without end."""
        lingering, self._lingering = self._lingering, {}
        for place, queued in lingering.items():
            batch = _Batch(place, queued)
            self._batches.append(batch)
            self._watch(batch)
            self._send(batch)
        if self._messages and not self._due and timeout_s > 0 and in_fiber():
            sleep(self._process, timeout_s)
        return self.poll(0)

    def poll(self, _timeout_s: float = -1) -> int:
        """Serve what is due; never waits."""
        served = 0
        while self._due:
            served += 1
            self._due.popleft()()
        return served

    def purge(self, *, in_queue: bool = True, in_flight: bool = True) -> None:
        """Drop messages; their reports come with the next flush."""
        if in_queue:
            lingering, self._lingering = self._lingering, {}
            error = KafkaError(KafkaError._PURGE_QUEUE)
            for queued in lingering.values():
                self._report(queued, lambda item: partial(item.report, error, Delivered(None)))
        for batch in list(self._batches):
            if in_flight if batch.was_sent else in_queue:
                code = KafkaError._PURGE_INFLIGHT if batch.was_sent else KafkaError._PURGE_QUEUE
                self._needs_bump |= batch.was_sent
                self._fail(batch, KafkaError(code))

    def init_transactions(self, timeout_s: float = -1) -> None:
        """Get an identity; other producers of this id are fenced."""
        self._check_fatal()
        self._ask(timeout_s, self._get_identity)

    def _get_identity(self) -> int:
        self._identity = self._broker.init_producer(
            self._transactional_id, self._transaction_timeout_ms
        )
        return 0

    def begin_transaction(self) -> None:
        """Open a transaction."""
        self._check_fatal()
        if self.abortable is not None:
            raise KafkaException(self.abortable)
        if self.is_in_transaction or self._identity is None:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.is_in_transaction = True

    def send_offsets_to_transaction(
        self, offsets: Iterable[Any], group_metadata: Any, timeout_s: float = -1
    ) -> None:
        """Add positions; `group_metadata` is group, member and generation."""
        self._check_fatal()
        group, member, generation = group_metadata
        self._has_asked = True
        identity = self._identity
        if identity is None:
            raise KafkaException(KafkaError(KafkaError._STATE))
        added = [((o.topic, o.partition), o.offset, o.metadata or "") for o in offsets]
        self._ask(
            timeout_s,
            lambda: self._broker.add_offsets(identity, group, (member, generation), added),
        )

    def commit_transaction(self, timeout_s: float = -1) -> None:
        """Commit; everything has been delivered."""
        self._end(timeout_s, is_commit=True)

    def abort_transaction(self, timeout_s: float = -1) -> None:
        """Abort."""
        self._end(timeout_s, is_commit=False)

    def list_topics(self, _topic: str | None = None, _timeout_s: float = -1) -> None:
        """Nobody asks: topics are read through the simulation's directory."""

    def __len__(self) -> int:
        return self._messages

    @property
    def is_fenced(self) -> bool:
        """Whether a later one has its place, which it may not have heard yet."""
        identity = self._identity if self.is_transactional else None
        return identity is not None and self._broker.is_fenced(identity)

    @property
    def is_transactional(self) -> bool:
        """Whether it has a transactional id."""
        return self._transactional_id is not None

    # --- transactions ---------------------------------------------------------------------------

    def _ask(self, timeout_s: float, answer: Callable[[], int]) -> None:
        """Have the coordinator do something; it takes its time for those who may wait.

        Raises:
            KafkaException: There was no answer, and nobody knows whether it was done; or it is an
                error.
        """
        fault = self._network.call_fault()
        if not in_fiber():
            code = 0 if fault == "lost before" else answer()
        else:
            code = self._wait_for_answer(timeout_s, fault, answer)
        if fault:
            raise _timed_out()
        self._judge(code)

    def _wait_for_answer(self, timeout_s: float, fault: str, answer: Callable[[], int]) -> int:
        codes: list[int] = []
        delay_ms = self._network.delay_ms()
        if fault != "lost before":  # it arrives also when the process has died meanwhile
            self._world.after(delay_ms, lambda: codes.append(answer()))
        answer_s = max(0.0, timeout_s) if fault else self._network.delay_ms() / 1000
        sleep(self._process, delay_ms / 1000 + answer_s)
        return codes[0] if codes else 0

    def _end(self, timeout_s: float, *, is_commit: bool) -> None:
        self._check_fatal()
        if is_commit and self.abortable is not None:
            raise KafkaException(self.abortable)
        identity = self._identity
        if identity is None or not self.is_in_transaction:
            raise KafkaException(KafkaError(KafkaError._STATE))
        if not is_commit:
            self.purge()
            self.poll(0)
        if self._has_asked:  # else no broker knows of it, and librdkafka asks none
            if is_commit:
                self.on_commit()
            self._ask(
                timeout_s, lambda: self._broker.end_transaction(identity, is_commit=is_commit)
            )
        self.is_in_transaction = self._has_asked = False
        if not is_commit and (self.abortable is not None or self._needs_bump):
            # As librdkafka: what is still on the wire must not join the next transaction. Kafka
            # gives another epoch only to who has the present one.
            if self.is_fenced:
                self._set_fatal()
                self._check_fatal()
            self._take_identity(
                self._broker.init_producer(self._transactional_id, self._transaction_timeout_ms)
            )
        self.abortable = None

    def _judge(self, code: int) -> None:
        if code in _FENCED_CODES:
            self._set_fatal()
            self._check_fatal()
        elif code:
            self.abortable = KafkaError(code, txn_requires_abort=True)
            raise KafkaException(self.abortable)

    def _set_fatal(self) -> None:
        if self.fatal is None:
            self.fatal = KafkaError(_FENCED, "fenced by a newer instance", fatal=True)
            self._world.note("fenced", self._process.name)

    def _check_fatal(self) -> None:
        if self.fatal is not None:
            raise KafkaException(self.fatal)

    # --- sending --------------------------------------------------------------------------------

    def _ask_identity(self) -> None:
        """Ask for an epoch, the first one or the next."""
        self._is_bumping = True

        def asked() -> None:
            before = self._identity
            identity = self._broker.init_producer(self._transactional_id, before=before)
            self._process.after(self._network.delay_ms(), partial(self._take_identity, identity))

        self._world.after(self._network.delay_ms(), asked)

    def _take_identity(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._sequences.clear()
        self._is_bumping = self._needs_bump = False
        for batch in list(self._batches):
            batch.identity = None
            self._send(batch)

    def _watch(self, batch: _Batch) -> None:
        deadline_ms = batch.queued[0].deadline_ms
        if deadline_ms < 1 << 60:
            self._process.after(deadline_ms - self._world.now_ms, partial(self._time_out, batch))

    def _time_out(self, batch: _Batch) -> None:
        if batch.is_over:
            return
        self._needs_bump |= batch.was_sent
        error = KafkaError(KafkaError._MSG_TIMED_OUT)
        self._fail(batch, error)
        if self._transactional_id is not None and self.abortable is None:
            self.abortable = KafkaError(
                KafkaError._TIMED_OUT, "messages timed out", txn_requires_abort=True
            )
        self._bump_if_drained()

    def _bump_if_drained(self) -> None:
        """Ask for a new epoch once nothing of the old one is on the wire."""
        if self._transactional_id is not None or not self._needs_bump or self._is_bumping:
            return
        if not any(batch.was_sent for batch in self._batches):
            self._ask_identity()

    def _send(self, batch: _Batch) -> None:
        if batch.is_over or self._is_bumping or self._identity is None:
            return
        if self._needs_bump and not batch.was_sent:
            self._bump_if_drained()
            return
        if next(other for other in self._batches if other.place == batch.place) is not batch:
            return  # behind one that is not answered, so that a lost request makes no gap
        if batch.identity is None:
            batch.identity = self._identity
            batch.first_sequence = self._sequences.get(batch.place, 0)
            self._sequences[batch.place] = batch.first_sequence + len(batch.queued)
        batch.attempt += 1
        batch.was_sent = self._has_asked = True
        attempt = batch.attempt
        request = self._network.request()
        if request.is_lost:
            self._process.after(_REQUEST_TIMEOUT_MS, partial(self._again, batch, attempt))
            return
        identity, first_sequence = batch.identity, batch.first_sequence
        messages = [queued.message for queued in batch.queued]

        def arrived() -> None:
            # Its effect comes also when the process has died meanwhile.
            if self._network.is_leader_away(batch.place):
                code, offset = int(KafkaError.NOT_LEADER_FOR_PARTITION), None
            else:
                visible_ms = self._world.now_ms + self._network.delay_ms()
                offset, code = self._broker.append(
                    batch.place, identity, first_sequence, messages, visible_ms
                )
            if not request.is_answer_lost:
                answer = partial(self._answered, batch, attempt, offset, code)
                self._process.after(request.answer_ms, answer)

        self._world.after(request.delay_ms, arrived)
        if request.is_answer_lost or request.delay_ms + request.answer_ms > _REQUEST_TIMEOUT_MS:
            self._process.after(_REQUEST_TIMEOUT_MS, partial(self._again, batch, attempt))

    def _again(self, batch: _Batch, attempt: int) -> None:
        if not batch.is_over and batch.attempt == attempt:
            self._send(batch)

    def _answered(self, batch: _Batch, attempt: int, offset: int | None, code: int) -> None:
        if batch.is_over or batch.attempt != attempt:
            return
        if code == KafkaError.NOT_LEADER_FOR_PARTITION:
            self._process.after(_RETRY_MS, partial(self._again, batch, attempt))
        elif code == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise AssertionError(f"a gap in the sequences of {batch.place}")
        elif code in _FENCED_CODES:
            if self._transactional_id is not None:
                self._set_fatal()
            self._fail(batch, self.fatal or KafkaError(code))
        elif code == KafkaError.DUPLICATE_SEQUENCE_NUMBER:
            self._delivered(batch, None)
        elif code:
            self._fail(batch, KafkaError(code))
        else:
            self._delivered(batch, offset)
        self._bump_if_drained()

    def _delivered(self, batch: _Batch, offset: int | None) -> None:
        for index, queued in enumerate(batch.queued):
            delivered = Delivered(None if offset is None else offset + index)
            self._due.append(partial(queued.report, None, delivered))
        self._over(batch)

    def _fail(self, batch: _Batch, error: KafkaError) -> None:
        for queued in batch.queued:
            self._due.append(partial(queued.report, error, Delivered(None)))
        self._over(batch)

    def _over(self, batch: _Batch) -> None:
        batch.is_over = True
        self._batches.remove(batch)
        self._messages -= len(batch.queued)
        self._woken()
        for other in list(self._batches):
            if other.place == batch.place:
                self._send(other)
                return

    def _report(self, queued: list[_Queued], make: Callable[[_Queued], Callable[[], None]]) -> None:
        self._due.extend(make(item) for item in queued)
        self._messages -= len(queued)
        self._woken()


def _timed_out() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))
