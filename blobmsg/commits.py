"""The group's positions, exact to the record: stored, committed, and asked for.

A shell around `StoredPositions`. Decides when what can't be read is asked for again, and when it is
time for the next automatic commit.
"""

from __future__ import annotations

import logging
import time
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from blobmsg.core.positions import CommitEntry, StoredPositions, commit_entry, position_of_commit
from blobmsg.errors import UnsupportedFormat
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.message import Message

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from blobmsg.core.debatcher import Debatcher, FlowKey
    from blobmsg.handout import Handout
    from blobmsg.kafka_settings import KafkaView
    from blobmsg.rare_log import RareLog

__all__ = ["RESOLVE_AGAIN_S", "Commits", "commit_entries", "partitions_of"]

logger = logging.getLogger("blobmsg.consumer")

# Also in a poll that was to wait for nothing, which ends within a second all the same.
_COMMITTED_TIMEOUT_S: Final = 0.7
RESOLVE_AGAIN_S: Final = 0.5
_REFUSED_AGAIN_S: Final = 30.0
# Answers that stay until a person does something.
_REFUSALS: Final = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.INVALID_GROUP_ID,
    }
)


class Commits:
    """What is stored, and what Kafka has of it.

    Args:
        inner: The stock consumer.
        core: Knows the assigned partitions.
        handout: Knows what the user has got.
        view: The user's librdkafka settings that we interpret.
        lock: The consumer's; guards `positions`.
        log: Takes warnings.
        on_commit: Hears of the synchronous commits that nobody asked for; must not raise. None: the
            log hears of their errors.
        monotonic_s: The monotonic time in seconds.

    Attributes:
        is_automatic: Whether `enable.auto.commit` is on.
        stores_automatically: Whether `enable.auto.offset.store` is on.

    Threads: any that may call the inner consumer; whoever uses `positions` holds the lock.
    """

    def __init__(
        self,
        inner: Any,
        core: Debatcher,
        handout: Handout,
        view: KafkaView,
        *,
        lock: threading.RLock,
        log: RareLog,
        on_commit: Callable[[KafkaError | None, list[TopicPartition]], None] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._core = core
        self._handout = handout
        self._lock = lock
        self._log = log
        self._on_commit = on_commit
        self._monotonic_s = monotonic_s
        self.is_automatic = view.enable_auto_commit
        self.stores_automatically = view.enable_auto_offset_store
        self._interval_s = view.auto_commit_interval_ms / 1000
        self._next_commit = 0.0
        self.positions = StoredPositions()

    def look_up(
        self, keys: list[FlowKey]
    ) -> tuple[dict[FlowKey, int], dict[FlowKey, float], list[Message]]:
        """Ask for committed positions.

        Returns:
            Positions (OFFSET_INVALID: none); of those that can't be had now (in an open
            transaction, without a broker, of a later version of blobmsg), when to ask again; and
            errors for the user, of what will not pass by itself.
        """
        answers: list[TopicPartition] = []
        found: dict[FlowKey, int] = {}
        refusals: list[Message] = []
        failure: KafkaError | None = None
        try:
            answers = self._inner.committed(
                list(starmap(TopicPartition, keys)), timeout=_COMMITTED_TIMEOUT_S
            )
        except KafkaException as problem:
            failure = problem.args[0]  # the exception has this frame, which must not have it, too
        # From the end of the question on: else the same poll would ask again, and again.
        unresolved = dict.fromkeys(keys, self._monotonic_s() + RESOLVE_AGAIN_S)

        def refuse(key: FlowKey, error: KafkaError) -> None:
            refusals.append(Message(*key, None, value=error.str().encode(), error=error))
            unresolved[key] = self._monotonic_s() + _REFUSED_AGAIN_S

        if failure is not None:
            if failure.code() in _REFUSALS:
                for key in keys:
                    refuse(key, failure)
            else:
                self._log(f"committed offsets can't be read yet: {failure}", cause="committed")
        for answer in answers:
            key = (answer.topic, answer.partition)
            if answer.error is not None:
                if answer.error.code() in _REFUSALS:
                    refuse(key, answer.error)
                    continue
                text = f"the committed offset of {key[0]} [{key[1]}] can't be read yet: "
                self._log(f"{text}{answer.error}", cause=f"committed {key}")
                continue
            position = OFFSET_INVALID
            if answer.offset >= 0:
                try:
                    position, user_metadata = position_of_commit(answer.offset, answer.metadata)
                except UnsupportedFormatError as problem:
                    text = f"the committed offset of {key[0]} [{key[1]}] can't be read: {problem}"
                    refuse(key, UnsupportedFormat(text).kafka_error)
                    continue
                with self._lock:
                    self.positions.committed(key, position, user_metadata)
            found[key] = position
            unresolved.pop(key, None)  # a partition may have been given twice
        return found, unresolved, refusals

    def commit(
        self, entries: list[CommitEntry], *, asynchronous: bool
    ) -> list[TopicPartition] | None:
        """Commit to Kafka; with the answer's partitions as Kafka has them when synchronous."""
        offsets = partitions_of(entries)
        with self._lock:
            self.positions.sent(entries)
        if asynchronous:
            self._inner.commit(offsets=offsets, asynchronous=True)
            return None
        answers: list[TopicPartition] = self._inner.commit(offsets=offsets, asynchronous=False)
        self.confirmed(answers, entries)
        return answers

    def confirmed(
        self, answers: Iterable[TopicPartition], entries: Iterable[CommitEntry] | None = None
    ) -> None:
        """Kafka has answered a commit: remember what it has of assigned partitions."""
        metadata_of = {(e.topic, e.partition): e.metadata for e in entries or ()}
        with self._lock:
            for answer in answers:
                key = (answer.topic, answer.partition)
                if answer.error is None and answer.offset >= 0 and key in self._core.flows:
                    metadata = metadata_of.get(key, answer.metadata)
                    self.positions.committed(key, *position_of_commit(answer.offset, metadata))

    # --- stored positions ---------------------------------------------------------------------

    def store(self, key: FlowKey, position: int, metadata: str | None) -> None:
        """Remember a position for the next commit.

        Raises:
            KafkaException: `_STATE` when the partition is not assigned.
        """
        with self._lock:
            if key not in self._core.flows:
                raise KafkaException(
                    KafkaError(KafkaError._STATE, f"{key[0]} [{key[1]}] is not assigned")
                )
            self.positions.store(key, position, metadata)

    def stored_changes(self, keys: Iterable[FlowKey]) -> list[CommitEntry]:
        """What a commit of these partitions contains now."""
        with self._lock:
            wanted = [key for key in keys if key in self._core.flows]
            if self.stores_automatically:
                for key, position in self._handout.positions(wanted).items():
                    if position is None:
                        position = self._core.flows[key].position_before_seek
                    if position is not None:
                        self.positions.store(key, position)
            return self.positions.changed(wanted)

    def commit_stored(self, keys: Iterable[FlowKey], *, asynchronous: bool) -> None:
        """Commit what changed; nobody waits for it, so `on_commit` hears of it, or the log."""
        entries = self.stored_changes(keys)
        if not entries:
            return
        try:
            answers = self.commit(entries, asynchronous=asynchronous)
        except KafkaException as error:
            self._tell(error.args[0], [])
        else:
            if answers is not None:
                self._tell(None, answers)

    def _tell(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if self._on_commit is None:
            self.tell_log(error, partitions)
        else:
            self._on_commit(error, partitions)

    def tell_log(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Log what a commit that nobody waits for was answered, if it is an error."""
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            self._log(f"commit failed: {error}", cause="commit")
        for partition in partitions:
            if partition.error is not None:
                place = f"{partition.topic} [{partition.partition}]"
                self._log(f"commit of {place} failed: {partition.error}", cause=place)

    def commit_when_due(self, keys: Callable[[], Iterable[FlowKey]]) -> None:
        """Commit what is stored if the interval for it is over.

        Args:
            keys: Gives the assigned partitions.
        """
        if not self._interval_s:
            return
        now = self._monotonic_s()
        if now < self._next_commit:
            return
        is_first = self._next_commit == 0.0
        self._next_commit = now + self._interval_s
        if not is_first:
            self.commit_stored(keys(), asynchronous=True)


def commit_entries(
    partitions: Iterable[TopicPartition],
) -> list[CommitEntry]:
    """What a commit of a user's offsets contains.

    Raises:
        KafkaException: `_INVALID_ARG` when metadata exceeds Kafka's 4,096 bytes.
    """
    try:
        return [commit_entry((p.topic, p.partition), p.offset, p.metadata) for p in partitions]
    except FormatError as error:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, str(error))) from error


def partitions_of(entries: Iterable[CommitEntry]) -> list[TopicPartition]:
    """What is committed, as the inner clients take it."""
    return [
        TopicPartition(e.topic, e.partition, e.kafka_offset, e.metadata)
        if e.metadata is not None
        else TopicPartition(e.topic, e.partition, e.kafka_offset)
        for e in entries
    ]
