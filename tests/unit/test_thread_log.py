from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobProducer
from blobmsg.thread_log import ThreadLog
from tests.helpers.records import Reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# No broker is there, so the inner client has something to log, again and again.
CONF = {
    "bootstrap.servers": "127.0.0.1:1",
    "blobmsg.store.url": "memory://thread-log",
    "message.timeout.ms": 3000,
    "reconnect.backoff.max.ms": 200,
}


class Broken(Exception):
    """What the handler raises."""


class BrokenHandler(logging.Handler):
    """A log handler with a defect."""

    def emit(self, _record: logging.LogRecord) -> None:
        raise Broken


@pytest.fixture
def broken() -> Iterator[logging.Logger]:
    logger = logging.getLogger("broken")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = BrokenHandler()
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


def _until_it_raises(call: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        call()


def test_what_a_handler_raises_is_told_and_goes_no_further(broken: logging.Logger) -> None:
    told: list[Exception] = []
    log = ThreadLog(broken, told.append)

    log.info("%d", 1)
    log.warning("%d", 2)
    log.error("%d", 3)
    log.critical("%d", 4)

    assert [type(error) for error in told] == [Broken] * 4


def test_a_logger_that_raises_does_so_in_poll_and_nothing_else_suffers(
    broken: logging.Logger,
) -> None:
    reports = Reports()
    with suppress(Broken), BlobProducer({**CONF, "logger": broken}) as producer:
        with pytest.raises(Broken):
            _until_it_raises(lambda: producer.poll(0.1))
        for _ in range(10):
            producer.produce("topic", b"value", on_delivery=reports)
        deadline = time.monotonic() + 20
        while len(reports.outcomes) < 10 and time.monotonic() < deadline:
            with suppress(Broken):
                producer.poll(0.1)

        assert reports.codes == [KafkaError._MSG_TIMED_OUT] * 10


def test_a_handler_of_our_own_loggers_that_raises_ends_no_thread(
    broken: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    ours = logging.getLogger("blobmsg.producer")
    handler = BrokenHandler()
    ours.addHandler(handler)
    try:
        with suppress(Broken), BlobProducer({**CONF, "logger": broken}) as producer:
            producer.produce("topic", b"value")  # its failure is logged, for nobody listens
            with pytest.raises(Broken):
                _until_it_raises(lambda: producer.poll(0.1))
            deadline = time.monotonic() + 20
            while len(producer) and time.monotonic() < deadline:
                with suppress(Broken):
                    producer.poll(0.1)
            assert producer.stats()["failed_records"] == 1
    finally:
        ours.removeHandler(handler)
    assert "ended by a defect" not in caplog.text
