"""What a task of the sink tells the driver: the notifications of what it has stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

__all__ = ["SinkMessage", "SinkNotification"]


class SinkNotification(NamedTuple):
    """A notification that nobody sees yet.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        timestamp_ms: The latest of its records.
        value: What the Kafka record has.
        records: For how many records it stands.
    """

    topic: str
    partition: int
    timestamp_ms: int
    value: bytes
    records: int


@dataclass(frozen=True, slots=True)
class SinkMessage(WriterCommitMessage):
    """Of one task that has written all its rows.

    Attributes:
        query_id: Of the streaming query; None in a batch.
        notifications: In the order in which they must be made visible.
        commit_by_ms: Wall time until when that must have happened, for objects expire; None: any.
    """

    query_id: str | None
    notifications: tuple[SinkNotification, ...]
    commit_by_ms: int | None
