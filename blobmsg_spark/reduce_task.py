"""The reduce side of an exchange: notifications in, rows out.

A shell around the consumer's own cores and fetcher: what is fetched next, what shares a request and
what it may hold in memory are decided there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME

from blobmsg.core.debatcher import Debatcher, Entry, Failure, Run
from blobmsg.errors import (
    BlobmsgError,
    CorruptSegment,
    ObjectExpired,
    ObjectMissing,
    StoreDenied,
    StoreTimeout,
    StoreUnavailable,
    UnsupportedFormat,
)
from blobmsg.fetcher import EntryContext, Fetcher, decode_part
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.notification import Limits, decode_notification
from blobmsg.format.object_key import NO_ZONE, ObjectKey
from blobmsg.format.segment import MAX_SEGMENT_BYTES
from blobmsg_spark.row_segment import decode_rows
from blobmsg_spark.usage import ExchangeUsage, StageUsage
from blobmsg_spark.worker import partition_id, stage_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from confluent_kafka import KafkaError
    from pyspark import Accumulator

    from blobmsg.format.notification import Notification
    from blobmsg.message import RecordsView
    from blobmsg_spark.exchange import Exchange
    from blobmsg_spark.worker import Worker

__all__ = ["ReduceTask"]

# The segments of one job are as long as its rows are wide; the reader's memory is bounded by
# `prefetch_bytes`, and one segment is always admitted.
_LIMITS: Final = Limits(MAX_SEGMENT_BYTES, MAX_SEGMENT_BYTES, max_parts=1)
_WAIT_S: Final = 0.5
# Notifications that wait for their segments: enough for all threads, and few to choose among.
_MOST_KNOWN: Final = 256
_STOP_S: Final = 1.0
_ERRORS: Final[dict[int, type[BlobmsgError]]] = {
    error.default_code: error
    for error in (
        StoreUnavailable, StoreTimeout, StoreDenied, ObjectMissing, ObjectExpired, CorruptSegment,
        UnsupportedFormat,
    )
}  # fmt: skip
_REMEDY: Final = (
    "Spark does not run the map stage again for this. Run the job again; objects live until their "
    "Shuffle is closed and no longer than its retention, so neither may come before the last action"
)


@dataclass(frozen=True, slots=True)
class ReduceTask:
    """Called in an executor with the notifications of one partition.

    Args:
        exchange: Of which it is a part.
        usage: Added to at the end; None: nobody asks.
    """

    exchange: Exchange
    usage: Accumulator[ExchangeUsage] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a partition.

        Args:
            batches: As map tasks gave them.

        Raises:
            BlobmsgError: Rows can't be read; no partial result.
        """
        return _Reduce(self.exchange, self.exchange.worker()).run(batches, self.usage)


class _Reduce:
    """One task attempt. Threads: the task's own."""

    def __init__(self, exchange: Exchange, here: Worker) -> None:
        self._exchange = exchange
        self._worker = here
        settings = here.settings
        # Spark holds a segment until it has asked for the next one: it is part of the limit.
        ahead_bytes = max(1, exchange.prefetch_bytes - exchange.segment_bytes)
        self._debatcher = Debatcher(
            prefetch_max_bytes=ahead_bytes,
            fetch_slots=settings.fetch_threads,
            max_section_bytes=ahead_bytes,
            gather_ms=0,
            skips_missing=False,
            skips_expired=False,
        )
        self._fetcher = Fetcher(
            here.stores,
            None,
            here.clock,
            threads=settings.fetch_threads,
            request_timeout_ms=settings.request_timeout_ms,
            keep_bytes=0,  # they would come on top of `prefetch_bytes`; those that fit serve again
            name="blobmsg-spark",
        )
        self._flow = self._debatcher.assigned((exchange.name, partition_id()), None)
        self._zone = settings.zone
        self._place = f"{exchange.name}, partition {self._flow.key[1]}"
        self._taken = 0
        self._unread = 0
        self._usage = StageUsage(tasks=1)

    def run(
        self, batches: Iterator[pa.RecordBatch], usage: Accumulator[ExchangeUsage] | None
    ) -> Iterator[pa.RecordBatch]:
        before = self._worker.requests()
        self._fetcher.start()
        try:
            for rows in batches:
                for value in rows.column(1):
                    yield from self._counted(self._take(value.as_buffer().to_pybytes()))
                    while self._unread >= _MOST_KNOWN:
                        yield from self._counted(self._read())
            while self._unread:
                yield from self._counted(self._read())
        finally:
            self._debatcher.revoked(self._flow.key)  # of a task that ends early nothing is fetched
            self._fetcher.stop(_STOP_S)
            if usage is not None:
                done = self._usage + (self._worker.requests() - before)
                usage.add(ExchangeUsage.of_reduce_task(done, self._zone, stage_id()))

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            self._usage += StageUsage(rows=rows.num_rows, row_bytes=rows.nbytes)
            yield rows

    def _take(self, value: bytes) -> Iterator[pa.RecordBatch]:
        """Note what is to be fetched; what has come inline is handed out at once."""
        context = EntryContext(TIMESTAMP_CREATE_TIME, None, None, self._place)
        try:
            notification = decode_notification(value, _LIMITS)
        except FormatError as error:
            raise CorruptSegment(f"{self._place}: a damaged notification: {error}") from error
        self._usage += _segment_usage(notification, self._zone)
        if notification.inline is None:
            self._debatcher.notification_received(self._flow, self._taken, notification, context)
            self._taken += 1
            self._unread += 1
            return
        entry = Entry(self._flow, self._taken, notification, notification.records)
        entry.context = context
        try:
            view = decode_part(entry, 0, notification.parts[0], notification.inline, 0)
            rows = _rows(view, entry)
        except FormatError as error:
            raise self._unreadable(error) from error
        yield from rows

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Begin what fits, hand out what is there, else wait for an answer."""
        now_ms = self._worker.clock.now_ms()
        for section in self._debatcher.plan(now_ms):
            self._fetcher.submit(section)
        found = self._debatcher.next_run()
        if isinstance(found, Run):
            try:
                rows = _rows(found.source, found.entry)
            except FormatError as error:
                raise self._unreadable(error) from error
            yield from rows
            found.index = found.end
            self._unread -= 1
            return
        self._fetcher.wait(_WAIT_S)
        for result in self._fetcher.take_results():
            self._debatcher.fetched(result.section, result.outcomes, now_ms)
            for outcome in result.outcomes:
                if isinstance(outcome, Failure):
                    raise _error(outcome)

    def _unreadable(self, error: FormatError) -> BlobmsgError:
        if isinstance(error, UnsupportedFormatError):
            return UnsupportedFormat(f"{self._place}: {error}")
        return CorruptSegment(f"{self._place}: {error}. {_REMEDY}")


def _segment_usage(notification: Notification, zone: str | None) -> StageUsage:
    """What reading a notification's segment in a zone counts as, requests left out."""
    if notification.key is None:
        return StageUsage(segments=1)
    written_in = ObjectKey.decode(notification.key).zone
    is_foreign = zone is not None and written_in not in (NO_ZONE, zone)
    length_bytes = sum(part.byte_range.length for part in notification.parts)
    return StageUsage(segments=1, foreign_bytes=length_bytes if is_foreign else 0)


def _rows(view: RecordsView, entry: Entry) -> list[pa.RecordBatch]:
    if entry.notification is None:
        raise AssertionError("rows come with a notification")
    part = entry.notification.parts[0]
    return decode_rows(view.segment.data, 0, part.uncompressed_bytes)


def _error(failure: Failure) -> BlobmsgError:
    """What the job fails with."""
    error: KafkaError = failure.error
    kind = _ERRORS.get(error.code())
    if kind is None:
        return BlobmsgError(error.str(), code=error.code())
    is_lost = kind in (ObjectMissing, ObjectExpired, CorruptSegment)
    return kind(f"{error.str()}. {_REMEDY}" if is_lost else error.str())
