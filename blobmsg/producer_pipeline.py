"""The threads behind a BlobProducer: records in, uploads and notifications out, reports back.

A shell: takes an event, calls `ProducerCore` under one lock, puts the actions into queues while
the lock is held (so that two threads can't swap them), and lets the thread that owns a queue do
them. Decides nothing about batches, order or memory.

Threads: `record_step`, `record_path`, `serve`, `flush`, `purge` any; uploads by `Uploader`'s;
topics are read by the one of `ProducerTopics`; `NotifierThread` alone calls the inner producer's
`produce` (`Outbox`), `purge`, `flush`, `poll` and what `Transactions` wants of it.
Lock order: `_core_lock` is the only lock; nothing is called out while it is held.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException

from blobmsg.core.events import Notify, ProducerAction, ReadTopic, Report, UploadBatch
from blobmsg.core.segments import SealedSegment, SegmentState
from blobmsg.delivery_reports import DeliveryReports
from blobmsg.format.codec import Codec
from blobmsg.notifier_thread import NotifierThread
from blobmsg.outbox import Outbox
from blobmsg.producer_setup import create_producer_core
from blobmsg.producer_topics import ProducedTopic, ProducerTopics, WaitingRecord
from blobmsg.rare_log import RareLog
from blobmsg.record_path import RecordPath
from blobmsg.record_step import RecordStep
from blobmsg.reentrant import CoreLock, Waiting, wait_without
from blobmsg.store_watch import StoreWatch
from blobmsg.thread_log import ThreadLog
from blobmsg.time_limit import TimeLimit
from blobmsg.upload_results import UploadResults
from blobmsg.uploader import Uploader

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.clock import Clock
    from blobmsg.config import Settings
    from blobmsg.core.producer_core import ProducerCore
    from blobmsg.core.segments import Lane
    from blobmsg.core.transaction import Transaction
    from blobmsg.kafka_settings import KafkaView
    from blobmsg.resources import Stores
    from blobmsg.topic_directory import TopicDirectory

__all__ = ["ProducerPipeline"]

logger = logging.getLogger("blobmsg.producer")

# How often who flushes looks whether another thread's callbacks have ended.
_LOOK_S: Final = 0.05


class ProducerPipeline:
    """Carries records from `record_step` and `record_path` to their reports.

    Args:
        inner: The stock producer; anything with its `produce`, `poll`, `flush`, `purge`, `len`.
        settings: Ours.
        view: The user's librdkafka settings that we interpret.
        directory: Reads topics.
        stores: The store is opened when the first batch needs it.
        on_store_error: Told that the store has not answered for a while, once a minute at most.
        clock: Time.
        name: For thread names and log lines.
        producer_id: 16 bytes, unique to this producer.
        make_uploader: Takes `Uploader`'s arguments.
        waiting: None: for real threads, in real time.

    Attributes:
        notifier_thread: Calls the inner producer.
        reports: What `poll`, `flush` and `close` tell the user.
        upload_results: Tells the core what came of uploads.
        log: For what the user should know.
        monotonic_s: The time in which callers wait.
    """

    def __init__(
        self,
        inner: Any,
        settings: Settings,
        view: KafkaView,
        *,
        directory: TopicDirectory,
        stores: Stores,
        on_store_error: Callable[[KafkaError], object],
        clock: Clock,
        name: str,
        producer_id: bytes,
        make_uploader: Callable[..., Uploader] = Uploader,
        waiting: Waiting | None = None,
    ) -> None:
        self._clock = clock
        waiting = waiting or Waiting()
        self.monotonic_s = waiting.monotonic_s
        self._name = name
        self._core = create_producer_core(settings, view, producer_id)
        self._memory = self._core.memory
        self._core_lock = CoreLock()
        self._news = waiting.news  # of memory and reports
        self._is_seal_due = False  # of everything; asked for, not yet done
        self._deferred: deque[tuple[str, WaitingRecord]] = deque()  # came inside of the core
        self._wake = waiting.wake
        self._jobs = waiting.make_job_thread(self._run, f"{name}-sealer")
        # Handlers of log lines are the user's: they may wait for whom the sealer must not wait.
        self._log_lines = waiting.make_job_thread(self._run, f"{name}-log")
        self._is_stopping = False
        self._defect: KafkaError | None = None
        self._acknowledged_silently = 0
        self.reports = DeliveryReports(only_errors=view.delivery_report_only_error)
        self.log = ThreadLog(logger, self.log_failed)
        self._log_rarely = RareLog(self.log.error)
        self._log_failure: Exception | None = None  # waits to be raised
        self.counters: dict[str, int] = dict.fromkeys(
            (
                "records",
                "payload_bytes",
                "batches",
                "object_bytes",
                "notifications",
                "notification_bytes",
                "inline_segments",
                "fallback_segments",
                "fallback_bytes",
                "plain_records",
                "failed_records",
                "unheard_failures",
            ),
            0,
        )
        store_watch = StoreWatch(
            self._core,
            stores,
            on_store_error=on_store_error,
            counters=self.counters,
            warn=RareLog(self.log.warning),
            name=name,
        )
        self._outbox = Outbox(
            inner,
            self._core,
            clock=clock,
            core_lock=self._core_lock,
            dispatch=self._dispatch,
            producer_id=producer_id,
            counters=self.counters,
        )
        self._producer_topics = ProducerTopics(
            directory,
            self._core,
            view,
            uses_store=settings.uses_store,
            clock=clock,
            has_in_flight=lambda: self._outbox.in_flight > 0,
            core_lock=self._core_lock,
            tell=self._news.tell,
            dispatch=self._dispatch,
            run=self._run,
            wake_notifier=self._wake.set,
            log=self.log,
            name=name,
        )
        self.upload_results = UploadResults(
            self._core,
            self._core_lock,
            self._producer_topics.by_name,
            clock=clock,
            dispatch=self._dispatch,
            news=self._news,
            wake_notifier=self._wake.set,
            is_stopping=lambda: self._is_stopping,
            thread_failed=self.thread_failed,
            counters=self.counters,
            log=self._log_rarely,
            name=name,
        )
        self._uploader = make_uploader(
            lambda: stores.get().store,
            self.upload_results,
            codec=Codec[settings.compression_type.upper()],
            producer_id=producer_id,
            threads=settings.upload_threads,
            log=self.log,
            name=name,
        )
        self.notifier_thread = NotifierThread(
            inner,
            self._core,
            self._producer_topics,
            self._outbox,
            store_watch,
            self._uploader,
            clock=clock,
            waiting=waiting,
            core_lock=self._core_lock,
            statistics_interval_ms=view.statistics_interval_ms,
            dispatch=self._dispatch,
            run=self._run,
            raise_defect=self._raise_defect,
            raise_later=self.raise_later,
            name=name,
        )
        self.record_step = RecordStep(
            self._producer_topics.keyed,
            self._memory,
            self._core_lock,
            self._seal_and_wait,
            settings.record_max_bytes,
        )
        self.record_path = RecordPath(
            self._core,
            self._core_lock,
            self._producer_topics.usable,
            clock=clock,
            admit=self._admit,
            opened=self._wake.set,
            seal=self._seal_and_wait,
        )

    def start(self) -> None:
        """Start the threads."""
        self._uploader.start()
        self._jobs.start()
        self._log_lines.start()
        self.notifier_thread.start()
        self._producer_topics.start()

    # --- records in ---------------------------------------------------------------------------

    def _admit(self, topic: str, record: WaitingRecord) -> ProducedTopic | None:
        """Decide about a record that may have to wait; its topic, unless it was taken or put off.

        Raises:
            BufferError: No room.
            KafkaException: The topic does not exist, no transaction is open, or nothing works any
                more.
        """
        self._raise_defect()
        if self.notifier_thread.fatal is not None:
            text = "Unable to produce message: Local: Fatal error"
            raise KafkaException(KafkaError(KafkaError._FATAL, text))
        if not self._producer_topics.is_open:
            text = "Unable to produce message: Local: Erroneous state"
            raise KafkaException(KafkaError(KafkaError._STATE, text))
        if not record.is_taken and self._memory.is_full_for(record.payload_bytes):
            self._request_seal()
            raise BufferError("Local: Queue full")
        if self._core_lock.is_deciding:  # a finalizer, on a thread of ours inside of the core
            self._memory.charge_record(record.payload_bytes)
            self._deferred.append((topic, record))
            self._jobs.put(self._append_deferred)
            return None
        return self._producer_topics.add_waiting(topic, record)

    def _append_deferred(self) -> None:
        topic, record = self._deferred.popleft()
        with self._core_lock.lock:
            self._memory.charge_record(record.payload_bytes, -1)  # it is charged where it joins
            try:
                self.record_path.append(
                    topic,
                    record.key,
                    record.value,
                    record.partition,
                    record.timestamp_ms,
                    record.headers,
                    record.callback,
                    record.payload_bytes,
                    record.is_urgent,
                    is_taken=True,
                )
            except KafkaException as error:  # its `produce` has returned and can't raise it
                with self._core_lock:
                    self._memory.charge_record(record.payload_bytes)
                    self._producer_topics.fail(topic, record, error.args[0])

    def is_own_thread(self) -> bool:
        """Whether a finalizer has called on a thread of ours, which can't wait for itself."""
        return threading.current_thread().name.startswith(f"{self._name}-")

    # --- the core, on our own threads -------------------------------------------------------------

    def _seal_and_wait(self, lane: Lane, is_urgent: bool) -> None:
        self._do_and_wait(partial(self._seal, lane, is_urgent=is_urgent))

    def _do_and_wait(self, job: Callable[[], None]) -> None:
        wait_without(self._core_lock.lock, partial(self._jobs.put_and_wait, job))

    def _seal(self, lane: Lane, *, is_urgent: bool) -> None:
        with self._core_lock:
            # Otherwise another thread's record has filled it, and it was sealed before.
            if is_urgent or lane.size_bytes >= lane.seal_at_bytes:
                now_ms, wall_ms = self._clock.now_ms(), self._clock.timestamp_ms()
                self._dispatch(self._core.seal(lane, now_ms, wall_ms))

    def _request_seal(self) -> None:
        """Have everything sealed: memory is short, or somebody flushes."""
        if not self._is_seal_due:
            self._is_seal_due = True
            self._jobs.put(self._seal_all)

    def _seal_all(self) -> None:
        with self._core_lock:
            self._is_seal_due = False
            self._producer_topics.seal_when_known()
            now_ms, wall_ms = self._clock.now_ms(), self._clock.timestamp_ms()
            self._dispatch(self._core.seal_all(now_ms, wall_ms))

    def _free_served(self) -> None:
        """Free the segments whose callbacks have run."""
        with self._core_lock:
            served = self.reports.served
            while served:
                self._core.records_reported([served[0]])
                served.popleft()
            self._news.tell()

    def _dispatch(self, actions: list[ProducerAction]) -> None:
        """Put actions into the queues of the threads that do them. Under the lock."""
        has_news = False
        for action in actions:
            if isinstance(action, Notify):
                self._outbox.add(action)
                self._wake.set()
            elif isinstance(action, Report):
                self._report(action.segment)
                has_news = True
            elif isinstance(action, UploadBatch):
                self.counters["batches"] += 1
                self._uploader.upload(action.batch)
            elif isinstance(action, ReadTopic):
                self._producer_topics.read_soon(action.topic)
            else:
                self._uploader.make_inline(action)
        if self._core.transaction.is_stopped and self._producer_topics.is_open:
            self._producer_topics.shut()
            has_news = True
        if has_news:
            self._news.tell()

    def _report(self, segment: SealedSegment) -> None:
        failed = (
            segment.record_count
            if segment.state is SegmentState.FAILED
            else len(segment.record_errors or ())
        )
        self.counters["records"] += segment.record_count - failed
        self.counters["failed_records"] += failed
        self.counters["payload_bytes"] += segment.payload_bytes
        if segment.has_callbacks:
            self.reports.add_segment(segment)
            return
        self._acknowledged_silently += segment.record_count
        self._core.records_reported([segment])
        if failed:
            self.counters["unheard_failures"] += failed
            error = segment.error or next(iter((segment.record_errors or {}).values()))
            self._log_later(
                f"{failed} records of {segment.topic} [{segment.partition}] failed and nobody "
                f"listens (no on_delivery): {error}",
                cause=str(error),
            )

    # --- the threads --------------------------------------------------------------------------

    def thread_failed(self, error: BaseException) -> None:
        """A thread ended by a defect: nothing more can be promised."""
        with self._core_lock.lock:
            if self._defect is None:
                self._defect = KafkaError(
                    KafkaError._FATAL,
                    f"a thread of {self._name} ended by a defect: {type(error).__name__}: {error}",
                    fatal=True,
                )
            self._producer_topics.stop()  # nobody fills it again
            self._producer_topics.shut()  # so that `produce` finds out
            self._news.tell()

    def _run(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:  # noqa: BLE001  (reported as fatal)
            self.log.critical("%s: a thread ended by a defect", self._name)
            self.thread_failed(error)

    def read_topics(self) -> float:
        """See `ProducerTopics.read_due`."""
        return self._producer_topics.read_due()

    # --- reports and waiting --------------------------------------------------------------------

    @property
    def unreported(self) -> int:
        """Records whose report nobody has begun to serve."""
        with self._core_lock.lock:
            records = self._memory.records  # first: a handler may free some behind any call
            not_freed = sum(segment.record_count for segment in tuple(self.reports.served))
            return records - not_freed - self.reports.begun

    @property
    def undelivered(self) -> int:
        """Records without a report, and events not served yet."""
        with self._core_lock.lock:
            return self.unreported + self.reports.events

    @property
    def is_stopping(self) -> bool:
        """Whether another thread has closed the producer."""
        return self._is_stopping

    def hold_outcomes(self, size_bytes: int) -> None:
        """See `BufferMemory.hold_outcomes`."""
        with self._core_lock.lock:
            self._memory.hold_outcomes(size_bytes)

    @property
    def has_defect(self) -> bool:
        """Whether a defect has ended one of the threads."""
        return self._defect is not None

    def serve(self, timeout_s: float) -> int:
        """Run due callbacks; wait for the first one at most `timeout_s` (negative: no limit).

        Ends, as `flush` does, when another thread stops the pipeline.

        Returns:
            Events served; records without a callback that were acknowledged count too.
        """
        if self.is_own_thread():
            return 0
        served = self._serve_due()
        if served or not timeout_s:
            return served
        limit = TimeLimit(timeout_s, self.monotonic_s)
        with self._news.listening() as news:
            while not (served := self._serve_due()) and not limit.is_over and not self._is_stopping:
                wait_without(self._core_lock.lock, partial(news.wait, limit.patience_s()))
        return served

    def _serve_due(self) -> int:
        served = self._serve_reports()
        with self._core_lock.lock:
            served += self._acknowledged_silently
            self._acknowledged_silently = 0
            self._raise_defect()
        return served

    def _serve_reports(self) -> int:
        try:
            return self.reports.serve()
        finally:
            if self.reports.served:
                self._do_and_wait(self._free_served)

    def flush(self, timeout_s: float, is_over: Callable[[], bool] = lambda: False) -> int:
        """Seal everything at once and wait until all is reported, serving callbacks.

        Those that other threads run are waited for, too, as by stock; not by a callback that
        flushes. Stock waits there for the callback itself; this does not.

        Args:
            timeout_s: At most so long; negative: no limit.
            is_over: Asked under the lock whether there is nothing to wait for any more.

        Returns:
            What remains undelivered, and callbacks that run elsewhere.
        """
        if self.is_own_thread():
            self._request_seal()
            return self.undelivered
        limit = TimeLimit(timeout_s, self.monotonic_s)
        is_first = True
        with self._news.listening() as news:
            while True:
                self._serve_reports()
                with self._core_lock.lock:
                    self._raise_defect()
                    remaining = self.undelivered  # first: what has begun meanwhile runs
                    running = self.reports.running_elsewhere
                    if not remaining and not running:
                        self._acknowledged_silently = 0
                        return 0
                    if is_over():
                        return remaining + running
                    # Again when all that was sealed is settled: callbacks may have produced more.
                    # Not for nothing, else it would seal the first records behind this flush.
                    is_settled = not self._core.notifier.unsettled_segments
                    if remaining and (is_first or (is_settled and self._has_unsealed())):
                        is_first = False
                        self._request_seal()
                if limit.is_over or self._is_stopping:
                    return remaining + running
                # Nobody tells of a callback that an interrupt has ended.
                patience_s = limit.patience_s() if remaining else limit.slice_s(_LOOK_S)
                wait_without(self._core_lock.lock, partial(news.wait, patience_s))

    def _has_unsealed(self) -> bool:
        return bool(self._core.batcher.filling_lanes()) or self._producer_topics.has_waiting

    def purge(self, *, in_queue: bool, in_flight: bool, waits: bool) -> None:
        """See `NotifierThread.purge`; a thread of ours never waits."""
        self.notifier_thread.purge(
            in_queue=in_queue, in_flight=in_flight, waits=waits and not self.is_own_thread()
        )

    # --- for `Transactions` ---------------------------------------------------------------------

    @property
    def transaction(self) -> Transaction:
        """The current one; changed by `decide` alone."""
        return self._core.transaction

    def wait_for_news(self, timeout_s: float) -> None:
        """Wait for anything to change, at most so long."""
        with self._news.listening() as news:
            wait_without(self._core_lock.lock, partial(news.wait, timeout_s))

    def decide(self, decision: Callable[[ProducerCore, ProducerTopics], None]) -> None:
        """Have something decided by the core, on a thread of ours, and wait until it is."""
        self._do_and_wait(partial(self.decide_here, decision))

    def decide_here(self, decision: Callable[[ProducerCore, ProducerTopics], None]) -> None:
        """As `decide`, called on a thread of ours: in an `InnerCall` only."""
        with self._core_lock:
            decision(self._core, self._producer_topics)
            self._news.tell()

    def raise_fatal(self) -> None:
        """Raise what makes this producer useless, if anything has."""
        self._raise_defect()
        if self.notifier_thread.fatal is not None:
            raise KafkaException(self.notifier_thread.fatal)

    def _raise_defect(self) -> None:
        if self._defect is not None:
            raise KafkaException(self._defect)

    def all_brokers_down(self) -> None:
        """The inner client says that it has no connection. Threads: any."""
        self._jobs.put(self._note_all_brokers_down)

    def _note_all_brokers_down(self) -> None:
        with self._core_lock:
            self._core.presence.all_brokers_down(self._clock.now_ms())

    def event(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Queue an event of the inner client for the user's callback."""
        self.reports.add_event(partial(callback, *arguments))
        self._news.tell()

    def raise_later(self, failure: Exception) -> None:
        """Have the next `serve` or `flush` raise it. Threads: any."""
        self.event(_raise, failure)

    def log_failed(self, error: Exception) -> None:
        """A user's log handler has raised in one of our threads: `poll` or `flush` raises it.

        Threads: any. Of several before that only the first is kept.
        """
        if self._log_failure is None:
            self._log_failure = error
            self.event(self._raise_log_failure)

    def _raise_log_failure(self) -> None:
        error, self._log_failure = self._log_failure, None
        if error is not None:
            raise error

    def _log_later(self, text: str, *, cause: str) -> None:
        """Log without the lock, which no user's handler should find held."""
        self._log_lines.put(partial(self._log_rarely, f"{self._name}: {text}", cause=cause))

    def stop(self, timeout_s: float) -> None:
        """End the threads; what is not delivered yet is lost. Waits at most `timeout_s`.

        They let go of the inner producer: its threads and connections end with its last reference.
        """
        self._is_stopping = True
        self._news.tell()
        self.notifier_thread.stop()
        self._jobs.stop()
        self._log_lines.stop()
        self._producer_topics.stop()
        self._uploader.stop()
        if self.is_own_thread() or timeout_s <= 0:  # nor need all of them have been started
            return
        limit = TimeLimit(timeout_s)
        self._jobs.join(limit.rest_s())
        self.notifier_thread.join(limit.rest_s())
        # Last: their requests may hang, and would take the others' time.
        self._producer_topics.join(limit.rest_s())
        self._uploader.join(limit.rest_s())


def _raise(failure: Exception) -> NoReturn:
    raise failure
