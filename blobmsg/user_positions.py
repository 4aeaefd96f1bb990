"""Positions as a user gives and gets them: checked, and translated from what Kafka keeps."""

from __future__ import annotations

import time
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.core.offsets import to_kafka
from blobmsg.core.positions import position_of_commit
from blobmsg.errors import UnsupportedFormat
from blobmsg.format.errors import UnsupportedFormatError

__all__ = [
    "behind",
    "check_offsets",
    "check_partition",
    "check_partitions",
    "moved_to",
    "to_user",
]

# Bound at import: an application may replace confluent_kafka.Message.
_StockMessage: Final = confluent_kafka.Message
# The check of a user's offsets must not hold up an assignment for long.
_WATERMARKS_TIMEOUT_S: Final = 1.0


def to_user(partition: TopicPartition) -> TopicPartition:
    """A partition as Kafka keeps it, with the virtual offset and the user's own metadata."""
    offset, metadata = partition.offset, partition.metadata
    if offset >= 0:
        try:
            offset, metadata = position_of_commit(offset, metadata)
        except UnsupportedFormatError as problem:
            text = f"the committed offset of {partition.topic} [{partition.partition}]: {problem}"
            raise UnsupportedFormat(text) from problem
    if partition.error is not None:
        # Nobody but the inner client can make a partition with an error.
        partition.offset = offset
        return partition
    return _made(partition, offset, metadata)


def moved_to(offset: int, partition: TopicPartition) -> TopicPartition:
    """The same partition and metadata, with another offset."""
    return _made(partition, offset, partition.metadata)


def _made(partition: TopicPartition, offset: int, metadata: str | None) -> TopicPartition:
    if metadata is None:  # which the constructor doesn't take
        return TopicPartition(partition.topic, partition.partition, offset)
    return TopicPartition(partition.topic, partition.partition, offset, metadata)


def behind(message: Any, what: str) -> TopicPartition | None:
    """The position behind a message.

    Args:
        message: What the user gave for one.
        what: "commit" or "store".

    Returns:
        None if it was made without a place.

    Raises:
        TypeError: No Message.
        KafkaException: `_INVALID_ARG` for an event.
    """
    if not isinstance(message, _StockMessage):
        raise TypeError("expected confluent_kafka.cimpl.Message")
    error = message.error()
    if error is not None:
        text = f"Cannot {what} offsets for message with error: '{error.str()}'"
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text))
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        return None
    return TopicPartition(topic, partition, offset + 1)


def check_partitions(partitions: Any) -> None:
    """Refuse what is no list of TopicPartition, with stock's TypeError."""
    if not issubclass(type(partitions), list):
        raise TypeError("requires list of TopicPartition")
    for partition in partitions:
        check_partition(partition)


def check_partition(partition: Any) -> None:
    """Refuse what is no TopicPartition, with stock's TypeError."""
    if not isinstance(partition, TopicPartition):
        raise TypeError("expected cimpl.TopicPartition")


def check_offsets(inner: Any, partitions: list[TopicPartition]) -> None:
    """Refuse Kafka offsets given for virtual ones, where that can be told within a second.

    Args:
        inner: The stock consumer.
        partitions: With offsets of the user.

    Raises:
        KafkaException: `_INVALID_ARG`, naming the conversion.
    """
    deadline = time.monotonic() + _WATERMARKS_TIMEOUT_S
    for partition in partitions:
        if partition.offset < 0:
            continue
        asked = TopicPartition(partition.topic, partition.partition)
        low, high = _watermarks(inner, asked, deadline)
        if low <= partition.offset <= high and to_kafka(partition.offset) < low:
            raise KafkaException(
                KafkaError(
                    KafkaError._INVALID_ARG,
                    f"{partition.topic} [{partition.partition}]: offset {partition.offset} "
                    f"lies between Kafka's own watermarks ({low}, {high}) and is no virtual "
                    "offset: convert it once with blobmsg.offsets.to_virtual, or set "
                    "blobmsg.offset.check=false",
                )
            )


def _watermarks(inner: Any, partition: TopicPartition, deadline: float) -> tuple[int, int]:
    """Kafka's own watermarks, asked for where nothing has been fetched yet; else (-1, -1)."""
    cached: tuple[int, int] = inner.get_watermark_offsets(partition, cached=True)
    if cached[0] >= 0:
        return cached
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        return -1, -1
    try:
        asked: tuple[int, int] = inner.get_watermark_offsets(partition, remaining)
    except KafkaException:
        return -1, -1  # what is wrong with the partition is not this check's business
    return asked
