"""Positions as a user gives and gets them: checked, and translated from what Kafka keeps."""

from __future__ import annotations

from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.core.positions import position_of_commit
from blobmsg.errors import UnsupportedFormat
from blobmsg.format.errors import UnsupportedFormatError

__all__ = [
    "behind",
    "check_partition",
    "check_partitions",
    "moved_to",
    "to_user",
]

# Bound at import: an application may replace confluent_kafka.Message.
_StockMessage: Final = confluent_kafka.Message


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
