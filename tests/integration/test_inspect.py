"""`blobmsg inspect` on objects in a real store and records in a real topic."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.cli.main import main
from blobmsg.format import (
    HEADER_NAME,
    HEADER_VALUE,
    Codec,
    Columns,
    Notification,
    encode_batch_object,
    encode_notification,
    encode_object_segment,
)
from blobmsg.offsets import to_virtual
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab

WRITER = "0123456789abcdef0123456789abcdef"
KEY = f"default/3/forever/az1/{WRITER}-7"


@pytest.fixture
def topic(
    dev_environ: None,
    stack: lab.Stack,
    store_prefix: str,
    make_topic: Callable[..., str],
) -> str:
    """A topic with a notification of an object in the store, then a plain record."""
    topic = make_topic()
    columns = Columns(keys=[b"k"], values=[b"v"], timestamps_ms=[1], headers=None)
    producer_id = bytes.fromhex(WRITER)
    segment = encode_object_segment(
        columns,
        Codec.NONE,
        topic=topic,
        partition=0,
        destination_zone="",
        producer_id=producer_id,
    )
    data, (entry,) = encode_batch_object([segment])
    client = stack.s3_client()
    client.put_object(Bucket=stack.bucket, Key=f"{store_prefix}/{KEY}", Body=data)
    client.close()
    sound = Notification((entry.part,), 0, producer_id, KEY)
    wrong = replace(sound, parts=(replace(entry.part, checksum=entry.checksum ^ 1),))
    producer = StockProducer({"bootstrap.servers": stack.bootstrap_servers})
    for notification in (sound, wrong):
        value = encode_notification(notification)
        producer.produce(topic, value, headers=[(HEADER_NAME, HEADER_VALUE)], partition=0)
    producer.produce(topic, b"plain", b"key", partition=0)
    assert producer.flush(30) == 0
    return topic


def _facts(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_an_object_is_inspected_by_its_s3_address(
    topic: str, stack: lab.Stack, store_prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{stack.bucket}/{store_prefix}/{KEY}"

    assert main(["inspect", "--json", url]) == 0

    facts = _facts(capsys)
    assert [segment["topic"] for segment in facts["segments"]] == [topic]
    assert facts["key"]["text"] == KEY


def test_an_object_is_inspected_by_its_key(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", KEY]) == 0
    assert [segment["topic"] for segment in _facts(capsys)["segments"]] == [topic]


@pytest.mark.parametrize("offset", [["--offset", "0"], ["--virtual-offset", str(to_virtual(0))]])
def test_a_notification_is_read_from_kafka_and_its_object_from_the_store(
    offset: list[str], topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--topic", topic, "--partition", "0", *offset]

    assert main(["inspect", "--json", "--records", "1", *target]) == 0

    (part,) = _facts(capsys)["parts"]
    assert (part["preview"][0]["key"], part["preview"][0]["value"]) == ("k", "v")


def test_a_notification_that_does_not_fit_its_object_is_a_finding(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--topic", topic, "--partition", "0", "--offset", "1"]

    assert main(["inspect", "--fetch", *target]) == 1
    assert "part 0: checksum" in capsys.readouterr().out


def test_a_plain_record_is_called_plain(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--topic", topic, "--partition", "0", "--offset", "2"]) == 0
    assert capsys.readouterr().out.startswith("plain record, 5 bytes\n  value     'plain'\n")


@pytest.mark.parametrize(
    ("partition", "offset", "words"),
    [("0", "3", "it has 0 to 2"), ("7", "0", "has partitions 0 to 0")],
)
def test_a_place_that_is_not_there_is_a_mistake(
    partition: str, offset: str, words: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--topic", topic, "--partition", partition, "--offset", offset]

    assert main(["inspect", *target]) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_topic_is_a_mistake_and_is_not_created(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--topic", f"{topic}-other", "--partition", "0", "--offset", "0"]

    assert main(["inspect", *target]) == 2
    assert main(["inspect", *target]) == 2
    assert "Unknown topic" in capsys.readouterr().err


def test_brokers_that_are_not_there_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    # Nothing listens on the discard port of the loopback interface.
    brokers = "bootstrap.servers=127.0.0.1:9"
    target = ["--topic", "t", "--partition", "0", "--offset", "0"]

    assert main(["inspect", "-X", brokers, *target]) == 2
    assert "Kafka: " in capsys.readouterr().err


def test_an_object_that_is_not_there_is_a_finding(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert topic
    gone = KEY[:-1] + "8"

    assert main(["inspect", gone]) == 1

    errors = capsys.readouterr().err
    assert gone in errors
    assert "Traceback" not in errors
