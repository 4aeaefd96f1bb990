"""An object that is gone after its expiry hour, while Kafka still has its notification."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.format import ObjectKey, encode_notification
from tests.helpers.consuming import notification, part
from tests.helpers.records import next_error, next_message, partition, read_to_end, send
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

FULL = 1 << 20
EXPIRED_RECORDS = 5


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
    assert "past its expiry hour" in said[0]


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
            text = message.error().str()
            assert "gone, since 2020-01-02 03:00 UTC; the reader lags by" in text
            lag_hours = int(text.split("lags by ")[1].split(" h")[0])
            # The newest record of the vector is of 1970.
            assert abs(lag_hours - time.time() / 3600) < 2
        assert consumer.position([partition(topic, 0)])[0].offset == FULL
        assert consumer.stats()["expired_records"] == 0

        consumer.seek(partition(topic, 0, 3 * FULL))  # the application's own way past it
        assert [m.value() for m in read_to_end(consumer, 1).messages] == [b"2", b"3"]
