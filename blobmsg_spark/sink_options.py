"""The options of `format("blobmsg")` as a sink: read, checked, and made into settings.

Decides what is refused before any task begins, without asking Kafka. Which options are settings,
and whose, says `options`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaException

from blobmsg.config import parse_settings
from blobmsg.core.partitioner import PARTITIONER_NAMES
from blobmsg.errors import ConfigError
from blobmsg.kafka_settings import KafkaView
from blobmsg_spark.options import Reader, read_text, split_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.config import Settings

__all__ = ["SinkOptions", "check_uses_store", "open_producer", "parse_sink_options"]

# Bound at import: an application may replace confluent_kafka.Producer by ours.
_StockProducer: Final = confluent_kafka.Producer
_ID_PREFIX: Final = "spark-blobmsg-sink"

# Settings of the Kafka client that the sink makes itself, and what to use instead.
_REFUSED_KAFKA: Final = {
    "transactional.id": "the sink makes one of transactionalIdPrefix and the query's id",
    "group.id": "the sink makes one of transactionalIdPrefix and the query's id",
    "enable.idempotence": "the sink's transactions need it, so it is always on",
    "key.serializer": "keys are binary or strings: use the functions of DataFrames",
    "value.serializer": "values are binary or strings: use the functions of DataFrames",
    "partitioner.class": "use kafka.partitioner with one of librdkafka's names, or the column "
    "partition",
    "interceptor.classes": "the client has no interceptors",
    "allow.auto.create.topics": "topics must be there: create them",
}
_READING: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
)
_REFUSED: Final = {
    **dict.fromkeys(_READING, "is one of reading: name what is written with topic, or a column"),
    "includeHeaders": "is one of reading: headers are written when there is a column headers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of one sink, checked.

    Attributes:
        topic: Where all records go; None: the column says it.
        id_prefix: Of transactional ids, and of the groups that keep markers.
        conf: Settings of the clients, ours and librdkafka's.
    """

    topic: str | None
    id_prefix: str
    conf: Mapping[str, str] = field(repr=False, hash=False)

    def settings(self) -> tuple[Settings, dict[str, Any]]:
        """Ours, and those of librdkafka; this process' environment fills in what is left out.

        Raises:
            ConfigError: One of ours is wrong here.
        """
        return parse_settings(self.conf, os.environ)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink.

    Args:
        options: As Spark gives them.

    Raises:
        ConfigError: One is unknown, wrong, contradicts another, or can't be done by a sink.

    Threads: any.
    """
    given = split_options(options, _OPTIONS, refused=_REFUSED, refused_kafka=_REFUSED_KAFKA)
    found = SinkOptions(
        topic=given.values.get("topic"),
        id_prefix=given.values.get("transactionalIdPrefix", _ID_PREFIX),
        conf=given.conf,
    )
    settings, kafka_conf = found.settings()
    if settings.route == "plain":
        raise ConfigError(
            "blobmsg.route=plain: this sink writes segments, never plain records; for those use "
            "spark-sql-kafka, or another route",
            setting="blobmsg.route",
        )
    if found.topic is not None:
        check_uses_store(found.topic, settings)
    _check_kafka(kafka_conf, found.id_prefix)
    return found


def check_uses_store(topic: str, settings: Settings) -> None:
    """Refuse topics whose records may not go through the store.

    Raises:
        ConfigError: `blobmsg.topics` leaves it out.
    """
    if not settings.uses_store(topic):
        raise ConfigError(
            f"topic {topic} is not of blobmsg.topics ({settings.topics.pattern}), so its records "
            "must stay plain: write it with spark-sql-kafka, or mend that setting",
            setting="blobmsg.topics",
        )


def open_producer(kafka_conf: Mapping[str, Any], transactional_id: str) -> Any:
    """A stock producer that makes notifications visible in transactions.

    Args:
        kafka_conf: The user's settings for librdkafka.
        transactional_id: Of its transactions.

    Raises:
        ConfigError: librdkafka refuses a setting.
    """
    ours = {
        "enable.idempotence": True,
        "transactional.id": transactional_id,
        # A topic that was deleted while tasks wrote for it is an error, and not made anew.
        "allow.auto.create.topics": False,
    }
    try:
        return _StockProducer({**kafka_conf, **ours})
    except (KafkaException, TypeError, ValueError) as error:
        text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"the Kafka client refuses an option kafka.*: {text}") from error


def _check_kafka(kafka_conf: Mapping[str, Any], id_prefix: str) -> None:
    """Refuse now what would be refused when everything is written."""
    partitioner = KafkaView.parse(kafka_conf).partitioner
    if partitioner not in PARTITIONER_NAMES:
        raise ConfigError(
            f"option kafka.partitioner: there is no {partitioner!r}, but "
            f"{', '.join(PARTITIONER_NAMES)}",
            setting="kafka.partitioner",
        )
    open_producer(kafka_conf, id_prefix)  # takes 0.3 ms, and waits for nobody


def _ignore(_option: str, _text: str) -> None:
    """For what Spark itself puts among the options of a stream."""


_OPTIONS: Final[dict[str, Reader]] = {
    "topic": read_text,
    "transactionalIdPrefix": read_text,
    "checkpointLocation": _ignore,
    "queryName": _ignore,
}
