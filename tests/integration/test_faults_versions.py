"""What a later version of blobmsg has written: said by name, never guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.cli.main import main
from tests.helpers.records import next_error, partition, read, send

if TYPE_CHECKING:
    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


def test_a_committed_place_of_a_later_version_is_refused_and_a_known_one_heals(
    conf: dict[str, Any], group_conf: dict[str, Any], bootstrap: str, topic: str
) -> None:
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for batch in range(2):
            send(producer, topic, [b"%d" % (10 * batch + i) for i in range(10)])
    group = {"bootstrap.servers": bootstrap, "group.id": group_conf["group.id"]}

    def commit(metadata: str) -> None:
        stock = Consumer(group)
        try:
            stock.commit(offsets=[TopicPartition(topic, 0, 1, metadata)], asynchronous=False)
        finally:
            stock.close()

    commit("blobmsg2:3")  # whatever this will mean
    with BlobConsumer(group_conf) as consumer:
        consumer.subscribe([topic])
        message = next_error(consumer)
        assert message.error().code() == KafkaError._UNSUPPORTED_FEATURE
        assert "version 2" in str(message.error())
        assert (message.topic(), message.partition()) == (topic, 0)
        [place] = consumer.position([partition(topic)])
        assert place.offset < 0  # nothing was handed out

    commit("blobmsg1:3")
    with BlobConsumer(group_conf) as consumer:
        consumer.subscribe([topic])
        assert [m.value() for m in read(consumer, 3)] == [b"17", b"18", b"19"]


@pytest.mark.usefixtures("dev_environ")
def test_an_object_of_a_later_version_is_not_inspected_but_named(
    conf: dict[str, Any],
    stack: lab.Stack,
    store_prefix: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Consumers never read what stands at an object's end: their notifications say where to look.
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        send(producer, topic, [b"value"])
    client = stack.s3_client()
    try:
        [listed] = client.list_objects_v2(Bucket=stack.bucket, Prefix=f"{store_prefix}/")[
            "Contents"
        ]
        key = listed["Key"]
        url = f"s3://{stack.bucket}/{key}"
        assert main(["inspect", url]) == 0
        capsys.readouterr()

        later = bytearray(client.get_object(Bucket=stack.bucket, Key=key)["Body"].read())
        assert later[-8:] == b"\x01\x00\x00\x00BMOE"
        later[-8] = 2
        client.put_object(Bucket=stack.bucket, Key=key, Body=bytes(later))
        assert main(["inspect", url]) == 1
    finally:
        client.close()
    assert "batch object version 2" in capsys.readouterr().out
