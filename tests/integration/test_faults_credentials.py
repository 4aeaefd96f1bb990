"""Credentials that expire, clocks that are wrong: renewed once, or said so that one can act."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.clock import SystemClock
from tests.helpers.fault_proxy import Answer
from tests.helpers.records import (
    Reports,
    next_error,
    partition,
    produce,
    read,
    send,
    wait_until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.fault_proxy import Fault, FaultProxy, Request

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

OLD = "key-of-yesterday"


class CredentialsFile:
    """Where the SDK's own chain finds its keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, key_id: str, secret: str) -> None:
        self.path.write_text(
            f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n"
        )


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CredentialsFile:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("BLOBMSG_S3_ACCESS_KEY_ID", "BLOBMSG_S3_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = CredentialsFile(tmp_path / "credentials")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(found.path))
    found.write(OLD, "expired")
    return found


@pytest.fixture
def blob_conf(conf: dict[str, Any]) -> dict[str, Any]:
    return {**conf, "blobmsg.route": "blob"}


def _through(proxy: FaultProxy, conf: dict[str, Any]) -> dict[str, Any]:
    """Through the proxy, with the keys of the SDK's chain."""
    own = ("blobmsg.s3.access.key.id", "blobmsg.s3.secret.access.key")
    rest = {name: value for name, value in conf.items() if name not in own}
    return {**rest, "blobmsg.s3.endpoint.url": proxy.url}


def _expired(request: Request) -> Fault | None:
    return Answer(400, "ExpiredToken") if request.identity == OLD else None


def test_expired_credentials_are_renewed_once_and_the_request_is_repeated(
    blob_conf: dict[str, Any], proxy: FaultProxy, credentials: CredentialsFile, topic: str
) -> None:
    def renew(request: Request) -> Fault | None:
        fault = _expired(request)
        if fault is not None:
            credentials.write(
                blob_conf["blobmsg.s3.access.key.id"], blob_conf["blobmsg.s3.secret.access.key"]
            )
        return fault

    proxy.rule = renew
    with BlobProducer(_through(proxy, blob_conf)) as producer:
        reports = send(producer, topic, [b"a", b"b", b"c"])
    assert reports.codes == [None] * 3
    assert [r.identity for r in proxy.requests].count(OLD) == 1

    credentials.write(OLD, "expired")
    reader = {**_through(proxy, blob_conf), "group.id": topic, "blobmsg.cache.memory.bytes": 0}
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert [m.value() for m in read(consumer, 3)] == [b"a", b"b", b"c"]
    assert [r.identity for r in proxy.requests].count(OLD) == 2


def test_credentials_that_stay_expired_are_named_and_not_tried_for_ever(
    blob_conf: dict[str, Any], proxy: FaultProxy, credentials: CredentialsFile, topic: str
) -> None:
    del credentials  # they stay as they are
    with BlobProducer(blob_conf) as producer:
        send(producer, topic, [b"stored"])
    proxy.rule = _expired
    through = _through(proxy, blob_conf)

    with BlobProducer(through) as producer:
        reports = send(producer, topic, [b"a", b"b"])
    assert reports.codes == [KafkaError._AUTHENTICATION] * 2
    _assert_says_who(reports.errors[0])
    assert len(proxy.requests) == 2  # once, and once more with what the SDK has now

    reader = {**through, "group.id": topic, "blobmsg.cache.memory.bytes": 0}
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_error(consumer)
    assert message.error().code() == KafkaError._AUTHENTICATION
    _assert_says_who(message.error())


def _assert_says_who(error: KafkaError) -> None:
    assert OLD in str(error)
    assert "expired" in str(error)
    assert "shared-credentials-file" in str(error)  # where they come from


def test_a_clock_an_hour_ahead_is_said_at_once_and_not_tried_again(
    blob_conf: dict[str, Any],
    proxy: FaultProxy,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The store itself refuses: nothing is made up but our time.
    monkeypatch.setattr(
        SystemClock, "timestamp_ms", lambda _: time.time_ns() // 1_000_000 + 3_600_000
    )
    skewed = {
        **blob_conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "message.timeout.ms": 12_000,  # as long as it would be tried again
    }
    with BlobProducer(skewed) as producer:
        reports = send(producer, topic, [b"a", b"b"])

    assert reports.codes == [KafkaError._AUTHENTICATION] * 2
    assert "clock" in str(reports.errors[0])
    assert "ahead" in str(reports.errors[0])
    assert len(proxy.requests) == 1


def test_a_wall_clock_set_back_delays_no_batch(
    blob_conf: dict[str, Any], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports()
    real = time.time_ns
    with BlobProducer({**blob_conf, "blobmsg.batch.interval.ms": 500}) as producer:
        # No flush, which would seal the batch: its age alone does.
        produce(producer, topic, b"first", on_delivery=reports)
        wait_until(lambda: len(reports.outcomes) == 1, "the first", serve=lambda: producer.poll(1))
        produce(producer, topic, b"waits for its batch's age", on_delivery=reports)
        # Ten minutes; S3 takes up to fifteen.
        monkeypatch.setattr(time, "time_ns", lambda: real() - 600 * 10**9)
        wait_until(
            lambda: len(reports.outcomes) == 2, "its report", serve=lambda: producer.poll(0.1)
        )
    assert reports.codes == [None] * 2
