"""A producer's transaction: who may add to it, when its notifications leave, how it can end.

Decides: whether a record may join, how long notifications are held back, when a commit comes too
late, and that nothing follows a failure. Never calls out, and knows no record.

States of a producer that has a `transactional.id`: CLOSED -> OPEN (`begun`) -> COMMITTING
(`committing`) -> ENDING (`ending`: all is delivered, Kafka is asked to commit) -> CLOSED
(`ended`). From OPEN, COMMITTING and ENDING to FAILED (`records_failed`, `check_time`, `end_failed`:
only an abort helps); from OPEN, COMMITTING and FAILED to ABORTING (`aborting`) -> CLOSED. A
producer without such an id is CLOSED for ever, and everything here is without effect.

An open transaction holds back the `read_committed` readers of each partition that has something of
it. So nothing of it is handed to Kafka while objects are still to be uploaded: notifications are
*held* until a flush or the commit, though never for long, for an application may wait for reports
before it commits. Kafka's own clock (`transaction.timeout.ms`) starts with the first thing that is
handed over.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["CommitStep", "Transaction", "TransactionState"]

# Of the transaction's time: what the commit itself may take. Behind its end Kafka fences the
# producer, which is worse than an abort.
_COMMIT_SHARE: Final = 0.1


class TransactionState(enum.Enum):
    """Where a transaction is."""

    CLOSED = "closed"  # there is none
    OPEN = "open"  # takes records
    COMMITTING = "committing"
    ENDING = "ending"
    FAILED = "failed"
    ABORTING = "aborting"


class CommitStep(enum.Enum):
    """What a commit does next."""

    DELIVER = "deliver"  # wait for records that are not delivered
    END = "end"  # ask Kafka to commit
    ABORT = "abort"  # say that only an abort helps


class Transaction:
    """The current transaction of a producer. Threads: under the producer's lock.

    Args:
        timeout_ms: `transaction.timeout.ms`.
        hold_ms: How long notifications are held at most.
    """

    def __init__(self, timeout_ms: int, hold_ms: int) -> None:
        self._limit_ms = timeout_ms - int(timeout_ms * _COMMIT_SHARE)
        self._hold_ms = hold_ms
        self._started_ms: int | None = None
        self.is_holding = False  # nothing may be handed to Kafka yet
        self.release_ms: int | None = None  # when what is held has to leave, monotonic
        self.state = TransactionState.CLOSED
        self.failed_records = 0
        self.first_error: object = None  # of those records
        self.is_too_late = False  # Kafka would not wait for the rest of it

    @property
    def is_closed(self) -> bool:
        """Whether there is none."""
        return self.state is TransactionState.CLOSED

    @property
    def is_running(self) -> bool:
        """Whether it has records to deliver that may still be committed."""
        return self.state in (TransactionState.OPEN, TransactionState.COMMITTING)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may be handed to Kafka any more."""
        return self.state in (TransactionState.FAILED, TransactionState.ABORTING)

    @property
    def latest_commit_ms(self) -> int | None:
        """When it must have been committed, monotonic; None: Kafka's clock has not started."""
        return None if self._started_ms is None else self._started_ms + self._limit_ms

    def begun(self) -> None:
        """Records join from here on."""
        self.state = TransactionState.OPEN
        self.is_holding = True

    def sealed(self, now_ms: int) -> None:
        """A segment waits for its turn."""
        if self.is_holding and self.release_ms is None:
            self.release_ms = now_ms + self._hold_ms

    def released(self) -> None:
        """Nothing is held any more; nor is what follows, for the first is out."""
        self.is_holding = False
        self.release_ms = None

    def handed_over(self, now_ms: int) -> None:
        """Something of it is about to reach Kafka, so Kafka's clock runs."""
        if self._started_ms is None and self.is_running:
            self._started_ms = now_ms

    def records_failed(self, error: object, records: int) -> None:
        """So many records of it have failed for good; outside of a transaction it means nothing."""
        if self.is_running or self.state is TransactionState.FAILED:
            if not self.failed_records:
                self.first_error = error
            self.failed_records += records
            self.state = TransactionState.FAILED

    def check_time(self, now_ms: int) -> None:
        """Stop it when it can't be committed in time any more."""
        latest_ms = self.latest_commit_ms
        if self.is_running and latest_ms is not None and now_ms >= latest_ms:
            self.is_too_late = True
            self.state = TransactionState.FAILED

    def committing(self) -> None:
        """No record joins any more."""
        if self.state is TransactionState.OPEN:
            self.state = TransactionState.COMMITTING

    def commit_step(self, undelivered: int) -> CommitStep:
        """What a commit does when so many records have no report yet."""
        if not self.is_running:
            return CommitStep.ABORT
        return CommitStep.DELIVER if undelivered else CommitStep.END

    def ending(self) -> None:
        """All of it is delivered; from here on Kafka decides."""
        if self.state is TransactionState.COMMITTING:
            self.state = TransactionState.ENDING

    def end_failed(self) -> None:
        """Kafka will not commit it."""
        if self.state is TransactionState.ENDING:
            self.state = TransactionState.FAILED

    def aborting(self) -> None:
        """All of it is to be forgotten."""
        if self.is_running or self.state is TransactionState.FAILED:
            self.state = TransactionState.ABORTING
            self.released()

    def ended(self) -> None:
        """Kafka has committed or aborted it."""
        self.state = TransactionState.CLOSED
        self.released()
        self._started_ms = None
        self.failed_records = 0
        self.first_error = None
        self.is_too_late = False
