"""An object that is gone after its expiry hour, while Kafka still has its notification."""

from __future__ import annotations

import logging
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.clock import SystemClock
from blobmsg.format import ObjectKey, encode_notification
from tests.helpers.consuming import notification, part
from tests.helpers.private import private
from tests.helpers.records import next_error, next_message, partition, read_to_end, send
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_s3.client import S3Client

    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

FULL = 1 << 20
EXPIRED_RECORDS = 5
# Behind the expiry hour of what is produced now; the half, so that no full hour is near.
LATER_MS = 5 * 3_600_000 + 1_800_000


@pytest.fixture
def topic(conf: dict[str, Any], bootstrap: str, make_topic: Callable[..., str]) -> str:
    """Two live records, two notifications of expired objects, two live records."""
    topic = make_topic()
    with (
        BlobProducer({**conf, "blobmsg.route": "blob"}) as producer,
        StockProducer({"bootstrap.servers": bootstrap}) as kafka,
    ):
        send(producer, topic, [b"0", b"1"], partition=0)
        for number in range(2):
            key = ObjectKey("shared", "0", "2020010203", "az1", "ab" * 16, number).encode()
            value = encode_notification(notification(part(EXPIRED_RECORDS), key=key))
            send(kafka, topic, [value], partition=0, headers=[("blobmsg", b"1")])
        send(producer, topic, [b"2", b"3"], partition=0)
    return topic


@pytest.fixture
def reader_conf(conf: dict[str, Any], store_prefix: str) -> dict[str, Any]:
    return {
        **conf,
        "group.id": store_prefix,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }


class Bucket:
    """What lies in the test's prefix, seen by a client that is not ours."""

    def __init__(self, client: S3Client, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/"

    def keys(self) -> list[str]:
        listing = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix)
        return [entry["Key"].removeprefix(self._prefix) for entry in listing.get("Contents", [])]

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)


@pytest.fixture
def bucket(stack: lab.Stack, store_prefix: str) -> Iterator[Bucket]:
    client = stack.s3_client()
    yield Bucket(client, stack.bucket, store_prefix)
    client.close()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_reading_goes_on_at_the_next_live_record_and_says_so_once(
    reader_conf: dict[str, Any], topic: str, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "blobmsg.consumer"),
        BlobConsumer({**reader_conf, "auto.offset.reset": reset}) as consumer,
    ):
        consumer.assign([partition(topic, 0, 0)])
        messages = read_to_end(consumer, 1).messages

        assert [message.value() for message in messages] == [b"0", b"1", b"2", b"3"]
        assert consumer.stats()["expired_records"] == 2 * EXPIRED_RECORDS
        assert consumer.position([partition(topic, 0)])[0].offset == 4 * FULL
    said = [record.getMessage() for record in caplog.records if topic in record.getMessage()]
    assert len(said) == 1
    assert _told_lag_hours(said[0], "2020-01-02 03:00") == _hours_since_1970()


def test_with_reset_error_it_is_reported_and_the_position_stays(
    reader_conf: dict[str, Any], topic: str
) -> None:
    with BlobConsumer({**reader_conf, "auto.offset.reset": "error"}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert [next_message(consumer).value() for _ in range(2)] == [b"0", b"1"]
        for _ in range(2):  # again and again
            message = next_error(consumer)
            assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
            assert (message.topic(), message.partition()) == (topic, 0)
            assert message.offset() == 2 * FULL - EXPIRED_RECORDS
            lag_hours = _told_lag_hours(message.error().str(), "2020-01-02 03:00")
            assert lag_hours == _hours_since_1970()
        assert consumer.position([partition(topic, 0)])[0].offset == FULL
        assert consumer.stats()["expired_records"] == 0

        consumer.seek(partition(topic, 0, 3 * FULL))  # the application's own way past it
        assert [m.value() for m in read_to_end(consumer, 1).messages] == [b"2", b"3"]


def _told_lag_hours(text: str, expiry_hour: str) -> int:
    """The lag that a text tells behind the expiry hour, which it must tell."""
    found = re.search(
        rf"past its expiry hour and gone, since {expiry_hour} UTC; the reader lags by (\d+) h", text
    )
    assert found is not None, text
    return int(found[1])


def _hours_since_1970() -> Any:
    # From when the only record of the vectors is; an hour may end meanwhile.
    return pytest.approx(time.time() / 3600, abs=2)


class LaterClock(SystemClock):
    """The wall clock of one who comes so many hours later."""

    def timestamp_ms(self) -> int:
        return super().timestamp_ms() + LATER_MS


def test_an_object_of_ours_that_is_gone_after_its_hour_is_passed_over_and_counted(
    conf: dict[str, Any],
    reader_conf: dict[str, Any],
    bucket: Bucket,
    make_topic: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The shortest life that there is: an hour, one for Kafka's segment, one for clocks that differ.
    topic = make_topic(config={"retention.ms": "3600000", "segment.ms": "3600000"})
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        send(producer, topic, [b"0", b"1"])
        before = set(bucket.keys())
        send(producer, topic, [b"expires-%d" % number for number in range(EXPIRED_RECORDS)])
        [gone] = set(bucket.keys()) - before
        send(producer, topic, [b"2", b"3"])  # expired as well, but nobody has collected it yet
    bucket.delete(gone)
    hour = datetime.strptime(ObjectKey.decode(gone).expiry_hour + "+0000", "%Y%m%d%H%z")

    def read_all(consumer: BlobConsumer) -> list[bytes]:
        consumer.assign([partition(topic, 0, 0)])
        return [message.value() for message in read_to_end(consumer, 1).messages]

    caplog.set_level(logging.WARNING, "blobmsg.consumer")
    with BlobConsumer({**reader_conf, "auto.offset.reset": "earliest"}) as consumer:
        # Not the store's clock, with which requests are signed.
        private(consumer, "fetcher")._clock = LaterClock()
        assert read_all(consumer) == [b"0", b"1", b"2", b"3"]
        assert consumer.stats()["expired_records"] == EXPIRED_RECORDS
        assert consumer.stats()["missing_records"] == 0
    [said] = [text for text in caplog.messages if topic in text]
    assert _told_lag_hours(said, f"{hour:%Y-%m-%d %H:%M}") == LATER_MS // 3_600_000
    assert gone in said

    # Before its hour it is no less gone, but lost.
    with BlobConsumer({**reader_conf, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert [next_message(consumer).value() for _ in range(2)] == [b"0", b"1"]
        assert next_error(consumer).error().code() == KafkaError._NOENT
        assert consumer.stats()["expired_records"] == 0
