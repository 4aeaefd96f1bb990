"""Where the logs of partitions begin and end, asked with a consumer.

Not with an admin client's `list_offsets`: while leaders have to be found, librdkafka (seen with
2.16) works on that request in the caller's thread and in its own at once, and frees it twice. The
process ends where brokers restart meanwhile, and nearly always with a limit below a millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.time_limit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["log_ends"]

# The client's own errors that are one partition's, as a broker's are.
_OF_A_PARTITION: Final = (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)


def log_ends(
    consumer: Any, partitions: Sequence[tuple[str, int]], end: int, timeout_s: float
) -> dict[tuple[str, int], int | KafkaError]:
    """Where partitions begin or end, as far as the consumer may read.

    Args:
        consumer: A stock consumer; it need not read.
        partitions: Topic and partition, none of them twice.
        end: `OFFSET_BEGINNING` or `OFFSET_END`, which Kafka takes in a time's stead.
        timeout_s: To wait at most; not negative.

    Returns:
        By partition: the Kafka offset of its first record or behind its last one, or its error.

    Raises:
        KafkaException: The client's error, such as no answer in time.
    """
    return _ask(consumer, partitions, end, TimeLimit(timeout_s)) if partitions else {}


def _ask(
    consumer: Any, partitions: Sequence[tuple[str, int]], end: int, limit: TimeLimit
) -> dict[tuple[str, int], int | KafkaError]:
    asked = [TopicPartition(*partition, end) for partition in partitions]
    try:
        found = consumer.offsets_for_times(asked, timeout=limit.rest_s())
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() < 0 and error.code() not in _OF_A_PARTITION:
            raise
        if len(partitions) == 1:
            return {partitions[0]: error}
        # One partition's error is the call's, and it does not say whose.
        half = len(partitions) // 2
        return {
            **_ask(consumer, partitions[:half], end, limit),
            **_ask(consumer, partitions[half:], end, limit),
        }
    return {(p.topic, p.partition): p.offset if p.error is None else p.error for p in found}
