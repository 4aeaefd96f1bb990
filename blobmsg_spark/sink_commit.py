"""What tasks of the sink have stored becomes visible: one Kafka transaction for all of it.

Decides whether a micro-batch is written already. Its number stands in a marker, which is committed
in the same transaction: an offset with metadata, of a group named after the query. So a micro-batch
that Spark runs again, because the driver ended before it wrote down that it was done, is found
there. Transactions of one query have one transactional id: whoever begins fences who was before,
and whatever was open is aborted, or ends as it was to end, before the marker is read. While nobody
does, the marker is what the same client has written.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.errors import BlobmsgError
from blobmsg.forks import forget_after_fork
from blobmsg.format.notification import HEADER_NAME, HEADER_VALUE
from blobmsg.group_commits import committed, find_commits
from blobmsg.inner_config import admin_config
from blobmsg.resources import freeze
from blobmsg_spark.sink_options import open_producer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Sequence

    from blobmsg_spark.sink_message import SinkNotification

__all__ = ["SinkTransaction", "batch_number", "commit_micro_batch", "marker_metadata"]

logger = logging.getLogger("blobmsg.spark")

# Bound at import: an application may replace confluent_kafka.Consumer by ours.
_StockConsumer: Final = confluent_kafka.Consumer
_HEADERS: Final = [(HEADER_NAME, HEADER_VALUE)]
# For one step that Kafka does not answer; longer than the 60 s after which it ends a transaction
# that nobody ended.
_STEP_S: Final = 120.0
_REQUEST_S: Final = 10.0
# Within one attempt of those of a step; behind it a refusal is found.
_COMMITTED_S: Final = 2.0
_RETRY_EVERY_S: Final = 0.1
# Reports are taken so often while notifications are handed over.
_POLL_EVERY: Final = 1000
_MARKER: Final = re.compile(r"blobmsg-spark1:batch=([0-9]{1,19})")

_REMEDIES: Final[dict[int, str]] = {
    KafkaError.INVALID_RECORD: "Kafka refuses records without a key on compacted topics: if it was "
    "made compacted, write it with spark-sql-kafka, or set its cleanup.policy to delete",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic, or lower "
    "kafka.message.max.bytes below it",
    KafkaError._MSG_TIMED_OUT: "brokers did not take it in time: see that they are reachable, or "
    "raise kafka.transaction.timeout.ms",
    KafkaError.INVALID_TIMESTAMP: "a timestamp is further away than "
    "message.timestamp.before.max.ms or message.timestamp.after.max.ms of the topic allow",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user needs Write and, for the marker of a stream, "
    "Read on it",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "this user needs Read on groups of "
    "transactionalIdPrefix",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs Write and Describe on "
    "transactional ids of transactionalIdPrefix",
    KafkaError._UNKNOWN_PARTITION: "the topic was deleted or made anew while the job ran",
    KafkaError._UNKNOWN_TOPIC: "the topic was deleted while the job ran",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic was deleted while the job ran",
}
_FENCED: Final = (
    KafkaError._FENCED,  # noqa: SLF001  (a public code of librdkafka)
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)
_REMEDIES.update(
    dict.fromkeys(_FENCED, "another run of this query has taken over: end one of them")
)
# Of the group's coordinator, of which the consumer does not say that they may pass.
_PASSING: Final = (
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
)
# Clients that a worker of Spark keeps for the next micro-batches: one query commits in one worker.
_KEPT_CLIENTS: Final = 4


def marker_metadata(batch_id: int) -> str:
    """What a marker says beside its offset."""
    return f"blobmsg-spark1:batch={batch_id}"


def batch_number(metadata: str | None) -> int:
    """The micro-batch that a marker tells of; -1: it is none."""
    found = _MARKER.fullmatch(metadata or "")
    return -1 if found is None else int(found.group(1))


class SinkTransaction:
    """Makes notifications visible, all or none.

    Args:
        kafka_conf: The user's settings for librdkafka.
        name: Transactional id, and group of the markers.

    Attributes:
        is_lost: Kafka takes nothing more from this client, for another one has its place.

    Raises:
        ConfigError: librdkafka refuses a setting.

    Threads: one.
    """

    def __init__(self, kafka_conf: dict[str, Any], name: str) -> None:
        self._kafka_conf = kafka_conf
        self._name = name
        self._producer = open_producer(kafka_conf, name)
        self._last_batch: int | None = None  # that is written; None: not asked yet
        self.is_lost = False
        self._is_outcome_open = False  # of a commit that had no answer
        self._failure: tuple[KafkaError, str, int] | None = None  # of a notification, the first one

    def commit(self, notifications: Sequence[SinkNotification], batch_id: int | None) -> bool:
        """Make them visible.

        Args:
            notifications: In order; at least one.
            batch_id: Of the micro-batch; None: of a batch, which is written as often as it is asked
                for.

        Returns:
            Whether they are now; False: they were written before.

        Raises:
            BlobmsgError: They are not, and never will be, unless it says that nobody knows. This
                object is of no more use.
        """
        if self._last_batch is None:
            self._do("begin", self._producer.init_transactions)
            topics = {found.topic for found in notifications}
            self._last_batch = -1 if batch_id is None else self._find_last_batch(topics)
        if batch_id is not None and batch_id <= self._last_batch:
            log = logger.info if batch_id == self._last_batch else logger.warning
            last = self._last_batch
            log("micro-batch %d was written before (the last is %d)", batch_id, last)
            return False
        self._do("begin", lambda _: self._producer.begin_transaction())
        try:
            self._produce(notifications)
            if batch_id is not None:
                self._mark({found.topic for found in notifications}, batch_id)
            self._do("commit", self._producer.commit_transaction)
        except BaseException:
            self._abort()
            raise
        self._last_batch = batch_id
        return True

    # --- steps ------------------------------------------------------------------------------------

    def _produce(self, notifications: Sequence[SinkNotification]) -> None:
        for number, found in enumerate(notifications):
            deadline = time.monotonic() + _STEP_S
            while not self._is_handed_over(found):
                if time.monotonic() >= deadline:
                    raise self._failed(
                        "produce", KafkaError(KafkaError._TIMED_OUT, "the queue stays full")
                    )
                self._serve(self._producer.poll, _RETRY_EVERY_S)
            if number % _POLL_EVERY == 0:
                self._serve(self._producer.poll, 0)
        # Reports of what fails come before commit_transaction would say that something has.
        while self._serve(self._producer.flush, _RETRY_EVERY_S):
            pass

    def _serve(self, step: Callable[[float], Any], timeout_s: float) -> int:
        """Take reports; raises what failed. The client's answer."""
        answer = _try(step, timeout_s)
        self._raise_failure()
        if isinstance(answer, KafkaError):  # fenced, for example
            raise self._failed("produce", answer)
        found: int = answer
        return found

    def _is_handed_over(self, found: SinkNotification) -> bool:
        try:
            self._producer.produce(
                found.topic,
                value=found.value,
                partition=found.partition,
                headers=_HEADERS,
                timestamp=max(0, found.timestamp_ms),
                on_delivery=self._delivered,
            )
        except BufferError:
            return False
        except KafkaException as error:
            self._failure = (error.args[0], found.topic, found.partition)
            self._raise_failure()
        return True

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = (error, message.topic(), message.partition())

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        error, topic, partition = self._failure
        self.is_lost = self.is_lost or error.fatal() or error.code() in _FENCED
        remedy = _REMEDIES.get(error.code())
        raise BlobmsgError(
            f"a notification of {topic} [{partition}] was not taken: {error.str()}"
            f"{f': {remedy}' if remedy else ''}. Nothing of this batch is visible",
            code=error.code(),
            topic=topic,
            partition=partition,
        )

    def _mark(self, topics: set[str], batch_id: int) -> None:
        """On every topic, for one that is deleted takes its marker with it."""
        # The broker wants a topic that is there, and asks nothing about the offset.
        markers = [
            TopicPartition(topic, 0, batch_id, metadata=marker_metadata(batch_id))
            for topic in sorted(topics)
        ]
        with self._group() as group:
            metadata = group.consumer_group_metadata()
        self._do(
            "mark",
            lambda timeout: self._producer.send_offsets_to_transaction(markers, metadata, timeout),
        )

    def _find_last_batch(self, topics: set[str]) -> int:
        """The last micro-batch that is written; -1: none is.

        Args:
            topics: Of this one: the broker that is asked for all may not know the newest yet.
        """
        with self._group() as group:
            last: int = self._do("read the marker", lambda _: _read_marker(group, topics))
        return last

    @contextlib.contextmanager
    def _group(self) -> Generator[Any]:
        """A client with the group's name; whatever transaction is open there, it waits for."""
        conf = {
            **admin_config(self._kafka_conf),
            "group.id": self._name,
            "isolation.level": "read_committed",
        }
        group = _StockConsumer(conf)
        try:
            yield group
        finally:
            group.close()

    # --- outcomes ---------------------------------------------------------------------------------

    def _do(self, what: str, step: Callable[[float], Any]) -> Any:
        """Do a step, again and again while Kafka says that it may pass."""
        deadline = time.monotonic() + _STEP_S
        while True:
            failure = _try(step, max(1.0, deadline - time.monotonic()))
            if not isinstance(failure, KafkaError):
                return failure
            if not failure.retriable() or time.monotonic() >= deadline:
                raise self._failed(what, failure)
            time.sleep(_RETRY_EVERY_S)

    def _failed(self, what: str, error: KafkaError) -> BlobmsgError:
        self.is_lost = self.is_lost or error.fatal() or error.code() in _FENCED
        if what == "commit" and error.retriable():
            self._is_outcome_open = True
            text = (
                "nobody knows whether this batch is visible. A stream finds out when it is started "
                "again; of a batch write look before you repeat it"
            )
        else:
            text = _REMEDIES.get(error.code(), "nothing of this batch is visible")
        return BlobmsgError(
            f"the sink's transaction {self._name} failed to {what}: {error.str()}: {text}",
            code=error.code(),
        )

    def _abort(self) -> None:
        """Kafka would do so by itself after `transaction.timeout.ms`, holding readers up until."""
        if self._is_outcome_open:  # it may be committed, and can't be aborted any more
            return
        failure = _try(self._producer.abort_transaction, _REQUEST_S)
        if isinstance(failure, KafkaError):
            logger.warning(
                "transaction %s could not be aborted, Kafka will: %s", self._name, failure.str()
            )


def _read_marker(group: Any, topics: set[str]) -> int:
    """The last micro-batch that a client of the group finds, of these and all topics; -1: none."""
    try:
        names = topics.union(group.list_topics(timeout=_REQUEST_S).topics)
        commits = find_commits(
            lambda places: committed(group, places, _COMMITTED_S),
            ((topic, 0) for topic in sorted(names)),
        )
        return max((batch_number(place.metadata) for place in commits), default=-1)
    except KafkaException as failure:
        raise KafkaException(_that_may_pass(failure.args[0])) from failure


def _that_may_pass(error: KafkaError) -> KafkaError:
    """The error of a consumer, which says whether it may pass."""
    may_pass = error.retriable() or error.code() in _PASSING
    return KafkaError(error.code(), error.str(), retriable=may_pass)


_kept: dict[Hashable, SinkTransaction] = {}


def _forget() -> object:
    had = dict(_kept)
    _kept.clear()
    return had


forget_after_fork(_forget)


def commit_micro_batch(
    kafka_conf: dict[str, Any], name: str, notifications: Sequence[SinkNotification], batch_id: int
) -> bool:
    """Make a micro-batch visible, once; the client is kept for the next one.

    Args:
        kafka_conf: See `SinkTransaction`, likewise the others.
        name: Of the query.
        notifications: In order; at least one.
        batch_id: Of the micro-batch.

    Returns:
        Whether it is now; False: it was before.

    Raises:
        BlobmsgError: As `SinkTransaction.commit`.

    Threads: one.
    """
    key = (name, freeze(kafka_conf))
    transaction = _kept.pop(key, None)
    is_new: bool | None = None
    if transaction is not None:
        try:
            is_new = transaction.commit(notifications, batch_id)
        except BlobmsgError:
            # Another worker has committed for this query since. A client that begins anew sees by
            # the marker what it did, and also whether what we tried has come to pass.
            if not transaction.is_lost:
                raise
    if transaction is None or is_new is None:
        transaction = SinkTransaction(kafka_conf, name)
        is_new = transaction.commit(notifications, batch_id)
    _kept[key] = transaction
    while len(_kept) > _KEPT_CLIENTS:
        del _kept[next(iter(_kept))]
    return is_new


def _try(step: Callable[[float], Any], timeout_s: float) -> Any:
    """What a step gives, or the error with which it ended."""
    try:
        return step(timeout_s)
    except KafkaException as error:
        return error.args[0]
