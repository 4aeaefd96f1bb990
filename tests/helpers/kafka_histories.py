"""Client histories, and the two that carry them out: the virtual broker and real Kafka.

A history is a list of steps on one partition of its own, with a group and a transactional id of its
own. What each step gives (offsets, values, error names) is a plain value, so that the two can be
compared.
"""

from __future__ import annotations

import contextlib
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from blobmsg.sim.inner_consumer import InnerConsumer
from blobmsg.sim.inner_producer import InnerProducer
from blobmsg.sim.network import Network
from blobmsg.sim.virtual_broker import VirtualBroker
from blobmsg.sim.world import Process, World
from tests.helpers.outcomes import name_of, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.admin import AdminClient

#: The name of a step and its arguments.
Step = tuple[Any, ...]
#: What a step gave.
Result = Any

# What is not there at once: control records are written, and deletions reach all replicas, behind
# the answer of the call.
PATIENT = ("read", "committed", "watermarks", "delete")
_PATIENCE_S = 15.0
# Without a word so long, nothing comes: no end either, behind where open transactions hold it back.
_SILENCE_S = 4.0


def draw_history(seed: int) -> list[Step]:
    """The steps of a seed: about ten, half of the histories with transactions."""
    rng = random.Random(f"history {seed}")
    drawing = _Drawing(rng, has_transactions=rng.random() < 0.6)
    for number in range(rng.randint(6, 14)):
        drawing.add(number)
    return drawing.ended()


class _Drawing:
    """Draws steps that an application could make in this order."""

    def __init__(self, rng: random.Random, *, has_transactions: bool) -> None:
        self._rng = rng
        self._has_transactions = has_transactions
        self._steps: list[Step] = []
        self._open: str | None = None  # which transactional producer has a transaction
        self._latest: str | None = None  # the last that has called init_transactions
        self._left = ["a", "b"]  # those that have not

    def _kinds(self) -> list[str]:
        kinds = ["produce", "produce", "read", "commit", "watermarks"]
        if self._open is not None:
            is_fenced = self._open != self._latest
            kinds += ["end", "end"] if is_fenced else ["send", "send", "send", "offsets", "end"]
        else:
            kinds += ["committed", "delete"]
            if self._latest is not None:
                kinds += ["begin", "begin", "begin", "begin"]
        if self._has_transactions and self._left:
            kinds += ["init"] if self._latest else ["init", "init", "init", "init"]
        return kinds

    def add(self, number: int) -> None:
        """Add a step."""
        rng = self._rng
        kind = rng.choice(self._kinds())
        values = [b"%d-%d" % (number, index) for index in range(rng.randint(1, 4))]
        if kind == "produce":
            self._steps.append((kind, values))
        elif kind == "init":
            self._latest = self._left.pop(0)  # it fences the one before it
            self._steps.append((kind, self._latest))
        elif kind == "begin":
            self._open = self._latest
            self._steps.append((kind, self._open))
        elif kind == "send":
            self._steps.append((kind, self._open, values))
        elif kind == "offsets":
            self._steps.append((kind, self._open, rng.randint(0, 9), f"t{number}"))
        elif kind == "end":
            # A fenced one is told so, whatever it asks.
            self._steps.append((kind, self._open, rng.random() < 0.6))
            self._open = None
        elif kind == "read":
            self._steps.append((kind, rng.random() < 0.5, rng.randint(0, 12)))
        elif kind == "commit":
            self._steps.append((kind, rng.randint(0, 9), rng.choice(("", "blobmsg1:3", "mine;é"))))
        elif kind == "delete":
            self._steps.append((kind, rng.randint(1, 6)))
        else:
            self._steps.append((kind,))

    def ended(self) -> list[Step]:
        """The steps, and looks at what they have left."""
        if self._open is not None:
            self._steps.append(("end", self._open, self._open == self._latest))
        return [
            *self._steps, ("read", True, 0), ("read", False, 0), ("committed",), ("watermarks",)
        ]  # fmt: skip


class VirtualHistory:
    """Carries a history out on the virtual broker."""

    def __init__(self, seed: int) -> None:
        self._world = World(f"history {seed}")
        self._broker = VirtualBroker(self._world)
        self._broker.create_topic("t", 1)
        self._network = Network(self._world, (1, 2))
        self._process = Process(self._world, "p")
        self._plain = self._producer(None)
        self._transactional: dict[str, InnerProducer] = {}
        self._group = InnerConsumer(
            self._process, self._broker, self._network, group="g", member="m", is_committed=True,
            reads_from="error", on_commit=lambda _error, _partitions: None,
        )  # fmt: skip

    def _producer(self, transactional_id: str | None) -> InnerProducer:
        return InnerProducer(
            self._process, self._broker, self._network, message_timeout_ms=30_000,
            queue_limit=1000, transactional_id=transactional_id,
        )  # fmt: skip

    def do(self, step: Step) -> Result:
        """One step."""
        method: Callable[..., Result] = getattr(self, f"_{step[0]}")
        return method(*step[1:])

    def _settle(self) -> None:
        self._world.run(self._world.now_ms + 1000, lambda: False)

    def _sent(self, producer: InnerProducer, values: list[bytes]) -> Result:
        found: list[Any] = []
        try:
            for value in values:
                producer.produce(
                    "t", value=value, partition=0, timestamp=1, on_delivery=partial(_told, found)
                )
        except KafkaException as failure:
            return name_of(failure)
        producer.flush(0)
        self._settle()
        producer.poll(0)
        return found

    def _produce(self, values: list[bytes]) -> Result:
        return self._sent(self._plain, values)

    def _init(self, label: str) -> Result:
        producer = self._transactional[label] = self._producer("x")
        return outcome_of(producer.init_transactions)

    def _begin(self, label: str) -> Result:
        return outcome_of(self._transactional[label].begin_transaction)

    def _send(self, label: str, values: list[bytes]) -> Result:
        return self._sent(self._transactional[label], values)

    def _offsets(self, label: str, offset: int, metadata: str) -> Result:
        return outcome_of(
            lambda: self._transactional[label].send_offsets_to_transaction(
                [TopicPartition("t", 0, offset, metadata)], ("g", None, -1)
            )
        )

    def _end(self, label: str, is_commit: bool) -> Result:
        producer = self._transactional[label]
        end = producer.commit_transaction if is_commit else producer.abort_transaction
        outcome = outcome_of(end)
        self._settle()
        return outcome

    def _read(self, is_committed: bool, offset: int) -> Result:
        reader = InnerConsumer(
            self._process, self._broker, self._network, group="r", member="r",
            is_committed=is_committed, reads_from="error",
            on_commit=lambda _error, _partitions: None,
        )  # fmt: skip
        reader.assign([TopicPartition("t", 0, offset)])
        found: list[Any] = []
        while (record := reader.poll(0)) is not None:
            found.append(_read_of(record))
            if record.error() is not None:
                break
        return found

    def _commit(self, offset: int, metadata: str) -> Result:
        return outcome_of(
            lambda: self._group.commit(
                offsets=[TopicPartition("t", 0, offset, metadata)], asynchronous=False
            )
        )

    def _committed(self) -> Result:
        [answer] = self._group.committed([TopicPartition("t", 0)], timeout=1.0)
        return answer.offset, answer.metadata or ""

    def _watermarks(self) -> Result:
        return self._group.get_watermark_offsets(TopicPartition("t", 0))

    def _delete(self, offset: int) -> Result:
        log = self._broker.log(("t", 0))
        if offset > log.end:
            return "OFFSET_OUT_OF_RANGE"
        log.delete_before(offset)
        return log.start


class RealHistory:
    """Carries a history out on real Kafka.

    Args:
        admin: An AdminClient; its settings are those of the other clients.
        conf: How to reach the brokers.
        topic: A topic.
        partition: This history's own.
        name: For its group and its transactional id.
    """

    def __init__(
        self, admin: AdminClient, conf: dict[str, Any], topic: str, partition: int, name: str
    ) -> None:
        self._admin = admin
        self._conf = {**conf, "log_level": 0}
        self._place = (topic, partition)
        self._name = name
        self._plain: Producer | None = None
        self._transactional: dict[str, Producer] = {}
        self._readers: dict[bool, Consumer] = {}

    def close(self) -> None:
        """Let go of the clients."""
        for reader in self._readers.values():
            reader.close()

    def do(self, step: Step, expected: Result) -> Result:
        """One step; what comes late is waited for."""
        method: Callable[..., Result] = getattr(self, f"_{step[0]}")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            result = method(*step[1:])
            if step[0] not in PATIENT or result == expected or time.monotonic() > deadline:
                return result
            time.sleep(0.05)

    def _sent(self, producer: Producer, values: list[bytes]) -> Result:
        found: list[Any] = []
        topic, partition = self._place
        try:
            for value in values:
                producer.produce(
                    topic, value, partition=partition, on_delivery=partial(_told, found)
                )
        except KafkaException as failure:
            return name_of(failure)
        with contextlib.suppress(KafkaException):
            producer.flush(30)
        return found

    def _produce(self, values: list[bytes]) -> Result:
        if self._plain is None:
            self._plain = Producer({**self._conf, "enable.idempotence": True, "linger.ms": 20})
        return self._sent(self._plain, values)

    def _init(self, label: str) -> Result:
        producer = self._transactional[label] = Producer(
            {**self._conf, "transactional.id": self._name, "linger.ms": 20}
        )
        return outcome_of(lambda: producer.init_transactions(30))

    def _begin(self, label: str) -> Result:
        return outcome_of(self._transactional[label].begin_transaction)

    def _send(self, label: str, values: list[bytes]) -> Result:
        return self._sent(self._transactional[label], values)

    def _reader(self, is_committed: bool) -> Consumer:
        if is_committed not in self._readers:
            isolation = "read_committed" if is_committed else "read_uncommitted"
            self._readers[is_committed] = Consumer(
                {
                    **self._conf,
                    "group.id": self._name,
                    "isolation.level": isolation,
                    "auto.offset.reset": "error",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                }
            )
        return self._readers[is_committed]

    def _offsets(self, label: str, offset: int, metadata: str) -> Result:
        group = self._reader(True).consumer_group_metadata()
        return outcome_of(
            lambda: self._transactional[label].send_offsets_to_transaction(
                [TopicPartition(*self._place, offset, metadata)], group, 30
            )
        )

    def _end(self, label: str, is_commit: bool) -> Result:
        producer = self._transactional[label]
        end = producer.commit_transaction if is_commit else producer.abort_transaction
        outcome = outcome_of(lambda: end(30))
        # Control records are written behind the answer; the next step comes behind them.
        deadline = time.monotonic() + _PATIENCE_S
        while outcome == "ok" and time.monotonic() < deadline:
            if self._watermarks(True) == self._watermarks(False):
                break
            time.sleep(0.02)
        return outcome

    def _read(self, is_committed: bool, offset: int) -> Result:
        reader = self._reader(is_committed)
        reader.assign([TopicPartition(*self._place, offset)])
        found: list[Any] = []
        while (message := reader.poll(_SILENCE_S)) is not None:
            found.append(_read_of(message))
            if message.error() is not None:
                break
        reader.unassign()
        return found

    def _commit(self, offset: int, metadata: str) -> Result:
        place = TopicPartition(*self._place, offset, metadata)
        return outcome_of(lambda: self._reader(True).commit(offsets=[place], asynchronous=False))

    def _committed(self) -> Result:
        try:
            [answer] = self._reader(True).committed([TopicPartition(*self._place)], timeout=10)
        except KafkaException as failure:
            return name_of(failure)
        return answer.offset, answer.metadata or ""

    def _watermarks(self, is_committed: bool = True) -> Result:
        place = TopicPartition(*self._place)
        try:
            return self._reader(is_committed).get_watermark_offsets(place, timeout=10)
        except KafkaException as failure:  # a leader that is not known everywhere yet
            return name_of(failure)

    def _delete(self, offset: int) -> Result:
        place = TopicPartition(*self._place, offset)
        try:
            done = self._admin.delete_records([place])[place].result(30)
        except KafkaException as failure:
            return name_of(failure)
        return done.low_watermark


def _told(found: list[Any], error: KafkaError | None, message: Any) -> None:
    found.append(message.offset() if error is None else name_of(error))


def _read_of(message: Any) -> Result:
    """A record; or where the partition ends, which is behind what nobody sees; or an error."""
    error = message.error()
    if error is None:
        return message.offset(), message.value()
    return (name_of(error), message.offset()) if _is_end(error) else name_of(error)


def _is_end(error: KafkaError) -> bool:
    return bool(error.code() == KafkaError._PARTITION_EOF)
