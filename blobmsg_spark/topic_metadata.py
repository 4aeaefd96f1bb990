"""Which partitions there are and which have a leader, as Kafka's metadata says.

What has been said is kept for some seconds: the driver asks for the end of a log up to ten times a
second. Decides what a partition is that the metadata does not have.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError

from blobmsg.time_limit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from blobmsg_spark.offset_ranges import Key

__all__ = ["TopicMetadata"]

_KEPT_S: Final = 5.0
# More than these are asked for with all others of the cluster.
_FEW_TOPICS: Final = 10


class _Kept(NamedTuple):
    """What is known of a topic. `brokers`: the cluster's. `until_s`: by the monotonic clock."""

    topic: Any
    brokers: Collection[int]
    until_s: float


class TopicMetadata:
    """Kafka's metadata, of topics that are asked for.

    Args:
        admin: An AdminClient.
        request_s: For so long one call waits for answers.

    Threads: one.
    """

    def __init__(self, admin: Any, request_s: float) -> None:
        self._admin = admin
        self._request_s = request_s
        self._kept: dict[str, _Kept] = {}

    def named(self, names: Collection[str]) -> dict[str, Any]:
        """Ask for some topics.

        Returns:
            Of each what confluent-kafka calls a `TopicMetadata`. One that is not there, or that
            this user may not see, has an error and no partitions.

        Raises:
            KafkaException: No broker answers.
        """
        if len(names) > _FEW_TOPICS:
            return self.matching(frozenset(names).__contains__, names)
        return self._by_name(names, TimeLimit(self._request_s))

    def matching(self, is_wanted: Callable[[str], bool], known: Iterable[str]) -> dict[str, Any]:
        """Ask for all topics of the cluster.

        Args:
            is_wanted: Tells by its name whether a topic is.
            known: Topics that are asked for by name where they are not listed: that may mean that
                they are gone, or that this user may not see them any more.

        Returns:
            As `named`.

        Raises:
            KafkaException: No broker answers.
        """
        limit = TimeLimit(self._request_s)
        cluster = self._admin.list_topics(None, limit.rest_s())
        found = {name: topic for name, topic in cluster.topics.items() if is_wanted(name)}
        self._keep(found, cluster)
        return found | self._by_name([name for name in known if name not in found], limit)

    def _by_name(self, names: Iterable[str], limit: TimeLimit) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            cluster = self._admin.list_topics(name, limit.rest_s())
            found[name] = cluster.topics[name]
            self._keep({name: found[name]}, cluster)
        return found

    def _keep(self, topics: dict[str, Any], cluster: Any) -> None:
        until_s = time.monotonic() + _KEPT_S
        for name, topic in topics.items():
            self._kept[name] = _Kept(topic, cluster.brokers, until_s)

    def forget(self, topics: Iterable[str]) -> None:
        """Ask for these anew when they are needed: something was wrong with what was said."""
        for topic in topics:
            self._kept.pop(topic, None)

    def without_leader(self, keys: Collection[Key]) -> dict[Key, KafkaError]:
        """The partitions whose leader can't be asked, and why: those are asked for anew next time.

        Raises:
            KafkaException: No broker answers.
        """
        now_s = time.monotonic()
        names = {topic for topic, _ in keys}
        old = [name for name in names if name not in self._kept or self._kept[name].until_s < now_s]
        if old:
            self.named(old)
        errors = {key: error for key in keys if (error := self._error_of(key)) is not None}
        self.forget({topic for topic, _ in errors})
        return errors

    def _error_of(self, key: Key) -> KafkaError | None:
        name, number = key
        topic, brokers, _ = self._kept[name]
        if topic.error is not None:
            error: KafkaError = topic.error
            return error
        partition = topic.partitions.get(number)
        if partition is None:
            return KafkaError(KafkaError._UNKNOWN_PARTITION)
        if partition.leader not in brokers:
            return KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        return None
