"""Clients that must log in: by password, by token, and with credentials that come later."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.helpers.both import Both, Side
from tests.helpers.records import Reports, flush, read, send, wait_until
from tests.helpers.sasl_broker import PASSWORD, USER, by_password, by_token, sasl_broker, token
from tests.helpers.stack import topic_factory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its `bootstrap.servers`."""
    with sasl_broker(tmp_path_factory.mktemp("sasl")) as bootstrap_servers:
        yield bootstrap_servers


@pytest.fixture
def guests(broker: str, conf: dict[str, Any]) -> Both:
    """Both clients; how they log in is the case's to say."""
    make_topic = partial(topic_factory(by_password(broker)), replicas=1)
    store = {key: value for key, value in conf.items() if key.startswith("blobmsg.")}
    blob = {**store, "blobmsg.route": "blob", "blobmsg.batch.interval.ms": 50}
    return Both(
        Side("stock", {"bootstrap.servers": broker}, make_topic),
        (Side("blob", {"bootstrap.servers": broker, **blob}, make_topic),),
    )


def _read_one(consumer: Any, topic: str) -> bytes:
    consumer.assign([TopicPartition(topic, 0, 0)])
    [message] = read(consumer, 1)
    consumer.commit(message=message, asynchronous=False)
    value: bytes = message.value()
    return value


def test_a_token_is_asked_for_and_lets_in(guests: Both, broker: str) -> None:
    def case(side: Side) -> Any:
        asked: list[Any] = []

        def oauth_cb(config: str) -> tuple[str, float]:
            asked.append(config)
            return token()

        more = {**by_token(broker), "oauth_cb": oauth_cb}
        topic = side.topic()
        with side.producer(more) as producer:
            codes = send(producer, topic, [b"v"]).codes
        with side.consumer(more) as consumer:
            return codes, _read_one(consumer, topic), set(asked)

    assert guests.agree(case) == ([None], b"v", {"for=the test"})


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_credentials_that_come_later_let_in(
    guests: Both, broker: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def case(side: Side) -> Any:
        errors: list[Any] = []
        more = {**by_password(broker, "a guess"), "error_cb": errors.append, "log_level": 0}
        topic = side.topic(config={"retention.ms": "3600000"})
        with side.producer(more if kind == "producer" else by_password(broker)) as producer:
            reports = Reports()
            producer.produce(topic, b"v", on_delivery=reports)
            if kind == "producer":
                log_in(producer, errors)
            flush(producer)
        with side.consumer(more if kind == "consumer" else by_password(broker)) as consumer:
            if kind == "consumer":
                log_in(consumer, errors)
            return reports.codes, _read_one(consumer, topic)

    def log_in(client: Any, errors: list[Any]) -> None:
        wait_until(
            lambda: any(error.name() == "_AUTHENTICATION" for error in errors),
            "the refusal",
            serve=lambda: client.poll(0.1),
        )
        client.set_sasl_credentials(USER, PASSWORD)

    assert guests.agree(case) == ([None], b"v")
    # The topic's settings were read, too, and not guessed.
    assert [line.getMessage() for line in caplog.records if line.name == "blobmsg.topics"] == []


def test_a_wrong_password_is_an_error_that_error_cb_hears_of(guests: Both, broker: str) -> None:
    def case(side: Side) -> Any:
        errors: list[Any] = []
        reports = Reports()
        more = {**by_password(broker, "a guess"), "error_cb": errors.append, "log_level": 0}
        with side.producer({**more, "message.timeout.ms": 2000}) as producer:
            producer.produce(side.topic(), b"v", on_delivery=reports)
            flush(producer)
        return reports.codes, {error.name() for error in errors}

    codes, names = guests.agree(case)
    assert codes != [None]
    assert "_AUTHENTICATION" in names
