"""Outcomes on their way to the user: what only `poll`, `flush` and `close` may run.

Keeps reports and events in order and runs callbacks; decides nothing about outcomes. Segments
without a callback never come here.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError

from blobmsg.core.offsets import virtual_offset_of_first
from blobmsg.core.segments import SealedSegment, SegmentState
from blobmsg.message import Message
from blobmsg.producer_topics import ANY_PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DeliveryReports", "kafka_error_of"]


class _Serving:
    """A segment whose callbacks run."""

    __slots__ = ("begun", "ended", "message_of", "segment")

    def __init__(self, segment: SealedSegment) -> None:
        self.segment = segment
        # Records whose callback has been called, or that have none. All who serve share it: a
        # callback that flushes, another thread, the next call after an interrupt.
        self.begun = 0
        self.ended = 0  # of these
        self.message_of = _messages(segment)

    @property
    def running(self) -> int:
        """How many of its callbacks run now."""
        return self.begun - self.ended


class _Thread(threading.local):
    """What differs between those who serve."""

    is_serving = False


class DeliveryReports:
    """A queue of reported segments and of other events for callbacks.

    Args:
        only_errors: `delivery.report.only.error`.

    Attributes:
        served: Segments whose callbacks have run, and whose memory waits to be freed.

    Threads: any; a record's callback is called once. `_lock` is among those who serve: it guards
    who takes from `_queue` and the change of `_serving` and `_ending`; callbacks run without it. It
    is reentrant for the sake of signal handlers; what changes under it does so without a call
    between, behind which CPython looks for signals. Who adds takes no lock, for a handler may wait
    for it.
    """

    def __init__(self, *, only_errors: bool) -> None:
        self._only_errors = only_errors
        self.served: deque[SealedSegment] = deque()
        self._lock = threading.RLock()
        self._queue: deque[SealedSegment | Callable[[], None]] = deque()
        self._events: deque[None] = deque()  # one for each event in the queue
        self._serving: _Serving | None = None
        # All of their callbacks have begun, and some still ran when that was looked at. Replaced,
        # never changed.
        self._ending: tuple[_Serving, ...] = ()
        self._thread = _Thread()

    @property
    def events(self) -> int:
        """Events in the queue that are no records."""
        return len(self._events)

    @property
    def begun(self) -> int:
        """Records that are told, or being told, of segments that are not in `served`."""
        return sum(serving.begun for serving in self._begun())

    @property
    def running(self) -> int:
        """How many records' callbacks run now."""
        return sum(serving.running for serving in self._begun())

    @property
    def running_elsewhere(self) -> int:
        """How many run in other threads; 0 for a callback that asks, which must not wait."""
        return 0 if self._thread.is_serving else self.running

    def _begun(self) -> tuple[_Serving, ...]:
        # In this order, and changed in the other one: what ends meanwhile is found twice at most.
        serving, ending = self._serving, self._ending
        return ending if serving is None or serving in ending else (serving, *ending)

    def add_segment(self, segment: SealedSegment) -> None:
        """Queue a settled segment that somebody listens to."""
        self._queue.append(segment)

    def add_event(self, run: Callable[[], None]) -> None:
        """Queue the call of a user's callback."""
        self._events.append(None)
        self._queue.append(run)

    def serve(self) -> int:
        """Run the callbacks that are due now, as stock does: not those that become due meanwhile.

        Whoever calls frees what is served. While callbacks take as long as deliveries, more would
        always be due, and nothing ever be freed.

        Returns:
            How many ran.

        Raises:
            Exception: What the first failing callback raised, after all the others ran.
            BaseException: An interrupt, at once; the next call goes on behind it.
        """
        if not self._queue and self._serving is None and not self._ending:
            return 0
        thread = self._thread
        was_serving = thread.is_serving
        try:
            thread.is_serving = True
            return self._serve()
        finally:
            thread.is_serving = was_serving

    def _serve(self) -> int:
        served = 0
        failures: list[Exception] = []
        for _ in range(len(self._queue) + (self._serving is not None)):
            item = self._next()
            if item is None:
                break
            if isinstance(item, _Serving):
                served += self._serve_segment(item, failures)
            else:
                served += 1
                try:
                    item()
                except Exception as error:  # noqa: BLE001  (raised below, after the others ran)
                    failures.append(error)
        with self._lock:
            if self._ending:
                self._take_ended()
        if failures:
            try:
                raise failures[0]
            finally:
                failures.clear()  # each has this frame, which must not have it, too
        return served

    def _next(self) -> _Serving | Callable[[], None] | None:
        with self._lock:
            # A handler may have served the first behind any call: so it is compared again, and
            # taken without one in between.
            if self._ending:
                self._take_ended()
            while self._serving is None and self._queue:
                item = self._queue[0]
                if isinstance(item, SealedSegment):
                    serving = _Serving(item)
                    if (
                        self._serving is None  # type: ignore[redundant-expr]
                        and self._queue
                        and self._queue[0] is item
                    ):
                        self._serving = serving
                        self._queue.popleft()
                elif self._queue and self._queue[0] is item:
                    self._queue.popleft()
                    self._events.popleft()
                    return item
            return self._serving

    def _take_ended(self) -> None:
        """Under the lock; what a handler has taken meanwhile is compared again, too."""
        ending = self._ending
        rest = tuple(found for found in ending if found.running)
        ended = [found.segment for found in ending if found not in rest]
        if self._ending is ending:
            self._ending = rest
            self.served.extend(ended)

    def _serve_segment(self, serving: _Serving, failures: list[Exception]) -> int:
        served = 0
        segment = serving.segment
        while (record_index := serving.begun) < segment.record_count:
            callback = segment.callback_of(record_index)
            message = None if callback is None else serving.message_of(record_index)
            error = None if message is None else message.error()
            if serving.begun != record_index:
                continue  # a callback that flushed, or another thread, was here meanwhile
            # No call from the comparison to the callback's own: an interrupt comes before, and the
            # record is told later, or inside of the callback.
            serving.begun = record_index + 1
            if callback is None or (error is None and self._only_errors):
                serving.ended += 1
                continue
            served += 1
            try:
                callback(error, message)
            except Exception as failure:  # noqa: BLE001  (raised by `serve`)
                failures.append(failure)
            finally:
                serving.ended += 1
        with self._lock:
            if self._serving is serving:
                self._ending = (*self._ending, serving)
                self._serving = None
        return served


def _messages(segment: SealedSegment) -> Callable[[int], Message]:
    """A function that makes the report of one record."""
    topic = segment.topic
    # Failed before the partitioner chose.
    partition = None if segment.partition == ANY_PARTITION else segment.partition
    record = segment.rows.record
    latency_s = (segment.settled_ms - segment.opened_ms) / 1000
    failed = segment.error if segment.state is SegmentState.FAILED else None
    first = (
        None
        if segment.kafka_offset < 0
        else virtual_offset_of_first(segment.kafka_offset, segment.record_count)
    )
    offsets, errors = segment.record_offsets, segment.record_errors

    def message(index: int) -> Message:
        error: KafkaError | None = failed
        offset: int | None = None if first is None else first + index
        if offsets is not None:
            offset = virtual_offset_of_first(offsets[index], 1) if offsets[index] >= 0 else None
            if errors is not None and index in errors:
                error = errors[index]
        key, value, timestamp_ms, headers = record(index)
        return Message(
            topic,
            partition,
            None if error is not None else offset,
            key,
            value,
            headers,
            error,
            (TIMESTAMP_CREATE_TIME, timestamp_ms),
            latency_s,
        )

    return message


def kafka_error_of(error: Any) -> KafkaError:
    """What callbacks get for any failure: always a KafkaError, never an exception."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, BaseException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return KafkaError(KafkaError._FAIL, f"{type(error).__name__}: {error}")
