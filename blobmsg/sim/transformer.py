"""A process that copies topics exactly once: consume, produce, positions, all in one transaction.

Decides what such an application decides, as `examples/orders_to_payments.py` does: when to commit,
and to read again what an abort has dropped.
"""

from __future__ import annotations

from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicPartition

from blobmsg.commits import commit_entries, partitions_of
from blobmsg.interrupts import ctrl_c_comes_through
from blobmsg.sim.consumer_process import ConsumerProcess
from blobmsg.sim.fiber import VirtualWakeup, sleep, start_fiber
from blobmsg.sim.history import Sent, committed_position
from blobmsg.sim.transactional_client import TransactionalClient

if TYPE_CHECKING:
    from blobmsg.sim.producer_process import ProducerProcess

__all__ = ["BUSY_MS", "TRANSFORMED", "Transformer"]

#: The topic that copies go to.
TRANSFORMED: Final = "transformed"
_AT_ONCE: Final = 50
_BITS: Final = 20
_POLL_MS: Final = 50
_IDLE_S: Final = 0.2
_POSITION_S: Final = 1.0
_TRANSACTION_MS: Final = (20, 1500)
_ABORTED_SHARE: Final = 0.1
# How often it is busy before it commits, so that it holds up rebalances.
_BUSY_SHARE: Final = 0.2
#: And how long at most: it polls nobody meanwhile.
BUSY_MS: Final = 2500


class Transformer(ConsumerProcess):
    """A member of a group that copies.

    Args:
        producer: The other client of the same process.
        slot: Which of the transactional ids it has.
        arguments: As `ConsumerProcess`.
        options: As `ConsumerProcess`.

    Attributes:
        producer: As above.
        slot: As above.
        is_lost: It has been fenced, so that only a new process helps.
    """

    def __init__(
        self, producer: ProducerProcess, slot: int, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.producer = producer
        self.slot = slot
        self.is_lost = False
        self._client = TransactionalClient(producer, self._history)
        self._number = 0
        self._commit_ms = 0
        self._stall_ms = 0
        self._drop_failure: KafkaException | None = None
        self._news = VirtualWakeup(self)
        self.after(self._rng.randint(0, 20), partial(start_fiber, self, self._live))

    # --- a process of two clients -----------------------------------------------------------------

    def pause(self, duration_ms: int) -> None:
        """See `Process.pause`."""
        super().pause(duration_ms)
        self.producer.pause(duration_ms)

    def kill(self) -> None:
        """See `Process.kill`."""
        super().kill()
        self.producer.kill()
        self._history.dead.add(self.producer.name)

    def stall(self, duration_ms: int) -> None:
        """Stand still so long right before the next commit; others may have its partitions then."""
        self._stall_ms = duration_ms

    def wake(self) -> None:
        """See `ConsumerProcess.wake`."""
        self._stall_ms = 0

    def touch(self, at_ms: int = 0) -> None:
        """See `ConsumerProcess.touch`."""
        self.after(max(0, at_ms - self.world.now_ms), self._news.set)

    def leave(self) -> None:
        """See `ConsumerProcess.leave`."""
        self.is_leaving = True
        self._news.set()

    # --- the application --------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self._client.init()
            while not self.is_leaving or self._client.transaction is not None:
                self._turn()
            self.close()
        except KafkaException as failure:
            if not failure.args[0].fatal():
                raise
            self.is_lost = True
            self.world.note("lost", self.name)
            self.kill()  # a supervisor starts another one

    def _turn(self) -> None:
        try:
            self.producer.poll()
            messages = self.consumption.consume(self._rng.randint(1, _AT_ONCE), 0.0)
            failure, self._drop_failure = self._drop_failure, None
            if failure is not None:
                raise failure
            has_records = self.take(messages)
            for message in messages:
                if message.error() is None:
                    self._copy(message)
            is_due = self.world.now_ms >= self._commit_ms or self.forged
            if self._client.transaction is not None and is_due:
                if self._rng.random() < _ABORTED_SHARE:
                    self._drop()
                else:
                    self._commit()
            if self._client.transaction is None:
                self.pass_over()  # behind a commit: after a seek nobody has a position
        except KafkaException as failure:
            if failure.args[0].fatal():
                raise
            self.world.note("failed", self.name, failure.args[0].name())
            self._drop()
            has_records = False
        if has_records:
            sleep(self, self._rng.randint(1, _POLL_MS) / 1000)
        else:
            rest_ms = self._commit_ms - self.world.now_ms
            self._news.wait(_IDLE_S if self._client.transaction is None else rest_ms / 1000)

    def _copy(self, message: Any) -> None:
        if self._client.transaction is None:
            self._client.begin()
            self._commit_ms = self.world.now_ms + self._rng.randint(*_TRANSACTION_MS)
        sent = Sent(
            source=self.producer.name,
            number=self._number,
            topic=TRANSFORMED,
            partition=message.partition(),
            key=f"{self.producer.name}/{self._number}".encode(),
            value=message.key(),
            headers=None,
            timestamp_ms=self.timestamp_ms(),
            accepted_ms=0,
            transaction=self._client.transaction,
        )
        self._number += 1
        while not self._is_taken(sent):
            sleep(self, 0.01)
            self.producer.poll()
        sent.accepted_ms = self.world.now_ms
        self._history.accepted(sent)

    def _is_taken(self, sent: Sent) -> bool:
        try:
            self.producer.produce(sent, partial(self._history.reported, sent))
        except BufferError:
            return False
        return True

    def _commit(self) -> None:
        if self._rng.random() < _BUSY_SHARE:
            sleep(self, self._rng.randint(1, BUSY_MS) / 1000)
        if self._stall_ms:
            self.pause(self._stall_ms)
            self._stall_ms = 0
            sleep(self, 0)
        keys = self.consumption.assignment.keys()
        positions = [TopicPartition(*key, self.consumption.position_of(key)) for key in keys]
        offsets = partitions_of(commit_entries([p for p in positions if p.offset >= 0]))
        self._client.send_offsets(offsets, self.inner.group_metadata())
        self._client.commit()

    def hear_of_revocation(self, partitions: list[TopicPartition]) -> None:
        """Their next owner begins at the committed positions, and writes the same copies."""
        del partitions
        try:
            with ctrl_c_comes_through():
                self._drop()
        except KafkaException as failure:  # raised when `consume` has returned
            self._drop_failure = failure

    def _drop(self) -> None:
        """Forget what is not committed, and read it again."""
        if self._client.transaction is None:
            return
        self._client.abort()
        self.forged = []  # told of again
        while not self._has_rewound():
            sleep(self, 0.2)

    def _has_rewound(self) -> bool:
        keys = self.consumption.assignment.keys()
        try:
            answers = self.inner.committed(starmap(TopicPartition, keys), _POSITION_S)
            for answer in answers:
                place = (answer.topic, answer.partition)
                start = committed_position(answer.offset, answer.metadata or "")
                if answer.offset < 0 or start is None:
                    start = self.inner.get_watermark_offsets(answer)[0] << _BITS
                self.seek(place, start)
        except KafkaException as failure:
            self.world.note("not rewound", self.name, failure.args[0].name())
            return False
        return True
