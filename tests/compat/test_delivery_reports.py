"""Delivery reports: what they say, to whom, in which order, and what callbacks may do."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    NewTopic,
)

from blobmsg.lab import create_topics
from tests.helpers.both import Both
from tests.helpers.records import Reports, flush, recent_ms, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from tests.helpers.both import Side

_HEADERS = [("a", b"1"), ("a", None), ("b", b"")]
# Value, key and headers.
_RECORDS: list[tuple[Any, Any, Any]] = [
    ("värde", "schlüssel", None),
    (b"\xff", b"with headers", _HEADERS),
    (None, None, []),
    (b"", b"", {}),
]


def _keeps_headers(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Users ask for the headers in reports; stock drops them."""
    assert [message["headers"] for message in seen] == [None] * len(seen)
    return [
        {**message, "headers": _HEADERS if message["key"] == b"with headers" else None}
        for message in seen
    ]


def test_a_report_of_a_delivered_record(by_every_route: Both) -> None:
    stamp = recent_ms()

    def case(side: Side) -> Any:
        topic, reports = side.topic(2), Reports()
        with side.producer() as producer:
            for number, (value, key, headers) in enumerate(_RECORDS):
                producer.produce(
                    topic, value, key, number % 2, reports, timestamp=stamp + number,
                    **({} if headers is None else {"headers": headers}),
                )  # fmt: skip
                flush(producer)  # one to a notification, so that its offset is Kafka's
        return [side.see_message(message) for message in reports.messages()]

    by_stock = by_every_route.agree(case, _keeps_headers)
    assert [message["offset"] for message in by_stock] == [0, 0, 1, 1]
    assert by_stock[0]["timestamp"] == (1, stamp)
    assert by_stock[0]["has latency"]


def test_a_report_of_a_failed_record(by_every_route: Both) -> None:
    stamp = recent_ms()

    def case(side: Side) -> Any:
        topic, reports = side.topic(2), Reports()
        with side.producer() as producer:
            for number in (7, -2):
                producer.produce(
                    topic, b"v", b"with headers", number, reports, timestamp=stamp, headers=_HEADERS
                )
            flush(producer)
            # Now that the topic is known, produce says it itself.
            calls = """
                produce(t, b"v", partition=7)
                produce(t, b"v", partition=-2)
                produce(t, b"v", partition=1 << 20)
            """
            known = side.outcomes(producer, calls, t=topic)
        errors = [side.see(error) for error in reports.errors]
        by_partition = sorted(reports.outcomes, key=lambda each: each[1].partition())
        return known, errors, [side.see_message(message) for _, message in by_partition]

    def keeps_headers_and_times(seen: Any) -> Any:
        """What failed can be produced again from its report."""
        known, errors, messages = seen
        assert [message["timestamp"] for message in messages] == [(0, -1)] * 2
        messages = [{**m, "timestamp": (1, stamp)} for m in _keeps_headers(messages)]
        return known, errors, messages

    known, errors, messages = by_every_route.agree(case, keeps_headers_and_times)
    assert {error[1][1] for error in known.values()} == {error[0] for error in errors}
    assert [message["offset"] for message in messages] == [None, None]


def test_reports_come_in_produce_order_with_growing_offsets(by_every_route: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(2), Reports()
        with side.producer() as producer:
            for number in range(60):
                producer.produce(topic, b"%d" % number, partition=number % 2, on_delivery=reports)
                if number % 20 == 7:
                    flush(producer)
            flush(producer)
        offsets: dict[int, list[int]] = {0: [], 1: []}
        for message in reports.messages():
            offsets[message.partition()].append(message.offset())
        are_growing = all(found == sorted(set(found)) for found in offsets.values())
        return are_growing, reports.values_by_partition()

    are_growing, values = by_every_route.agree(case)
    assert are_growing
    assert values == {n: [b"%d" % i for i in range(n, 60, 2)] for n in range(2)}


def test_who_flushes_waits_for_callbacks_that_another_thread_runs(
    by_every_route: Both,
) -> None:
    def case(side: Side) -> Any:
        with side.producer() as producer, _SlowCallback(producer, side.topic()) as slow:
            counts = [producer.flush(0.2), len(producer)]
            slow.end_soon()
            return [*counts, producer.flush(20), slow.has_ended]

    assert by_every_route.agree(case) == [1, 1, 0, True]


_ENDS: dict[str, Callable[[Any], object]] = {
    "close": lambda producer: producer.close(),
    "commit": lambda producer: producer.commit_transaction(20),
    "abort": lambda producer: producer.abort_transaction(20),
}


@pytest.mark.parametrize("end", _ENDS)
def test_so_does_who_ends_a_transaction_or_the_producer(both: Both, end: str) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        more = {} if end == "close" else {"transactional.id": topic}
        with side.producer(more) as producer:
            if more:
                producer.init_transactions(20)
                producer.begin_transaction()
            with _SlowCallback(producer, topic) as slow:
                slow.end_soon()
                _ENDS[end](producer)
                return slow.has_ended

    assert both.agree(case)


class _SlowCallback:
    """A callback that another thread is running; a context manager."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._begun, self._may_end = threading.Event(), threading.Event()
        self.has_ended = False
        producer.produce(topic, b"1", partition=0, on_delivery=self._called)
        self._thread = threading.Thread(target=self._serve, args=(producer,))

    def _called(self, _error: Any, _message: Any) -> None:
        self._begun.set()
        assert self._may_end.wait(20)
        self.has_ended = True

    def _serve(self, producer: Any) -> None:
        while not self._begun.is_set():
            producer.poll(0.1)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(20)
        return self

    def end_soon(self) -> None:
        threading.Timer(0.3, self._may_end.set).start()

    def __exit__(self, *_: object) -> None:
        self._may_end.set()
        self._thread.join(20)


def test_delivery_report_only_error_holds_back_successes(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, good, bad = side.topic(), Reports(), Reports()
        with side.producer({"delivery.report.only.error": True}) as producer:
            producer.produce(topic, b"bad", partition=9, on_delivery=bad)
            producer.produce(topic, b"good", on_delivery=good)
            flush(producer)
            left = len(producer)
        return len(good.outcomes), side.see(bad.errors), left

    good, bad, left = both.agree(case)
    assert (good, [error[0] for error in bad], left) == (0, ["_UNKNOWN_PARTITION"], 0)


@pytest.mark.parametrize("only_errors", [False, True])
def test_a_callback_is_let_go_once_it_was_called_or_held_back(
    both: Both, *, only_errors: bool
) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        callback = weakref.ref(reports)
        with side.producer({"delivery.report.only.error": only_errors}) as producer:
            producer.produce(topic, b"value", on_delivery=reports)
            flush(producer)
            calls = len(reports.outcomes)
            del reports
            # An upload may not have come to its last line yet when its records are delivered.
            wait_until(lambda: callback() is None, "let go", serve=gc.collect)
        return calls

    assert both.agree(case) == (0 if only_errors else 1)


def test_an_unknown_topic_fails_through_the_callback_and_then_at_once(both: Both) -> None:
    more = {"topic.metadata.propagation.max.ms": 1000, "allow.auto.create.topics": False}

    def case(side: Side) -> Any:
        topic, reports = side.known(f"none-{side.name}"), Reports()
        with side.producer(more) as producer:
            producer.produce(topic, b"value", b"key", on_delivery=reports)
            producer.produce(topic, b"value", partition=3, on_delivery=reports)
            flush(producer)
            at_once = side.outcome(lambda: producer.produce(topic, b"value"))
            batch = [{"value": b"v"}]
            count = producer.produce_batch(topic, batch)
        heard = [
            (side.see(error), m.topic() == topic, m.partition(), m.key(), m.value(), m.offset())
            for error, m in reports.outcomes
        ]
        heard.sort(key=lambda each: each[2] is not None)
        return heard, at_once, count, side.see(batch)

    heard, at_once, count, _ = both.agree(case)
    assert {error[0] for error, *_ in heard} == {"UNKNOWN_TOPIC_OR_PART"}
    assert (at_once[1][1], count) == ("_UNKNOWN_TOPIC", 0)


def test_a_topic_made_after_produce_gets_its_records(both: Both, bootstrap: str) -> None:
    more = {"allow.auto.create.topics": False, "topic.metadata.refresh.interval.ms": 500}
    stem = both.stock.topic()

    def case(side: Side) -> Any:
        topic, reports = f"{stem}-{side.name}", Reports()
        with side.producer(more) as producer:
            for number in range(10):
                producer.produce(topic, b"%d" % number, on_delivery=reports, partition=0)
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            create_topics(admin, [NewTopic(topic, 1, 3)])
            flush(producer)
        return [message.value() for message in reports.messages()]

    assert both.agree(case) == [b"%d" % number for number in range(10)]


def test_a_record_that_times_out_says_so(both: Both) -> None:
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "message.timeout.ms": 300}

    def case(side: Side) -> Any:
        reports = Reports()
        with side.producer({**nowhere, "linger.ms": 0, "error_cb": lambda _: None}) as producer:
            producer.produce("nowhere", b"v", b"k", on_delivery=reports)
            wait_until(lambda: bool(reports.outcomes), "report", serve=lambda: producer.poll(0.2))
        [(error, message)] = reports.outcomes
        assert error is not None
        return error.name(), error.retriable(), message.error() == error, message.value()

    # Not over every way of sending: while no broker answers, ours takes up to 10 s to say it.
    stock_and_one = Both(both.stock, both.ours[:1])
    assert stock_and_one.agree(case) == ("_MSG_TIMED_OUT", False, True, b"v")


def test_produce_is_legal_inside_callbacks(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()

        def again(error: Any, message: Any) -> None:
            reports(error, message)
            if len(reports.outcomes) < 4:
                producer.produce(topic, b"%d" % len(reports.outcomes), on_delivery=again)

        with side.producer() as producer:
            producer.produce(topic, b"0", on_delivery=again)
            wait_until(lambda: len(reports.outcomes) == 4, "all", serve=lambda: producer.flush(5))
        return [message.value() for message in reports.messages()]

    # There is no such case for poll and flush, which end the process of stock, nor for len.
    assert both.agree(case) == [b"0", b"1", b"2", b"3"]


def test_an_exception_in_a_callback_comes_out_of_the_call_after_the_others_ran(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()

        def angry(_error: Any, message: Any) -> None:
            raise LookupError(message.value())

        with side.producer({"linger.ms": 100}) as producer:
            producer.produce(topic, b"first")
            flush(producer)
            producer.produce(topic, b"0", partition=0, on_delivery=reports)
            producer.produce(topic, b"1", partition=0, on_delivery=angry)
            producer.produce(topic, b"2", partition=0, on_delivery=reports)
            outcome = side.outcome(lambda: producer.flush(60))
            flush(producer)
        return outcome, [message.value() for message in reports.messages()]

    assert both.agree(case) == (("raised", ("LookupError", "b'1'")), [b"0", b"2"])


def test_a_callback_that_can_not_be_called(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        with side.producer() as producer:
            produced = side.outcome(lambda: producer.produce(topic, b"v", on_delivery=5))
            flushed = side.outcome(lambda: producer.flush(60))
            flush(producer)
        return produced, flushed

    def is_no_system_error(seen: Any) -> Any:
        """Stock raises SystemError for some exceptions in callbacks; nobody should."""
        produced, (what, (kind, _text)) = seen
        assert kind == "SystemError"
        return produced, (what, ("TypeError", "'int' object is not callable"))

    both.agree(case, is_no_system_error)


def test_a_report_outlives_its_producer_pickles_and_may_be_changed(both: Both) -> None:
    stamp = recent_ms()

    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        with side.producer() as producer:
            producer.produce(topic, b"v", b"k", on_delivery=reports, timestamp=stamp)
            flush(producer)
        del producer
        [message] = reports.messages()
        copy = pickle.loads(pickle.dumps(message))  # noqa: S301
        is_equal = copy == message
        copy.set_value({"what": "it deserializes to"})
        return is_equal, copy == message, copy.value(), side.see_message(message)

    is_equal, is_equal_after, value, _ = both.agree(case)
    assert (is_equal, is_equal_after, value) == (True, False, {"what": "it deserializes to"})


def test_a_record_that_the_broker_refuses_has_no_offset(both: Both) -> None:
    hour_ms = 3_600_000

    def case(side: Side) -> Any:
        topic = side.topic(config={"message.timestamp.before.max.ms": str(hour_ms)})
        reports = Reports()
        with side.producer() as producer:
            producer.produce(
                topic, b"v", b"k", timestamp=recent_ms() - 10 * 24 * hour_ms, on_delivery=reports
            )
            flush(producer)
        [(error, message)] = reports.outcomes
        return {
            "code": side.see(error)[0],
            "record": (message.key(), message.value(), message.partition()),
            "has latency": message.latency() is not None,
            "offset": message.offset(),
        }

    by_stock = both.agree(case)
    assert by_stock["offset"] is None
    assert by_stock["code"] == "INVALID_TIMESTAMP"
    assert by_stock["record"] == (b"k", b"v", 0)
