"""Sending and reading records through a client, stock or ours, as tests do it again and again.

Waits on events with a deadline, never for a time; checks nothing but that no error came.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: Generous, for the machine may be busy with other things; nothing is judged by its speed. Shorter
#: where the code is broken on purpose (`tools/planted.py`): what is waited for never comes there.
DEADLINE_S = float(os.environ.get("BLOBMSG_TEST_DEADLINE_S", "60"))


class Place(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


class Reports:
    """A delivery callback that keeps what it was told, in order."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[KafkaError | None, Any]] = []

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        self.outcomes.append((error, message))

    @property
    def errors(self) -> list[KafkaError]:
        """Of those that failed."""
        return [error for error, _ in self.outcomes if error is not None]

    @property
    def codes(self) -> list[int | None]:
        """The error code of each report; None: delivered."""
        return [None if error is None else error.code() for error, _ in self.outcomes]

    def messages(self) -> list[Any]:
        """Of all reports, none of which may be an error."""
        assert self.errors == []
        return [message for _, message in self.outcomes]

    def values_by_partition(self) -> dict[int, list[bytes]]:
        """Values in the order of the reports."""
        return values_by_partition(self.messages())


def values_by_partition(messages: Iterable[Any]) -> dict[int, list[bytes]]:
    """Values in order, for each partition."""
    values: dict[int, list[bytes]] = {}
    for message in messages:
        values.setdefault(message.partition(), []).append(message.value())
    return values


def places(messages: Iterable[Any]) -> dict[bytes, Place]:
    """Where each value is; values must differ."""
    found: dict[bytes, Place] = {}
    for message in messages:
        assert message.value() not in found
        found[message.value()] = Place(message.partition(), message.offset())
    return found


def send(producer: Any, topic: str, values: Iterable[bytes], **arguments: Any) -> Reports:
    """Produce values, wait for all of them, return their reports."""
    reports = Reports()
    for value in values:
        produce(producer, topic, value, on_delivery=reports, **arguments)
    flush(producer)
    return reports


def produce(producer: Any, topic: str, value: bytes | None, **arguments: Any) -> None:
    """Produce one record, waiting while the buffer is full."""
    deadline = time.monotonic() + DEADLINE_S
    while not _try_produce(producer, topic, value, **arguments):
        assert time.monotonic() < deadline, "the buffer stayed full"
        producer.poll(0.1)


def _try_produce(producer: Any, topic: str, value: bytes | None, **arguments: Any) -> bool:
    try:
        producer.produce(topic, value, **arguments)
    except BufferError:
        return False
    return True


def flush(producer: Any) -> None:
    """Wait until every record is reported."""
    assert producer.flush(DEADLINE_S) == 0


def read(consumer: Any, count: int, *, timeout_s: float = DEADLINE_S, batch: int = 1) -> list[Any]:
    """Read exactly so many records; any error fails the test, ends of partitions don't.

    Args:
        consumer: Assigned or subscribed.
        count: How many.
        timeout_s: To wait at most.
        batch: 1 reads by `poll`, more by `consume`.
    """
    messages: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} within {timeout_s} s"
        if batch == 1:
            message = consumer.poll(0.5)
            received = [] if message is None else [message]
        else:
            received = consumer.consume(min(batch, count - len(messages)), 0.5)
        messages += [message for message in received if not _is_end(message)]
    return messages


@dataclass(slots=True)
class Ending:
    """What `read_to_end` found.

    Attributes:
        messages: The records, in the order they came.
        ends: The offset of each partition's end-of-file event.
    """

    messages: list[Any]
    ends: dict[tuple[str, int], int]


def read_to_end(
    consumer: Any, partitions: int, *, timeout_s: float = DEADLINE_S, batch: int = 1
) -> Ending:
    """Read until so many partitions have said that they end; needs `enable.partition.eof`."""
    ending = Ending([], {})
    deadline = time.monotonic() + timeout_s
    while len(ending.ends) < partitions:
        assert time.monotonic() < deadline, (
            f"{len(ending.ends)} of {partitions} partitions ended within {timeout_s} s, "
            f"{len(ending.messages)} records"
        )
        received = consumer.consume(batch, 0.5) if batch > 1 else [consumer.poll(0.5)]
        for message in received:
            if message is None:
                continue
            if _is_end(message):
                ending.ends[message.topic(), message.partition()] = message.offset()
            else:
                ending.messages.append(message)
    return ending


def next_error(consumer: Any, *, timeout_s: float = DEADLINE_S) -> Any:
    """Poll until a message is an error; the records before it are the test's failure."""
    message = next_message(consumer, timeout_s=timeout_s)
    assert message.error() is not None, f"a record came instead: {message.value()!r}"
    return message


def next_message(consumer: Any, *, timeout_s: float = DEADLINE_S) -> Any:
    """Poll until there is something."""
    deadline = time.monotonic() + timeout_s
    while True:
        message = consumer.poll(0.5)
        if message is not None:
            return message
        assert time.monotonic() < deadline, f"nothing came within {timeout_s} s"


def wait_until(
    is_so: Callable[[], bool], what: str, *, timeout_s: float = DEADLINE_S, serve: Any = None
) -> None:
    """Look again and again until something outside of this thread is so.

    Args:
        is_so: Looks.
        what: For the failure's text.
        timeout_s: To wait at most.
        serve: Called between two looks, for example a client's poll with a timeout.
    """
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        if serve is None:
            time.sleep(0.02)  # what is outside has no event to wait for
        else:
            serve()


def partition(topic: str, number: int = 0, offset: int | None = None) -> TopicPartition:
    """A TopicPartition, with an offset or without."""
    if offset is None:
        return TopicPartition(topic, number)
    return TopicPartition(topic, number, offset)


def recent_ms() -> int:
    """A time for a record: an hour ago, for Kafka deletes by these what is older than a week."""
    return time.time_ns() // 1_000_000 - 3_600_000


def offsets_of(partitions: Sequence[TopicPartition]) -> list[int]:
    """The offsets alone."""
    return [found.offset for found in partitions]


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What a call did, in a form that compares: its result, or its error's type and code."""
    try:
        return "returned", call()
    except KafkaException as error:
        return "KafkaException", error.args[0].code()
    except (TypeError, ValueError, RuntimeError, BufferError, OverflowError) as error:
        return "raised", type(error)


def _is_end(message: Any) -> bool:
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    raise AssertionError(f"{message.topic()} [{message.partition()}]: {error}")
