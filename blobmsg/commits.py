"""The group's committed positions: asked for, and committed explicitly, exact to the record.

A shell around `StoredPositions`. Decides when what can't be read is asked for again.
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

    from blobmsg.core.debatcher import FlowKey
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
        lock: The consumer's; guards `positions`.
        log: Takes warnings.
        monotonic_s: The monotonic time in seconds.

    Threads: any that may call the inner consumer; whoever uses `positions` holds the lock.
    """

    def __init__(
        self,
        inner: Any,
        lock: threading.RLock,
        log: RareLog,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._lock = lock
        self._log = log
        self._monotonic_s = monotonic_s
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
        failure: KafkaException | None = None
        try:
            answers = self._inner.committed(
                list(starmap(TopicPartition, keys)), timeout=_COMMITTED_TIMEOUT_S
            )
        except KafkaException as problem:
            failure = problem
        # From the end of the question on: else the same poll would ask again, and again.
        unresolved = dict.fromkeys(keys, self._monotonic_s() + RESOLVE_AGAIN_S)

        def refuse(key: FlowKey, error: KafkaError) -> None:
            refusals.append(Message(*key, None, value=error.str().encode(), error=error))
            unresolved[key] = self._monotonic_s() + _REFUSED_AGAIN_S

        if failure is not None:
            if failure.args[0].code() in _REFUSALS:
                for key in keys:
                    refuse(key, failure.args[0])
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
        """Kafka has answered a commit: remember what it has."""
        metadata_of = {(e.topic, e.partition): e.metadata for e in entries or ()}
        with self._lock:
            for answer in answers:
                if answer.error is None and answer.offset >= 0:
                    key = (answer.topic, answer.partition)
                    metadata = metadata_of.get(key, answer.metadata)
                    self.positions.committed(key, *position_of_commit(answer.offset, metadata))


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
