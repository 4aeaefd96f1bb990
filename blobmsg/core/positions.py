"""Stored and committed positions of a consumer, exact to the record.

Decides what a commit contains: per partition the Kafka offset K and, in its metadata, how many of
the last records of K's notification remain (DESIGN.md, Offsets). A position counts as changed when
(K, remaining) or the user's metadata changed since it was last committed; librdkafka's own rule
(the offset number grew) would lose positions inside one notification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from blobmsg.core.offsets import VirtualOffset, position_in, remaining_records, to_kafka
from blobmsg.format.commit_metadata import decode_commit_metadata, encode_commit_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CommitEntry", "StoredPositions", "commit_entry", "position_of_commit"]

FlowKey: TypeAlias = tuple[str, int]


class CommitEntry(NamedTuple):
    """One partition of a commit, as Kafka keeps it."""

    topic: str
    partition: int
    kafka_offset: int
    metadata: str | None


def commit_entry(key: FlowKey, position: int, user_metadata: str | None) -> CommitEntry:
    """Translate a position into what is committed to Kafka.

    Args:
        key: Topic and partition.
        position: A virtual offset; negative logical offsets pass unchanged.
        user_metadata: The user's own metadata.

    Raises:
        FormatError: Both together exceed Kafka's 4,096 bytes.
    """
    if position < 0:
        return CommitEntry(*key, position, user_metadata)
    metadata = encode_commit_metadata(remaining_records(position), user_metadata)
    return CommitEntry(*key, to_kafka(position), metadata)


def position_of_commit(kafka_offset: int, metadata: str | None) -> tuple[VirtualOffset, str | None]:
    """Translate what Kafka keeps into a position and the user's own metadata.

    Args:
        kafka_offset: The committed offset, not negative.
        metadata: Its metadata; foreign or malformed text means the start of the notification.

    Raises:
        UnsupportedFormatError: The metadata is of a later version: a guess would skip or repeat.
    """
    remaining, user_metadata, _ = decode_commit_metadata(metadata)
    return position_in(kafka_offset, remaining), user_metadata


class StoredPositions:
    """What the next commit without arguments contains. Threads: under the consumer's lock."""

    def __init__(self) -> None:
        self._stored: dict[FlowKey, CommitEntry] = {}
        self._committed: dict[FlowKey, CommitEntry] = {}

    def store(self, key: FlowKey, position: int, user_metadata: str | None = None) -> None:
        """Remember a position for the next commit.

        Raises:
            FormatError: Its metadata exceeds Kafka's 4,096 bytes; what was stored stays.
        """
        self._stored[key] = commit_entry(key, position, user_metadata)

    def changed(self, keys: Iterable[FlowKey]) -> list[CommitEntry]:
        """What of these partitions must be committed, because it changed since the last time."""
        return [
            stored
            for key in keys
            if (stored := self._stored.get(key)) is not None and stored != self._committed.get(key)
        ]

    def sent(self, entries: Iterable[CommitEntry]) -> None:
        """A commit is on its way; until Kafka confirms it nobody knows what the group has."""
        for entry in entries:
            key = (entry.topic, entry.partition)
            if self._committed.get(key) != entry:
                self._committed.pop(key, None)

    def committed(self, key: FlowKey, position: int, user_metadata: str | None) -> None:
        """A commit of this position was confirmed, or it is what the group had committed."""
        self._committed[key] = commit_entry(key, position, user_metadata)

    def forget(self, key: FlowKey) -> None:
        """The partition is not ours any more."""
        self._stored.pop(key, None)
        self._committed.pop(key, None)
