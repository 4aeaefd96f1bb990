"""Transactions while the store is slow or away, readers read, and others take over."""

from __future__ import annotations

import threading
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
)

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.ctrl_c import call_with_ctrl_c
from tests.helpers.fault_proxy import Answer, FaultProxy, Hold, puts
from tests.helpers.private import private
from tests.helpers.records import Reports, flush, partition, produce, read, read_to_end, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

_WAIT_S = 60
_MARKERS_S = 10
# Or by a commit, but by no age.
_SEALED_BY_FLUSH = {"blobmsg.batch.interval.ms": 60_000, "transaction.timeout.ms": 600_000}


@pytest.fixture
def transactional(conf: dict[str, Any], proxy: FaultProxy) -> dict[str, Any]:
    """A producer whose records all go through the proxy to the store, whatever happens there."""
    return {
        **conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.route": "blob",
        "blobmsg.on.store.failure": "wait",
        "transactional.id": f"test-{uuid.uuid4().hex}",
    }


def _begun(producer: BlobProducer) -> BlobProducer:
    producer.init_transactions(_WAIT_S)
    producer.begin_transaction()
    return producer


def _committed(conf: dict[str, Any], topic: str) -> list[bytes]:
    _wait_for_markers(conf, topic)
    return _values(conf, topic, "read_committed")


def _wait_for_markers(conf: dict[str, Any], topic: str) -> None:
    """Kafka answers a commit before it has written the markers that readers wait for."""
    admin = AdminClient({"bootstrap.servers": conf["bootstrap.servers"]})
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]

    def end(isolation: IsolationLevel) -> int:
        asked = admin.list_offsets(
            {partition(topic): latest}, isolation_level=isolation, request_timeout=10
        )
        found: int = next(iter(asked.values())).result().offset
        return found

    deadline = time.monotonic() + _MARKERS_S  # those of an open transaction do not come
    while end(IsolationLevel.READ_COMMITTED) < end(IsolationLevel.READ_UNCOMMITTED):
        if time.monotonic() >= deadline:
            return
        time.sleep(0.05)


def _values(conf: dict[str, Any], topic: str, isolation_level: str) -> list[bytes]:
    more = {"enable.partition.eof": True, "isolation.level": isolation_level}
    with BlobConsumer({**conf, **more, "group.id": "values"}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        return [m.value() for m in read_to_end(consumer, 1).messages]


def _error_of(call: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaException) as raised:
        call()
    error: KafkaError = raised.value.args[0]
    return error


def test_a_commit_waits_for_uploads_and_may_be_asked_again(
    transactional: dict[str, Any], conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxy.rule = puts(Hold(released))
    with BlobProducer(transactional) as producer:
        _begun(producer).produce(topic, b"value")
        early = _error_of(partial(producer.commit_transaction, 1))
        before = _committed(conf, topic)
        released.set()
        producer.commit_transaction(_WAIT_S)

    assert (early.code(), early.retriable()) == (KafkaError._TIMED_OUT, True)
    assert (before, _committed(conf, topic)) == ([], [b"value"])


def test_a_store_that_stays_away_makes_the_commit_abortable_in_time(
    transactional: dict[str, Any], conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    reports = Reports()
    timeout_s = 10
    more = {"transaction.timeout.ms": timeout_s * 1000}
    with BlobProducer({**transactional, **more}) as producer:
        _begun(producer).produce(topic, b"before")
        producer.commit_transaction(_WAIT_S)
        proxy.rule = puts(Answer(503, "SlowDown"))
        started = time.monotonic()
        producer.begin_transaction()
        producer.produce(topic, b"lost", on_delivery=reports)
        failed = _error_of(partial(producer.commit_transaction, _WAIT_S))
        took_s = time.monotonic() - started
        late = _error_of(partial(producer.produce, topic, b"late"))
        producer.abort_transaction(_WAIT_S)
        proxy.rule = lambda _request: None
        producer.begin_transaction()
        producer.produce(topic, b"after")
        producer.commit_transaction(_WAIT_S)

    assert failed.txn_requires_abort()
    assert took_s < timeout_s
    assert late.code() == KafkaError._STATE
    assert reports.codes == [KafkaError._MSG_TIMED_OUT]
    assert _committed(conf, topic) == [b"before", b"after"]


def test_a_commit_gives_up_before_kafka_does(
    transactional: dict[str, Any], conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    timeout_s = 4
    more = {"transaction.timeout.ms": timeout_s * 1000}
    released = threading.Event()
    with BlobProducer({**transactional, **more}) as producer:
        _begun(producer).produce(topic, b"early")
        started = time.monotonic()
        flush(producer)  # Kafka's clock runs
        late_s = started + 0.6 * timeout_s  # from here on a record has longer than its transaction
        wait_until(lambda: time.monotonic() >= late_s, "late", serve=lambda: producer.poll(0.1))
        proxy.rule = puts(Hold(released))
        producer.produce(topic, b"late")
        failed = _error_of(partial(producer.commit_transaction, _WAIT_S))
        took_s = time.monotonic() - started
        producer.abort_transaction(_WAIT_S)
        released.set()
        producer.begin_transaction()
        producer.produce(topic, b"after")
        producer.commit_transaction(_WAIT_S)

    assert (failed.code(), failed.txn_requires_abort()) == (KafkaError._TIMED_OUT, True)
    assert took_s < timeout_s
    assert _committed(conf, topic) == [b"after"]


@pytest.mark.parametrize("before", [[], [b"before"]], ids=["new topic", "known topic"])
def test_what_is_buffered_at_the_abort_is_neither_stored_nor_notified(
    transactional: dict[str, Any],
    conf: dict[str, Any],
    proxy: FaultProxy,
    topic: str,
    before: list[bytes],
) -> None:
    reports = Reports()
    with BlobProducer({**transactional, **_SEALED_BY_FLUSH}) as producer:
        producer.init_transactions(_WAIT_S)
        for value in before:
            producer.begin_transaction()
            producer.produce(topic, value)
            producer.commit_transaction(_WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"aborted", on_delivery=reports)
        producer.abort_transaction(_WAIT_S)
        told_at_once = reports.codes
        producer.begin_transaction()
        producer.produce(topic, b"committed")
        producer.commit_transaction(_WAIT_S)
        notifications = producer.stats()["notifications"]

    assert told_at_once == [KafkaError._PURGE_QUEUE]
    assert len(proxy.requests) == notifications == len(before) + 1
    assert _values(conf, topic, "read_uncommitted") == [*before, b"committed"]
    assert _committed(conf, topic) == [*before, b"committed"]


def test_what_was_notified_before_the_abort_is_of_no_committed_reader(
    transactional: dict[str, Any], conf: dict[str, Any], topic: str
) -> None:
    reports = Reports()
    with BlobProducer({**transactional, **_SEALED_BY_FLUSH}) as producer:
        _begun(producer).produce(topic, b"aborted", on_delivery=reports)
        flush(producer)
        producer.produce(topic, b"aborted too")  # without a report yet
        producer.abort_transaction(_WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"committed")
        producer.commit_transaction(_WAIT_S)

    assert reports.codes == [None]
    assert _values(conf, topic, "read_uncommitted") == [b"aborted", b"committed"]
    assert _committed(conf, topic) == [b"committed"]


def test_what_is_stored_after_the_abort_is_never_notified(
    transactional: dict[str, Any], conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxy.rule = puts(Hold(released))
    reports = Reports()
    more = {"blobmsg.batch.interval.ms": 50}
    with BlobProducer({**transactional, **more}) as producer:
        _begun(producer).produce(topic, b"aborted", on_delivery=reports)
        proxy.wait_for(lambda requests: len(requests) == 1)
        producer.abort_transaction(_WAIT_S)
        told_at_once = reports.codes
        producer.begin_transaction()
        released.set()
        proxy.wait_for(lambda _requests: len(proxy.finished) == 1)
        producer.produce(topic, b"committed")
        producer.commit_transaction(_WAIT_S)
        notifications = producer.stats()["notifications"]

    assert told_at_once == [KafkaError._PURGE_QUEUE]
    assert notifications == 1
    assert _committed(conf, topic) == [b"committed"]


def test_an_abort_ends_the_attempts_to_store(
    transactional: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    proxy.rule = puts(Answer(503, "SlowDown"))
    with BlobProducer({**transactional, "blobmsg.batch.interval.ms": 50}) as producer:
        _begun(producer).produce(topic, b"aborted")
        proxy.wait_for(lambda requests: len(requests) >= 2)
        producer.abort_transaction(_WAIT_S)
        proxy.rule = lambda _request: None
        uploader = private(producer, "pipeline")._uploader
        wait_until(lambda: not uploader._uploading, "the upload has ended")

    assert len(proxy.requests) == proxy.faults["Answer"]


def test_what_hangs_in_the_store_does_not_hold_up_the_next_transaction(
    transactional: dict[str, Any], conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxy.rule = puts(Hold(released))
    more = {"blobmsg.batch.interval.ms": 50, "blobmsg.upload.threads": 1}
    with BlobProducer({**transactional, **more}) as producer:
        _begun(producer).produce(topic, b"aborted")
        proxy.wait_for(lambda requests: len(requests) == 1)
        producer.abort_transaction(_WAIT_S)
        proxy.rule = lambda _request: None
        producer.begin_transaction()
        producer.produce(topic, b"committed")
        producer.commit_transaction(10)  # the request that hangs has about twice as long
        is_hanging = len(proxy.finished) == 1
        released.set()

    assert is_hanging
    assert _committed(conf, topic) == [b"committed"]


def test_readers_of_others_do_not_wait_for_uploads(
    transactional: dict[str, Any], conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    other = {**conf, "blobmsg.route": "blob", "transactional.id": f"test-{uuid.uuid4().hex}"}
    more = {"blobmsg.batch.interval.ms": 50}
    with BlobProducer({**transactional, **more}) as slow, BlobProducer(other) as fast:
        _begun(slow).produce(topic, b"open")
        proxy.wait_for(lambda _requests: len(proxy.finished) == 1)  # stored, and not told of
        _begun(fast).produce(topic, b"committed")
        fast.commit_transaction(_WAIT_S)
        seen = _committed(conf, topic)
        slow.commit_transaction(_WAIT_S)

    assert seen == [b"committed"]
    assert _committed(conf, topic) == [b"committed", b"open"]


def test_reports_come_before_the_commit_to_who_waits_for_them(
    transactional: dict[str, Any], conf: dict[str, Any], topic: str
) -> None:
    reports = Reports()
    more = {"transaction.timeout.ms": 8000, "blobmsg.batch.interval.ms": 50}  # held for 1 s
    with BlobProducer({**transactional, **more}) as producer:
        _begun(producer).produce(topic, b"value", on_delivery=reports)
        wait_until(lambda: bool(reports.codes), "report", serve=lambda: producer.poll(0.1))
        producer.commit_transaction(_WAIT_S)

    assert reports.codes == [None]
    assert _committed(conf, topic) == [b"value"]


def test_a_transaction_may_be_larger_than_the_buffer(
    transactional: dict[str, Any], conf: dict[str, Any], topic: str
) -> None:
    values = [b"%04d" % number + bytes(10_000) for number in range(1500)]
    reports = Reports()
    more = {"queue.buffering.max.kbytes": 4096, "message.max.bytes": 100_000}
    with BlobProducer({**transactional, **more, "blobmsg.batch.size.bytes": 1 << 20}) as producer:
        _begun(producer)
        for value in values:  # 15 MB through 4
            produce(producer, topic, value, on_delivery=reports)
        producer.commit_transaction(_WAIT_S)

    assert reports.codes == [None] * len(values)
    assert _committed(conf, topic) == values


def test_a_position_inside_of_a_notification_goes_with_the_transaction(
    conf: dict[str, Any],
    transactional: dict[str, Any],
    group_conf: dict[str, Any],
    make_topic: Callable[..., str],
) -> None:
    source, target = make_topic(), make_topic()
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(10):
            producer.produce(source, b"%d" % number)
        flush(producer)
        assert producer.stats()["notifications"] == 1
    resumed: list[bytes] = []
    group = {**group_conf, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with BlobProducer(transactional) as producer:
        producer.init_transactions(_WAIT_S)
        for count, ends in ((3, "commit"), (4, "abort"), (4, "commit")):
            with BlobConsumer(group) as consumer:
                consumer.subscribe([source])
                producer.begin_transaction()
                messages = read(consumer, count)
                for message in messages:
                    producer.produce(target, message.value())
                positions = consumer.position(consumer.assignment())
                producer.send_offsets_to_transaction(
                    positions, consumer.consumer_group_metadata(), _WAIT_S
                )
                getattr(producer, f"{ends}_transaction")(_WAIT_S)
                resumed.append(messages[0].value())

    assert resumed == [b"0", b"3", b"3"]
    assert _committed(conf, target) == [b"%d" % number for number in range(7)]


def test_a_zombie_stores_but_does_not_notify(
    transactional: dict[str, Any], conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxy.rule = puts(Hold(released))
    reports = Reports()
    more = {"blobmsg.batch.interval.ms": 50}
    zombie = BlobProducer({**transactional, **more})
    _begun(zombie).produce(topic, b"of the zombie", on_delivery=reports)
    proxy.wait_for(lambda requests: len(requests) == 1)
    with BlobProducer(
        {**transactional, "blobmsg.s3.endpoint.url": conf["blobmsg.s3.endpoint.url"]}
    ) as successor:
        _begun(successor).produce(topic, b"of its successor")
        successor.commit_transaction(_WAIT_S)
    released.set()
    proxy.wait_for(lambda _requests: len(proxy.finished) == 1)
    fenced = _error_of(partial(zombie.commit_transaction, _WAIT_S))
    later = [
        _error_of(call)
        for call in (
            partial(zombie.produce, topic, b"late"),
            zombie.begin_transaction,
            partial(zombie.commit_transaction, 1),
            partial(zombie.abort_transaction, 1),
        )
    ]
    zombie.flush(1)
    zombie.close()

    assert fenced.code() == KafkaError._FENCED
    assert fenced.fatal()
    assert {error.fatal() or error.name() == "_FATAL" for error in later} == {True}
    assert len(reports.errors) == 1
    assert _committed(conf, topic) == [b"of its successor"]


def test_ctrl_c_comes_through_a_commit_which_may_be_asked_again(
    transactional: dict[str, Any], conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxy.rule = puts(Hold(released))
    with BlobProducer(transactional) as producer:
        _begun(producer).produce(topic, b"value")
        was_heard, took_s = call_with_ctrl_c(producer.commit_transaction, 0.5)
        released.set()
        producer.commit_transaction(_WAIT_S)

    assert was_heard
    assert took_s < 20
    assert _committed(conf, topic) == [b"value"]


def test_a_closed_producer_aborts_what_it_has_open(
    transactional: dict[str, Any], conf: dict[str, Any], topic: str
) -> None:
    reports = Reports()
    with BlobProducer(transactional) as producer:
        _begun(producer).produce(topic, b"open", on_delivery=reports)
        producer.flush(_WAIT_S)
    # Nobody waits for its end: a reader sees what others commit behind it.
    with BlobProducer({**conf, "transactional.id": f"test-{uuid.uuid4().hex}"}) as other:
        _begun(other).produce(topic, b"committed")
        other.commit_transaction(_WAIT_S)

    assert reports.codes == [None]
    assert _committed(conf, topic) == [b"committed"]


def test_kafka_offsets_are_refused_as_positions(
    transactional: dict[str, Any],
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    topic: str,
) -> None:
    with BlobProducer({**conf, "blobmsg.route": "plain"}) as producer:
        for number in range(10):
            producer.produce(topic, b"%d" % number)
        flush(producer)
    _delete_records(conf, topic, 5)
    with BlobConsumer(group_conf) as consumer, BlobProducer(transactional) as producer:
        metadata = consumer.consumer_group_metadata()
        _begun(producer)
        refused: list[KafkaError] = []

        def send_offsets() -> None:
            try:
                producer.send_offsets_to_transaction(
                    [TopicPartition(topic, 0, 7)], metadata, _WAIT_S
                )
            except KafkaException as error:
                refused.append(error.args[0])

        # Where Kafka does not tell its offsets within a second, the next call asks again.
        wait_until(lambda: bool(refused), "the offset is refused", serve=send_offsets)
        unchecked = {
            **transactional,
            "transactional.id": "unchecked",
            "blobmsg.offset.check": False,
        }
        with BlobProducer(unchecked) as trusting:
            _begun(trusting).send_offsets_to_transaction(
                [TopicPartition(topic, 0, 7)], metadata, _WAIT_S
            )

    assert refused[0].code() == KafkaError._INVALID_ARG
    assert "to_virtual" in refused[0].str()


def _delete_records(conf: dict[str, Any], topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": conf["bootstrap.servers"]})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(timeout=30)
