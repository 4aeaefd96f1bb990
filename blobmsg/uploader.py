"""The threads that encode batches and put them into the store.

Decides nothing about batches or order: takes a job, does it, tells the outcome. Encoding,
compressing and the socket release the GIL.
"""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from blobmsg.core.cutting import cut_segment
from blobmsg.core.events import CutSegment
from blobmsg.format.batch_object import lay_out_object
from blobmsg.format.encoded_segment import (
    EncodedSegment,
    encode_object_segment,
    encode_object_segments,
)
from blobmsg.format.rows import drop_unused, trim_heap
from blobmsg.store.retrying import NotWanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blobmsg.core.events import EncodeInline
    from blobmsg.core.segments import Batch, SealedSegment
    from blobmsg.format.batch_object import BatchObject
    from blobmsg.format.codec import Codec
    from blobmsg.format.part import Part
    from blobmsg.format.rows import Rows
    from blobmsg.store.retrying import RetryingStore
    from blobmsg.thread_log import ThreadLog

__all__ = ["UploadOutcomes", "Uploader"]

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
        self, batch: Batch, encoded: Mapping[SealedSegment, EncodedSegment], object_bytes: int
    ) -> list[SealedSegment]:
        """The object is in memory, with the records of these segments; those that are to stay."""
        ...

    def attempt_failed(self, batch: Batch, begun_ms: int) -> None:
        """The store did not take the object, or did not say so; it is tried again.

        Args:
            batch: In memory as an object.
            begun_ms: When the attempt began, monotonic.
        """
        ...

    def uploaded(self, batch: Batch, parts: dict[SealedSegment, Part], object_bytes: int) -> None:
        """The store has confirmed the object; its memory is free again."""
        ...

    def upload_failed(self, batch: Batch, error: BaseException, object_bytes: int) -> None:
        """The object is not stored, or nobody knows; its memory is free again."""
        ...

    def upload_abandoned(self, batch: Batch, object_bytes: int) -> None:
        """Nobody waits for it any more, and it is not stored; its memory is free again."""
        ...

    def begin_inline(self, action: EncodeInline | CutSegment) -> Rows | EncodedSegment | None:
        """What an inline segment has; None when it has failed, or is stored, meanwhile.

        Args:
            action: To cut it takes its records, while it has any.
        """
        ...

    def inline_encoded(self, segment: SealedSegment, part: Part, data: bytes) -> None:
        """An inline segment's bytes are made."""
        ...

    def cut(self, segment: SealedSegment, pieces: list[SealedSegment]) -> None:
        """A segment's records are in others."""
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
        log: For what the user should know.

    Threads: any.
    """

    def __init__(
        self,
        store: Callable[[], RetryingStore],
        outcomes: UploadOutcomes,
        *,
        codec: Codec,
        producer_id: bytes,
        threads: int,
        log: ThreadLog,
        name: str,
    ) -> None:
        self._log = log
        self._store = store
        self._outcomes = outcomes
        self._codec = codec
        self._producer_id = producer_id
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        # Inline segments have a thread of their own: they need no store, so one that hangs must
        # not hold them up.
        self._inline: queue.SimpleQueue[EncodeInline | CutSegment | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._name = name
        self._most_replaced = threads
        self._uploading: dict[threading.Thread, Batch] = {}
        self._replaced: set[threading.Thread] = set()
        self._dropping = threading.Lock()
        self._dropped_at_s = time.monotonic()
        self._threads = [self._upload_thread(number) for number in range(threads)]
        self._threads.append(
            threading.Thread(
                target=self._run,
                args=(self._inline, self._make_inline),
                name=f"{name}-inline",
                daemon=True,
            )
        )

    def _upload_thread(self, number: int) -> threading.Thread:
        return threading.Thread(
            target=self._run,
            args=(self._batches, self._upload),
            name=f"{self._name}-upload-{number}",
            daemon=True,
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def upload(self, batch: Batch) -> None:
        """Queue a batch."""
        self._batches.put(batch)

    def make_inline(self, action: EncodeInline | CutSegment) -> None:
        """Queue a segment whose bytes are to travel in its notification, or in several."""
        self._inline.put(action)

    def replace_hanging_threads(self) -> None:
        """Have others upload in place of threads that may hang with what nobody waits for any more.

        Those end with their request. Threads: one.
        """
        for thread, batch in list(self._uploading.items()):
            if thread in self._replaced or batch.is_wanted:
                continue
            if len(self._replaced) < self._most_replaced:
                substitute = self._upload_thread(len(self._threads))
                try:
                    substitute.start()  # before `join` may see it
                except RuntimeError as failure:
                    self._log.warning("an upload thread that hangs has no substitute: %s", failure)
                    return
                self._replaced.add(thread)
                self._threads.remove(thread)
                self._threads.append(substitute)

    def stop(self) -> None:
        """End the threads; what is queued is not begun any more. Does not wait for them."""
        self._is_stopping = True
        self._batches.put(None)
        self._inline.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, together at most `timeout_s`."""
        threads = list(self._threads)
        for thread in threads:
            thread.join(timeout_s / len(threads))
        drop_unused()

    def _run(self, jobs: queue.SimpleQueue[_Job | None], do: Callable[[_Job], None]) -> None:
        while True:
            try:
                job = jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                self._drop_unused()
                continue
            if job is None or self._is_stopping:
                jobs.put(None)  # for the next one
                drop_unused()  # each: the first one counts from when something was needed
                return
            try:
                do(job)
            except BaseException as error:  # noqa: BLE001  (reported as fatal)
                self._log.critical("an upload thread ended by a defect")
                self._outcomes.thread_failed(error)
                return
            del job  # a thread that waits must not keep a batch and its records' callbacks alive
            if self._has_substitute():
                return

    def _has_substitute(self) -> bool:
        """Whether another thread does this one's work."""
        thread = threading.current_thread()
        self._uploading.pop(thread, None)
        if thread not in self._replaced:
            return False
        self._replaced.discard(thread)
        return True

    def _drop_unused(self, *, trims: bool = False) -> None:
        """Give memory back that nobody needed for a while; one of the threads does.

        Args:
            trims: Also what the allocator keeps of the rest.
        """
        with self._dropping:
            if time.monotonic() - self._dropped_at_s >= _IDLE_S:
                self._dropped_at_s = time.monotonic()
                drop_unused()
                if trims:
                    trim_heap()

    def _upload(self, batch: Batch) -> None:
        contents = self._outcomes.begin_encoding(batch)
        if not contents:
            return
        object_bytes = 0
        self._uploading[threading.current_thread()] = batch
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
            of_segments = dict(zip(segments, encoded, strict=True))
            segments = self._outcomes.object_encoded(batch, of_segments, object_bytes)
            while contents:  # not all in one step, nor under a lock: they may be a million
                contents.pop()
            if not segments:
                self._outcomes.upload_abandoned(batch, object_bytes)
                return
            if len(segments) < len(encoded):
                laid_out = lay_out_object([of_segments[segment] for segment in segments])
            del encoded, of_segments
            self._put(batch, laid_out)
        except NotWanted:
            self._outcomes.upload_abandoned(batch, object_bytes)
            # While the store is away no thread is idle, and segments that wait for seconds lie
            # among others that come and go: what was freed between them grew by 1 to 3 MiB/s.
            self._drop_unused(trims=True)
            return
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
            is_wanted=lambda: batch.is_wanted,
            failed=partial(self._outcomes.attempt_failed, batch),
        )

    def _make_inline(self, action: EncodeInline | CutSegment) -> None:
        segment = action.segment
        found = self._outcomes.begin_inline(action)
        try:
            if isinstance(action, CutSegment):
                pieces = [] if found is None else cut_segment(segment, found, action.max_bytes)
                self._outcomes.cut(segment, pieces)
            elif found is not None:
                self._outcomes.inline_encoded(segment, *self._encode_inline(segment, found))
        except Exception as error:  # noqa: BLE001  (the failure goes to the records' reports)
            self._outcomes.inline_failed(segment, error)

    def _encode_inline(
        self, segment: SealedSegment, found: Rows | EncodedSegment
    ) -> tuple[Part, bytes]:
        encoded = found
        if not isinstance(encoded, EncodedSegment):
            encoded = encode_object_segment(
                encoded,
                self._codec,
                topic=segment.topic,
                partition=segment.partition,
                destination_zone="",
                producer_id=self._producer_id,
            )
        return encoded.inline()


def _by_topic(content: tuple[SealedSegment, Rows]) -> tuple[str, int]:
    segment, _ = content
    return segment.topic, segment.partition
