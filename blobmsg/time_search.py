"""The first records at or after points in time: what `offsets_for_times` answers.

A notification's Kafka timestamp is the latest of its records, so Kafka finds the notification; the
record in it is found by reading on from there. A consumer of its own does that, with all that
reading takes (checks, retries, plain and inline records), and the asking one is left as it is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from blobmsg.core.offsets import VirtualOffset, to_virtual
from blobmsg.kafka_settings import without

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import Message
    from typing_extensions import Self

__all__ = ["find_records", "reader_config"]

_OWN: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # What Kafka found may be deleted meanwhile, or its object expired: the next one counts then.
    "auto.offset.reset": "earliest",
    "blobmsg.on.missing": "fail",
    "blobmsg.fetch.threads": 1,
    "blobmsg.prefetch.max.bytes": 16 << 20,
    "blobmsg.offset.check": False,
}
_BATCH_RECORDS: Final = 1000
_SLICE_S: Final = 0.1
# What has an effect outside of the reader: the user's callbacks, and a place in the group.
_LEFT_OUT: Final = (
    "error_cb",
    "stats_cb",
    "throttle_cb",
    "on_commit",
    "group.instance.id",
    "statistics.interval.ms",
)


class Reader(Protocol):
    """What of a `BlobConsumer` reads on."""

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Begin at these places."""
        ...

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Read no more of these."""
        ...

    def consume(self, num_messages: int, timeout: float) -> Sequence[Message]:
        """The next records and events."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


def reader_config(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the consumer that reads on.

    Args:
        conf: Of the one that asks.
    """
    return {
        **without(conf, (*_LEFT_OUT, *_OWN)),
        **_OWN,
    }


def find_records(
    asked: Sequence[TopicPartition],
    answers: Sequence[TopicPartition],
    open_reader: Callable[[], Reader],
    timeout_s: float,
) -> list[TopicPartition]:
    """Turn Kafka's answers into places of records.

    Args:
        asked: With times, ms since 1970 UTC, as offsets.
        answers: Kafka's, in the same order: offsets of notifications and plain records, logical
            ones, errors.
        open_reader: Makes the consumer that reads on.
        timeout_s: At most so long; negative: no limit.

    Returns:
        As `answers`, with virtual offsets.

    Raises:
        KafkaException: A record can't be read; `_TIMED_OUT`.
    """
    found = {
        (answer.topic, answer.partition): (answer.offset, wanted.offset)
        for answer, wanted in zip(answers, asked, strict=True)
        if answer.error is None and answer.offset >= 0
    }
    # Times below 0 are Kafka's words for the ends of the log: there is nothing to look into.
    places = {key: to_virtual(offset) for key, (offset, time_ms) in found.items() if time_ms < 0}
    searched = {key: place for key, place in found.items() if key not in places}
    # Closing the reader may take as long as a request to the store that hangs, or a second.
    reading_s = float("inf") if timeout_s < 0 else timeout_s - min(1.0, timeout_s / 2)
    deadline = time.monotonic() + reading_s
    if searched:
        with open_reader() as reader:
            places |= _read_on(reader, searched, deadline)
    return [
        TopicPartition(answer.topic, answer.partition, places[key])
        if (key := (answer.topic, answer.partition)) in places
        else answer
        for answer in answers
    ]


def _read_on(
    reader: Reader,
    searched: Mapping[tuple[str, int], tuple[int, int]],
    deadline: float,
) -> dict[tuple[str, int], VirtualOffset]:
    """The virtual offsets of the first records from a Kafka offset on that are of a time or later.

    Args:
        reader: Assigned anew.
        searched: Kafka offset and time by partition.
        deadline: Monotonic, in seconds.
    """
    reader.assign(
        [TopicPartition(*key, to_virtual(offset)) for key, (offset, _) in searched.items()]
    )
    places: dict[tuple[str, int], VirtualOffset] = {}
    while len(places) < len(searched):
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            missing = ", ".join(f"{t} [{p}]" for t, p in searched if (t, p) not in places)
            raise KafkaException(
                KafkaError(
                    KafkaError._TIMED_OUT,
                    f"offsets_for_times: no record could be read of {missing}",
                )
            )
        for message in reader.consume(_BATCH_RECORDS, min(_SLICE_S, remaining_s)):
            error = message.error()
            code = None if error is None else error.code()
            key = cast("tuple[str, int]", (message.topic(), message.partition()))
            if key in places:
                continue
            if code == KafkaError._PARTITION_EOF:
                # Not when a replica that lags has not even what Kafka found. Else that belongs to
                # an aborted transaction.
                if cast("int", message.offset()) > to_virtual(searched[key][0]):
                    places[key] = VirtualOffset(OFFSET_END)
            elif error is not None:
                if not error.retriable():
                    raise KafkaException(error)
            elif message.timestamp()[1] >= searched[key][1]:
                places[key] = VirtualOffset(cast("int", message.offset()))
                reader.pause([TopicPartition(*key)])
    return places
