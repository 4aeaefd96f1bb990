"""Constructors, settings and the callbacks in them."""

from __future__ import annotations

import json
import logging
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.helpers.quotas import slow_client
from tests.helpers.records import Reports, flush, read, send, wait_until
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

_NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
_KINDS = pytest.mark.parametrize("kind", ["producer", "consumer"])


def _class(side: Side, kind: str) -> Any:
    return side.producer_class if kind == "producer" else side.consumer_class


def _settings(side: Side, kind: str, more: dict[str, Any]) -> dict[str, Any]:
    group = {"group.id": f"compat-{uuid.uuid4().hex}"} if kind == "consumer" else {}
    return side.settings({**group, **more})


@_KINDS
def test_settings_that_are_refused(readers: Both, kind: str) -> None:
    wrong: list[dict[str, Any]] = [
        {"no.such.setting": 1},
        {"linger.ms" if kind == "producer" else "session.timeout.ms": "soon"},
        {"security.protocol": "carrier pigeon"},
        {"stats_cb": 5},
        {"error_cb": "call me"},
        {"throttle_cb": []},
        {"oauth_cb": 5},
        {"debug": "everything"},
    ]
    if kind == "producer":
        wrong += [
            {"acks": "some"},
            {"enable.idempotence": True, "acks": 1},
            {"message.timeout.ms": -5},
            {"compression.type": "brotli"},
            {"partitioner": "dartboard"},
            {"on_delivery": 5},
            {"queue.buffering.max.messages": -1},
        ]
    else:
        wrong += [
            {"auto.offset.reset": "somewhere"},
            {"partition.assignment.strategy": "hope"},
            {"enable.auto.commit": "perhaps"},
            {"max.poll.interval.ms": 10, "session.timeout.ms": 6000},
            {"on_commit": 5},
            {"isolation.level": "none"},
        ]

    def case(side: Side) -> Any:
        made = _class(side, kind)
        return [
            (str(more), side.outcome(lambda m=more: made(_settings(side, kind, m))))  # type: ignore[misc]
            for more in wrong
        ]

    by_stock = readers.agree(case)
    assert {outcome[0] for _, outcome in by_stock} == {"raised"}


@_KINDS
def test_forms_of_the_constructor(readers: Both, kind: str) -> None:
    def case(side: Side) -> Any:
        made, settings = _class(side, kind), _settings(side, kind, {})

        def works(*args: Any, **kwargs: Any) -> Any:
            with made(*args, **kwargs) as client:
                return bool(client.list_topics(timeout=20).brokers)

        seen = [
            side.outcome(call)
            for call in (
                made,
                lambda: made(None),
                lambda: made("settings"),
                lambda: made(settings, settings),
                lambda: works(settings),
                lambda: works(**settings),
                lambda: works(_NOWHERE, **settings),
            )
        ]
        return seen, settings == side.settings(settings)

    seen, is_unchanged = readers.agree(case)
    assert [what for what, _ in seen[-3:]] == ["returned"] * 3
    assert is_unchanged


def test_no_group_id(readers: Both) -> None:
    def case(side: Side) -> Any:
        return side.outcome(lambda: side.consumer_class(side.settings()))

    assert readers.agree(case)[1] == (
        "ValueError", "Failed to create consumer: group.id must be set",
    )  # fmt: skip


@_KINDS
def test_stats_cb_and_error_cb_run_in_poll(readers: Both, kind: str) -> None:
    def case(side: Side) -> Any:
        texts: list[str] = []
        errors: list[Any] = []
        more = {"stats_cb": texts.append, "statistics.interval.ms": 100, "log_level": 0}
        more |= {**_NOWHERE, "error_cb": errors.append}
        with _class(side, kind)(_settings(side, kind, more)) as client:
            before = len(texts) + len(errors)
            wait_until(
                lambda: bool(texts) and len(errors) >= 2,
                "both",
                serve=lambda: client.poll(0.1),
            )
        names = {error.name() for error in errors}
        told = json.loads(texts[0])
        own = told.pop("blobmsg", None)
        assert (own is not None) is side.is_ours
        return before, told["type"], names, {type(e).__name__ for e in errors}

    before, of_what, names, _ = readers.agree(case)
    assert (before, of_what) == (0, kind)
    assert names == {"_TRANSPORT", "_ALL_BROKERS_DOWN"}


def test_throttle_cb_hears_of_a_quota(both: Both) -> None:
    client_id = f"slow-{uuid.uuid4().hex}"

    def case(side: Side) -> Any:
        heard: list[Any] = []
        more = {"client.id": client_id, "throttle_cb": heard.append}
        with side.producer(more) as producer:
            topic = side.topic()

            def produce_one() -> None:
                producer.produce(topic, bytes(1000))
                flush(producer)

            # Some events say that it is over.
            wait_until(lambda: any(e.throttle_time > 0 for e in heard), "it", serve=produce_one)
        return [
            (type(e).__name__, e.broker_id in (1, 2, 3), bool(e.broker_name)) for e in heard[:1]
        ]

    with slow_client(both.stock.conf["bootstrap.servers"], client_id, 100):
        assert both.agree(case) == [("ThrottleEvent", True, True)]


def test_throttle_cb_of_a_consumer_hears_of_a_quota(both: Both) -> None:
    client_id = f"slow-{uuid.uuid4().hex}"

    def case(side: Side) -> Any:
        topic = side.topic()
        send(StockProducer(both.stock.conf), topic, [bytes(10_000)] * 100, partition=0)
        heard: list[Any] = []
        with side.consumer({"client.id": client_id, "throttle_cb": heard.append}) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            wait_until(
                lambda: any(e.throttle_time > 0 for e in heard),
                "it",
                serve=lambda: consumer.poll(0.1),
            )
        return [
            (type(e).__name__, e.broker_id in (1, 2, 3), bool(e.broker_name)) for e in heard[:1]
        ]

    with slow_client(both.stock.conf["bootstrap.servers"], client_id, 1000):
        assert both.agree(case) == [("ThrottleEvent", True, True)]


@_KINDS
@pytest.mark.parametrize("callback", ["stats_cb", "error_cb"])
def test_an_exception_in_a_callback_comes_out_of_poll(
    readers: Both, kind: str, callback: str
) -> None:
    def case(side: Side) -> Any:
        def angry(_told: Any) -> None:
            raise LookupError("angry")

        more = {"statistics.interval.ms": 100, "log_level": 0, **_NOWHERE, callback: angry}
        client = _class(side, kind)(_settings(side, kind, more))
        raised: list[Any] = []

        def poll() -> None:
            what, result = side.outcome(lambda: client.poll(0.2))
            if what == "raised":
                raised.append(result)

        wait_until(lambda: bool(raised), "raised", serve=poll)
        side.outcome(client.close)
        return raised[0]

    assert readers.agree(case) == ("LookupError", "angry")


@_KINDS
@pytest.mark.parametrize("form", ["setting", "keyword"])
def test_a_logger_gets_the_lines_of_the_client(readers: Both, kind: str, form: str) -> None:
    def case(side: Side) -> Any:
        lines: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = lines.append  # type: ignore[method-assign,assignment]
        logger = logging.getLogger(f"compat.{side.name}.{kind}.{form}")
        logger.propagate = False
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
        settings = _settings(side, kind, {**_NOWHERE, "error_cb": lambda _: None})
        made = _class(side, kind)
        client = (
            made({**settings, "logger": logger})
            if form == "setting"
            else made(settings, logger=logger)
        )
        wait_until(
            lambda: any("FAIL" in line.getMessage() for line in lines),
            "a line",
            serve=lambda: client.poll(0.1),
        )
        client.close()
        return next(line.levelname for line in lines if "FAIL" in line.getMessage())

    assert readers.agree(case) == "ERROR"


@_KINDS
@pytest.mark.parametrize("way", ["logger", "log_level"])
def test_nothing_is_written_to_standard_error(
    readers: Both,
    kind: str,
    way: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    quiet = logging.getLogger("compat.quiet")
    quiet.propagate = False
    quiet.addHandler(logging.NullHandler())

    def case(side: Side) -> Any:
        ticks: list[str] = []
        reports = Reports()
        more = {**_NOWHERE, "stats_cb": ticks.append, "statistics.interval.ms": 100}
        more |= {"logger": quiet} if way == "logger" else {"log_level": 0}
        with _class(side, kind)(_settings(side, kind, more)) as client:
            if kind == "producer":
                client.produce("somewhere", b"v", on_delivery=reports)
            # Meanwhile every client of its has tried to connect several times.
            wait_until(lambda: len(ticks) >= 20, "2 s of it", serve=lambda: client.poll(0.1))
            if kind == "producer":
                client.purge()
                flush(client)
        return capfd.readouterr().err, reports.codes

    written, _ = readers.agree(case, in_turn=True)
    assert written == ""
    # Nor what would be if nobody had set up logging.
    ours = [line for line in caplog.records if line.name.startswith("blobmsg")]
    assert [line for line in ours if line.levelno >= logging.ERROR] == []


def test_on_commit_hears_of_the_outcome(readers: Both, filled: Callable[[Side], str]) -> None:
    def case(side: Side) -> Any:
        heard: list[Any] = []

        def on_commit(error: Any, partitions: Any) -> None:
            heard.append((side.see(error), side.see(partitions), type(partitions).__name__))

        more = {"on_commit": on_commit, "enable.auto.commit": False}
        with side.consumer(more) as consumer:
            place = TopicPartition(filled(side), 1, side.position(3), "a note")
            consumer.commit(offsets=[place])
            wait_until(lambda: bool(heard), "heard", serve=lambda: consumer.poll(0.1))
        return heard

    [(error, [place], kind)] = readers.agree(case)
    assert (error, place["offset"], kind) == (None, 3, "list")


def test_default_topic_config_is_still_taken(both: Both) -> None:
    def case(side: Side) -> Any:
        reports, topic = Reports(), side.topic()
        with side.producer({"default.topic.config": {"acks": "all"}}) as producer:
            producer.produce(topic, b"v", on_delivery=reports)
            flush(producer)
        more = {"default.topic.config": {"auto.offset.reset": "earliest"}}
        with side.consumer(more) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            return [message.value() for message in read(consumer, 1)]

    assert both.agree(case) == [b"v"]
