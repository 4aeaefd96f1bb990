"""One record of a topic, read with the stock client, for `blobmsg inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from blobmsg.cli.command import Finding, UserMistake

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_SECONDS = 10.0


def read_record(
    conf: Mapping[str, Any], topic: str, partition: int, kafka_offset: int
) -> tuple[bytes | None, list[tuple[str, bytes | None]] | None]:
    """Return value and headers of one Kafka record, whatever it is.

    Args:
        conf: For the stock client; with `bootstrap.servers`.
        topic: Where it is.
        partition: Where it is.
        kafka_offset: Kafka's own offset.

    Raises:
        UserMistake: No such topic, partition or offset, or no broker answers.
        Finding: The offset lies between the ends of the partition and holds no record.
    """
    # No group is joined and nothing committed; the client only wants a name.
    settings = {"group.id": "blobmsg-inspect", **conf, "enable.auto.commit": False}
    try:
        consumer = Consumer({**settings, "log_level": 0, "isolation.level": "read_uncommitted"})
    except KafkaException as error:
        raise UserMistake(f"these settings are no consumer's: {error.args[0].str()}") from error
    place = TopicPartition(topic, partition, kafka_offset)
    try:
        _check_partition(consumer, topic, partition)
        low, high = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_SECONDS)
        if not low <= kafka_offset < high:
            raise UserMistake(
                f"{topic} [{partition}] has no offset {kafka_offset}: it has {low} to {high - 1}"
                if high > low
                else f"{topic} [{partition}] is empty"
            )
        consumer.assign([place])
        message = consumer.poll(_TIMEOUT_SECONDS)
        if message is None:
            raise Finding(f"{topic} [{partition}] gave no record at {kafka_offset} in time")
        if message.error() is not None:
            raise Finding(f"{topic} [{partition}] at {kafka_offset}: {message.error()}")
        if message.offset() != kafka_offset:
            raise Finding(
                f"{topic} [{partition}] has no record at {kafka_offset} (a transaction's mark, or "
                f"compacted away); the next one is at {message.offset()}"
            )
        headers: Any = message.headers()  # the stubs allow what only producers may give
        return message.value(), headers
    except KafkaException as error:
        raise UserMistake(f"Kafka: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _check_partition(consumer: Consumer, topic: str, partition: int) -> None:
    found = consumer.list_topics(topic, timeout=_TIMEOUT_SECONDS).topics[topic]
    if found.error is not None:
        raise UserMistake(f"topic {topic!r}: {found.error.str()}")
    if partition not in found.partitions:
        raise UserMistake(f"topic {topic!r} has partitions 0 to {len(found.partitions) - 1}")
