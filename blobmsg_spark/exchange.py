"""An exchange: what the driver tells every map and reduce task of one repartitioning."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blobmsg.format.object_key import ObjectKey
from blobmsg_spark.worker import worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg_spark.worker import Worker

__all__ = ["Exchange"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One repartitioning.

    Attributes:
        conf: Settings of blobmsg, as the user gave them.
        environment: Settings of blobmsg in the driver's environment.
        name: Names it in objects and errors.
        partitions: How many there will be.
        isolation: Path element of its objects: all of a shuffle's lie below it.
        expiry_hour: Of its objects' keys; the driver's clock decided it.
        begun_ms: Wall time; the timestamp of its records.
        producer_id: 16 bytes, of all its segments.
        batch_bytes: Rows of an object take so much in memory.
        segment_bytes: Rows of a segment take at most so much in memory.
        prefetch_bytes: A reduce task holds at most so much and one segment.
        disk_reserve_bytes: Segments stay with Spark's own shuffle as long as its disk has so much
            free; None: never.
        is_dealt: Rows go to partitions in turn; else their first column names their partition.
    """

    conf: Mapping[str, Any] = field(hash=False, repr=False)  # has secrets
    environment: Mapping[str, str] = field(hash=False, repr=False)
    name: str
    partitions: int
    isolation: str
    expiry_hour: str
    begun_ms: int
    producer_id: bytes
    batch_bytes: int
    segment_bytes: int
    prefetch_bytes: int
    disk_reserve_bytes: int | None
    is_dealt: bool

    def worker(self) -> Worker:
        """Settings and stores of this process for it."""
        return worker(self.conf, self.environment)

    def object_key(
        self, task: int, number: int, segments: Sequence[EncodedSegment], zone: str
    ) -> str:
        """The key of an object: the same for the same rows, whichever attempt writes them.

        Spark runs a map task again when its output is lost, and compares what came of it with what
        it had before; attempts with other rows have other keys, so that none overwrites another's.

        Args:
            task: The map task's number.
            number: How many objects of the task were before.
            segments: What is in it.
            zone: The writer's; `none` when unset.
        """
        digest = hashlib.blake2b(self.producer_id, digest_size=16)
        digest.update(f"{task} {number}".encode())
        for segment in segments:
            digest.update(
                b"%d %d %d;" % (segment.partition, segment.length_bytes, segment.checksum)
            )
        writer_id = digest.hexdigest()
        return ObjectKey(
            self.isolation, writer_id[0], self.expiry_hour, zone, writer_id, number
        ).encode()
