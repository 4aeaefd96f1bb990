"""The fields that change when a record joins its segment (`blobmsg.record_step`).

They are classes of their own, so that the step in C finds them; what has them inherits them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from blobmsg.native import native

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.core.segments import Lane, OpenSegment
    from blobmsg.format.rows import Rows

__all__ = [
    "CHARGE_BYTES_PER_RECORD",
    "ENCODED_BYTES_PER_RECORD",
    "CoreFields",
    "LaneFields",
    "MemoryFields",
    "SegmentFields",
    "TopicFields",
]

# Timestamp (8) and the two int32 offsets of key and value: what a record adds to a segment
# besides its own bytes.
ENCODED_BYTES_PER_RECORD: Final = 16
# What a buffered record is charged besides its own bytes: what the twin in Python takes, two bytes
# objects' headers (2 x 33), the timestamp (32) and three list slots (3 x 8), rounded up. In C it is
# 16, and what chunks of columns have left.
CHARGE_BYTES_PER_RECORD: Final = 128

if TYPE_CHECKING or native is None:

    class MemoryFields:
        """Of `BufferMemory`."""

        __slots__ = ("limit_records", "records", "records_bytes", "records_ceiling_bytes")
        records: int
        records_bytes: int
        #: What `records_bytes` may reach now.
        records_ceiling_bytes: int
        limit_records: int

    class LaneFields:
        """Of `Lane`."""

        __slots__ = ("seal_at_bytes", "size_bytes")
        #: As encoded, uncompressed.
        size_bytes: int
        seal_at_bytes: int

    class SegmentFields:
        """Of `OpenSegment`."""

        __slots__ = ("callback", "charged_bytes", "lane", "records_left", "rows")
        lane: Lane
        rows: Rows
        #: Of all records; of a wide one `EACH_ITS_OWN`.
        callback: Callable[..., Any] | None
        charged_bytes: int
        #: How many records may still join: a notification has room for so many only.
        records_left: int

    class TopicFields:
        """Of `TopicLanes`."""

        __slots__ = ("open_segments", "partition_count")
        #: By partition; never shorter than `partition_count`.
        open_segments: list[OpenSegment | None]
        partition_count: int

    class CoreFields:
        """Of who guards the core."""

        __slots__ = ("is_deciding",)
        #: One of our own threads is inside of the core: no record may join.
        is_deciding: bool

else:
    MemoryFields, LaneFields = native.MemoryFields, native.LaneFields
    SegmentFields, TopicFields = native.SegmentFields, native.TopicFields
    CoreFields = native.CoreFields
