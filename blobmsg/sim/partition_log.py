"""One partition as its leader keeps it: records, idempotent producers, open transactions.

Decides what Kafka's leader decides: which offset a record gets, whether a batch is a repeat, how
far a `read_committed` reader sees. Written from what clients of real Kafka see
(`tests/integration/test_virtual_broker.py` compares them).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LogRecord", "PartitionLog", "SentMessage"]

# So many of a producer's last batches does Kafka remember in each partition.
_BATCHES_KEPT: Final = 5


@dataclass(slots=True)
class SentMessage:
    """What a client sends.

    Attributes:
        key: The record's key.
        value: Its value.
        headers: Its headers.
        timestamp_ms: Its time.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int


@dataclass(slots=True)
class LogRecord:
    """A record of the log.

    Attributes:
        offset: Its place.
        message: What was sent; None: a control record, the end of a transaction.
        producer: The producer's id and epoch; (-1, -1): none.
        is_transactional: It belongs to a transaction.
        is_commit: Of a control record: committed, not aborted.
        visible_ms: When readers get it, as soon as its transaction lets them.
    """

    offset: int
    message: SentMessage | None
    producer: tuple[int, int]
    is_transactional: bool
    is_commit: bool
    visible_ms: int


@dataclass(slots=True)
class _ProducerState:
    epoch: int
    next_sequence: int = 0
    batches: deque[tuple[int, int, int]] = field(  # first sequence, messages, offset
        default_factory=lambda: deque(maxlen=_BATCHES_KEPT)
    )


class PartitionLog:
    """A partition.

    Attributes:
        records: All that was ever appended, also what retention has deleted.
        start: The first offset that is still there.
        open_since: Of each transaction that is open here: its first offset, by producer id.
        aborted: Of each aborted transaction: producer id, its first offset, its control record's.
    """

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.start = 0
        self.open_since: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self._producers: dict[int, _ProducerState] = {}

    @property
    def end(self) -> int:
        """The offset of the next record; the high watermark."""
        return len(self.records)

    def end_at(self, at_ms: int) -> int:
        """What the end was at some time, for readers; not before the log's start."""
        end = self.end
        while end > self.start and self.records[end - 1].visible_ms > at_ms:
            end -= 1
        return end

    @property
    def last_stable(self) -> int:
        """The first offset that a `read_committed` reader does not see yet."""
        return min(self.open_since.values(), default=self.end)

    def append(
        self,
        producer: tuple[int, int],
        first_sequence: int,
        messages: Sequence[SentMessage],
        *,
        is_transactional: bool,
        visible_ms: int,
    ) -> tuple[int | None, int]:
        """Append a batch of one producer.

        Args:
            producer: Id and epoch.
            first_sequence: Counts the producer's messages of this partition and epoch.
            messages: The batch.
            is_transactional: It belongs to the producer's transaction.
            visible_ms: When readers get it.

        Returns:
            The first one's offset, or that of the batch as it was appended before; None when that
            is not known any more. And an error code: 0 for none.
        """
        producer_id, epoch = producer
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = _ProducerState(epoch)
        if epoch < state.epoch:
            return None, KafkaError.INVALID_PRODUCER_EPOCH
        if epoch > state.epoch:
            state = self._producers[producer_id] = _ProducerState(epoch)
        for first, count, offset in state.batches:
            if first == first_sequence and count == len(messages):
                return offset, 0
        if first_sequence < state.next_sequence:
            return None, KafkaError.DUPLICATE_SEQUENCE_NUMBER
        if first_sequence > state.next_sequence:
            return None, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        base = self.end
        for message in messages:
            self.records.append(
                LogRecord(self.end, message, producer, is_transactional, False, visible_ms)
            )
        state.next_sequence += len(messages)
        state.batches.append((first_sequence, len(messages), base))
        if is_transactional:
            self.open_since.setdefault(producer_id, base)
        return base, 0

    def end_transaction(
        self, producer: tuple[int, int], *, is_commit: bool, visible_ms: int
    ) -> None:
        """Write the control record of a transaction that has this partition."""
        producer_id, epoch = producer
        first = self.open_since.pop(producer_id, None)
        if first is not None and not is_commit:
            self.aborted.append((producer_id, first, self.end))
        record = LogRecord(self.end, None, producer, True, is_commit, visible_ms)
        self.records.append(record)
        state = self._producers.get(producer_id)
        if state is not None and epoch > state.epoch:
            self._producers[producer_id] = _ProducerState(epoch)

    def is_aborted(self, record: LogRecord) -> bool:
        """Whether a record belongs to a transaction that was aborted."""
        return record.is_transactional and any(
            producer_id == record.producer[0] and first <= record.offset < last
            for producer_id, first, last in self.aborted
        )

    def next_readable(self, offset: int, now_ms: int, *, is_committed: bool) -> LogRecord | None:
        """The first record from this offset on that a reader gets now.

        Args:
            offset: Not before the log's start.
            now_ms: Virtual time.
            is_committed: The reader is `read_committed`.
        """
        end = self.last_stable if is_committed else self.end
        records = self.records
        while offset < end:
            record = records[offset]
            if record.visible_ms > now_ms:
                return None
            if record.message is not None and not (is_committed and self.is_aborted(record)):
                return record
            offset += 1
        return None

    def passed(self, offset: int, now_ms: int, *, is_committed: bool) -> int:
        """Where a reader stands that is at this offset and gets no record: behind what nobody sees.

        Args:
            offset: Not before the log's start; there is no `next_readable`.
            now_ms: Virtual time.
            is_committed: The reader is `read_committed`.
        """
        end = self.last_stable if is_committed else self.end
        while offset < end and self.records[offset].visible_ms <= now_ms:
            offset += 1
        return offset

    def delete_before(self, offset: int) -> None:
        """Retention: nothing before this offset is there any more."""
        self.start = max(self.start, min(offset, self.end))


def message_bytes(message: SentMessage) -> int:
    """About what a message takes on the wire."""
    size: Any = len(message.key or b"") + len(message.value or b"") + 70
    return int(size)
