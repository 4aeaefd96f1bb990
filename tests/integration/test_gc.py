"""`blobmsg gc` on a real store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.cli.main import main
from tests.helpers.records import partition, read, send

if TYPE_CHECKING:
    from blobmsg import lab

WRITER = "0123456789abcdef" * 2


@pytest.mark.timeout(300)  # for 1,200 PUTs on a busy machine
@pytest.mark.usefixtures("dev_environ")
def test_expired_objects_go_and_what_is_in_use_is_read_as_before(
    conf: dict[str, Any],
    stack: lab.Stack,
    store_prefix: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        send(producer, topic, [b"value"])
    client = stack.s3_client()
    for number in range(1200):  # more than one listing and one deletion
        key = f"{store_prefix}/default/{number % 16:x}/2020010100/az1/{WRITER}-{number}"
        client.put_object(Bucket=stack.bucket, Key=key, Body=b"x")

    assert main(["gc", "--expired"]) == 0
    assert "1,200 expired objects" in capsys.readouterr().out
    assert main(["gc", "--expired", "--delete"]) == 0
    assert "1,200 expired objects" in capsys.readouterr().out

    left = client.list_objects_v2(Bucket=stack.bucket, Prefix=store_prefix)
    client.close()
    assert left["KeyCount"] == 1
    with BlobConsumer({**conf, "group.id": topic}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert [message.value() for message in read(consumer, 1)] == [b"value"]


@pytest.mark.usefixtures("dev_environ")
def test_a_store_that_refuses_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOBMSG_S3_SECRET_ACCESS_KEY", "wrong")

    assert main(["gc", "--expired"]) == 1
    assert "SignatureDoesNotMatch" in capsys.readouterr().err
