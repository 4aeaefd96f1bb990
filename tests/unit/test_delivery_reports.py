from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException

from blobmsg.core.segments import Route, SegmentState
from blobmsg.delivery_reports import DeliveryReports, kafka_error_of
from blobmsg.errors import StoreUnavailable
from tests.helpers.producing import sealed_segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from blobmsg.core.segments import SealedSegment

MIB = 1_048_576
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)


class Told:
    """A delivery callback that keeps what it was told."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[KafkaError | None, Any]] = []
        self.served: list[int] = []

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        self.outcomes.append((error, message))

    @property
    def values(self) -> list[bytes]:
        return [message.value() for _, message in self.outcomes]


def reports(*, only_errors: bool = False) -> DeliveryReports:
    return DeliveryReports(only_errors=only_errors)


def delivered(callback: Callable[..., Any], *, records: int = 1, **options: Any) -> SealedSegment:
    segment = sealed_segment(2, records=records, callback=callback, **options)
    segment.state = SegmentState.DELIVERED
    segment.kafka_offset = 7
    segment.opened_ms, segment.settled_ms = 1000, 1250
    return segment


def failed(callback: Callable[..., Any], **options: Any) -> SealedSegment:
    segment = delivered(callback, **options)
    segment.state = SegmentState.FAILED
    segment.kafka_offset = -1
    segment.error = TIMED_OUT
    return segment


def test_what_becomes_due_while_callbacks_run_waits_for_the_next_call() -> None:
    """As long as they take, what has been served must be freed."""
    queue = reports()
    told = Told()

    def callback(error: KafkaError | None, message: Any) -> None:
        told(error, message)
        queue.add_segment(delivered(callback, records=2))

    queue.add_segment(delivered(callback))

    assert queue.serve() == 1
    assert len(queue.served) == 1
    assert queue.serve() == 2
    assert len(queue.served) == 2
    assert len(told.outcomes) == 3


def test_a_report_has_the_records_own_fields() -> None:
    told, queue = Told(), reports()
    segment = delivered(told, first_timestamp_ms=500, headers=[[("trace", b"1")]], keys=[b"k"])
    queue.add_segment(segment)

    assert queue.serve() == 1

    ((error, message),) = told.outcomes
    assert error is None
    assert (message.topic(), message.partition()) == ("flights", 2)
    assert (message.key(), message.value()) == (b"k", b"v")
    assert message.headers() == [("trace", b"1")]
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, 500)
    assert message.latency() == 0.25
    assert message.error() is None


def test_offsets_are_virtual_and_count_to_the_notifications_end() -> None:
    told, queue = Told(), reports()
    queue.add_segment(delivered(told, records=3))

    queue.serve()

    offsets = [message.offset() for _, message in told.outcomes]
    assert offsets == [8 * MIB - 3, 8 * MIB - 2, 8 * MIB - 1]


def test_a_failed_record_has_its_error_and_no_offset() -> None:
    told, queue = Told(), reports()
    queue.add_segment(failed(told, records=2))

    queue.serve()

    assert [error for error, _ in told.outcomes] == [TIMED_OUT, TIMED_OUT]
    assert [message.offset() for _, message in told.outcomes] == [None, None]
    assert told.outcomes[0][1].error() is TIMED_OUT


def test_plain_records_have_an_offset_or_an_error_each() -> None:
    told, queue = Told(), reports()
    segment = delivered(told, records=2, route=Route.PLAIN)
    segment.kafka_offset = -1
    segment.record_offsets = [41, -1]
    segment.record_errors = {1: TIMED_OUT}
    queue.add_segment(segment)

    queue.serve()

    (first_error, first), (second_error, second) = told.outcomes
    assert (first_error, first.offset()) == (None, 42 * MIB - 1)
    assert (second_error, second.offset()) == (TIMED_OUT, None)


def test_plain_records_that_all_arrived_have_no_errors() -> None:
    told, queue = Told(), reports()
    segment = delivered(told, records=2, route=Route.PLAIN)
    segment.record_offsets = [41, 43]
    queue.add_segment(segment)

    queue.serve()

    assert [message.offset() for _, message in told.outcomes] == [42 * MIB - 1, 44 * MIB - 1]


def test_only_those_who_listen_hear_of_their_records() -> None:
    told, queue = Told(), reports()
    segment = delivered(told, records=3, values=[b"0", b"1", b"2"])
    segment.callback, segment.callbacks = None, [told, None, told]
    queue.add_segment(segment)

    assert queue.serve() == 2
    assert told.values == [b"0", b"2"]


def test_only_errors_are_told_when_so_configured() -> None:
    told = Told()
    queue = reports(only_errors=True)
    good, bad = delivered(told), failed(told)
    queue.add_segment(good)
    queue.add_segment(bad)

    assert queue.serve() == 1
    assert [error for error, _ in told.outcomes] == [TIMED_OUT]
    assert list(queue.served) == [good, bad]


def test_reports_and_events_run_in_the_order_they_came() -> None:
    order: list[str] = []
    queue = reports()
    queue.add_segment(delivered(lambda _error, _message: order.append("first")))
    queue.add_event(lambda: order.append("event"))
    queue.add_segment(delivered(lambda _error, _message: order.append("second")))

    assert queue.serve() == 3
    assert order == ["first", "event", "second"]


def test_events_are_counted_and_no_records() -> None:
    queue = reports()
    events = [queue.events]
    queue.add_segment(delivered(Told(), records=5))
    events.append(queue.events)
    queue.add_event(lambda: None)
    events.append(queue.events)
    queue.serve()
    events.append(queue.events)

    # Records are counted by the buffer until they are served.
    assert events == [0, 0, 1, 0]


def test_serving_nothing_is_fine() -> None:
    assert reports().serve() == 0


def test_a_segment_is_released_after_its_last_callback() -> None:
    queue = reports()
    seen: list[int] = []
    segment = delivered(lambda _error, _message: seen.append(len(queue.served)), records=2)
    queue.add_segment(segment)

    queue.serve()

    assert seen == [0, 0]
    assert list(queue.served) == [segment]


def test_the_first_failure_of_a_callback_is_raised_after_all_others_ran() -> None:
    told = Told()
    queue = reports()

    def fails(_error: object, message: Any) -> None:
        raise ValueError(message.value())

    def event_fails() -> None:
        raise RuntimeError("later")

    bad = delivered(fails, records=2)
    good = delivered(told)
    queue.add_segment(bad)
    queue.add_event(event_fails)
    queue.add_segment(good)

    with pytest.raises(ValueError, match="v"):
        queue.serve()

    assert told.values == [b"v"]
    assert list(queue.served) == [bad, good]
    assert queue.serve() == 0


def test_an_interrupt_in_a_callback_leaves_at_once_and_loses_no_other_report() -> None:
    told = Told()
    queue = reports()

    def interrupts(_error: object, _message: object) -> None:
        raise KeyboardInterrupt

    bad = delivered(interrupts)
    queue.add_segment(bad)
    queue.add_segment(delivered(told))

    with pytest.raises(KeyboardInterrupt):
        queue.serve()

    assert list(queue.served) == []
    assert queue.serve() == 1
    assert queue.served[0] is bad


def test_a_callback_may_serve_others() -> None:
    told, queue = Told(), reports()
    queue.add_event(lambda: told.served.append(queue.serve()))
    queue.add_segment(delivered(told))

    queue.serve()

    assert told.values == [b"v"]
    assert told.served == [1]


class Slow:
    """A callback that takes its time for the first record, in a thread that serves."""

    def __init__(self, queue: DeliveryReports, failure: BaseException | None = None) -> None:
        self._queue = queue
        self._failure = failure
        self._begun, self._released = threading.Event(), threading.Event()
        self.told: list[int] = []
        self.seen_inside: int | None = None
        self._thread = threading.Thread(target=self._serve)

    def __call__(self, _error: object, message: Any) -> None:
        self.told.append(message.offset())
        if len(self.told) > 1:
            return
        self.seen_inside = self._queue.running_elsewhere
        self._begun.set()
        assert self._released.wait(20)
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            self._queue.serve()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(20)
        return self

    def end(self) -> None:
        self._released.set()
        self._thread.join(20)

    def __exit__(self, *_: object) -> None:
        self.end()


def test_a_segment_is_served_when_the_callback_that_another_thread_runs_has_ended() -> None:
    queue = reports()
    slow = Slow(queue)
    segment, other = delivered(slow, records=3), delivered(Told())
    queue.add_segment(segment)
    queue.add_segment(other)

    with slow:
        assert queue.serve() == 3
        assert len(slow.told) == 3
        assert list(queue.served) == [other]
        assert (queue.running, queue.running_elsewhere, queue.begun) == (1, 1, 3)
        assert queue.serve() == 0
        slow.end()

    # Who flushes in a callback would wait for itself.
    assert slow.seen_inside == 0
    assert list(queue.served) == [other, segment]
    assert (queue.running, queue.begun) == (0, 0)


def test_a_callback_that_an_interrupt_ends_in_another_thread_holds_nothing_up() -> None:
    queue = reports()
    slow = Slow(queue, KeyboardInterrupt())
    segment = delivered(slow, records=2)
    queue.add_segment(segment)

    with slow:
        assert queue.serve() == 1
        slow.end()

    assert list(queue.served) == []
    assert queue.running == 0
    assert queue.serve() == 0
    assert list(queue.served) == [segment]


def test_any_failure_becomes_a_kafka_error() -> None:
    ours = StoreUnavailable("the bucket is away")

    assert kafka_error_of(TIMED_OUT) is TIMED_OUT
    assert kafka_error_of(KafkaException(TIMED_OUT)) is TIMED_OUT
    assert kafka_error_of(ours) is ours.args[0]
    assert kafka_error_of(ValueError("odd")).code() == KafkaError._FAIL
    assert "ValueError: odd" in kafka_error_of(ValueError("odd")).str()
    assert kafka_error_of(ValueError()).code() == KafkaError._FAIL
    assert "odd" in kafka_error_of("odd").str()
