"""A store that is away, refuses, loses or damages: reported, and nothing wrong passes."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.fault_proxy import (
    Answer,
    FaultProxy,
    FlipBit,
    FlipRequestBit,
    Hold,
    LoseAnswer,
    Reset,
    Truncate,
    free_port,
)
from tests.helpers.records import (
    Reports,
    flush,
    next_message,
    partition,
    read,
    read_to_end,
    send,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_s3.client import S3Client

    from blobmsg import lab
    from tests.helpers.fault_proxy import Fault, Request

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def blob_conf(conf: dict[str, Any]) -> dict[str, Any]:
    # What Kafka does in the store's stead is `test_fallback`'s.
    return {**conf, "blobmsg.route": "blob", "blobmsg.on.store.failure": "wait"}


@pytest.fixture
def reader_conf(conf: dict[str, Any]) -> dict[str, Any]:
    return {
        **conf,
        "group.id": "store",  # never joined: partitions are assigned
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        # Each consumer of a test is to ask the store, not what an earlier one has left.
        "blobmsg.cache.memory.bytes": 0,
    }


class Bucket:
    """The test's own prefix of the bucket, seen by a client that is not ours."""

    def __init__(self, client: S3Client, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix + "/"

    def keys(self) -> list[str]:
        listing = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix)
        return [entry["Key"] for entry in listing.get("Contents", [])]

    def get(self, key: str) -> bytes:
        return self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=key)


@pytest.fixture
def bucket(stack: lab.Stack, store_prefix: str) -> Iterator[Bucket]:
    client = stack.s3_client()
    yield Bucket(client, stack.bucket, store_prefix)
    client.close()


# --- producing -----------------------------------------------------------------------------------


def test_records_wait_for_a_store_that_is_not_there_until_their_time_is_over(
    blob_conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    away = {
        **blob_conf,
        "blobmsg.s3.endpoint.url": f"http://127.0.0.1:{free_port()}",
        "message.timeout.ms": 4000,
    }
    with BlobProducer(away) as producer:
        started = time.monotonic()
        reports = send(producer, topic, [b"%d" % number for number in range(20)])
        took_s = time.monotonic() - started

    assert took_s < 4 + 1
    assert reports.codes == [KafkaError._MSG_TIMED_OUT] * 20
    assert [m.value() for _, m in reports.outcomes] == [b"%d" % number for number in range(20)]
    assert all(m.offset() is None for _, m in reports.outcomes)


def test_records_that_waited_for_the_store_are_delivered_when_it_comes_back(
    stack: lab.Stack,
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    port = free_port()
    away = {**blob_conf, "blobmsg.s3.endpoint.url": f"http://127.0.0.1:{port}"}
    reports = Reports()
    with BlobProducer(away) as producer:
        for number in range(20):
            producer.produce(topic, b"%d" % number, on_delivery=reports)
        wait_until(
            lambda: producer.stats().get("retries", 0) >= 3,
            "the upload was tried several times",
            serve=lambda: producer.poll(0.1),
        )
        assert reports.outcomes == []
        assert len(producer) == 20
        with FaultProxy(stack.minio.host, stack.minio.port, listen_port=port):
            flush(producer)

    assert reports.codes == [None] * 20
    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        values = [m.value() for m in read_to_end(consumer, 1).messages]
    assert values == [b"%d" % number for number in range(20)]


def test_a_store_that_hangs_delays_no_longer_than_the_records_may_wait(
    blob_conf: dict[str, Any], proxy: FaultProxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    released = threading.Event()
    proxy.rule = lambda _: Hold(released)
    hanging = {**blob_conf, "blobmsg.s3.endpoint.url": proxy.url, "message.timeout.ms": 3000}
    try:
        with BlobProducer(hanging) as producer:
            started = time.monotonic()
            reports = send(producer, topic, [b"a", b"b"])
            took_s = time.monotonic() - started
    finally:
        released.set()
    assert took_s < 3 + 1
    assert reports.codes == [KafkaError._MSG_TIMED_OUT] * 2


@pytest.mark.parametrize(
    ("setting", "value", "code", "text"),
    [
        ("blobmsg.s3.access.key.id", "nobody", KafkaError._AUTHENTICATION, "nobody"),
        ("blobmsg.s3.secret.access.key", "wrong", KafkaError._AUTHENTICATION, "credentials"),
        ("blobmsg.store.url", "s3://no-such-bucket/x", KafkaError._INVALID_ARG, "no-such-bucket"),
    ],
)
def test_wrong_credentials_and_buckets_are_said_in_the_report(
    blob_conf: dict[str, Any],
    make_topic: Callable[..., str],
    setting: str,
    value: str,
    code: int,
    text: str,
) -> None:
    topic = make_topic()
    with BlobProducer({**blob_conf, setting: value}) as producer:
        reports = send(producer, topic, [b"a", b"b"])

        assert reports.codes == [code] * 2
        assert text in str(reports.errors[0])
        assert blob_conf["blobmsg.s3.secret.access.key"] not in str(reports.errors[0])


@pytest.mark.parametrize(
    "fault",
    [
        Answer(503, "SlowDown"),
        Answer(500, "InternalError"),
        Reset(),
        LoseAnswer(),
        FlipRequestBit(100),
    ],
    ids=lambda fault: type(fault).__name__ + str(getattr(fault, "status", "")),
)
def test_an_upload_that_fails_at_first_is_tried_again_until_it_is_stored_whole(
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    proxy: FaultProxy,
    make_topic: Callable[..., str],
    fault: Fault,
) -> None:
    topic = make_topic()
    proxy.rule = lambda request: fault if request.attempt < 2 else None
    values = [b"%d" % number + bytes(1000) for number in range(50)]
    with BlobProducer({**blob_conf, "blobmsg.s3.endpoint.url": proxy.url}) as producer:
        reports = send(producer, topic, values)

    assert reports.codes == [None] * 50
    assert proxy.faults.total() >= 2
    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert [m.value() for m in read_to_end(consumer, 1).messages] == values


# --- consuming -----------------------------------------------------------------------------------


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic(partitions=2)


def _three_batches(blob_conf: dict[str, Any], topic: str, bucket: Bucket) -> list[str]:
    """Ten records a batch, three batches in partition 0, one in partition 1; the keys of 0."""
    keys: list[str] = []
    with BlobProducer(blob_conf) as producer:
        for batch in range(3):
            values = [b"%d" % (10 * batch + i) for i in range(10)]
            assert send(producer, topic, values, partition=0).errors == []
            keys += set(bucket.keys()) - set(keys)
        send(producer, topic, [b"other-%d" % i for i in range(10)], partition=1)
    assert len(keys) == 3
    return keys


@pytest.mark.parametrize("resumes_inside", [False, True])
def test_a_deleted_object_is_reported_and_restoring_it_heals(
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    bucket: Bucket,
    topic: str,
    resumes_inside: bool,
) -> None:
    keys = _three_batches(blob_conf, topic, bucket)
    saved = bucket.get(keys[1])
    bucket.delete(keys[1])
    first_affected = (2 << 20) - 10
    values = range(10, 30)
    start = 0
    if resumes_inside:
        start = first_affected = (2 << 20) - 4
        values = range(16, 30)

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, start), partition(topic, 1, 0)])
        others: list[bytes] = []
        before: list[int] = []
        errors: list[Any] = []
        while len(errors) < 2 or len(others) < 10:
            message = next_message(consumer)
            if message.error() is None:
                if message.partition() == 1:
                    others.append(message.value())
                else:
                    before.append(int(message.value()))
            elif message.error().code() != KafkaError._PARTITION_EOF:
                errors.append(message)

        assert before == ([] if resumes_inside else list(range(10)))
        assert others == [b"other-%d" % i for i in range(10)]
        for message in errors:
            assert message.error().code() == KafkaError._NOENT
            assert not message.error().fatal()
            assert (message.topic(), message.partition()) == (topic, 0)
            assert message.offset() == first_affected
            _assert_names_the_place(str(message.error()), blob_conf, topic, keys[1], saved)
        # The position stays in front of what is missing.
        position = consumer.position([partition(topic, 0)])[0].offset
        assert position == (-1001 if resumes_inside else 1 << 20)

        bucket.put(keys[1], saved)
        healed = _read_past(consumer, KafkaError._NOENT, len(values))
        assert [int(m.value()) for m in healed] == list(values)


def _assert_names_the_place(
    text: str, conf: dict[str, Any], topic: str, key: str, stored: bytes
) -> None:
    assert f"{topic} [0] at Kafka offset 1" in text
    assert conf["blobmsg.store.url"] in text
    _, _, bucket_and_prefix = conf["blobmsg.store.url"].partition("//")
    prefix = bucket_and_prefix.partition("/")[2]
    assert f"object {key.removeprefix(prefix + '/')}, bytes" in text
    [(first, last)] = re.findall(r"bytes (\d+) to (\d+)", text)
    assert b"10111213141516171819" in stored[int(first) : int(last) + 1]
    assert int(last) < len(stored)


def _read_past(consumer: Any, code: int, count: int) -> list[Any]:
    """Read so many records; errors with this code and ends of partitions may come between."""
    messages: list[Any] = []
    while len(messages) < count:
        message = next_message(consumer)
        if message.error() is None:
            messages.append(message)
        else:
            assert message.error().code() in (code, KafkaError._PARTITION_EOF), message.error()
    return messages


def test_what_was_missing_is_not_passed_by_a_commit(
    blob_conf: dict[str, Any], reader_conf: dict[str, Any], bucket: Bucket, topic: str
) -> None:
    keys = _three_batches(blob_conf, topic, bucket)
    saved = bucket.get(keys[1])
    bucket.delete(keys[1])
    group_conf = {**reader_conf, "group.id": topic, "auto.offset.reset": "earliest"}

    with BlobConsumer({**group_conf, "enable.auto.commit": True}) as consumer:
        consumer.subscribe([topic])
        while True:
            message = next_message(consumer)
            if message.error() is not None and message.error().code() == KafkaError._NOENT:
                break
    bucket.put(keys[1], saved)

    with BlobConsumer(group_conf) as consumer:
        consumer.subscribe([topic])
        messages = read_to_end(consumer, 2).messages
    numbers = [int(m.value()) for m in messages if m.partition() == 0]
    assert numbers == list(range(10, 30))


@pytest.mark.parametrize("on_missing", ["fail", "skip"])
def test_what_comes_later_than_its_notification_is_looked_for_again_and_delivered(
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    bucket: Bucket,
    proxy: FaultProxy,
    topic: str,
    on_missing: str,
) -> None:
    keys = _three_batches(blob_conf, topic, bucket)
    not_there = Answer(404, "NoSuchKey")

    def rule(request: Request) -> Fault | None:
        is_late = request.method == "GET" and keys[1] in unquote(request.path)
        return not_there if is_late and request.attempt < 3 else None

    proxy.rule = rule
    with BlobConsumer(
        {
            **reader_conf,
            "blobmsg.s3.endpoint.url": proxy.url,
            "blobmsg.on.missing": on_missing,
        }
    ) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages
        missing = consumer.stats()["missing_records"]

    assert [int(m.value()) for m in messages] == list(range(30))
    assert missing == 0
    assert proxy.faults["Answer"] == 3


def test_on_missing_skip_goes_on_behind_it_and_counts(
    blob_conf: dict[str, Any], reader_conf: dict[str, Any], bucket: Bucket, topic: str
) -> None:
    keys = _three_batches(blob_conf, topic, bucket)
    bucket.delete(keys[1])

    with BlobConsumer({**reader_conf, "blobmsg.on.missing": "skip"}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages
        assert [int(m.value()) for m in messages] == [*range(10), *range(20, 30)]
        assert consumer.stats()["missing_records"] == 10
        assert consumer.position([partition(topic, 0)])[0].offset == 3 << 20


def test_skipping_the_last_batch_moves_the_position_behind_it(
    blob_conf: dict[str, Any], reader_conf: dict[str, Any], bucket: Bucket, topic: str
) -> None:
    keys = _three_batches(blob_conf, topic, bucket)
    bucket.delete(keys[2])

    with BlobConsumer({**reader_conf, "blobmsg.on.missing": "skip"}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages
        assert [int(m.value()) for m in messages] == list(range(20))
        assert consumer.position([partition(topic, 0)])[0].offset == 3 << 20
        _, high = consumer.get_watermark_offsets(partition(topic, 0), 20)
        assert high == 3 << 20


def test_a_bit_that_flipped_in_the_store_is_never_delivered(
    blob_conf: dict[str, Any], reader_conf: dict[str, Any], bucket: Bucket, topic: str
) -> None:
    keys = _three_batches(blob_conf, topic, bucket)
    saved = bucket.get(keys[1])
    flipped = bytearray(saved)
    flipped[saved.index(b"1011121314")] ^= 1
    bucket.put(keys[1], bytes(flipped))

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0), partition(topic, 1, 0)])
        errors: list[Any] = []
        given: list[bytes] = []
        while not errors or len(given) < 20:
            message = next_message(consumer)
            if message.error() is None:
                given.append(message.value())
            elif message.error().code() != KafkaError._PARTITION_EOF:
                errors.append(message)
        assert sorted(given) == sorted([b"%d" % i for i in range(10)] + [b"other-%d" % i for i in range(10)])  # fmt: skip  # noqa: E501
        assert errors[0].error().code() == KafkaError._BAD_MSG
        assert errors[0].offset() == (2 << 20) - 10
        assert "checksum" in str(errors[0].error())
        assert consumer.position([partition(topic, 0)])[0].offset == 1 << 20

        bucket.put(keys[1], saved)
        healed = _read_past(consumer, KafkaError._BAD_MSG, 20)
        assert [int(m.value()) for m in healed] == list(range(10, 30))

    bucket.put(keys[1], bytes(flipped))
    with BlobConsumer({**reader_conf, "blobmsg.on.missing": "skip"}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages
        assert [int(m.value()) for m in messages] == [*range(10), *range(20, 30)]


def test_an_object_that_was_cut_short_is_reported(
    blob_conf: dict[str, Any], reader_conf: dict[str, Any], bucket: Bucket, topic: str
) -> None:
    keys = _three_batches(blob_conf, topic, bucket)
    saved = bucket.get(keys[0])
    bucket.put(keys[0], saved[:40])

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error().code() == KafkaError._BAD_MSG
        assert message.offset() == (1 << 20) - 10
        bucket.put(keys[0], saved)
        healed = _read_past(consumer, KafkaError._BAD_MSG, 30)
        assert [int(m.value()) for m in healed] == list(range(30))


def _gets(request: Request) -> bool:
    return request.method == "GET"


@pytest.mark.parametrize(
    "fault",
    [
        Answer(503, "SlowDown"),
        Answer(500, "InternalError"),
        Reset(),
        LoseAnswer(),
        Truncate(0),
        Truncate(50),
        FlipBit(30),
    ],
    ids=lambda fault: (
        type(fault).__name__ + str(getattr(fault, "status", getattr(fault, "after_bytes", "")))
    ),
)
def test_a_fetch_that_fails_at_first_is_tried_again_and_nothing_wrong_passes(
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    bucket: Bucket,
    proxy: FaultProxy,
    topic: str,
    fault: Fault,
) -> None:
    _three_batches(blob_conf, topic, bucket)
    proxy.rule = lambda request: fault if _gets(request) and request.attempt < 2 else None

    with BlobConsumer({**reader_conf, "blobmsg.s3.endpoint.url": proxy.url}) as consumer:
        consumer.assign([partition(topic, 0, 0), partition(topic, 1, 0)])
        messages = read_to_end(consumer, 2).messages
        mismatches = consumer.stats()["mismatches"]

    assert proxy.faults.total() >= 8
    assert [int(m.value()) for m in messages if m.partition() == 0] == list(range(30))
    assert [m.value() for m in messages if m.partition() == 1] == [
        b"other-%d" % i for i in range(10)
    ]
    assert (mismatches > 0) == isinstance(fault, FlipBit)


def test_a_wire_that_flips_a_bit_every_time_is_reported_not_delivered(
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    bucket: Bucket,
    proxy: FaultProxy,
    topic: str,
) -> None:
    keys = _three_batches(blob_conf, topic, bucket)
    damaged = keys[1].rpartition("/")[2]
    proxy.rule = lambda request: FlipBit(20) if request.path.endswith(damaged) else None

    with BlobConsumer({**reader_conf, "blobmsg.s3.endpoint.url": proxy.url}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert [int(m.value()) for m in read(consumer, 10)] == list(range(10))
        message = next_message(consumer)
        assert message.error().code() == KafkaError._BAD_MSG
        proxy.rule = None
        healed = _read_past(consumer, KafkaError._BAD_MSG, 20)
        assert [int(m.value()) for m in healed] == list(range(10, 30))


def test_a_store_that_is_away_keeps_records_waiting_and_error_cb_hears_of_it(
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    stack: lab.Stack,
    bucket: Bucket,
    topic: str,
) -> None:
    _three_batches(blob_conf, topic, bucket)
    port = free_port()
    heard: list[KafkaError] = []
    away = {
        **reader_conf,
        "blobmsg.s3.endpoint.url": f"http://127.0.0.1:{port}",
        "blobmsg.request.timeout.ms": 1000,
        "error_cb": heard.append,
    }
    with BlobConsumer(away) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        wait_until(
            lambda: bool(heard), "error_cb was called", serve=lambda: _nothing(consumer.poll(0.1))
        )
        assert heard[0].code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
        assert heard[0].retriable()
        with FaultProxy(stack.minio.host, stack.minio.port, listen_port=port):
            assert [int(m.value()) for m in read(consumer, 30)] == list(range(30))


def _nothing(message: Any) -> None:
    assert message is None or message.error().code() == KafkaError._PARTITION_EOF


@pytest.mark.parametrize(
    ("setting", "value", "code", "text"),
    [
        ("blobmsg.s3.access.key.id", "nobody", KafkaError._AUTHENTICATION, "nobody"),
        ("blobmsg.s3.secret.access.key", "wrong", KafkaError._AUTHENTICATION, "credentials"),
        ("blobmsg.store.url", "s3://no-such-bucket/x", KafkaError._INVALID_ARG, "no-such-bucket"),
    ],
)
def test_wrong_credentials_and_buckets_are_reported_by_poll(
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    bucket: Bucket,
    topic: str,
    setting: str,
    value: str,
    code: int,
    text: str,
) -> None:
    _three_batches(blob_conf, topic, bucket)
    with BlobConsumer({**reader_conf, setting: value}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)

    assert message.error().code() == code
    assert text in str(message.error())
    assert (message.topic(), message.partition()) == (topic, 0)
    assert message.offset() == (1 << 20) - 10


def test_a_proxy_that_answers_404_is_no_missing_object(
    blob_conf: dict[str, Any],
    reader_conf: dict[str, Any],
    bucket: Bucket,
    proxy: FaultProxy,
    topic: str,
) -> None:
    _three_batches(blob_conf, topic, bucket)
    skipping = {**reader_conf, "blobmsg.s3.endpoint.url": proxy.url, "blobmsg.on.missing": "skip"}
    proxy.rule = lambda _: Answer(404, "")
    with BlobConsumer(skipping) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error() is not None
        assert message.error().code() != KafkaError._NOENT
        proxy.rule = None
        healed = _read_past(consumer, message.error().code(), 30)
        assert [int(m.value()) for m in healed] == list(range(30))
