"""Kafka offsets given where virtual ones are meant: refused where that can be told in a second."""

from __future__ import annotations

import time
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs forget it
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
)

from blobmsg.core.offsets import to_kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["FirstOffsetCheck", "check_offsets"]

# The check must not hold up an assignment for long.
_WATERMARKS_TIMEOUT_S: Final = 1.0
# Of one request, which nobody waits for so long; its end must not come while it begins.
_REQUEST_S: Final = 30.0
_UNKNOWN: Final = (-1, -1)
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


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
        admin: Gives an AdminClient; None: there is none any more.

    Threads: any.
    """

    def __init__(self, admin: Callable[[], Any]) -> None:
        self._admin = admin
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
        lows, highs = self._ask(unseen, deadline)
        for partition in lows:
            try:
                low: int = lows[partition].result(max(0.0, deadline - time.monotonic())).offset
                high: int = highs[partition].result(max(0.0, deadline - time.monotonic())).offset
            # What is wrong with the partition is not this check's business.
            except (KafkaException, TimeoutError):
                continue
            if low < 0 or high < 0:  # so librdkafka puts it where a leader has not answered
                continue
            key = (partition.topic, partition.partition)
            _check(unseen[key], (low, high))
            self._checked.add(key)

    def _ask(self, keys: Iterable[tuple[str, int]], deadline: float) -> tuple[Any, Any]:
        """Futures of the first and last offsets by `TopicPartition`, where they can be asked for.

        The AdminClient is in no frame that a refusal's traceback keeps.
        """
        admin = self._admin()
        if admin is None:
            return {}, {}
        asked = _with_leaders(admin, keys, deadline)
        if not asked:
            return {}, {}
        lows, highs = (
            admin.list_offsets(dict.fromkeys(asked, end), request_timeout=_REQUEST_S)
            for end in (_EARLIEST, _LATEST)
        )
        return lows, highs


def _with_leaders(
    admin: Any, keys: Iterable[tuple[str, int]], deadline: float
) -> list[TopicPartition]:
    """The partitions whose leaders the client knows, in time.

    It may not be asked for the offsets of others: while leaders have to be found, librdkafka (2.16)
    works on that request in the caller's thread and in its own at once, as it does when the
    request's limit is over, and frees it twice.
    """
    found: list[TopicPartition] = []
    for topic, of_topic in groupby(sorted(keys), itemgetter(0)):
        timeout_s = deadline - time.monotonic()
        if timeout_s <= 0:
            break
        try:
            metadata = admin.list_topics(topic, timeout_s)
        except KafkaException:
            continue
        partitions = metadata.topics[topic].partitions
        found += [
            TopicPartition(topic, number)
            for _, number in of_topic
            if number in partitions and partitions[number].leader in metadata.brokers
        ]
    return found


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
