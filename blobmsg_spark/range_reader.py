"""A task of the source: one range of offsets from Kafka and the store to Arrow record batches.

A shell as the consumer is one, around the same core (`Debatcher`) and fetcher, but of one partition
from one place to another. What the consumer reports and tries again is an error here, at once: the
store's own retries are over by then, and Spark runs a failed task again. Nothing that was read of a
failed task counts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from blobmsg import errors
from blobmsg.clock import SystemClock
from blobmsg.core.debatcher import Debatcher, Entry, Failure, FailureKind, Run
from blobmsg.core.offsets import remaining_records, to_kafka, virtual_offset_of_first
from blobmsg.errors import BlobmsgError, CorruptSegment, UnsupportedFormat
from blobmsg.fetcher import EntryContext, decode_part
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.notification import Limits, decode_notification, is_notification
from blobmsg.message import PlainView, RecordsView
from blobmsg_spark.kafka_ranges import KafkaRanges
from blobmsg_spark.plain_arrow import PlainRecords
from blobmsg_spark.segment_arrow import segment_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from blobmsg.format.notification import Notification
    from blobmsg_spark.offset_ranges import OffsetRange
    from blobmsg_spark.read_session import ReadSession

__all__ = ["RangeReader", "reader_limits", "take_notification"]

logger = logging.getLogger("blobmsg.spark")

# Spark's JVM copies each batch into memory of its own; see docs/spark_source.md for the rates.
_MAX_BATCH_BYTES: Final = 4 << 20
# Longest single wait in Kafka's client, and for a fetch while Kafka may have more.
_KAFKA_SLICE_S: Final = 0.1
_FETCH_SLICE_S: Final = 0.02
_BY_CODE: Final[dict[int, type[BlobmsgError]]] = {
    found.default_code: found
    for found in map(vars(errors).__getitem__, errors.__all__)
    if found is not BlobmsgError
}


def reader_limits(record_max_bytes: int) -> Limits:
    """What a reader is willing to fetch and to hold; as the consumer's."""
    usual = Limits()
    return Limits(
        max_segment_bytes=max(usual.max_segment_bytes, 4 * record_max_bytes),
        max_uncompressed_bytes=max(usual.max_uncompressed_bytes, 4 * record_max_bytes),
    )


def take_notification(message: Any, limits: Limits) -> Notification | None:
    """The notification that a Kafka record is; None for a record itself.

    Raises:
        UnsupportedFormat: Of a version that this one does not know.
        CorruptSegment: It is damaged.
    """
    headers, value = message.headers(), message.value()
    if headers is None or not is_notification(headers, value):
        return None
    where = f"{message.topic()} [{message.partition()}] at Kafka offset {message.offset()}"
    try:
        return decode_notification(value, limits)
    except UnsupportedFormatError as error:
        raise UnsupportedFormat(f"{where}: {error}") from error
    except FormatError as error:
        raise CorruptSegment(f"damaged notification in {where}: {error}") from error


class RangeReader:
    """Reads one range.

    Args:
        wanted: What to read.
        session: The clients; its consumer is assigned here.
        fail_on_data_loss: Whether lost and expired records are an error.
        include_headers: With the column `headers`.
        poll_timeout_ms: See `KafkaRanges`.

    Threads: one.
    """

    def __init__(
        self,
        wanted: OffsetRange,
        session: ReadSession,
        *,
        fail_on_data_loss: bool,
        include_headers: bool,
        poll_timeout_ms: int,
    ) -> None:
        settings = session.settings
        self._wanted = wanted
        self._checks_offsets = settings.offset_check
        self._fetcher = session.fetcher
        self._include_headers = include_headers
        self._limits = reader_limits(settings.record_max_bytes)
        self._clock = SystemClock()
        self._core = Debatcher(
            prefetch_max_bytes=settings.prefetch_max_bytes,
            fetch_slots=settings.fetch_threads,
            max_section_bytes=max(settings.prefetch_max_bytes // 2, 1 << 20),
            gather_ms=0,  # one partition's notifications of an object come together
            skips_missing=settings.on_missing == "skip",
            skips_expired=not fail_on_data_loss,
            checks_positions=settings.offset_check,
        )
        self._flow = self._core.assigned(wanted.key, wanted.start)
        self._kafka = KafkaRanges(
            session.consumer,
            {wanted.key: (wanted.kafka_start, wanted.kafka_stop)},
            fail_on_data_loss=fail_on_data_loss,
            poll_timeout_ms=poll_timeout_ms,
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records of the range, in order.

        Raises:
            BlobmsgError: Something can't be read; with topic, partition, place and remedy.
        """
        plain = PlainRecords(
            include_headers=self._include_headers, max_batch_bytes=_MAX_BATCH_BYTES
        )
        while True:
            upcoming = self._core.next_run()
            if isinstance(upcoming, Entry):
                raise self._error_of(upcoming)
            if upcoming is None or not isinstance(upcoming.source, PlainView) or plain.is_full:
                if len(plain):
                    yield self._checked(plain.take)
                if upcoming is None:
                    if self._is_complete:
                        break
                    self._serve(may_wait=True)
                    continue
                self._serve(may_wait=False)  # so that fetches go on while Spark takes batches
            yield from self._take(upcoming, plain)
        self._log_skipped()

    def abandon(self) -> None:
        """Nobody wants the rest: what is in flight is dropped when it comes."""
        self._core.revoked(self._wanted.key)

    @property
    def _is_complete(self) -> bool:
        return not self._kafka.open_keys and not self._flow.entries

    # --- records out --------------------------------------------------------------------------

    def _take(self, run: Run, plain: PlainRecords) -> Iterator[pa.RecordBatch]:
        """The records of a run that lie before the range's end."""
        start, end = run.index, run.end
        virtual_offset = run.position()
        run.index = run.end
        end = min(end, start + self._wanted.end - virtual_offset)
        if start >= end:
            return
        if isinstance(run.source, PlainView):
            plain.add(run.source)
            return
        view: RecordsView = run.source
        batches = segment_batches(
            view,
            start,
            end,
            include_headers=self._include_headers,
            max_batch_bytes=_MAX_BATCH_BYTES,
        )
        while True:
            batch = self._checked(lambda: next(batches, None))
            if batch is None:
                return
            yield batch

    def _checked(self, make: Any) -> Any:
        try:
            return make()
        except FormatError as error:
            raise CorruptSegment(f"{self._wanted}: {error}") from error

    def _error_of(self, entry: Entry) -> BlobmsgError:
        failure = entry.failure
        if failure is None:
            raise AssertionError("an entry without records or failure was handed out")
        return self._error(failure.error, entry.kafka_offset)

    def _error(self, error: KafkaError, kafka_offset: int) -> BlobmsgError:
        """The exception of a failure that the core keeps as a KafkaError."""
        error_class = _BY_CODE.get(error.code(), BlobmsgError)
        topic, partition = self._wanted.key
        text = str(error.str())
        if error_class is errors.ObjectExpired:
            text = f"{text}; failOnDataLoss=false goes on without it"
        return error_class(
            text,
            code=error.code(),
            topic=topic,
            partition=partition,
            kafka_offset=kafka_offset,
        )

    def _log_skipped(self) -> None:
        for kind, records in self._core.skipped_records.items():
            logger.warning("%s: %d records are %s and were skipped", self._wanted, records,
                           kind.value)  # fmt: skip

    # --- Kafka and the store ------------------------------------------------------------------

    def _serve(self, *, may_wait: bool) -> None:
        """Take what Kafka and the fetcher have, plan fetches; wait for one of them if need be."""
        awaits_fetch = self._core.fetches_in_flight > 0
        # Without a fetch, and with nothing left to come from Kafka, it waits for the next attempt.
        if may_wait and (awaits_fetch or not self._kafka.open_keys):
            self._fetcher.wait(_FETCH_SLICE_S if self._kafka.open_keys else _KAFKA_SLICE_S)
        self._take_results()
        self._core.tick(self._clock.now_ms())
        self._core.take_pauses()
        room = 0 if self._flow.is_paused_by_us else self._core.room_records()
        if room and self._kafka.open_keys:
            waits_for_kafka = may_wait and not awaits_fetch
            for message in self._kafka.receive(room, _KAFKA_SLICE_S if waits_for_kafka else 0.0):
                self._receive(message)
        for section in self._core.plan(self._clock.now_ms()):
            self._fetcher.submit(section)

    def _take_results(self) -> None:
        now_ms = self._clock.now_ms()
        for result in self._fetcher.take_results():
            for (entry, _, _), outcome in zip(result.section.parts, result.outcomes, strict=True):
                if isinstance(outcome, Failure) and outcome.kind is FailureKind.TRANSIENT:
                    raise self._error(outcome.error, entry.kafka_offset)
            self._core.fetched(result.section, result.outcomes, now_ms)

    def _receive(self, message: Any) -> None:
        """Hand a Kafka record to the core."""
        kafka_offset: int = message.offset()
        try:
            notification = take_notification(message, self._limits)
            records = 1 if notification is None else notification.records
            if self._is_past_end(kafka_offset, records):
                self._refuse_place(kafka_offset, self._wanted.end)
                return
            if notification is None:
                view = PlainView(message, virtual_offset_of_first(kafka_offset, 1))
                size_bytes = len(message.value() or b"") + 256
                taken = self._core.records_received(self._flow, kafka_offset, [view], 1, size_bytes)
            else:
                taken = self._take_notification(message, notification)
        except (CorruptSegment, UnsupportedFormat) as error:
            is_damaged = isinstance(error, CorruptSegment)
            kind = FailureKind.MISSING if is_damaged else FailureKind.REFUSED
            self._damaged(kafka_offset, Failure(kind, error.kafka_error))
            return
        if not taken:
            self._refuse_place(kafka_offset, self._wanted.start)

    def _is_past_end(self, kafka_offset: int, records: int) -> bool:
        """Whether a Kafka record has not even so many records as shall be left behind the range.

        The core looks at the place where a range begins; of a Kafka offset as the end it would
        not know, and nothing would be read without a word.
        """
        if not self._checks_offsets or kafka_offset != to_kafka(self._wanted.end):
            return False
        return (remaining_records(self._wanted.end) or 0) > records

    def _refuse_place(self, kafka_offset: int, place: int) -> None:
        text = (
            f"{self._wanted}: no notification has the place {place}: this looks like a "
            "Kafka offset; convert it once with blobmsg.offsets.to_virtual"
        )
        error = KafkaError(KafkaError._INVALID_ARG, text)
        self._damaged(kafka_offset, Failure(FailureKind.REFUSED, error))

    def _damaged(self, kafka_offset: int, failure: Failure) -> None:
        self._core.damaged_received(self._flow, kafka_offset, failure, self._clock.now_ms())

    def _take_notification(self, message: Any, notification: Notification) -> bool:
        timestamp_type, timestamp_ms = message.timestamp()
        context = EntryContext(
            timestamp_type=timestamp_type,
            log_append_ms=timestamp_ms if timestamp_type == TIMESTAMP_LOG_APPEND_TIME else None,
            leader_epoch=message.leader_epoch(),
        )
        kafka_offset: int = message.offset()
        if notification.inline is None:
            return self._core.notification_received(self._flow, kafka_offset, notification, context)
        entry = Entry(self._flow, kafka_offset, notification, notification.records)
        entry.context = context
        views: list[RecordsView] = []
        for index, part in enumerate(notification.parts):
            # A buffer of its own, as a fetched part has, begins where Arrow's may.
            stored = notification.inline[part.byte_range.start : part.byte_range.end]
            try:
                views.append(decode_part(entry, index, part, stored, 0))
            except UnsupportedFormatError as error:
                raise UnsupportedFormat(f"{self._wanted} at {kafka_offset}: {error}") from error
            except FormatError as error:
                raise CorruptSegment(
                    f"damaged inline segment in {self._wanted} at Kafka offset {kafka_offset}: "
                    f"{error}"
                ) from error
        size_bytes = sum(len(view.segment.data) for view in views)
        return self._core.records_received(
            self._flow, kafka_offset, views, notification.records, size_bytes
        )
