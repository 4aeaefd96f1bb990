"""Credentials that expire, clocks that are wrong: renewed once, or said so that one can act."""

from __future__ import annotations

import json
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
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
UPLOADS = 8


class CredentialsFile:
    """Where the SDK's own chain finds its keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, key_id: str, secret: str) -> None:
        self.path.write_text(
            f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n"
        )


class CredentialProcess:
    """Another program that the SDK's own chain asks for keys; these have an end of their own."""

    def __init__(self, folder: Path) -> None:
        self._answer = folder / "answer.json"
        self._calls = folder / "calls"
        program = folder / "keys.py"
        program.write_text(
            "import pathlib\n"
            f"with open({str(self._calls)!r}, 'a') as calls:\n"
            "    calls.write('.')\n"
            f"print(pathlib.Path({str(self._answer)!r}).read_text())\n"
        )
        self.config = folder / "config"
        self.config.write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")

    def answer(self, key_id: str, secret: str, expiry: datetime) -> None:
        """What it says from now on; it may be asked meanwhile, and by several threads."""
        keys = {"AccessKeyId": key_id, "SecretAccessKey": secret, "Expiration": expiry.isoformat()}
        written = self._answer.with_name(f"answer-{threading.get_ident()}")
        written.write_text(json.dumps({"Version": 1, **keys}))
        written.replace(self._answer)

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return len(self._calls.read_text())


@pytest.fixture
def bare_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys anywhere where the SDK's own chain looks."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("BLOBMSG_S3_ACCESS_KEY_ID", "BLOBMSG_S3_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def credentials(bare_chain: None, tmp_path: Path) -> CredentialsFile:
    found = CredentialsFile(tmp_path / "credentials")
    found.write(OLD, "expired")
    return found


@pytest.fixture
def process(bare_chain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CredentialProcess:
    found = CredentialProcess(tmp_path)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(found.config))
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


def _with_expired(proxy: FaultProxy, conf: dict[str, Any], topic: str) -> dict[str, Any]:
    """Store a record; behind it all credentials have expired for the clients of these settings."""
    with BlobProducer(conf) as producer:
        send(producer, topic, [b"stored"])
    proxy.rule = _expired
    return _through(proxy, conf)


def _producers_error(conf: dict[str, Any], topic: str) -> KafkaError:
    with BlobProducer(conf) as producer:
        reports = send(producer, topic, [b"a", b"b"])
    assert reports.codes == [KafkaError._AUTHENTICATION] * 2
    first: KafkaError = reports.errors[0]
    return first


def _consumers_error(conf: dict[str, Any], topic: str) -> KafkaError:
    reader = {**conf, "group.id": topic, "blobmsg.cache.memory.bytes": 0}
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        error: KafkaError = next_error(consumer).error()
    assert error.code() == KafkaError._AUTHENTICATION
    return error


def test_credentials_that_stay_expired_are_named_and_not_tried_for_ever(
    blob_conf: dict[str, Any], proxy: FaultProxy, credentials: CredentialsFile, topic: str
) -> None:
    del credentials  # they stay as they are
    through = _with_expired(proxy, blob_conf, topic)

    error = _producers_error(through, topic)
    _assert_says_who(error)
    assert len(proxy.requests) == 2  # once, and once more with what the SDK has now

    error = _consumers_error(through, topic)
    _assert_says_who(error)


def _assert_says_who(error: KafkaError, source: str = "shared-credentials-file") -> None:
    assert OLD in str(error)
    assert "expired" in str(error)
    assert source in str(error)  # where they come from


@pytest.mark.parametrize(
    ("hours", "requests"),
    [
        pytest.param(-3, 0, id="as the SDK knows"),
        # Once, and once more with what the SDK has now.
        pytest.param(3, 2, id="as the store says"),
    ],
)
def test_of_credentials_with_an_end_the_error_says_when_it_was(
    blob_conf: dict[str, Any],
    proxy: FaultProxy,
    process: CredentialProcess,
    topic: str,
    hours: int,
    requests: int,
) -> None:
    end = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=hours)
    process.answer(OLD, "expired", end)
    says_when = f"valid until {end:%Y-%m-%d %H:%M:%S} UTC"
    through = _with_expired(proxy, blob_conf, topic)

    error = _producers_error(through, topic)
    _assert_says_who(error, "custom-process")
    assert says_when in str(error)
    assert len(proxy.requests) == requests

    error = _consumers_error(through, topic)
    _assert_says_who(error, "custom-process")
    assert says_when in str(error)


def test_uploads_whose_credentials_expire_together_renew_them_once(
    blob_conf: dict[str, Any], proxy: FaultProxy, process: CredentialProcess, topic: str
) -> None:
    end = datetime.now(timezone.utc) + timedelta(hours=3)
    process.answer(OLD, "expired", end)

    def rule(request: Request) -> Fault | None:
        if request.identity == OLD:
            # All are on their way when the first is refused.
            proxy.wait_for(lambda requests: len(requests) >= UPLOADS)
            process.answer(
                blob_conf["blobmsg.s3.access.key.id"],
                blob_conf["blobmsg.s3.secret.access.key"],
                end,
            )
        return _expired(request)

    proxy.rule = rule
    more = {"blobmsg.upload.threads": UPLOADS, "blobmsg.batch.size.bytes": 8192}
    with BlobProducer({**_through(proxy, blob_conf), **more}) as producer:
        asked_at_first = process.calls
        # Each of them fills a batch of its own.
        reports = send(producer, topic, [b"%d" % i + bytes(9000) for i in range(UPLOADS)])

    assert reports.codes == [None] * UPLOADS
    assert [r.identity for r in proxy.requests].count(OLD) == UPLOADS
    assert len(proxy.requests) == 2 * UPLOADS
    assert process.calls == asked_at_first + 1


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
