"""Actions that the producer's cores ask of their shell, and the sections a batch object is made of.

Actions are commands, one per batch or segment, never per record. Order among `Notify` actions is
the order in which they must reach Kafka, order among `Report` actions the order in which users
must hear of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from blobmsg.core.segments import Batch, SealedSegment

__all__ = [
    "CutSegment",
    "EncodeInline",
    "Notify",
    "ProducerAction",
    "ReadTopic",
    "Report",
    "UploadBatch",
]


@dataclass(frozen=True, slots=True)
class UploadBatch:
    """Encode the batch's segments into one object and put it under the batch's key."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class EncodeInline:
    """Encode the segment; its bytes travel in the notification."""

    segment: SealedSegment


@dataclass(frozen=True, slots=True)
class CutSegment:
    """Cut the segment into smaller ones (`cutting`).

    Args:
        segment: Of several records.
        max_bytes: How long one may be, encoded.
    """

    segment: SealedSegment
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Hand the segment to the Kafka producer, after every earlier `Notify`.

    Args:
        segment: A segment; more than once if Kafka refused it because of its neighbours.
        records: Which of its records, for route `PLAIN`; None: all of them.
    """

    segment: SealedSegment
    records: range | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The segment's outcome is known and all earlier ones of its partition are reported."""

    segment: SealedSegment


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """Read the topic's settings again soon: they have changed, as it seems."""

    topic: str


ProducerAction: TypeAlias = UploadBatch | EncodeInline | CutSegment | Notify | Report | ReadTopic
