"""Virtual offsets: the arithmetic between what the user sees and where Kafka keeps it.

The virtual offset of record *i* of *n* in the notification at Kafka offset K is
`((K + 1) << 20) - n + i`; a plain record is the case n = 1. Counting from the notification's
*end* makes `last + 1`, the idiom in everybody's code, exactly the start of the next
notification, whatever n is, so no translation needs to know n.

Stateless; negative numbers (librdkafka's logical offsets) are never shifted.
"""

from __future__ import annotations

from typing import Final, NewType

__all__ = [
    "MAX_NOTIFICATION_RECORDS",
    "OFFSET_BITS",
    "KafkaOffset",
    "VirtualOffset",
    "position_in",
    "records_to_skip",
    "remaining_records",
    "to_kafka",
    "to_virtual",
    "virtual_offset_of_first",
]

KafkaOffset = NewType("KafkaOffset", int)
VirtualOffset = NewType("VirtualOffset", int)

OFFSET_BITS: Final = 20
_MASK: Final = (1 << OFFSET_BITS) - 1
MAX_NOTIFICATION_RECORDS: Final = _MASK


def to_virtual(kafka_offset: int) -> VirtualOffset:
    """Convert a Kafka offset to the virtual offset where its notification begins.

    Args:
        kafka_offset: An offset in Kafka's log, or one of librdkafka's negative logical offsets.

    Returns:
        The position "all of the notification at `kafka_offset`"; negative input unchanged.
    """
    return VirtualOffset(kafka_offset if kafka_offset < 0 else kafka_offset << OFFSET_BITS)


def to_kafka(virtual_offset: int) -> KafkaOffset:
    """Convert a virtual offset to the Kafka offset of the notification that holds it.

    Args:
        virtual_offset: A virtual offset, or one of librdkafka's negative logical offsets.

    Returns:
        The notification's offset in Kafka's log; negative input unchanged.
    """
    return KafkaOffset(virtual_offset if virtual_offset < 0 else virtual_offset >> OFFSET_BITS)


def virtual_offset_of_first(kafka_offset: int, records: int) -> VirtualOffset:
    """The virtual offset of the first of `records` records, all of the one at `kafka_offset`."""
    return VirtualOffset(((kafka_offset + 1) << OFFSET_BITS) - records)


def remaining_records(position: int) -> int | None:
    """How many records of the notification at `position >> 20` are still to be read.

    Args:
        position: A non-negative virtual offset.

    Returns:
        The count of its *last* records that remain (1 to 2^20 - 1), or None for all of them.
    """
    within = position & _MASK
    return None if within == 0 else (1 << OFFSET_BITS) - within


def position_in(kafka_offset: int, remaining: int | None) -> VirtualOffset:
    """The position at which `remaining` records (None: all) of one notification are left."""
    if remaining is None:
        return to_virtual(kafka_offset)
    return VirtualOffset(((kafka_offset + 1) << OFFSET_BITS) - remaining)


def records_to_skip(position: int, kafka_offset: int, records: int) -> int:
    """How many records of a notification lie before `position`.

    Args:
        position: The non-negative virtual offset to go on from.
        kafka_offset: Where the notification lies; not before `position >> 20`.
        records: How many records it holds.

    Returns:
        0 when all of it is to be read, which is also the case when it lies beyond the
        position's notification (control or aborted records stood there).
    """
    if kafka_offset != position >> OFFSET_BITS:
        return 0
    remaining = remaining_records(position)
    return 0 if remaining is None else max(0, records - remaining)
