"""What the driver asks Kafka: which partitions there are, their ends, what is in them.

A shell; decides nothing about batches. Errors say what could not be had and what to do.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs forget it
    AdminClient,
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
)

from blobmsg.config import parse_settings
from blobmsg.consumer import BlobConsumer
from blobmsg.errors import BlobmsgError, CorruptSegment, UnsupportedFormat
from blobmsg.inner_config import admin_config
from blobmsg_spark.kafka_ranges import KafkaRanges
from blobmsg_spark.missing_topic import missing_topic
from blobmsg_spark.offset_ranges import LogBounds
from blobmsg_spark.range_reader import reader_limits, take_notification
from blobmsg_spark.read_session import open_consumer
from blobmsg_spark.topic_metadata import TopicMetadata
from blobmsg_spark.trigger_limits import KafkaRecordSize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from blobmsg.format.notification import Limits
    from blobmsg_spark.offset_ranges import Key
    from blobmsg_spark.source_options import SourceOptions, Subscription
    from blobmsg_spark.trigger_limits import Backlog

__all__ = ["TopicLog"]

_T = TypeVar("_T")

_REQUEST_S: Final = 10.0
_RETRY_UNTIL_S: Final = 30.0
_RETRY_EVERY_S: Final = 0.25
# After an election a log may look shorter than it is.
_SHORT_LOG_S: Final = 5.0
_INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
)
_SILENCE: Final = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
)
_PASSING: Final = (
    *_SILENCE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError._NOENT,  # no leader was found
)
_DENIED: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_SCAN_RECORDS: Final = 500
_SCAN_SLICE_S: Final = 0.1


class TopicLog:
    """Kafka, as the driver of a query sees it.

    Args:
        options: Of the source.

    Attributes:
        checks_offsets: `blobmsg.offset.check`.

    Raises:
        ConfigError: A setting is wrong.

    Threads: one.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        settings, self._kafka_conf = parse_settings(options.conf, os.environ)
        self.checks_offsets = settings.offset_check
        self._limits = reader_limits(settings.record_max_bytes)
        # Opened first: it says which setting librdkafka refuses.
        self._consumer = open_consumer(self._kafka_conf, 0)
        # Not shared: it must know the leaders that `TopicMetadata` has seen.
        self._admin = AdminClient(admin_config(self._kafka_conf))
        self._metadata = TopicMetadata(self._admin, _REQUEST_S)
        is_committed = self._kafka_conf.get("isolation.level", "read_committed") != (
            "read_uncommitted"
        )
        self._isolation = (
            IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        )

    def close(self) -> None:
        """Close the clients."""
        self._consumer.close()

    # --- partitions ---------------------------------------------------------------------------

    def partitions(
        self, subscription: Subscription, *, must_exist: bool, known: Collection[Key] = ()
    ) -> set[Key]:
        """The partitions that are read now.

        Args:
            subscription: What is read.
            must_exist: Whether a topic that is not there is an error; those of a pattern need not.
            known: Asked for again for a while when they are not there: a broker that has just
                started does not know all.

        Raises:
            BlobmsgError: No broker answers, or a topic is missing or may not be read.
        """
        topics = {topic for topic, _ in known if subscription.includes_topic(topic)}
        return _ask_again(
            lambda: self._find_partitions(subscription, topics, must_exist=must_exist),
            lambda found: found.issuperset(known),
        )

    def _find_partitions(
        self, subscription: Subscription, known: Collection[str], *, must_exist: bool
    ) -> set[Key]:
        found: dict[str, Any]
        try:
            if subscription.pattern is None:
                found = self._metadata.named(subscription.topics)
            else:
                found = self._metadata.matching(
                    lambda name: subscription.includes_topic(name) and name not in _INTERNAL, known
                )
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from error
        keys: set[Key] = set()
        for name, topic in found.items():
            if topic.error is not None and topic.error.code() not in (*_GONE, *_PASSING):
                raise _refused(f"topic {name}", topic.error)
            if not topic.partitions:
                if must_exist:
                    raise self._no_topic(name)
                continue
            keys.update((name, partition) for partition in topic.partitions)
        if subscription.partitions is None:
            return keys
        missing = sorted(set(subscription.partitions).difference(keys))
        if missing and must_exist:
            topic_name, partition = missing[0]
            raise BlobmsgError(
                f"assign names {topic_name} [{partition}], but that topic has "
                f"{len(found[topic_name].partitions)} partitions, from 0 on",
                code=KafkaError.UNKNOWN_TOPIC_OR_PART,
            )
        return keys.intersection(subscription.partitions)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Kafka's ids of topics, which a topic that is made anew has not.

        Raises:
            BlobmsgError: No broker answers, or a topic is missing or may not be described.
        """
        asked = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=_REQUEST_S
        )
        return {topic: self._topic_id(topic, answer) for topic, answer in asked.items()}

    def _topic_id(self, topic: str, answer: Any) -> str:
        try:
            return str(answer.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() in _PASSING:
                raise self._unreachable(error.args[0]) from error
            raise _refused(f"topic {topic}", error.args[0]) from error

    def _no_topic(self, name: str) -> BlobmsgError:
        try:
            topics = self._admin.list_topics(timeout=_REQUEST_S).topics
        except KafkaException as error:
            return self._unreachable(error.args[0])
        return missing_topic(name, topics, "option that names it (subscribe, assign)")

    def _unreachable(self, error: KafkaError) -> BlobmsgError:
        servers = self._kafka_conf.get("bootstrap.servers", "the brokers")
        return BlobmsgError(
            f"Kafka at {servers} does not answer: {error.str()}: check kafka.bootstrap.servers, "
            "that this machine reaches it, and the credentials (kafka.security.protocol, "
            "kafka.sasl.*)",
            code=error.code(),
        )

    # --- offsets ------------------------------------------------------------------------------

    def lows(self, keys: Collection[Key], known: Collection[Key] = ()) -> dict[Key, int]:
        """Kafka offsets of the first records; partitions that are gone are left out.

        Args:
            keys: Of these partitions.
            known: Those that have been there; asked again for a while when they are not.
        """
        return self._offsets(keys, _EARLIEST, dict.fromkeys(known, 0))

    def highs(self, keys: Collection[Key], at_least: Mapping[Key, int]) -> dict[Key, int]:
        """Kafka offsets behind the last records that may be read.

        Args:
            keys: Of these partitions; those that are gone are left out.
            at_least: Where they have been before; asked again for a while when they are not there.
        """
        return self._offsets(keys, _LATEST, at_least)

    def bounds(
        self, keys: Collection[Key], at_least: Mapping[Key, int] | None = None
    ) -> dict[Key, LogBounds]:
        """Both ends."""
        highs = self.highs(keys, at_least or {})
        lows = self.lows(keys, at_least or ())
        return {key: LogBounds(lows[key], highs[key]) for key in keys if key in lows and
                key in highs}  # fmt: skip

    def bounds_of_all(
        self, keys: Collection[Key], at_least: Mapping[Key, int] | None = None
    ) -> dict[Key, LogBounds]:
        """Both ends, where no partition may be left out.

        Raises:
            BlobmsgError: Kafka does not know a partition that its metadata has.
        """
        found = self.bounds(keys, {**dict.fromkeys(keys, 0), **(at_least or {})})
        missing = sorted(set(keys).difference(found))
        if missing:
            topic, partition = missing[0]
            raise BlobmsgError(
                f"{topic} [{partition}]: Kafka has it, but does not tell where it begins and ends: "
                "it is just made or deleted; try again when it is there or gone",
                code=KafkaError.UNKNOWN_TOPIC_OR_PART,
                topic=topic,
                partition=partition,
            )
        return found

    def _offsets(
        self, keys: Collection[Key], spec: Any, at_least: Mapping[Key, int]
    ) -> dict[Key, int]:
        """A broker that has just become leader may not know a partition, or not all of it."""
        wanted = {key: at_least[key] for key in keys if key in at_least}
        return _ask_again(
            lambda: self._list_offsets(keys, spec),
            lambda found: all(found.get(key, -1) >= least for key, least in wanted.items()),
        )

    def _list_offsets(self, keys: Iterable[Key], spec: Any) -> dict[Key, int]:
        """Asks again while leaders have to be found, or do not answer."""
        deadline = time.monotonic() + _RETRY_UNTIL_S
        left = set(keys)
        found: dict[Key, int] = {}
        while left:
            failed: dict[Key, KafkaError] = {}
            for key, answer in self._ask_leaders(left, spec).items():
                if not isinstance(answer, KafkaError):
                    found[key] = answer
                elif _may_pass(key, answer):
                    failed[key] = answer
            if not failed:
                break
            if time.monotonic() >= deadline:
                raise self._without_offset(failed)
            left = set(failed)
            time.sleep(_RETRY_EVERY_S)
        return found

    def _without_offset(self, failed: Mapping[Key, KafkaError]) -> BlobmsgError:
        (topic, partition), error = next(iter(failed.items()))
        if error.code() in _SILENCE:
            return self._unreachable(error)
        return BlobmsgError(
            f"{topic} [{partition}]: Kafka has not told for {_RETRY_UNTIL_S:g} s where it begins "
            f"or ends: {error.str()}: see whether the brokers that hold it are up",
            code=error.code(),
            topic=topic,
            partition=partition,
        )

    def _ask_leaders(self, keys: Collection[Key], spec: Any) -> dict[Key, int | KafkaError]:
        """The offset of each partition, or why it is not told.

        Only of those whose leader is known: an admin client that has to look for one itself tells
        that none is there in a way that nobody understands (`_NOENT`), and ends the process now and
        then (`blobmsg.offset_check`).
        """
        answers: dict[Key, int | KafkaError] = {}
        try:
            answers |= self._metadata.without_leader(keys)
        except KafkaException as error:
            return dict.fromkeys(keys, error.args[0])
        asked = {TopicPartition(*key): spec for key in keys if key not in answers}
        if asked:
            told = self._admin.list_offsets(
                asked, isolation_level=self._isolation, request_timeout=_REQUEST_S
            )
            answers |= {
                (place.topic, place.partition): _offset_or_error(answer)
                for place, answer in told.items()
            }
        self._metadata.forget(
            topic for (topic, _), answer in answers.items() if isinstance(answer, KafkaError)
        )
        return answers

    def at_times(self, times: Mapping[Key, int]) -> dict[Key, int | None]:
        """Virtual offsets of the first records that are as late; None where there is none.

        Args:
            times: ms since 1970 UTC.
        """
        if not times:
            return {}
        asked = [TopicPartition(*key, time_ms) for key, time_ms in times.items()]
        consumer = BlobConsumer(dict(self._options.conf))
        try:
            answers = consumer.offsets_for_times(asked, timeout=2 * _RETRY_UNTIL_S)
        except KafkaException as error:
            if isinstance(error, BlobmsgError):
                raise
            raise self._unreachable(error.args[0]) from error
        finally:
            consumer.close()
        return {
            (answer.topic, answer.partition): answer.offset if answer.offset >= 0 else None
            for answer in answers
        }

    # --- sizes --------------------------------------------------------------------------------

    def extend(
        self,
        backlogs: Mapping[Key, Backlog],
        needs: Mapping[Key, int],
        kafka_stops: Mapping[Key, int],
        *,
        by_bytes: bool,
    ) -> None:
        """Learn more of what lies in some partitions.

        Args:
            backlogs: Added to.
            needs: How much more must be known, records or bytes.
            kafka_stops: Nothing is read from there on.
            by_bytes: Which of them.
        """
        ranges = {key: (backlogs[key].known_until, kafka_stops[key]) for key in needs}
        kafka = KafkaRanges(
            self._consumer,
            ranges,
            fail_on_data_loss=self._options.fail_on_data_loss,
            poll_timeout_ms=self._options.poll_timeout_ms,
        )
        missing = dict(needs)
        satisfied: set[Key] = set()
        try:
            while kafka.open_keys:
                for message in kafka.receive(_SCAN_RECORDS, _SCAN_SLICE_S):
                    key = (message.topic(), message.partition())
                    size = _size_of(message, self._limits)
                    backlogs[key].add(size)
                    missing[key] -= size.size_bytes if by_bytes else size.records
                enough = {key for key in kafka.open_keys if missing[key] <= 0}
                satisfied |= enough
                kafka.finish(enough)
        finally:
            self._consumer.unassign()
        for key in needs:
            if key not in satisfied:
                backlogs[key].nothing_until(kafka_stops[key])


def _size_of(message: Any, limits: Limits) -> KafkaRecordSize:
    try:
        notification = take_notification(message, limits)
    except (CorruptSegment, UnsupportedFormat):
        return KafkaRecordSize(message.offset(), 1, 0)  # the task that reads it says what is wrong
    if notification is None:
        size_bytes = len(message.key() or b"") + len(message.value() or b"")
        return KafkaRecordSize(message.offset(), 1, size_bytes)
    size_bytes = sum(part.uncompressed_bytes for part in notification.parts)
    return KafkaRecordSize(message.offset(), notification.records, size_bytes)


def _ask_again(ask: Callable[[], _T], is_enough: Callable[[_T], bool]) -> _T:
    """What is told; asked for again for a while, and at least once, where it is not enough."""
    deadline: float | None = None  # from the first such answer on, however late that comes
    while True:
        answer = ask()
        now = time.monotonic()
        if is_enough(answer) or (deadline is not None and now >= deadline):
            return answer
        if deadline is None:
            deadline = now + _SHORT_LOG_S
        time.sleep(_RETRY_EVERY_S)


def _offset_or_error(answer: Any) -> int | KafkaError:
    try:
        offset: int = answer.result().offset
    except KafkaException as exception:
        error: KafkaError = exception.args[0]
        return error
    # So librdkafka (2.16) puts it where a leader has not answered at all.
    return offset if offset >= 0 else KafkaError(KafkaError._TRANSPORT)


def _may_pass(key: Key, error: KafkaError) -> bool:
    """Whether asking again may help; False: the partition is gone.

    Raises:
        BlobmsgError: Something else is wrong.
    """
    if error.code() in _GONE:
        return False
    if error.retriable() or error.code() in _PASSING:
        return True
    topic, partition = key
    raise _refused(f"{topic} [{partition}]", error)


def _refused(what: str, error: KafkaError) -> BlobmsgError:
    advice = "see the brokers' logs"
    if error.code() in _DENIED:
        advice = (
            "check the permissions of this user (Read and Describe) and the credentials "
            "(kafka.sasl.*)"
        )
    return BlobmsgError(f"{what} can't be read: {error.str()}: {advice}", code=error.code())
