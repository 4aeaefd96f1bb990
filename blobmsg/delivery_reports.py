"""Outcomes on their way to the user: what only `poll`, `flush` and `close` may run.

Keeps reports and events in order and runs callbacks; decides nothing about outcomes. Records
without a callback never come here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError

from blobmsg.core.offsets import virtual_offset_of_first
from blobmsg.core.segments import SegmentState
from blobmsg.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.core.segments import SealedSegment

__all__ = ["DeliveryReports"]


class DeliveryReports:
    """A queue of reported segments and of other events for callbacks.

    Args:
        only_errors: `delivery.report.only.error`.
        segment_served: Told of each segment once its callbacks ran; frees its memory.

    Threads: `add_*` any; `serve` any, one report is served once.
    """

    def __init__(
        self, *, only_errors: bool, segment_served: Callable[[SealedSegment], None]
    ) -> None:
        self._only_errors = only_errors
        self._segment_served = segment_served
        self._queue: deque[SealedSegment | Callable[[], None]] = deque()

    def __len__(self) -> int:
        """Events that are no records: those are counted until their callback ran."""
        return sum(1 for item in self._queue if callable(item))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to serve."""
        return not self._queue

    def add_segment(self, segment: SealedSegment) -> None:
        """Queue a settled segment that somebody listens to."""
        self._queue.append(segment)

    def add_event(self, run: Callable[[], None]) -> None:
        """Queue the call of a user's callback."""
        self._queue.append(run)

    def serve(self) -> int:
        """Run all callbacks that are due.

        Returns:
            How many ran.

        Raises:
            BaseException: What the first failing callback raised, after all the others ran.
        """
        served = 0
        failures: list[BaseException] = []
        while True:
            try:
                item = self._queue.popleft()
            except IndexError:
                break
            if callable(item):
                served += 1
                try:
                    item()
                except Exception as error:  # noqa: BLE001  (raised below, after the others ran)
                    failures.append(error)
            else:
                try:
                    served += self._serve_segment(item, failures)
                finally:
                    self._segment_served(item)
        if failures:
            raise failures[0]
        return served

    def _serve_segment(self, segment: SealedSegment, failures: list[BaseException]) -> int:
        served = 0
        messages = _messages(segment)
        for record_index in range(segment.record_count):
            callback = segment.callback_of(record_index)
            if callback is None:
                continue
            message = messages(record_index)
            error = message.error()
            if error is None and self._only_errors:
                continue
            served += 1
            try:
                callback(error, message)
            except Exception as failure:  # noqa: BLE001  (raised by `serve`)
                failures.append(failure)
        return served


def _messages(segment: SealedSegment) -> Callable[[int], Message]:
    """A function that makes the report of one record."""
    topic, partition = segment.topic, segment.partition
    keys, values, headers = segment.keys, segment.values, segment.headers
    timestamps_ms = segment.timestamps_ms
    latency_s = (segment.settled_ms - segment.opened_ms) / 1000
    failed = segment.error if segment.state is SegmentState.FAILED else None
    first = virtual_offset_of_first(segment.kafka_offset, segment.record_count)
    offsets, errors = segment.record_offsets, segment.record_errors

    def message(index: int) -> Message:
        error: KafkaError | None = failed
        offset: int | None = first + index
        if offsets is not None:
            offset = virtual_offset_of_first(offsets[index], 1)
            if errors is not None and index in errors:
                error = errors[index]
        return Message(
            topic,
            partition,
            None if error is not None else offset,
            keys[index],
            values[index],
            None if headers is None else headers[index],
            error,
            (TIMESTAMP_CREATE_TIME, timestamps_ms[index]),
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
