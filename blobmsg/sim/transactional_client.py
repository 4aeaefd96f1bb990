"""A producer's transactions as an application makes them, and what it may believe of each.

Decides only how long a call may take; one that may be made again is made again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from blobmsg.sim.fiber import sleep
from blobmsg.sim.history import SimTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import TopicPartition

    from blobmsg.sim.history import History
    from blobmsg.sim.producer_process import ProducerProcess

__all__ = ["TransactionalClient"]

# Negative: `transaction.timeout.ms`.
_TIMEOUTS_S: Final = (-1.0, -1.0, 0.0, 0.5, 3.0)


class TransactionalClient:
    """The calls for transactions. Each may wait, so only a fiber makes them.

    Args:
        process: Whose producer it is.
        history: Told of each transaction.

    Attributes:
        transaction: The one that is open.
    """

    def __init__(self, process: ProducerProcess, history: History) -> None:
        self._process = process
        self._calls = process.transactions
        self._history = history
        self._begun = 0
        self.transaction: SimTransaction | None = None
        process.inner.on_commit = self._asked_to_commit

    def init(self) -> None:
        """Fence others of the same id."""
        self._insist(self._calls.init)

    def begin(self) -> SimTransaction:
        """Open a transaction."""
        self._calls.begin()
        self._begun += 1
        self.transaction = SimTransaction(f"{self._process.name}#{self._begun}")
        self._history.transactions.append(self.transaction)
        return self.transaction

    def send_offsets(self, offsets: list[TopicPartition], group_metadata: Any) -> None:
        """Commit positions with the transaction."""
        self._insist(partial(self._calls.send_offsets, offsets, group_metadata))

    def commit(self) -> None:
        """Deliver everything and commit it.

        Raises:
            KafkaException: It must be aborted; or it is fenced, and nobody knows its end.
        """
        self._insist(self._calls.commit)
        self._ended("committed")

    def abort(self) -> None:
        """What is not sent is dropped, what was sent is answered, then Kafka forgets."""
        transaction = self._opened()
        self._insist(self._calls.abort)
        self._ended("aborted" if transaction.outcome == "open" else transaction.outcome)

    def _asked_to_commit(self) -> None:
        """From here on only an answer tells what became of it."""
        self._opened().outcome = "unknown"

    def _opened(self) -> SimTransaction:
        assert self.transaction is not None, "no transaction is open"  # noqa: S101
        return self.transaction

    def _ended(self, outcome: str) -> None:
        transaction = self._opened()
        transaction.outcome = outcome
        self._process.world.note("ended", transaction.name, outcome)
        self.transaction = None

    def _insist(self, call: Callable[[float], object]) -> None:
        while not self._is_made(call):
            sleep(self._process, self._process.world.rng.randint(1, 100) / 1000)

    def _is_made(self, call: Callable[[float], object]) -> bool:
        try:
            call(self._process.world.rng.choice(_TIMEOUTS_S))
        except KafkaException as failure:
            error = failure.args[0]
            self._process.world.note("transaction", self._process.name, error.name())
            if not error.retriable():
                raise
            return False
        return True
