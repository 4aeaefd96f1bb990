"""What of the surface only ours can show; what both have is in tests/compat."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any
from unittest import mock

import confluent_kafka
import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import (
    Reports,
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


# What does nothing that needs a thread or a connection; an exception of `__exit__` would replace
# the block's own.
_NOT_REFUSED = {"__init__", "__del__", "__enter__", "__exit__", "__bool__", "__class__"}
_FORKED = "was made before fork(): its threads and connections belong to the parent; make a new one"


def _producer_calls(
    producer: BlobProducer, topic: str, metadata: Any
) -> dict[str, Callable[[], object]]:
    """Every method that a child's copy refuses, each with arguments that it takes."""
    return {
        "produce": lambda: producer.produce(topic, b"from the child"),
        "produce_batch": lambda: producer.produce_batch(topic, [{"value": b"from the child"}]),
        "poll": lambda: producer.poll(0),
        "flush": lambda: producer.flush(1),
        "purge": lambda: producer.purge(blocking=False),
        "stats": producer.stats,
        "list_topics": lambda: producer.list_topics(topic, 1),
        "cluster_id": lambda: producer.cluster_id(1),
        "set_sasl_credentials": lambda: producer.set_sasl_credentials("user", "password"),
        "init_transactions": lambda: producer.init_transactions(1),
        "begin_transaction": producer.begin_transaction,
        "send_offsets_to_transaction": lambda: producer.send_offsets_to_transaction(
            [partition(topic, 0, 1)], metadata, 1
        ),
        "commit_transaction": lambda: producer.commit_transaction(1),
        "abort_transaction": lambda: producer.abort_transaction(1),
        "__len__": lambda: len(producer),
        "close": producer.close,
    }


def _consumer_calls(consumer: BlobConsumer, topic: str) -> dict[str, Callable[[], object]]:
    """The same of a consumer."""
    place = partition(topic, 0, 0)
    return {
        "poll": lambda: consumer.poll(0),
        "consume": lambda: consumer.consume(1, 0),
        "subscribe": lambda: consumer.subscribe([topic]),
        "unsubscribe": consumer.unsubscribe,
        "assign": lambda: consumer.assign([place]),
        "unassign": consumer.unassign,
        "incremental_assign": lambda: consumer.incremental_assign([place]),
        "incremental_unassign": lambda: consumer.incremental_unassign([place]),
        "assignment": consumer.assignment,
        "seek": lambda: consumer.seek(place),
        "pause": lambda: consumer.pause([place]),
        "resume": lambda: consumer.resume([place]),
        "position": lambda: consumer.position([place]),
        "commit": lambda: consumer.commit(offsets=[place], asynchronous=False),
        "committed": lambda: consumer.committed([place], 1),
        "store_offsets": lambda: consumer.store_offsets(offsets=[place]),
        "offsets_for_times": lambda: consumer.offsets_for_times([place], 1),
        "get_watermark_offsets": lambda: consumer.get_watermark_offsets(place, 1),
        "consumer_group_metadata": consumer.consumer_group_metadata,
        "memberid": consumer.memberid,
        "list_topics": lambda: consumer.list_topics(topic, 1),
        "cluster_id": lambda: consumer.cluster_id(1),
        "set_sasl_credentials": lambda: consumer.set_sasl_credentials("user", "password"),
        "stats": consumer.stats,
        "close": consumer.close,
    }


def _methods(client: type) -> set[str]:
    """What users call, special methods included that are ours."""
    return {
        name
        for name in dir(client)
        if callable(getattr(client, name))
        and (not name.startswith("_") or (name.startswith("__") and name in vars(client)))
    }


def _said(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()!r}"
    except Exception as error:  # noqa: BLE001  (of whatever kind: told)
        return f"{type(error).__name__}: {error}"


def _in_a_fork(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """What each call does in a forked child; one that hangs and those behind it are missing."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # a call that is not refused may wait for threads that are not there
            for name, call in calls.items():
                os.write(writable, json.dumps([name, _said(call)]).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as output:
        found = dict(json.loads(line) for line in output)
    os.waitpid(child, 0)
    return found


def test_every_method_is_called_in_a_forked_child() -> None:
    # One that is new goes into a table above.
    client = mock.MagicMock()
    calls = _producer_calls(client, "topic", None)
    assert set(calls) == _methods(BlobProducer) - _NOT_REFUSED
    calls = _consumer_calls(client, "topic")
    assert set(calls) == _methods(BlobConsumer) - _NOT_REFUSED


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
        of_producer = _producer_calls(producer, topic, consumer.consumer_group_metadata())
        of_consumer = _consumer_calls(consumer, topic)
        by_producer, by_consumer = _in_a_fork(of_producer), _in_a_fork(of_consumer)
        after = send(producer, topic, [b"after"])
        assert [m.value() for m in read(consumer, 1)] == [b"after"]
    assert before.codes == after.codes == [None]
    for calls, said in ((of_producer, by_producer), (of_consumer, by_consumer)):
        assert said.keys() == calls.keys()
        accepted = {
            name: text
            for name, text in said.items()
            if not re.match(rf"RuntimeError: this Blob\w+ {re.escape(_FORKED)}", text)
        }
        assert accepted == {}


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
