"""One object under construction in a task of the sink: records of many partitions, one zone.

Decides which records share an object, as the producer's lanes do: those of one retention class and
one destination zone.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from blobmsg.format.segment import MAX_SEGMENT_RECORDS
from blobmsg_spark.row_splitter import RowSplitter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from blobmsg.core.segments import LaneKey
    from blobmsg.topic_directory import TopicFacts

__all__ = ["SealedLane", "SegmentRows", "SinkLane"]

# More topics than that in one lane are not known beforehand.
_MOST_DESTINATIONS: Final = (1 << 31) - 1


class SegmentRows(NamedTuple):
    """Records of one segment to be."""

    topic: str
    partition: int
    records: pa.RecordBatch


class SealedLane(NamedTuple):
    """What becomes one object.

    Attributes:
        key: What its records have in common.
        segments: In order, for each partition.
        segment_ms: The largest `segment.ms` of their topics.
        inline_max_bytes: By topic, what fits into one Kafka record of it.
    """

    key: LaneKey
    segments: list[SegmentRows]
    segment_ms: int
    inline_max_bytes: dict[str, int]


class SinkLane:
    """Records that wait for their object.

    Args:
        key: What they have in common.
        batch_bytes: An object is full when its records take so much in memory.
        segment_bytes: The records of a segment take at most so much, unless it is one.

    Threads: one at a time.
    """

    def __init__(self, key: LaneKey, batch_bytes: int, segment_bytes: int) -> None:
        self._key = key
        self._splitter = RowSplitter(_MOST_DESTINATIONS, batch_bytes, segment_bytes)
        self._topics: list[str] = []
        self._firsts: list[int] = []  # of each topic: the number of its partition 0
        self._next = 0
        self._segment_ms = 0
        self._inline_max_bytes: dict[str, int] = {}
        self.waiting_bytes = 0

    def add(
        self,
        topic: str,
        facts: TopicFacts,
        records: pa.RecordBatch,
        partitions: npt.NDArray[np.integer],
        inline_max_bytes: int,
    ) -> None:
        """Take records of a topic.

        Args:
            topic: Its name.
            facts: Of the topic, always the same.
            records: They are kept, not copied.
            partitions: Of each.
            inline_max_bytes: What fits into one Kafka record.
        """
        if topic not in self._inline_max_bytes:
            self._inline_max_bytes[topic] = inline_max_bytes
            self._topics.append(topic)
            self._firsts.append(self._next)
            self._next += len(facts.destination_zones)
            self._segment_ms = max(self._segment_ms, facts.segment_ms)
        first = self._firsts[self._topics.index(topic)]
        self._splitter.add(records, partitions + first)
        self.waiting_bytes += records.nbytes

    def would_overflow(self, records: pa.RecordBatch) -> bool:
        """Whether these records must wait for the next object."""
        return self._splitter.would_overflow(records)

    @property
    def is_full(self) -> bool:
        """Whether what waits makes an object."""
        return self._splitter.is_full

    def seal(self) -> SealedLane:
        """What waits; may be nothing."""
        self.waiting_bytes = 0
        segments: list[SegmentRows] = []
        for number, rows in self._splitter.seal():
            place = bisect_right(self._firsts, number) - 1
            topic, partition = self._topics[place], number - self._firsts[place]
            segments += [
                SegmentRows(topic, partition, rows.slice(start, MAX_SEGMENT_RECORDS))
                for start in range(0, rows.num_rows, MAX_SEGMENT_RECORDS)
            ]
        return SealedLane(self._key, segments, self._segment_ms, dict(self._inline_max_bytes))
