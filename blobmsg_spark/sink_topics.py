"""What a Python worker of Spark knows of topics that are written: asked now and then, kept.

Decides which topics can't be written, and how old an answer may be. A task asks for a topic once
and keeps to the answer, so that all its records of a key have one partition, and all of a partition
one lane.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.errors import BlobmsgError, ConfigError
from blobmsg.forks import forget_after_fork
from blobmsg.kafka_settings import KafkaView
from blobmsg.resources import SharedAdmin, freeze
from blobmsg.topic_directory import TopicDirectory, UnknownTopic
from blobmsg_spark.missing_topic import missing_topic
from blobmsg_spark.sink_options import check_uses_store

if TYPE_CHECKING:
    from collections.abc import Hashable

    from blobmsg.config import Settings
    from blobmsg.topic_directory import TopicFacts
    from blobmsg_spark.sink_options import SinkOptions

__all__ = ["SinkTopics", "topics_of"]

# As the source looks for new partitions. A topic that was made compacted meanwhile is refused by
# the broker, when the batch is committed.
_KEEP_S: Final = 5.0
# A topic that was made a moment ago is not known to every broker.
_MISSING_S: Final = 5.0
_RETRY_EVERY_S: Final = 0.25
_LIST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Answer:
    facts: TopicFacts
    asked_at_s: float


class SinkTopics:
    """Topics, as the tasks of one sink see them.

    Args:
        settings: Ours.
        kafka_conf: The user's for librdkafka.

    Threads: any; the lock guards `_answers` and is held while Kafka is asked.
    """

    def __init__(self, settings: Settings, kafka_conf: dict[str, Any]) -> None:
        self._settings = settings
        self._servers = KafkaView.parse(kafka_conf).bootstrap_servers
        self._admin = SharedAdmin(kafka_conf)
        client = self._admin.client
        self._directory = TopicDirectory(client.list_topics, lambda: client, settings, knocks=False)
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer] = {}

    def facts(self, topic: str) -> TopicFacts:
        """What a task must know of a topic.

        Raises:
            ConfigError: Its records must stay plain.
            BlobmsgError: It is not there, or no broker answers.
        """
        check_uses_store(topic, self._settings)
        with self._lock:
            answer = self._answers.get(topic)
            if answer is None or time.monotonic() - answer.asked_at_s > _KEEP_S:
                answer = _Answer(self._ask(topic), time.monotonic())
                self._answers[topic] = answer
        if answer.facts.is_compacted:
            raise ConfigError(
                f"topic {topic} is compacted, so its records must stay plain for Kafka to see "
                "their keys: write it with spark-sql-kafka, or set its cleanup.policy to delete",
                topic=topic,
            )
        return answer.facts

    def _ask(self, topic: str) -> TopicFacts:
        deadline = time.monotonic() + _MISSING_S
        while True:
            facts = self._try_to_ask(topic)
            if facts is not None:
                return facts
            if time.monotonic() >= deadline:
                raise self._missing(topic)
            time.sleep(_RETRY_EVERY_S)

    def _try_to_ask(self, topic: str) -> TopicFacts | None:
        try:
            return self._directory.read(topic)
        except UnknownTopic:
            return None
        except KafkaException as error:
            raise self._refused(topic, error.args[0]) from error

    def _missing(self, topic: str) -> BlobmsgError:
        found = self._admin.client.list_topics(timeout=_LIST_S).topics
        return missing_topic(topic, found, "option or column topic")

    def _refused(self, topic: str, error: KafkaError) -> BlobmsgError:
        return BlobmsgError(
            f"Kafka at {self._servers} can't be asked about topic {topic}: {error.str()}: check "
            "kafka.bootstrap.servers, that this machine reaches it, the credentials "
            "(kafka.security.protocol, kafka.sasl.*) and the permissions (Describe)",
            code=error.code(),
            topic=topic,
        )


_of_process: dict[Hashable, SinkTopics] = {}


def _forget() -> object:
    had = dict(_of_process)
    _of_process.clear()
    return had


forget_after_fork(_forget)


def topics_of(options: SinkOptions) -> SinkTopics:
    """What this process knows of the topics of a sink with these options.

    Raises:
        ConfigError: A setting is wrong here.

    Threads: one; a worker of Spark runs one task at a time.
    """
    name = freeze(options.conf)
    found = _of_process.get(name)
    if found is None:
        settings, kafka_conf = options.settings()
        found = _of_process[name] = SinkTopics(settings, kafka_conf)
    return found
