"""One case on the stock client and on ours, and what each was seen to do.

A case takes a `Side` and returns what it saw; `Both.agree` runs it on every side and compares.
What was seen is written in plain values and in stock's terms: names of topics become aliases,
virtual offsets Kafka's, errors their type, code and text. Nothing else is left out or evened out;
where ours differs on purpose, the test hands `agree` a function of `tests/compat/differences.py`.
"""

from __future__ import annotations

import difflib
import pprint
import re
import threading
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from blobmsg import (
    BlobConsumer,
    BlobProducer,
    DeserializingBlobConsumer,
    SerializingBlobProducer,
)
from tests.helpers.stock import (
    StockConsumer,
    StockDeserializingConsumer,
    StockProducer,
    StockSerializingProducer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Difference = Callable[[Any], Any]

# Python words it differently for functions in C and in Python.
_SIGNATURE: Final = re.compile(
    "missing required argument|takes (at most|at least|exactly|no)|invalid keyword argument"
    "|given by name|missing [0-9]+ required|unexpected keyword argument|but [0-9]+ (was|were) given"
    "|multiple values for argument"
)
# In texts of Python's own.
_CLASS: Final = re.compile("(?:cimpl\\.|Blob|Stock)(Producer|Consumer|Message)\\b")
#: Bits of a virtual offset below Kafka's own (DESIGN.md, Offsets).
_SHIFT: Final = 20


@dataclass(slots=True)
class Side:
    """One of the clients: makes producers, consumers and topics, and tells what was seen.

    Attributes:
        name: "stock", or of ours how its producers send.
        conf: The settings that this client knows.
        topic: Makes a topic with records of its own, as the fixture `make_topic` does.
    """

    name: str
    conf: dict[str, Any]
    _make_topic: Callable[..., str]
    _aliases: dict[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether this is not stock."""
        return self.name != "stock"

    @property
    def producer_class(self) -> Any:
        """Its `Producer`."""
        return BlobProducer if self.is_ours else StockProducer

    @property
    def consumer_class(self) -> Any:
        """Its `Consumer`."""
        return BlobConsumer if self.is_ours else StockConsumer

    @property
    def serializing_class(self) -> Any:
        """Its `SerializingProducer`."""
        return SerializingBlobProducer if self.is_ours else StockSerializingProducer

    @property
    def deserializing_class(self) -> Any:
        """Its `DeserializingConsumer`."""
        return DeserializingBlobConsumer if self.is_ours else StockDeserializingConsumer

    def settings(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Its settings with some of the case's, without those that it does not know."""
        merged = {**self.conf, **(more or {})}
        return {k: v for k, v in merged.items() if self.is_ours or not k.startswith("blobmsg.")}

    def producer(self, more: Mapping[str, Any] | None = None) -> Any:
        """A producer."""
        return self.producer_class(self.settings(more))

    def consumer(self, more: Mapping[str, Any] | None = None) -> Any:
        """A consumer, in a group of its own unless told otherwise."""
        group = {"group.id": f"compat-{uuid.uuid4().hex}"}
        return self.consumer_class(self.settings({**group, **(more or {})}))

    def topic(self, partitions: int = 1, **options: Any) -> str:
        """A new topic."""
        return self.known(self._make_topic(partitions, **options))

    def known(self, topic: str) -> str:
        """Tell of this topic by an alias, for the other side has another one."""
        self._aliases.setdefault(topic, f"<topic {len(self._aliases) + 1}>")
        return topic

    # --- offsets: ours are virtual, by design ---------------------------------------------------

    def position(self, kafka_offset: int) -> int:
        """Kafka's offset as this client takes a position."""
        return kafka_offset << _SHIFT if self.is_ours and kafka_offset >= 0 else kafka_offset

    def kafka_position(self, position: int) -> int:
        """A position that this client told, as Kafka's offset."""
        if not self.is_ours or position < 0:
            return position
        assert position % (1 << _SHIFT) == 0, f"{position} lies inside a notification"
        return position >> _SHIFT

    def kafka_offset(self, offset: int | None) -> int | None:
        """The offset that this client told of a record alone in its notification, as Kafka's."""
        if not self.is_ours or offset is None or offset < 0:
            return offset
        assert (offset + 1) % (1 << _SHIFT) == 0, f"{offset} is not the last of its notification"
        return offset >> _SHIFT

    # --- what was seen --------------------------------------------------------------------------

    def see(self, value: Any) -> Any:
        """A value as it compares: plain, in stock's terms."""
        if isinstance(value, str):
            return self._without_names(value)
        if isinstance(value, KafkaError):
            return self._see_error(value)
        if isinstance(value, TopicPartition):
            return self._see_partition(value)
        if isinstance(value, Message):
            return self.see_message(value)
        if isinstance(value, BaseException):
            return self._see_exception(value)
        if isinstance(value, dict):
            return {self.see(key): self.see(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.see(item) for item in value)
        return value

    def outcome(self, call: Callable[[], Any]) -> Any:
        """What a call did: its result, or its exception's type, code and text."""
        try:
            result = call()
        except Exception as error:  # noqa: BLE001  (whatever it is, the other side must raise it too)
            return "raised", self._see_exception(error)
        return "returned", self.see(result)

    def outcomes(self, client: Any, calls: str, **names: Any) -> dict[str, Any]:
        """The outcome of each call, one after the other.

        Args:
            client: What is called.
            calls: One call to a line, such as `poll(None)`; the texts are the names of what is
                seen, so none can say what another one does.
            names: What the texts speak of, besides the names of `confluent_kafka`.
        """
        names = {**vars(confluent_kafka), **names, "client": client}
        texts = [line.strip() for line in calls.strip().splitlines()]
        assert len(set(texts)) == len(texts)
        return {text: self.outcome(partial(eval, f"client.{text}", names)) for text in texts}

    def see_message(self, message: Any) -> dict[str, Any]:
        """All that a message tells."""
        latency = message.latency()
        is_event = message.error() is not None and message.latency() is None
        told_offset = self._see_event_offset if is_event else self.kafka_offset
        return {
            "topic": self.see(message.topic()),
            "partition": message.partition(),
            "offset": told_offset(message.offset()),
            "key": message.key(),
            # Of an event, the error's text.
            "value": self.see(message.value().decode()) if is_event else message.value(),
            "headers": message.headers(),
            "error": self.see(message.error()),
            "timestamp": message.timestamp(),
            "has latency": latency is not None and latency > 0,
            "leader epoch": message.leader_epoch(),
            "delivery count": message.delivery_count(),
            # Without deserializers, the same bytes.
            "deserialized": self._is_deserialized(message),
            "len": len(message),
            "bool": bool(message),
        }

    @staticmethod
    def _is_deserialized(message: Any) -> Any:
        if not hasattr(message, "deserialized_key"):  # before 2.13
            return None
        return (
            message.deserialized_key() == message.key(),
            message.deserialized_value() == message.value(),
        )

    def _see_event_offset(self, offset: int | None) -> int | None:
        return None if offset is None else self.kafka_position(offset)

    def _see_partition(self, partition: TopicPartition) -> dict[str, Any]:
        # One that failed may hold what was asked, which can be a time.
        is_asked = partition.error is not None and partition.offset % (1 << _SHIFT) != 0
        return {
            "topic": self.see(partition.topic),
            "partition": partition.partition,
            "offset": partition.offset if is_asked else self.kafka_position(partition.offset),
            "metadata": partition.metadata,
            "error": self.see(partition.error),
        }

    def _see_error(self, error: KafkaError) -> tuple[Any, ...]:
        flags = [
            name for name in ("fatal", "retriable", "txn_requires_abort") if getattr(error, name)()
        ]
        return error.name(), self._without_names(error.str()), flags

    def _see_exception(self, error: BaseException) -> tuple[Any, ...]:
        # Ours may be a class below stock's: an `except` of the user's catches it all the same.
        if isinstance(error, KafkaException):
            return "KafkaException", *self._see_error(error.args[0])
        text = self._without_names(str(error))
        if isinstance(error, TypeError) and _SIGNATURE.search(text):
            text = "<not its arguments>"
        return type(error).__name__, text

    def _without_names(self, text: str) -> str:
        for name, alias in self._aliases.items():
            text = text.replace(name, alias)
        return _CLASS.sub(r"<\1>", text)


@dataclass(frozen=True, slots=True)
class Both:
    """The stock client and ours, against the same brokers.

    Attributes:
        stock: The one that is right.
        ours: With each way of sending that the test wants to see.
    """

    stock: Side
    ours: tuple[Side, ...]

    def agree(
        self, case: Callable[[Side], Any], *differences: Difference, in_turn: bool = False
    ) -> Any:
        """Run a case on every side; all must have seen the same.

        Args:
            case: Takes a side, returns what it saw.
            differences: Each turns what stock was seen to do into what ours does on purpose.
            in_turn: One side after the other, in this thread: for cases that use what a process has
                once. Else all at once, for most of a case is waiting; the first of ours in this
                thread, which is the main one, as an application's.

        Returns:
            What stock was seen to do, so that the test can make sure that it saw anything.
        """

        def run(side: Side) -> Any:
            return side.see(case(side))

        sides = (self.stock, *self.ours)
        by_stock, *by_ours = map(run, sides) if in_turn else _at_once(run, sides)
        expected = by_stock
        for difference in differences:
            expected = difference(expected)
        for side, seen in zip(self.ours, by_ours, strict=True):
            assert seen == expected, _differing(expected, seen, side.name)
        return by_stock


def _at_once(run: Callable[[Side], Any], sides: tuple[Side, ...]) -> list[Any]:
    """What a function returns for each side; of the second one it is called in this thread."""
    ours = sides[1]
    seen: dict[str, Any] = {}
    failed: dict[str, BaseException] = {}

    def note(side: Side) -> None:
        try:
            seen[side.name] = run(side)
        except BaseException as error:  # noqa: BLE001  (raised below)
            failed[side.name] = error

    # Daemons: one that hangs must not keep pytest, which ends the test, from going on.
    threads = [
        threading.Thread(target=note, args=(side,), name=side.name, daemon=True)
        for side in sides
        if side is not ours
    ]
    for thread in threads:
        thread.start()
    seen[ours.name] = run(ours)
    for thread in threads:
        thread.join()
    for name, error in failed.items():
        error.add_note(f"of {name}")
        raise error
    return [seen[side.name] for side in sides]


def _differing(expected: Any, seen: Any, name: str) -> str:
    lines = [pprint.pformat(what, width=120).splitlines() for what in (expected, seen)]
    marked = [line for line in difflib.ndiff(lines[0], lines[1]) if line[0] != " "]
    return "\n".join([f"{name}; - is expected, + was seen", *marked])
