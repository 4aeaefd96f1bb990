"""How many records of one partition a group has not read: counted from what Kafka holds.

Decides where the counting begins, what a Kafka record stands for, and when the end is reached.
Knows no client and no clock; keeps counts, no records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blobmsg.core.offsets import records_to_skip, remaining_records, to_kafka, to_virtual
from blobmsg.core.positions import position_of_commit
from blobmsg.format import (
    FormatError,
    Limits,
    Notification,
    UnsupportedFormatError,
    decode_notification,
    is_notification,
)
from blobmsg.format.segment import MAX_SEGMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobmsg.core.offsets import KafkaOffset, VirtualOffset

__all__ = ["PartitionLag"]

# Nothing is fetched, so a segment counts that is longer than this or that consumer would take.
_LIMITS: Final = Limits(MAX_SEGMENT_BYTES, MAX_SEGMENT_BYTES)


class PartitionLag:
    """What a group has not read of one partition.

    Args:
        topic: The partition's topic.
        partition: Its number.
        low: The Kafka offset of the log's start.
        end: Behind the last Kafka record that counts; what comes later does not.

    Attributes:
        position: What the group has committed; None: nothing.
        kafka_records: Kafka records that are not read.
        records: What they stand for.
        unreadable: Notifications among them that can't be read; each counts as one record.
        first_timestamp_ms: Of the first record that is not read; inside of a notification, the
            earliest of that record's segment. None: Kafka has none, or all is read.
        is_done: Whether nothing is left to count.

    Threads: one at a time.
    """

    def __init__(self, topic: str, partition: int, low: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.end = end
        self.position: VirtualOffset | None = None
        self.kafka_records = 0
        self.records = 0
        self.unreadable = 0
        self.first_timestamp_ms: int | None = None
        self._low = low
        self.is_done = low >= end

    @property
    def place(self) -> str:
        """Its name, for people."""
        return f"{self.topic} [{self.partition}]"

    @property
    def committed_kafka_offset(self) -> KafkaOffset | None:
        """Kafka's offset of what is committed; None: nothing is."""
        return None if self.position is None else to_kafka(self.position)

    @property
    def committed_remaining_records(self) -> int | None:
        """How many records of the notification there are not read; None: all, or no commit."""
        return None if self.position is None else remaining_records(self.position)

    @property
    def start(self) -> int:
        """The Kafka offset to read from: what is committed, but not before the log's start."""
        committed = self.committed_kafka_offset
        return self._low if committed is None else max(self._low, committed)

    def committed(self, kafka_offset: int, metadata: str | None) -> str | None:
        """What the group has committed here.

        Args:
            kafka_offset: As Kafka keeps it, not negative.
            metadata: As Kafka keeps it.

        Returns:
            What is wrong with it; it counts as the notification's start then.
        """
        finding = None
        try:
            self.position, _ = position_of_commit(kafka_offset, metadata)
        except UnsupportedFormatError as error:
            self.position = to_virtual(kafka_offset)
            finding = (
                f"{self.place}: {error}; counted from the start of what is at Kafka offset "
                f"{kafka_offset}"
            )
        self.is_done = self.start >= self.end
        return finding

    def received(
        self,
        kafka_offset: int,
        headers: Sequence[tuple[str, bytes | None]] | None,
        value: bytes | None,
        timestamp_ms: int | None,
        *,
        is_append_time: bool,
    ) -> str | None:
        """The next Kafka record, from `start` on; one that lies behind the end does not count.

        Args:
            kafka_offset: Where it lies.
            headers: Its headers.
            value: Its value.
            timestamp_ms: Kafka's timestamp of it; None: it has none.
            is_append_time: That is when the broker took it, which then is its records' time, too.

        Returns:
            What is wrong with it, if it counts but can't be read.
        """
        self.is_done = self.is_done or kafka_offset >= self.end - 1
        if kafka_offset >= self.end:
            return None
        records, finding = 1, None
        if is_notification(headers, value):
            try:
                # `is_notification` says so of no None.
                notification = decode_notification(value or b"", _LIMITS)
            except FormatError as error:
                self.unreadable += 1
                finding = (
                    f"notification in {self.place} at Kafka offset {kafka_offset}: {error}; "
                    "counted as one record"
                )
            else:
                skipped = self._records_to_skip(kafka_offset, notification.records)
                records = notification.records - skipped
                if not self.kafka_records and not is_append_time:
                    timestamp_ms = _timestamp_ms_of_part(notification, skipped)
        if not self.kafka_records:
            self.first_timestamp_ms = timestamp_ms
        self.kafka_records += 1
        self.records += records
        return finding

    def end_reached(self) -> None:
        """Kafka has nothing more now: what lies before the end was marks, or was taken away."""
        self.is_done = True

    def _records_to_skip(self, kafka_offset: int, records: int) -> int:
        return 0 if self.position is None else records_to_skip(self.position, kafka_offset, records)


def _timestamp_ms_of_part(notification: Notification, record_index: int) -> int:
    """The earliest timestamp of the part that holds this record."""
    for part in notification.parts:
        if record_index < part.records:
            return part.first_timestamp_ms
        record_index -= part.records
    raise AssertionError("a position is inside of its notification")
