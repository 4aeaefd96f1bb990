from __future__ import annotations

import concurrent.futures
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg.config import parse_settings
from blobmsg.format.object_key import HOUR_MS
from blobmsg.topic_directory import TopicDirectory, TopicFacts, UnknownTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.config import Settings

DAY_MS = 24 * HOUR_MS
AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT, "no broker"))
# The last one is a class of its own on Python 3.10.
FAILURES = [AWAY, TimeoutError(), concurrent.futures.TimeoutError()]


class Answer:
    """A future that is done."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout: float) -> Any:
        assert timeout > 0
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value


class Cluster:
    """What a directory asks: partitions' leaders, brokers' racks, topics' settings."""

    def __init__(
        self,
        leaders: Mapping[int, int] | None = None,
        racks: Mapping[int, str | None] | BaseException | None = None,
        configs: Mapping[str, str | None] | BaseException | None = None,
    ) -> None:
        self.leaders = leaders or {0: 1}
        self.racks = racks if racks is not None else {1: "az1", 2: "az2"}
        self.configs = configs if configs is not None else {}
        self.error: KafkaError | None = None
        self.controller_id = 1
        self.asked: list[str] = []

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout > 0
        self.asked.append("topics")
        partitions = {n: SimpleNamespace(leader=leader) for n, leader in self.leaders.items()}
        metadata = SimpleNamespace(error=self.error, partitions=partitions)
        return SimpleNamespace(
            topics={"flights": metadata, "empty": _without_partitions()},
            controller_id=self.controller_id,
            brokers=set(self.racks) if isinstance(self.racks, dict) else {1, 2},
        )

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Answer]:
        assert request_timeout > 0
        self.asked.append("configs")
        if isinstance(self.configs, BaseException):
            return {resources[0]: Answer(self.configs)}
        entries = {name: SimpleNamespace(value=value) for name, value in self.configs.items()}
        return {resources[0]: Answer(entries)}

    def describe_cluster(self, request_timeout: float) -> Answer:
        assert request_timeout > 0
        self.asked.append("cluster")
        if isinstance(self.racks, BaseException):
            return Answer(self.racks)
        nodes = [SimpleNamespace(id=number, rack=rack) for number, rack in self.racks.items()]
        return Answer(SimpleNamespace(nodes=nodes))


def _without_partitions() -> Any:
    return SimpleNamespace(error=None, partitions={})


def settings(**ours: str) -> Settings:
    conf = {f"blobmsg.{key.replace('_', '.')}": value for key, value in ours.items()}
    return parse_settings({"blobmsg.store.url": "memory://x", **conf}, {})[0]


def directory(cluster: Cluster, **ours: str) -> TopicDirectory:
    return TopicDirectory(cluster.list_topics, lambda: cluster, settings(**ours))


def read(cluster: Cluster, **ours: str) -> TopicFacts:
    return directory(cluster, **ours).read("flights")


def test_a_topic_is_read_with_its_settings() -> None:
    cluster = Cluster(
        leaders={0: 1, 1: 2},
        configs={
            "retention.ms": str(6 * HOUR_MS),
            "segment.ms": str(2 * HOUR_MS),
            "cleanup.policy": "delete",
            "max.message.bytes": "2000000",
            "unset": None,
        },
    )

    facts = read(cluster)

    assert facts.destination_zones == ("", "")
    assert facts.unavailable == frozenset()
    assert facts.retention_class.name == "6h"
    assert facts.segment_ms == 2 * HOUR_MS
    assert not facts.is_compacted
    assert facts.max_message_bytes == 2_000_000
    assert facts.is_complete


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_compacted_topic_is_known(policy: str) -> None:
    assert read(Cluster(configs={"cleanup.policy": policy})).is_compacted


def test_retention_forever_is_a_class_of_its_own() -> None:
    assert read(Cluster(configs={"retention.ms": "-1"})).retention_class.is_forever


class Away(Cluster):
    """No broker can be reached while `is_away`."""

    is_away = True

    def list_topics(self, topic: str, timeout: float) -> Any:
        if self.is_away:
            self.asked.append("in vain")
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return super().list_topics(topic, timeout)


def test_the_inner_client_is_asked_again_when_the_silent_one_was_answered() -> None:
    inner, admin = Away(), Away()
    topics = TopicDirectory(inner.list_topics, lambda: admin, settings())

    def read_in_vain() -> None:
        with pytest.raises(KafkaException):
            topics.read("flights")

    read_in_vain()
    assert (inner.asked, admin.asked) == ([], ["in vain"])

    inner.is_away = admin.is_away = False
    topics.read("flights")
    topics.read("flights")
    assert inner.asked == ["topics"] * 2
    assert admin.asked.count("topics") == 1  # not while the inner client is answered

    inner.is_away = admin.is_away = True
    read_in_vain()
    read_in_vain()
    assert inner.asked.count("in vain") == 1


def test_the_inner_client_is_asked_now_and_then_whatever_becomes_of_the_silent_one() -> None:
    inner, admin = Cluster(), Away()
    topics = TopicDirectory(inner.list_topics, lambda: admin, settings())

    for _ in range(3):
        with pytest.raises(KafkaException):
            topics.read("flights")

    assert topics.read("flights").destination_zones == ("",)
    assert admin.asked.count("in vain") == 3


def test_an_admin_client_that_can_not_connect_holds_nothing_up() -> None:
    inner, admin = Cluster(), Away()
    topics = TopicDirectory(inner.list_topics, lambda: admin, settings(), knocks=False)

    assert topics.read("flights").destination_zones == ("",)


def test_another_admin_client_is_asked_from_then_on() -> None:
    refused, let_in = Cluster(configs=AWAY), Cluster(configs={"cleanup.policy": "compact"})
    admins = [refused]
    inner = Cluster()
    topics = TopicDirectory(inner.list_topics, lambda: admins[0], settings(retention_ms="3600000"))
    assert not topics.read("flights").is_compacted

    admins[:] = [let_in]
    topics.credentials_changed()

    assert topics.read("flights").is_compacted
    assert refused.asked.count("configs") == 1


def test_credentials_that_change_while_a_topic_is_read_count_at_once() -> None:
    refused, let_in = Cluster(configs=AWAY), Cluster(configs={"cleanup.policy": "compact"})
    admins = [refused]
    inner = Cluster()

    def list_topics(topic: str, timeout: float) -> Any:
        admins[:] = [let_in]
        topics.credentials_changed()
        return inner.list_topics(topic, timeout)

    topics = TopicDirectory(list_topics, lambda: admins[0], settings(retention_ms="3600000"))

    assert topics.read("flights").is_compacted


def test_a_refusal_of_the_former_credentials_is_not_the_last_word() -> None:
    let_in = Cluster(configs={"cleanup.policy": "compact"})

    class Refused(Cluster):
        def describe_configs(
            self, resources: list[Any], request_timeout: float
        ) -> dict[Any, Answer]:
            admins[:] = [let_in]
            topics.credentials_changed()
            return super().describe_configs(resources, request_timeout)

    admins: list[Cluster] = [Refused(configs=AWAY)]
    inner = Cluster()
    topics = TopicDirectory(inner.list_topics, lambda: admins[0], settings(retention_ms="3600000"))

    assert not topics.read("flights").is_complete
    assert topics.read("flights").is_compacted


def test_a_topic_can_not_be_read_behind_the_end_of_the_admin_client() -> None:
    topics = TopicDirectory(Cluster().list_topics, lambda: None, settings())

    with pytest.raises(KafkaException, match="_DESTROY"):
        topics.read("flights")


def test_a_topic_that_metadata_does_not_have_is_unknown() -> None:
    topics = directory(Cluster())

    with pytest.raises(UnknownTopic, match="other"):
        topics.read("other")
    with pytest.raises(UnknownTopic, match="empty"):
        topics.read("empty")


@pytest.mark.parametrize(
    "code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE]
)
def test_a_topic_that_is_being_made_is_unknown(code: int) -> None:
    cluster = Cluster()
    cluster.error = KafkaError(code)

    with pytest.raises(UnknownTopic):
        read(cluster)


def test_a_refusal_is_raised_as_it_is() -> None:
    cluster = Cluster()
    cluster.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    with pytest.raises(KafkaException) as caught:
        read(cluster)

    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_partitions_without_a_leader_are_told() -> None:
    facts = read(Cluster(leaders={0: 1, 1: -1, 2: -1}))

    assert facts.unavailable == {1, 2}
    assert len(facts.destination_zones) == 3


# --- settings that can't be read ------------------------------------------------------------------


@pytest.mark.parametrize("failure", FAILURES)
def test_unreadable_settings_mean_a_week_and_one_warning(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    topics = directory(Cluster(configs=failure))

    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        facts = topics.read("flights")
        topics.read("flights")

    assert facts.retention_class.name == "7d"
    assert facts.segment_ms == 7 * DAY_MS
    assert facts.max_message_bytes == 1_048_588
    assert not facts.is_compacted
    assert not facts.is_complete
    assert len(caplog.messages) == 1
    assert "flights" in caplog.messages[0]
    assert "blobmsg.retention.ms" in caplog.messages[0]


@pytest.mark.parametrize("topics_own", [30 * DAY_MS, HOUR_MS // 2])
def test_the_topics_retention_wins_over_the_users(topics_own: int) -> None:
    # Else objects would expire before their notifications, or be paid for long after them.
    cluster = Cluster(configs={"retention.ms": str(topics_own)})

    facts = read(cluster, retention_ms=str(DAY_MS))

    assert facts.retention_class.name == ("30d" if topics_own > DAY_MS else "1h")


def test_the_users_retention_counts_where_the_topics_is_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        facts = read(Cluster(configs={"segment.ms": str(DAY_MS)}), retention_ms=str(HOUR_MS))

    assert facts.retention_class.name == "1h"
    assert caplog.messages == []


def test_a_cluster_that_does_not_tell_settings_is_asked_once_when_the_user_has_told() -> None:
    cluster = Cluster(configs=TimeoutError())
    topics = directory(cluster, retention_ms=str(HOUR_MS))

    first = topics.read("flights")
    topics.read("flights")

    assert cluster.asked.count("configs") == 1
    assert first.is_complete  # asking again would tell no more


@pytest.mark.parametrize(
    ("controller", "told", "asked"),
    [
        (0, {"retention_ms": str(DAY_MS)}, ["topics", "topics"]),
        (0, {}, ["topics", "topics", "configs"]),  # the answer matters
        (-1, {"retention_ms": str(DAY_MS)}, ["topics", "topics", "configs"]),  # Kafka elects one
        (2, {"retention_ms": str(DAY_MS)}, ["topics", "topics", "configs"]),
    ],
)
def test_a_cluster_whose_controller_is_no_broker_is_not_asked_what_the_user_has_told(
    controller: int, told: dict[str, str], asked: list[str]
) -> None:
    # librdkafka's mock cluster: each producer waited two seconds for an answer.
    cluster = Cluster()
    cluster.controller_id = controller

    facts = read(cluster, **told)

    assert cluster.asked == asked
    assert facts.is_complete


def test_a_cluster_that_does_not_tell_settings_is_asked_again_when_they_matter() -> None:
    cluster = Cluster(configs=AWAY)
    topics = directory(cluster)
    topics.read("flights")
    cluster.configs = {"retention.ms": str(HOUR_MS)}

    facts = topics.read("flights")

    assert facts.retention_class.name == "1h"
    assert facts.is_complete


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("ours", [{}, {"retention_ms": str(HOUR_MS)}])
def test_what_is_known_of_a_topic_outlives_a_failed_read(
    failure: BaseException, ours: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(
        configs={
            "retention.ms": str(365 * DAY_MS),
            "segment.ms": str(HOUR_MS),
            "cleanup.policy": "compact",
            "max.message.bytes": "2000000",
        }
    )
    topics = directory(cluster, **ours)
    before = topics.read("flights")

    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        cluster.configs = failure
        after = topics.read("flights")
        cluster.configs = {"retention.ms": str(6 * HOUR_MS), "segment.ms": str(DAY_MS)}
        at_last = topics.read("flights")

    assert after == replace(before, is_complete=False)
    assert (after.is_compacted, after.segment_ms) == (True, HOUR_MS)
    assert (at_last.is_compacted, at_last.segment_ms, at_last.is_complete) == (False, DAY_MS, True)
    assert caplog.messages == []


def test_a_guess_is_warned_of_also_when_the_user_has_told_the_retention(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics = directory(Cluster(configs=AWAY), retention_ms=str(HOUR_MS))

    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        topics.read("flights")
        topics.read("flights")

    (message,) = caplog.messages
    assert "not compacted" in message


def test_a_topic_without_retention_in_its_settings_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        facts = read(Cluster(configs={"segment.ms": str(HOUR_MS)}))

    assert facts.retention_class.name == "7d"
    assert ["retention.ms" in message for message in caplog.messages] == [True]


# --- destinations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("destination", ["auto", "none"])
def test_one_lane_for_all_zones_asks_nobody_for_racks(destination: str) -> None:
    cluster = Cluster(leaders={0: 1, 1: 2})

    assert read(cluster, destination=destination).destination_zones == ("", "")
    assert "cluster" not in cluster.asked


def test_static_zones_go_round_by_partition() -> None:
    facts = read(
        Cluster(leaders=dict.fromkeys(range(5), 1)),
        destination="static:az1,b,az3",
        zone_aliases="b=az2",
    )

    assert facts.destination_zones == ("az1", "az2", "az3", "az1", "az2")


def test_a_partition_goes_to_the_rack_of_its_leader() -> None:
    facts = read(Cluster(leaders={0: 2, 1: 1, 2: -1}), destination="leader")

    assert facts.destination_zones == ("az2", "az1", "")


def test_racks_are_known_by_their_alias() -> None:
    facts = read(Cluster(), destination="leader", zone_aliases="az1=use1-az4")

    assert facts.destination_zones == ("use1-az4",)


def test_racks_are_asked_for_once_until_a_new_broker_leads() -> None:
    cluster = Cluster()
    topics = directory(cluster, destination="leader")
    topics.read("flights")
    topics.read("flights")
    assert cluster.asked.count("cluster") == 1

    cluster.leaders, cluster.racks = {0: 3}, {1: "az1", 3: "az3"}

    assert topics.read("flights").destination_zones == ("az3",)
    assert cluster.asked.count("cluster") == 2


@pytest.mark.parametrize("failure", FAILURES)
def test_unreadable_racks_mean_one_lane_and_one_warning(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(leaders={0: 1, 1: 2}, racks=failure)
    topics = directory(cluster, destination="leader")

    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        assert topics.read("flights").destination_zones == ("", "")
        topics.read("flights")
        cluster.racks = {1: "az1", 2: "az2"}
        assert topics.read("flights").destination_zones == ("az1", "az2")

    racks = [message for message in caplog.messages if "racks" in message]
    assert len(racks) == 1


def test_known_racks_outlive_a_failed_read() -> None:
    cluster = Cluster(leaders={0: 1, 1: 2})
    topics = directory(cluster, destination="leader")
    topics.read("flights")
    cluster.leaders, cluster.racks = {0: 1, 1: 3}, AWAY

    facts = topics.read("flights")

    assert facts.destination_zones == ("az1", "")
    assert not facts.is_complete


def test_brokers_without_racks_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        facts = read(Cluster(racks={1: None}), destination="leader", retention_ms="1000")

    assert facts.destination_zones == ("",)
    assert ["broker.rack" in message for message in caplog.messages] == [True]


def test_a_zone_that_no_broker_is_in_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        read(Cluster(), destination="leader", retention_ms="1000", zone="us-east-1a")

    (message,) = caplog.messages
    assert "us-east-1a" in message
    assert "az1, az2" in message


def test_a_zone_that_a_broker_is_in_is_fine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "blobmsg.topics"):
        read(Cluster(), destination="leader", retention_ms="1000", zone="az2")

    assert caplog.messages == []
