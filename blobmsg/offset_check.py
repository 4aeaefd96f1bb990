"""Kafka offsets given where virtual ones are meant: refused where that can be told in a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from blobmsg.core.offsets import to_kafka
from blobmsg.log_ends import log_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["FirstOffsetCheck", "check_offsets"]

# The check must not hold up an assignment for long.
_WATERMARKS_TIMEOUT_S: Final = 1.0
_UNKNOWN: Final = (-1, -1)


def check_offsets(inner: Any, partitions: Iterable[TopicPartition]) -> None:
    """Refuse a consumer's user offsets that are Kafka's own.

    Args:
        inner: The stock consumer.
        partitions: With offsets of the user.

    Raises:
        KafkaException: `_INVALID_ARG`, naming the conversion.
    """
    deadline = time.monotonic() + _WATERMARKS_TIMEOUT_S
    for partition in partitions:
        if partition.offset >= 0:
            asked = TopicPartition(partition.topic, partition.partition)
            _check(partition, _watermarks(inner, asked, deadline))


class FirstOffsetCheck:
    """Refuses Kafka's own offsets in the first position of each partition that a producer sends.

    A program gives either the one or the other, so asking Kafka once will do.

    Args:
        open_consumer: Makes a stock consumer to ask with.

    Threads: any.
    """

    def __init__(self, open_consumer: Callable[[], Any]) -> None:
        self._open_consumer = open_consumer
        self._checked: set[tuple[str, int]] = set()

    def check(self, partitions: Iterable[TopicPartition]) -> None:
        """Check those that were not seen before.

        Raises:
            KafkaException: `_INVALID_ARG`, naming the conversion.
        """
        unseen = {
            (p.topic, p.partition): p
            for p in partitions
            if p.offset >= 0 and (p.topic, p.partition) not in self._checked
        }
        if not unseen:
            return
        deadline = time.monotonic() + _WATERMARKS_TIMEOUT_S
        consumer = self._open_consumer()
        try:
            lows = _log_ends(consumer, list(unseen), OFFSET_BEGINNING, deadline)
            highs = _log_ends(consumer, list(lows), OFFSET_END, deadline)
        finally:
            consumer.close()
        for key, high in highs.items():
            _check(unseen[key], (lows[key], high))
            self._checked.add(key)


def _log_ends(
    consumer: Any, keys: list[tuple[str, int]], end: int, deadline: float
) -> dict[tuple[str, int], int]:
    """Of the partitions that Kafka tells of in time."""
    try:
        found = log_ends(consumer, keys, end, max(0.0, deadline - time.monotonic()))
    except KafkaException:  # what is wrong with the partitions is not this check's business
        return {}
    return {key: offset for key, offset in found.items() if isinstance(offset, int)}


def _check(partition: TopicPartition, watermarks: tuple[int, int]) -> None:
    low, high = watermarks
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
    """Kafka's own watermarks, asked for where nothing has been fetched yet."""
    cached: tuple[int, int] = inner.get_watermark_offsets(partition, cached=True)
    if cached[0] >= 0:
        return cached
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        return _UNKNOWN
    try:
        asked: tuple[int, int] = inner.get_watermark_offsets(partition, remaining)
    except KafkaException:  # what is wrong with the partition is not this check's business
        return _UNKNOWN
    return asked
