"""What of the surface only ours can show; what both have is in tests/compat."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import (
    Reports,
    outcome,
    partition,
    read,
    send,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


def test_isinstance_with_the_stock_classes_holds(conf: dict[str, Any]) -> None:
    with (
        BlobProducer(conf) as producer,
        BlobConsumer({**conf, "group.id": "surface"}) as consumer,
    ):
        assert isinstance(producer, confluent_kafka.Producer)
        assert isinstance(consumer, confluent_kafka.Consumer)
        assert isinstance(producer, BlobProducer)
        assert isinstance(consumer, BlobConsumer)


def test_after_fork_the_child_is_refused_and_the_parent_goes_on(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with (
        BlobProducer({**conf, "blobmsg.route": "blob"}) as producer,
        BlobConsumer({**conf, "group.id": "surface"}) as consumer,
    ):
        before = send(producer, topic, [b"before"])
        consumer.assign([partition(topic, 0, 0)])
        read(consumer, 1)
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # a call that is not refused may wait for threads that are not there
            found = [
                outcome(lambda: producer.produce(topic, b"from the child")),
                outcome(lambda: producer.flush(1)),
                outcome(lambda: len(producer)),
                outcome(producer.close),
                outcome(lambda: consumer.poll(0)),
                outcome(lambda: consumer.commit(asynchronous=False)),
                outcome(consumer.close),
            ]
            refused = all(kind is RuntimeError for _, kind in found)
            os.write(writable, b"refused" if refused else repr(found).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writable)
        with os.fdopen(readable, "rb") as output:
            assert output.read() == b"refused"
        after = send(producer, topic, [b"after"])
        assert [m.value() for m in read(consumer, 1)] == [b"after"]
    assert before.codes == after.codes == [None]


def test_produce_poll_and_flush_are_legal_inside_callbacks(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    # Poll and flush inside of a callback end the process of stock.
    topic, reports = make_topic(), Reports()

    def again(error: Any, message: Any) -> None:
        reports(error, message)
        if len(reports.outcomes) < 5:
            producer.produce(topic, b"%d" % len(reports.outcomes), on_delivery=again)
            producer.poll(0)
            producer.flush(0)

    with BlobProducer(conf) as producer:
        producer.produce(topic, b"0", on_delivery=again)
        wait_until(lambda: len(reports.outcomes) == 5, "5", serve=lambda: producer.flush(5))
    assert [m.value() for m in reports.messages()] == [b"%d" % number for number in range(5)]
