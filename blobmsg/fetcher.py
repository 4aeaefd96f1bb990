"""The threads that fetch sections of objects, check every byte and decode.

Goes through the tiers (memory, then the store); a mismatch evicts and is fetched again past the
caches. Decides nothing about positions or order: results go to a queue that the polling thread
empties.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from blobmsg.cache.part_buffers import SMALLEST_BYTES, PartBuffer, PartBuffers, memory_of
from blobmsg.core.debatcher import Failure, FailureKind
from blobmsg.core.offsets import virtual_offset_of_first
from blobmsg.errors import (
    BlobmsgError,
    CorruptSegment,
    ObjectExpired,
    ObjectMissing,
    StoreTimeout,
    StoreUnavailable,
    UnsupportedFormat,
)
from blobmsg.format.checksum import crc32
from blobmsg.format.codec import Codec, decompress
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.object_key import ObjectKey
from blobmsg.format.segment import decode_segment
from blobmsg.message import RecordsView
from blobmsg.reentrant import Wakeup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from mmap import mmap

    from blobmsg.cache.base import Cache
    from blobmsg.cache.part_buffers import StoredPart
    from blobmsg.clock import Clock
    from blobmsg.core.debatcher import Entry, FetchSection
    from blobmsg.format.part import Part
    from blobmsg.format.ranges import ByteRange
    from blobmsg.format.segment import Segment
    from blobmsg.resources import StoreLease, Stores

    _Item: TypeAlias = tuple[Entry, int, Part]  # its notification's entry, which part, the part

__all__ = ["EntryContext", "FetchResult", "Fetcher", "decode_part", "decode_stored"]

logger = logging.getLogger("blobmsg.fetcher")

_HOUR_MS: Final = 3_600_000

# A range that is wrong once may be right the next time (a bit flipped on the way); one that is
# wrong three times is wrong in the store.
_ATTEMPTS_ON_MISMATCH: Final = 3
_STALE: Final = Failure(FailureKind.TRANSIENT, None)
# Memory that is kept for the next parts goes when none has come for so long.
_IDLE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class EntryContext:
    """What a segment's messages need beyond its bytes.

    Args:
        timestamp_type: One of confluent_kafka's TIMESTAMP_*.
        log_append_ms: The broker's time on LogAppendTime topics, else None.
        leader_epoch: Of the notification.
        place: How errors name the notification; "": by its Kafka offset.
    """

    timestamp_type: int
    log_append_ms: int | None
    leader_epoch: int | None
    place: str = ""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The answer to one section.

    Args:
        section: As planned.
        outcomes: For each of its parts a `RecordsView` or a `Failure`.
    """

    section: FetchSection
    outcomes: Sequence[RecordsView | Failure]


class Fetcher:
    """A pool of daemon threads fed by a queue.

    Args:
        stores: By the name that notifications carry.
        cache: The memory tier; None: off.
        clock: Time.
        threads: How many fetches at once.
        request_timeout_ms: How long one section may take, retries included.
        keep_bytes: Free memory kept for the next parts.
        name: For thread names.

    Threads: `submit`, `wait`, `take_results` any; both queues are of C and need no lock.
    """

    def __init__(
        self,
        stores: Stores,
        cache: Cache | None,
        clock: Clock,
        *,
        threads: int,
        request_timeout_ms: int,
        keep_bytes: int,
        name: str,
    ) -> None:
        self._stores = stores
        self._cache = cache
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._buffers = PartBuffers(keep_bytes)
        self._jobs: queue.SimpleQueue[FetchSection | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[FetchResult] = queue.SimpleQueue()
        self._has_result = Wakeup()
        self._is_stopping = False
        self.cache_hits = 0
        self.mismatches = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-fetch-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, section: FetchSection) -> None:
        """Queue a section."""
        self._jobs.put(section)

    def wait(self, timeout_s: float) -> None:
        """Wait until a result is there; it may return before, for one that was taken."""
        if self._done.empty():
            self._has_result.wait(timeout_s)

    def take_results(self) -> list[FetchResult]:
        """All results since the last call, in the order they came."""
        results: list[FetchResult] = []
        with contextlib.suppress(queue.Empty):
            while True:
                results.append(self._done.get_nowait())
        return results

    def stop(self, timeout_s: float) -> None:
        """End the threads; waits at most `timeout_s`, for one may hang in a request."""
        self._is_stopping = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))

    def _run(self) -> None:
        while True:
            try:
                section = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                self._buffers.drop_unused(_IDLE_S)
                continue
            if section is None:
                return
            try:
                outcomes = self.fetch(section)
            except Exception as error:
                if self._is_stopping:
                    return  # the store was closed under a request that hung
                logger.critical("a defect while fetching %s", section.key, exc_info=True)
                fatal = KafkaError(KafkaError._FATAL, repr(error), fatal=True)
                outcomes = [Failure(FailureKind.REFUSED, fatal)] * len(section.parts)
            self._done.put(FetchResult(section, outcomes))
            self._has_result.set()
            del section, outcomes  # a thread that waits must not keep what the consumer has dropped

    def fetch(self, section: FetchSection) -> Sequence[RecordsView | Failure]:
        """Fetch a section: for each of its parts a `RecordsView` or a `Failure`.

        Threads: those of this pool; the simulation, which has none.
        """
        if not any(entry.is_current for entry, _, _ in section.parts):
            return [_STALE] * len(section.parts)  # revoked or sought away meanwhile
        try:
            lease = self._stores.get(section.store)
        except KafkaException as error:
            return [_failure(error, section, part, entry) for entry, _, part in section.parts]
        cached = self._from_cache(lease, section)
        if cached is not None:
            return cached
        try:
            found = self._read(lease, section)
        except BlobmsgError as error:
            return [self._classify(error, section, part, entry) for entry, _, part in section.parts]
        outcomes: list[RecordsView | Failure] = []
        for item, stored in zip(section.parts, found, strict=True):
            decoded = None if stored is None else _decode(item, stored)
            if isinstance(decoded, RecordsView):
                self._keep(lease, section, decoded, item)
                outcomes.append(decoded)
            else:
                outcomes.append(self._fetch_again(lease, section, item, decoded))
        return outcomes

    def _read(self, lease: StoreLease, section: FetchSection) -> list[StoredPart | None]:
        """Get a section by one request, each part into memory of its own.

        So a part that is held for long holds nothing of its neighbours.

        Returns:
            For each of its parts the bytes; None for one that overlaps another (nobody writes such
            notifications).
        """
        targets: list[memoryview] = []
        filled: dict[ByteRange, bytearray | PartBuffer] = {}
        reached = section.section.start
        for _, _, part in section.parts:
            place = part.byte_range
            if place.start < reached:
                continue  # a notification that came twice, or one that overlaps
            if place.start > reached:
                targets.append(memoryview(bytearray(place.start - reached)))
            target = filled[place] = self._target(place.length)
            targets.append(_view(target))
            reached = place.end
        if reached < section.section.end:
            targets.append(memoryview(bytearray(section.section.end - reached)))
        lease.store.read_range(
            section.key, section.section, targets, deadline_ms=self._deadline_ms()
        )
        finished = {place: _finished(target) for place, target in filled.items()}
        return [finished.get(part.byte_range) for _, _, part in section.parts]

    def _target(self, length_bytes: int) -> bytearray | PartBuffer:
        if length_bytes >= SMALLEST_BYTES:
            # It fails when a cache of many GiB has as many mappings as a process may have.
            with contextlib.suppress(OSError):
                return self._buffers.take(length_bytes)
        return bytearray(length_bytes)

    def _deadline_ms(self) -> int:
        return self._clock.now_ms() + self._request_timeout_ms

    def _keep(
        self, lease: StoreLease, section: FetchSection, view: RecordsView, item: _Item
    ) -> None:
        if self._cache is not None:
            self._cache.fill(lease.url, section.key, item[2].byte_range, view.stored)

    def _from_cache(
        self, lease: StoreLease, section: FetchSection
    ) -> list[RecordsView | Failure] | None:
        """All parts out of the memory tier; None when one is not there or not right."""
        if self._cache is None:
            return None
        views: list[RecordsView | Failure] = []
        for entry, part_index, part in section.parts:
            found = self._cache.get(lease.url, section.key, part.byte_range)
            if found is None:
                return None
            decoded = _decode((entry, part_index, part), found)
            if not isinstance(decoded, RecordsView):
                self.mismatches += 1
                self._cache.evict(lease.url, section.key, part.byte_range)
                return None
            views.append(decoded)
        self.cache_hits += 1
        return views

    def _fetch_again(
        self, lease: StoreLease, section: FetchSection, item: _Item, problem: FormatError | None
    ) -> RecordsView | Failure:
        """Fetch one part by itself, past all caches, as long as its bytes are wrong.

        Args:
            lease: Of the store.
            section: Where the part was.
            item: The part.
            problem: What is wrong with it; None when it has not been fetched yet.
        """
        entry, _, part = item
        attempts = _ATTEMPTS_ON_MISMATCH - (problem is not None)
        for _ in range(attempts):
            if isinstance(problem, UnsupportedFormatError):
                break
            self.mismatches += problem is not None
            target = self._target(part.byte_range.length)
            try:
                lease.store.read_range(
                    section.key, part.byte_range, [_view(target)], deadline_ms=self._deadline_ms()
                )
            except BlobmsgError as error:
                return self._classify(error, section, part, entry)
            decoded = _decode(item, _finished(target))
            if isinstance(decoded, RecordsView):
                self._keep(lease, section, decoded, item)
                return decoded
            problem = decoded
        if isinstance(problem, UnsupportedFormatError):
            return _failure(UnsupportedFormat(str(problem)), section, part, entry)
        self.mismatches += 1
        return _failure(CorruptSegment(str(problem)), section, part, entry)

    def _classify(
        self, error: BlobmsgError, section: FetchSection, part: Part, entry: Entry
    ) -> Failure:
        """What a failed fetch calls for."""
        if isinstance(error, ObjectMissing):
            expiry_ms = ObjectKey.decode(section.key).expiry_ms()
            now_ms = self._clock.timestamp_ms()
            if expiry_ms is not None and now_ms >= expiry_ms:
                text = _where(
                    section, part, entry,
                    "the object is past its expiry hour and gone, since "
                    f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(expiry_ms // 1000))}; the "
                    f"reader lags by {(now_ms - part.last_timestamp_ms) // _HOUR_MS} h, and Kafka "
                    "has not deleted the notification yet",
                )  # fmt: skip
                return Failure(FailureKind.EXPIRED, ObjectExpired(text).kafka_error)
        return _failure(error, section, part, entry)


def _failure(error: KafkaException, section: FetchSection, part: Part, entry: Entry) -> Failure:
    kafka_error: KafkaError = error.args[0]
    text = _where(section, part, entry, str(error))
    retriable = isinstance(error, (StoreUnavailable, StoreTimeout))
    kind = FailureKind.REFUSED
    if retriable:
        kind = FailureKind.TRANSIENT
    elif isinstance(error, ObjectMissing):
        kind = FailureKind.ABSENT
    elif isinstance(error, CorruptSegment):
        kind = FailureKind.MISSING
    return Failure(kind, KafkaError(kafka_error.code(), text, retriable=retriable))


def _where(section: FetchSection, part: Part, entry: Entry, text: str) -> str:
    topic, partition = entry.flow.key
    context: EntryContext = entry.context
    where = context.place or f"{topic} [{partition}] at Kafka offset {entry.kafka_offset}"
    place = part.byte_range
    return f"{where}: object {section.key}, bytes {place.start} to {place.end - 1}: {text}"


def _view(target: bytearray | PartBuffer) -> memoryview:
    return target.view() if isinstance(target, PartBuffer) else memoryview(target)


def _finished(target: bytearray | PartBuffer) -> StoredPart:
    return target if isinstance(target, PartBuffer) else bytes(target)


def _decode(item: _Item, stored: StoredPart) -> RecordsView | FormatError:
    """Decode a part, or return what is wrong with it."""
    try:
        return decode_part(*item, stored, 0)
    except FormatError as error:
        return error


def decode_stored(part: Part, data: bytes | mmap, start: int = 0) -> Segment:
    """Check and decode one segment's bytes, headers included.

    Args:
        part: What its notification or the object's index says of it.
        data: Bytes that hold it, as stored.
        start: Where it begins in `data`.

    Raises:
        UnsupportedFormatError: Of a version or codec that this version does not know.
        FormatError: Its length, its checksum or its bytes are wrong.
    """
    length = part.byte_range.length
    stored = memoryview(data)[start : start + length]
    if len(stored) != length:
        raise FormatError(f"only {len(stored)} of {length} bytes are there")
    if crc32(stored) != part.checksum:
        raise FormatError(
            f"checksum {crc32(stored):08x} instead of {part.checksum:08x} over {length} bytes"
        )
    if part.codec is Codec.NONE:
        segment = decode_segment(data, start=start, length=length, records=part.records)
    else:
        raw = decompress(part.codec, stored, part.uncompressed_bytes)
        segment = decode_segment(raw, records=part.records)
    segment.check_headers()
    return segment


def decode_part(
    entry: Entry, part_index: int, part: Part, stored: StoredPart, start: int
) -> RecordsView:
    """Check and decode one segment.

    Args:
        entry: Its notification's entry.
        part_index: Which part of the notification.
        part: What the notification says of it.
        stored: Bytes that hold it, as stored.
        start: Where it begins in `stored`.

    Raises:
        FormatError: Its checksum or its bytes are wrong.
    """
    segment = decode_stored(part, memory_of(stored), start)
    notification, context = entry.notification, entry.context
    before = 0
    if notification is not None:
        before = sum(earlier.records for earlier in notification.parts[:part_index])
    topic, partition = entry.flow.key
    first = virtual_offset_of_first(entry.kafka_offset, entry.record_count) + before
    return RecordsView(
        topic,
        partition,
        segment,
        stored,
        first_virtual_offset=first,
        first_record_index=before,
        timestamp_type=context.timestamp_type,
        log_append_ms=context.log_append_ms,
        leader_epoch=context.leader_epoch,
    )
