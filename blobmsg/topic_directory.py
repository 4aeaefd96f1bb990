"""What a producer must know of topics before it can batch for them, read from the cluster.

Asks for partitions, leaders' racks, retention and clean-up; decides what is assumed where the
cluster does not answer: what it said last, and a guess only if it never did. Never keeps records.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs forget them
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from blobmsg.format.object_key import retention_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blobmsg.config import Settings
    from blobmsg.format.object_key import RetentionClass
    from blobmsg.thread_log import ThreadLog

__all__ = ["TopicDirectory", "TopicFacts", "UnknownTopic"]

logger = logging.getLogger("blobmsg.topics")

_WEEK_MS: Final = 7 * 24 * 3600 * 1000
# A cluster that answers metadata but not this (librdkafka's mock cluster, missing permissions)
# must not hold back the first record for long.
_CONFIG_TIMEOUT_S: Final = 2.0
_METADATA_TIMEOUT_S: Final = 10.0
_LEAST_TIMEOUT_S: Final = 1.0
# Of so many reads in a row one asks the inner client whatever the admin client may hear.
_KNOCKS_AT_MOST: Final = 4
_DEFAULT_MESSAGE_MAX_BYTES: Final = 1_048_588  # the broker's own default
# On Python 3.10 a future's time-out is a class of its own.
_NO_ANSWER: Final = (KafkaException, TimeoutError, concurrent.futures.TimeoutError)


class UnknownTopic(LookupError):
    """The cluster has no such topic (yet)."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the producer sees it.

    Args:
        destination_zones: By partition; "" = none. Its length is the partition count.
        unavailable: Partitions without a leader.
        retention_class: Of its objects.
        segment_ms: Its `segment.ms`.
        is_compacted: Kafka must see the keys, so it stays plain.
        max_message_bytes: Its `max.message.bytes`.
        is_complete: False if its settings or the brokers' racks could not be read now: what stands
            here is older or a guess, and asking again soon may tell more.
    """

    destination_zones: tuple[str, ...]
    unavailable: frozenset[int]
    retention_class: RetentionClass
    segment_ms: int
    is_compacted: bool
    max_message_bytes: int
    is_complete: bool


class TopicDirectory:
    """Reads topics.

    Args:
        list_topics: `list_topics(topic, timeout)` of the inner client, so that automatic topic
            creation works as in stock.
        admin: Gives an AdminClient, for what metadata does not tell; None: there is none any more.
        settings: Destination, retention, zones.
        log: For what the user should know.
        knocks: While no broker can be reached, asking tries to connect again and again, and the
            inner client tells the user of each time. So the admin client, which is silent, is asked
            first until a broker answers. Not where it can't connect while the inner one can.

    Threads: one at a time; `credentials_changed` any.
    """

    def __init__(
        self,
        list_topics: Callable[[str, float], Any],
        admin: Callable[[], Any],
        settings: Settings,
        log: logging.Logger | ThreadLog = logger,
        *,
        knocks: bool = True,
    ) -> None:
        self._list_topics = list_topics
        self._knocks = knocks
        self._unanswered = 1  # reads in a row that no broker has answered, and this one
        self._admin = admin
        self._settings = settings
        self._log = log
        self._warned: set[str] = set()
        self._refuses_configs = False
        # By topic, as last read. A guess in their place would let objects expire before their
        # notifications and batch records of a compacted topic.
        self._known_configs: dict[str, dict[str, str]] = {}
        self._racks: dict[int, str] = {}
        self._is_complete = True  # of the topic that is being read

    def read(self, topic: str) -> TopicFacts:
        """Ask the cluster about one topic.

        Raises:
            UnknownTopic: It does not exist (yet).
            KafkaException: The cluster can't be asked now, or refuses.
        """
        cluster = self._metadata(topic)
        metadata = cluster.topics.get(topic)
        if metadata is None:
            raise UnknownTopic(topic)
        if metadata.error is not None:
            code = metadata.error.code()
            if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE):
                raise UnknownTopic(topic)
            raise KafkaException(metadata.error)
        if not metadata.partitions:
            raise UnknownTopic(topic)
        leaders = {number: p.leader for number, p in metadata.partitions.items()}
        self._is_complete = True
        if self._can_not_tell(cluster):
            self._refuses_configs = True
        configs = self._configs(topic)
        destination_zones = self._destinations(leaders)
        return TopicFacts(
            destination_zones=destination_zones,
            unavailable=frozenset(number for number, leader in leaders.items() if leader < 0),
            retention_class=retention_class(self._retention_ms(topic, configs)),
            segment_ms=_int_of(configs, "segment.ms", _WEEK_MS),
            is_compacted="compact" in configs.get("cleanup.policy", ""),
            max_message_bytes=_int_of(configs, "max.message.bytes", _DEFAULT_MESSAGE_MAX_BYTES),
            is_complete=self._is_complete,
        )

    def close(self) -> None:
        """Let go of the inner client; nobody asks any more."""
        del self._list_topics

    def credentials_changed(self) -> None:
        """Ask again for what was refused."""
        self._refuses_configs = False
        self._warned.clear()

    def _present_admin(self) -> Any:
        # Kept by nothing but a question: new credentials, or a `close`, may come behind each.
        admin = self._admin()
        if admin is None:
            raise KafkaException(KafkaError(KafkaError._DESTROY))
        return admin

    def _metadata(self, topic: str) -> Any:
        deadline = time.monotonic() + _METADATA_TIMEOUT_S
        # Now and then without: the admin client may fail where the inner one would not.
        is_doubted = self._unanswered % _KNOCKS_AT_MOST != 0
        self._unanswered += 1
        if self._knocks and is_doubted:
            self._present_admin().list_topics(topic, _METADATA_TIMEOUT_S)
        metadata = self._list_topics(topic, max(_LEAST_TIMEOUT_S, deadline - time.monotonic()))
        self._unanswered = 0
        return metadata

    def _retention_ms(self, topic: str, configs: Mapping[str, str]) -> int:
        if "retention.ms" in configs:
            return int(configs["retention.ms"])
        if self._settings.retention_ms is not None:
            return self._settings.retention_ms
        self._warn_once(
            f"retention {topic}",
            "retention.ms of topic %s can't be read: its objects are kept 7 days; set "
            "blobmsg.retention.ms to say otherwise",
            topic,
        )
        return _WEEK_MS

    def _can_not_tell(self, cluster: Any) -> bool:
        """Whether asking for settings would only cost its time-out, and the user has told."""
        # librdkafka's mock cluster has a controller 0 and brokers from 1 on. Kafka says -1 while
        # it elects one.
        controller: int = cluster.controller_id
        names_nobody = controller >= 0 and controller not in cluster.brokers
        is_told = self._settings.retention_ms is not None and not self._known_configs
        return names_nobody and is_told

    def _configs(self, topic: str) -> dict[str, str]:
        if self._refuses_configs:
            return self._guess(topic, "the cluster does not tell topics' settings")
        admin = self._present_admin()
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            future = admin.describe_configs([resource], request_timeout=_CONFIG_TIMEOUT_S)[resource]
            entries = future.result(_CONFIG_TIMEOUT_S + 1.0)
        except _NO_ANSWER as error:
            known = self._known_configs.get(topic)
            if known is not None:
                self._is_complete = False
                self._log.info("settings of topic %s can't be read now, kept: %r", topic, error)
                return known
            # One slow answer is enough when the user has said what we would ask for, and the
            # cluster has never told anything.
            self._refuses_configs = (
                self._settings.retention_ms is not None
                and not self._known_configs
                and self._admin() is admin  # else another one may be told
            )
            self._is_complete = self._refuses_configs
            return self._guess(topic, error)
        configs = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        self._known_configs[topic] = configs
        return configs

    def _guess(self, topic: str, why: object) -> dict[str, str]:
        self._warn_once(
            f"configs {topic}",
            "settings of topic %s can't be read (%s): until they can it is taken as not compacted, "
            "with segments of 7 days; its objects are kept %s",
            topic,
            why if isinstance(why, str) else repr(why),
            "7 days, set blobmsg.retention.ms to say otherwise"
            if self._settings.retention_ms is None
            else "as blobmsg.retention.ms says",
        )
        self._warned.add(f"retention {topic}")  # said above
        return {}

    def _destinations(self, leaders: Mapping[int, int]) -> tuple[str, ...]:
        destination = self._settings.destination
        count = max(leaders) + 1
        if destination.kind == "static":
            zones = [self._settings.canonical_zone(zone) for zone in destination.zones]
            return tuple(zones[number % len(zones)] for number in range(count))
        # `auto` is `leader` only with a zone tier, which this version does not have.
        if destination.kind != "leader":
            return ("",) * count
        racks = self._broker_racks(leaders)
        return tuple(racks.get(leaders.get(number, -1), "") for number in range(count))

    def _broker_racks(self, leaders: Mapping[int, int]) -> dict[int, str]:
        if any(leader not in self._racks for leader in leaders.values() if leader >= 0):
            admin = self._present_admin()
            try:
                cluster = admin.describe_cluster(request_timeout=_CONFIG_TIMEOUT_S)
                nodes = cluster.result(_CONFIG_TIMEOUT_S + 1.0).nodes
            except _NO_ANSWER as error:
                self._is_complete = False
                self._warn_once(
                    "racks",
                    "the brokers' racks can't be read (%s): blobmsg.destination=leader has one "
                    "lane for the zones of brokers not known until they can",
                    error,
                )
                return self._racks
            self._racks = {
                node.id: self._settings.canonical_zone(node.rack) for node in nodes if node.rack
            }
            self._check_own_zone()
        return self._racks

    def _check_own_zone(self) -> None:
        if not self._racks:
            self._warn_once(
                "no racks",
                "no broker has a rack (broker.rack): blobmsg.destination=leader has one lane for "
                "all zones",
            )
        elif self._settings.zone is not None and self._settings.zone not in self._racks.values():
            self._warn_once(
                "own zone",
                "zone %s is the rack of no broker (%s): set blobmsg.zone or blobmsg.zone.aliases",
                self._settings.zone,
                ", ".join(sorted(set(self._racks.values()))),
            )

    def _warn_once(self, what: str, text: str, *values: object) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._log.warning(text, *values)


def _int_of(configs: Mapping[str, str], name: str, default: int) -> int:
    value = configs.get(name)
    return default if value is None else int(value)
