"""The threads that encode batches and put them into the store.

Decides nothing about batches or order: takes a job, does it, tells the outcome. Encoding,
compressing and the socket release the GIL.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from blobmsg.format.batch_object import (
    encode_object_segment,
    encode_object_segments,
    lay_out_object,
)
from blobmsg.format.part import Part
from blobmsg.format.ranges import ByteRange
from blobmsg.format.rows import drop_unused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from blobmsg.core.segments import Batch, SealedSegment
    from blobmsg.format.batch_object import BatchObject
    from blobmsg.format.codec import Codec
    from blobmsg.format.rows import Rows
    from blobmsg.store.base import Store

__all__ = ["UploadOutcomes", "Uploader"]

logger = logging.getLogger("blobmsg.uploader")

_Job = TypeVar("_Job")

# Memory that is kept for the next records goes when it was not needed for so long.
_IDLE_S: Final = 10.0
# "No limit" as a deadline: about 35 years of monotonic time.
NO_DEADLINE_MS: Final = 1 << 40


class UploadOutcomes(Protocol):
    """Whom the uploader tells. Threads: any."""

    def begin_encoding(self, batch: Batch) -> list[tuple[SealedSegment, Rows]]:
        """Block until the object may be built; the segments that have not failed meanwhile."""
        ...

    def object_encoded(
        self, batch: Batch, encoded: Iterable[SealedSegment], object_bytes: int
    ) -> None:
        """The object is in memory, with the records of these segments."""
        ...

    def uploaded(self, batch: Batch, parts: dict[SealedSegment, Part], object_bytes: int) -> None:
        """The store has confirmed the object; its memory is free again."""
        ...

    def upload_failed(self, batch: Batch, error: BaseException, object_bytes: int) -> None:
        """The object is not stored, or nobody knows; its memory is free again."""
        ...

    def begin_inline(self, segment: SealedSegment) -> Rows | None:
        """The records of an inline segment; None when it has failed meanwhile."""
        ...

    def inline_encoded(self, segment: SealedSegment, part: Part, data: bytes) -> None:
        """An inline segment's bytes are made."""
        ...

    def inline_failed(self, segment: SealedSegment, error: BaseException) -> None:
        """An inline segment's bytes can't be made."""
        ...

    def thread_failed(self, error: BaseException) -> None:
        """A defect ended an upload thread: fatal for the producer."""
        ...


class Uploader:
    """A pool of daemon threads fed by a queue.

    Not a `ThreadPoolExecutor`: that refuses work at interpreter exit, when `flush` needs it most.

    Args:
        store: Opens the store when the first batch needs it, so that a producer whose records
            all stay with Kafka never touches it.
        outcomes: Told of every outcome.
        codec: For segments.
        producer_id: 16 bytes, written into every part.
        threads: How many uploads at once.

    Threads: any.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        outcomes: UploadOutcomes,
        *,
        codec: Codec,
        producer_id: bytes,
        threads: int,
        name: str,
    ) -> None:
        self._store = store
        self._outcomes = outcomes
        self._codec = codec
        self._producer_id = producer_id
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        # Inline segments have a thread of their own: they need no store, so one that hangs must
        # not hold them up.
        self._inline: queue.SimpleQueue[SealedSegment | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._dropping = threading.Lock()
        self._dropped_at_s = time.monotonic()
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(self._batches, self._upload),
                name=f"{name}-upload-{number}",
                daemon=True,
            )
            for number in range(threads)
        ]
        self._threads.append(
            threading.Thread(
                target=self._run,
                args=(self._inline, self._encode_inline),
                name=f"{name}-inline",
                daemon=True,
            )
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def upload(self, batch: Batch) -> None:
        """Queue a batch."""
        self._batches.put(batch)

    def encode_inline(self, segment: SealedSegment) -> None:
        """Queue a segment whose bytes are to travel in its notification."""
        self._inline.put(segment)

    def stop(self) -> None:
        """End the threads; what is queued is not begun any more. Does not wait for them."""
        self._is_stopping = True
        for _ in self._threads:
            self._batches.put(None)
        self._inline.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, together at most `timeout_s`."""
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))
        drop_unused()

    def _run(self, jobs: queue.SimpleQueue[_Job | None], do: Callable[[_Job], None]) -> None:
        while True:
            try:
                job = jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                self._drop_unused()
                continue
            if job is None or self._is_stopping:
                return
            try:
                do(job)
            except BaseException as error:
                logger.critical("an upload thread ended by a defect", exc_info=True)
                self._outcomes.thread_failed(error)
                return

    def _drop_unused(self) -> None:
        """Give memory back that nobody needed for a while; one of the threads does."""
        with self._dropping:
            if time.monotonic() - self._dropped_at_s >= _IDLE_S:
                self._dropped_at_s = time.monotonic()
                drop_unused()

    def _upload(self, batch: Batch) -> None:
        contents = self._outcomes.begin_encoding(batch)
        if not contents:
            return
        object_bytes = 0
        contents.sort(key=_by_topic)
        segments = [segment for segment, _ in contents]
        try:
            encoded = encode_object_segments(
                [(rows, segment.topic, segment.partition) for segment, rows in contents],
                self._codec,
                destination_zone=batch.lane_key.destination_zone,
                producer_id=self._producer_id,
            )
            laid_out = lay_out_object(encoded)
            object_bytes = laid_out.length_bytes
            self._outcomes.object_encoded(batch, segments, object_bytes)
            while contents:  # not all in one step, nor under a lock: they may be a million
                contents.pop()
            del encoded
            self._put(batch, laid_out)
        except Exception as error:  # noqa: BLE001  (every failure goes to the records' reports)
            self._outcomes.upload_failed(batch, error, object_bytes)
            return
        parts = {s: entry.part for s, entry in zip(segments, laid_out.entries, strict=True)}
        del laid_out  # its memory counts no more
        self._outcomes.uploaded(batch, parts, object_bytes)

    def _put(self, batch: Batch, laid_out: BatchObject) -> None:
        self._store().put(
            batch.object_key,
            laid_out.pieces,
            deadline_ms=NO_DEADLINE_MS if batch.deadline_ms is None else batch.deadline_ms,
            crc32=laid_out.crc32,
        )

    def _encode_inline(self, segment: SealedSegment) -> None:
        rows = self._outcomes.begin_inline(segment)
        if rows is None:
            return
        try:
            encoded = encode_object_segment(
                rows,
                self._codec,
                topic=segment.topic,
                partition=segment.partition,
                destination_zone="",
                producer_id=self._producer_id,
            )
            data = b"".join(encoded.pieces)
        except Exception as error:  # noqa: BLE001  (the failure goes to the records' reports)
            self._outcomes.inline_failed(segment, error)
            return
        part = Part(
            byte_range=ByteRange(0, len(data)),
            records=encoded.records,
            codec=encoded.codec,
            uncompressed_bytes=encoded.uncompressed_bytes,
            checksum=encoded.checksum,
            first_timestamp_ms=encoded.first_timestamp_ms,
            last_timestamp_ms=encoded.last_timestamp_ms,
            producer_id=self._producer_id,
        )
        self._outcomes.inline_encoded(segment, part, data)


def _by_topic(content: tuple[SealedSegment, Rows]) -> tuple[str, int]:
    segment, _ = content
    return segment.topic, segment.partition
