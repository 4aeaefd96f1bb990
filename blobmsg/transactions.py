"""The transaction calls of a producer: the core's part, the inner producer's part, and waiting.

Each call is of two halves. Ours comes first: a commit seals, uploads and notifies everything, an
abort drops everything. Then the inner producer's call of the same name is made, on the notifier
thread, which alone may serve the inner producer; whoever called waits for it with growing patience,
so that Ctrl-C comes through. What it interrupts goes on: the next call of the same name gets its
outcome, another one waits for its end.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.asking import insist
from blobmsg.core.transaction import CommitStep, TransactionState
from blobmsg.notifier_thread import InnerCall
from blobmsg.time_limit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import TopicPartition

    from blobmsg.clock import Clock
    from blobmsg.core.producer_core import ProducerCore
    from blobmsg.core.transaction import Transaction
    from blobmsg.producer_pipeline import ProducerPipeline
    from blobmsg.producer_topics import ProducerTopics

__all__ = [
    "Transactions",
    "decide_begin",
    "decide_commit",
    "decide_drop",
    "decide_end",
    "decide_ended",
    "decide_failed",
    "decide_hand_over",
    "decide_time",
]

logger = logging.getLogger("blobmsg.producer")

# The longest wait for the inner producer at a time.
_MOST_S: Final = 5.0
# How often `close` looks whether another thread's call has ended, if it hears of nothing.
_LOOK_S: Final = 0.5
# For librdkafka, which is given the same time, to say first what it waits for.
_GRACE_S: Final = 0.5
# As stock's errors name them.
_INIT: Final = "init_transactions"
_BEGIN: Final = "begin_transaction"
_SEND_OFFSETS: Final = "send_offsets_to_transaction"
_COMMIT: Final = "commit_transaction"
_ABORT: Final = "abort_transaction"
# These take no arguments: an outcome that nobody has heard is that of the next call, too.
_RESUMABLE: Final = frozenset({_INIT, _COMMIT, _ABORT})
_DELIVERING: Final = frozenset(
    {TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.FAILED}
)


class Transactions:
    """The transactions of a producer that has a `transactional.id`.

    Args:
        pipeline: Of the producer.
        clock: Time, the pipeline's.
        timeout_s: `transaction.timeout.ms`: how long calls without a limit take at most, as stock
            means it; but for `init`.

    Every method raises `KafkaException` as stock does: retriable ones may be called again,
    `txn_requires_abort` ones ask for `abort`, and after a fatal one the producer is useless.

    Threads: any; while one call is made another one, in a callback or a signal handler too, raises
    `_CONFLICT`, and the same one `_PREV_IN_PROGRESS`.
    """

    def __init__(self, pipeline: ProducerPipeline, clock: Clock, timeout_s: float) -> None:
        self._pipeline = pipeline
        self._notifier_thread = pipeline.notifier_thread
        self._clock = clock
        self._timeout_s = timeout_s
        self._doing: tuple[str, int] | None = None  # which call, in which thread

    @property
    def _state(self) -> TransactionState:
        return self._pipeline.transaction.state

    def init(self, timeout_s: float) -> None:
        """Fence all other producers of this id; end what they have left."""
        self._do(_INIT, partial(self._init, self._limit_of(timeout_s)))

    def begin(self) -> None:
        """Open a transaction."""
        self._do(_BEGIN, self._begin)

    def send_offsets(
        self, partitions: list[TopicPartition], group_metadata: Any, timeout_s: float
    ) -> None:
        """Commit positions with the transaction.

        Args:
            partitions: As Kafka keeps them.
            group_metadata: The consumer's.
            timeout_s: Negative: `transaction.timeout.ms`.
        """
        limit = self._limit(timeout_s)
        self._do(_SEND_OFFSETS, partial(self._send_offsets, partitions, group_metadata, limit))

    def commit(self, timeout_s: float) -> None:
        """Deliver everything and commit it."""
        self._do(_COMMIT, partial(self._commit, self._limit(timeout_s)))

    def abort(self, timeout_s: float) -> None:
        """Drop everything that is not delivered, and have Kafka forget the rest."""
        self._do(_ABORT, partial(self._abort_and_serve, self._limit(timeout_s)))

    def close(self, timeout_s: float) -> None:
        """Let another thread's call end, then end what is open, so that no reader waits for it.

        A commit under way is resumed, else all is aborted. What fails is logged: Kafka aborts by
        itself when `transaction.timeout.ms` is over. What callbacks raise waits for a `flush`.
        """
        limit = self._limit_of(timeout_s)
        while self._is_doing_elsewhere() and not limit.is_over:
            self._pipeline.wait_for_news(limit.slice_s(_LOOK_S))
        is_fatal = self._notifier_thread.fatal is not None
        if self._state is TransactionState.CLOSED or is_fatal or self._doing:
            return
        resumes = self._state is TransactionState.ENDING
        name, end = (_COMMIT, self._commit) if resumes else (_ABORT, self._abort)
        logger.warning(
            "closed with an open transaction, which is %s", "committed" if resumes else "aborted"
        )
        try:
            self._do(name, partial(end, limit))
        except KafkaException as failure:
            logger.warning("the open transaction could not be ended: %s", failure)

    def _is_doing_elsewhere(self) -> bool:
        return self._doing is not None and self._doing[1] != threading.get_ident()

    def _limit(self, timeout_s: float) -> TimeLimit:
        return self._limit_of(self._timeout_s if timeout_s < 0 else timeout_s)

    def _limit_of(self, timeout_s: float) -> TimeLimit:
        return TimeLimit(timeout_s, self._pipeline.monotonic_s)

    def _do(self, name: str, body: Callable[[], None]) -> None:
        """Make a call, unless one is made."""
        doing = (name, threading.get_ident())
        is_own_thread = self._pipeline.is_own_thread()
        # No call until `try`: no handler, finalizer or other thread comes in between.
        under_way = self._doing
        if under_way is None and not is_own_thread:
            self._doing = doing
            try:
                self._pipeline.raise_fatal()
                body()
            finally:
                self._doing = None
            return
        raise _in_progress(name, name if under_way is None else under_way[0])

    # --- the calls ----------------------------------------------------------------------------

    def _init(self, limit: TimeLimit) -> None:
        # Not the inner producer's own method: the traceback of a fatal failure keeps what was
        # called, and may outlast `close` unread. Nor has any call below a variable for it.
        def init(patience_s: float) -> None:
            self._notifier_thread.inner.init_transactions(patience_s)

        if not self._has_ended(_INIT, limit):
            self._call(_INIT, init, limit)

    def _begin(self) -> None:
        self._has_ended(_BEGIN, self._limit_of(self._timeout_s))
        self._notifier_thread.inner.begin_transaction()  # decides by itself, asks no broker
        self._pipeline.decide(decide_begin)

    def _send_offsets(
        self, partitions: list[TopicPartition], group_metadata: Any, limit: TimeLimit
    ) -> None:
        self._has_ended(_SEND_OFFSETS, limit)

        def send(patience_s: float) -> None:
            if partitions:
                self._pipeline.decide_here(partial(decide_hand_over, self._clock.now_ms()))
            self._notifier_thread.inner.send_offsets_to_transaction(
                partitions, group_metadata, patience_s
            )

        self._call(_SEND_OFFSETS, send, limit)

    def _commit(self, limit: TimeLimit) -> None:
        try:
            if self._has_ended(_COMMIT, limit):
                return
            if self._state in _DELIVERING:
                self._deliver_all(limit)
            self._call(_COMMIT, self._commit_inner, limit)
        except KafkaException as failure:
            if self._state is TransactionState.ENDING and failure.args[0].retriable():
                raise _of_unknown_end(failure.args[0]) from failure
            raise

    def _commit_inner(self, patience_s: float) -> None:
        self._pipeline.decide_here(decide_end)
        try:
            self._notifier_thread.inner.commit_transaction(patience_s)
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                self._pipeline.decide_here(decide_failed)
            raise
        self._pipeline.decide_here(decide_ended)

    def _abort_and_serve(self, limit: TimeLimit) -> None:
        self._abort(limit)
        while self._pipeline.reports.running_elsewhere and not limit.is_over:
            self._pipeline.wait_for_news(limit.slice_s(_LOOK_S))
        self._pipeline.serve(0)

    def _abort(self, limit: TimeLimit) -> None:
        """As stock's; what callbacks raise meanwhile is raised by whoever serves next."""
        raised: list[Exception] = []  # by callbacks
        serve = partial(self._serve, raised)
        try:
            # As stock: what is dropped is reported at once, though Kafka may take its time.
            if not self._has_ended(_ABORT, limit, serve):
                self._call(_ABORT, self._abort_inner, limit, serve)
        finally:
            while raised:  # and none is left in this frame, which each has itself
                self._pipeline.raise_later(raised.pop(0))

    def _serve(self, raised: list[Exception]) -> None:
        try:
            self._pipeline.serve(0)
        except Exception as failure:  # noqa: BLE001  (raised when the call has ended)
            raised.append(failure)

    def _abort_inner(self, patience_s: float) -> None:
        limit = self._limit_of(patience_s)
        if self._state in (*_DELIVERING, TransactionState.ABORTING):
            self._pipeline.decide_here(decide_drop)
            self._notifier_thread.purge_queued()
            # What Kafka was sent may be answered first: librdkafka 2.16 sometimes ends in a fatal
            # INVALID_TXN_STATE when it aborts while a partition is being added.
            self._notifier_thread.await_answers(limit.rest_s())
        self._notifier_thread.inner.abort_transaction(limit.rest_s())
        self._pipeline.decide_here(decide_ended)

    # --- delivering ---------------------------------------------------------------------------

    def _deliver_all(self, limit: TimeLimit) -> None:
        """Have every record acknowledged, within both the caller's time and the transaction's."""
        transaction = self._pipeline.transaction
        self._pipeline.decide(decide_commit)
        while True:
            now_ms = self._clock.now_ms()
            self._pipeline.decide(partial(decide_time, now_ms))
            latest_ms = transaction.latest_commit_ms  # not known before something is handed over
            rest_s = limit.rest_s()
            if latest_ms is not None:
                transaction_s = max(0.0, (latest_ms - now_ms) / 1000)
                rest_s = transaction_s if rest_s < 0 else min(rest_s, transaction_s)
            remaining = self._pipeline.flush(
                rest_s, is_over=partial(_is_news, transaction, latest_ms)
            )
            step = transaction.commit_step(remaining)
            if step is CommitStep.ABORT:
                raise self._requires_abort()
            if step is CommitStep.END:
                return
            if limit.is_over or self._pipeline.is_stopping:
                raise _still_delivering(remaining)

    def _requires_abort(self) -> KafkaException:
        """Why a transaction can't be committed: the inner producer's reason, else ours."""
        try:
            self._notifier_thread.inner.begin_transaction()  # in a transaction it can but refuse
        except KafkaException as refusal:
            if refusal.args[0].txn_requires_abort() or refusal.args[0].fatal():
                return refusal
        transaction = self._pipeline.transaction
        if transaction.is_too_late:
            code = KafkaError._TIMED_OUT
            text = "the transaction can't be committed within transaction.timeout.ms: abort it"
        else:
            code = KafkaError._INCONSISTENT
            text = (
                f"{transaction.failed_records} message(s) failed delivery "
                f"(see individual delivery reports): {_text_of(transaction.first_error)}"
            )
        return KafkaException(KafkaError(code, text, txn_requires_abort=True))

    # --- the inner producer -------------------------------------------------------------------

    def _call(
        self,
        name: str,
        call: Callable[[float], object],
        limit: TimeLimit,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Have the notifier thread make a call until it has an outcome, or the time is over."""

        def attempt(patience_s: float) -> None:
            made = InnerCall(name, partial(call, patience_s))
            self._notifier_thread.make(made)
            # Not without an end: librdkafka's send_offsets_to_transaction does not keep its time
            # while the group's coordinator is away (its issue 5456).
            rest_s = limit.rest_s()
            patience_s = rest_s if rest_s < 0 else rest_s + _GRACE_S
            if not self._notifier_thread.wait_for(made, patience_s, meanwhile):
                raise _still_waiting()
            made.is_heard = True
            if made.failure is not None:
                raise made.failure

        def is_no_answer(error: KafkaError) -> bool:
            # One call at a time: what still runs is left alone, and waited for by the next call. So
            # is what has ended since, or it would be made twice.
            made = self._notifier_thread.inner_call
            return error.retriable() and made is not None and made.is_heard

        now_s = self._pipeline.monotonic_s
        insist(attempt, limit.rest_s(), is_no_answer, _MOST_S, monotonic_s=now_s)

    def _has_ended(
        self, name: str, limit: TimeLimit, meanwhile: Callable[[], None] = lambda: None
    ) -> bool:
        """Wait for a call that an interrupt has left alone.

        Returns:
            Whether it was this one, and has succeeded.

        Raises:
            KafkaException: It was this one, and has failed; or the time is over.
        """
        made = self._notifier_thread.inner_call
        if made is None or made.is_heard:
            return False
        if not self._notifier_thread.wait_for(made, limit.rest_s(), meanwhile):
            raise _still_waiting()
        made.is_heard = True
        if made.name != name or name not in _RESUMABLE:
            return False
        if made.failure is not None and not _is_retriable(made.failure):
            raise made.failure
        return made.failure is None


def _of_unknown_end(error: KafkaError) -> KafkaException:
    """Kafka was asked to commit and has not answered: the same error, with what to do."""
    text = (
        f"{error.str()}: nobody knows yet whether Kafka has committed; ask again, and if that does "
        "not help when Kafka is well, go on with a new producer"
    )
    return KafkaException(KafkaError(error.code(), text, retriable=True))


def _still_waiting() -> KafkaException:
    text = "Timed out waiting for operation to finish, call again"
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, text, retriable=True))


def decide_begin(core: ProducerCore, topics: ProducerTopics) -> None:
    """Records may come."""
    core.transaction.begun()
    topics.open()


def decide_commit(core: ProducerCore, topics: ProducerTopics) -> None:
    """No record joins any more; all are to be delivered."""
    core.transaction.committing()
    topics.shut()


def decide_time(now_ms: int, core: ProducerCore, _topics: ProducerTopics) -> None:
    """Kafka may not wait for the rest."""
    core.transaction.check_time(now_ms)


def decide_hand_over(now_ms: int, core: ProducerCore, _topics: ProducerTopics) -> None:
    """Positions are about to reach Kafka, so its clock runs."""
    core.transaction.handed_over(now_ms)


def decide_end(core: ProducerCore, _topics: ProducerTopics) -> None:
    """All is delivered; Kafka is asked to commit."""
    core.transaction.ending()


def decide_failed(core: ProducerCore, topics: ProducerTopics) -> None:
    """Kafka will not commit."""
    core.transaction.end_failed()
    topics.shut()


def decide_drop(core: ProducerCore, topics: ProducerTopics) -> None:
    """All is to be forgotten."""
    core.transaction.aborting()
    topics.shut()


def decide_ended(core: ProducerCore, _topics: ProducerTopics) -> None:
    """Kafka has committed or aborted."""
    core.transaction.ended()


def _is_news(transaction: Transaction, latest_ms: int | None) -> bool:
    """Whether a commit has to look at its transaction again."""
    return not transaction.is_running or transaction.latest_commit_ms != latest_ms


def _is_retriable(failure: Exception) -> bool:
    return isinstance(failure, KafkaException) and bool(failure.args[0].retriable())


def _text_of(error: object) -> str:
    return error.str() if isinstance(error, KafkaError) else str(error)


def _still_delivering(records: int) -> KafkaException:
    text = (
        "Failed to flush all outstanding messages within the API timeout: "
        f"{records} message(s) remaining"
    )
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, text, retriable=True))


def _in_progress(name: str, under_way: str) -> KafkaException:
    code, text = KafkaError._CONFLICT, f"Conflicting {under_way} API call is already in progress"
    if under_way == name:
        code, text = KafkaError._PREV_IN_PROGRESS, f"Simultaneous {name} API calls not allowed"
    return KafkaException(KafkaError(code, text, retriable=True))
