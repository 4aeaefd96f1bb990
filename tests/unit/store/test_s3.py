"""The S3 store against a server that misbehaves; the real one is in `tests/contract`."""

from __future__ import annotations

import base64
import dataclasses
import os
import random
import shutil
import ssl
import subprocess
import threading
import time
import zlib
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import pytest
from botocore.exceptions import MetadataRetrievalError

from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.errors import (
    BlobmsgError,
    ConfigError,
    CorruptSegment,
    ObjectMissing,
    StoreDenied,
    StoreTimeout,
    StoreUnavailable,
)
from blobmsg.format.ranges import ByteRange
from blobmsg.store import open_store
from blobmsg.store.open import open_raw_store
from blobmsg.testing import FaultStore
from tests.helpers.scripted_server import (
    ScriptedServer,
    Step,
    answer,
    hang,
    hang_up,
    partial,
    raw,
    refusal,
    refusal_before_the_body,
    reset,
    trickle,
    truncated,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from blobmsg.store import Store

CLOCK = SystemClock()


def conf(url: str, **more: str) -> dict[str, Any]:
    return {
        "blobmsg.store.url": "s3://bucket/pre/fix",
        "blobmsg.s3.endpoint.url": url,
        "blobmsg.s3.region": "us-east-1",
        "blobmsg.s3.access.key.id": "AKIAEXAMPLE",
        "blobmsg.s3.secret.access.key": "secret",
        **{f"blobmsg.{name.replace('_', '.')}": value for name, value in more.items()},
    }


def raw_store(server: ScriptedServer | str, **more: str) -> Store:
    url = server if isinstance(server, str) else server.url
    settings = parse_settings(conf(url, **more), {})[0]
    return open_raw_store("s3://bucket/pre/fix", settings, clock=CLOCK)


def in_ms(duration_ms: int) -> int:
    return CLOCK.now_ms() + duration_ms


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine's AWS settings and proxies are not ours to test with."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_a_put_sends_the_bytes_once_with_their_checksum() -> None:
    data = random.Random(1).randbytes(1_000_000)
    with ScriptedServer(answer()) as server:
        store = raw_store(server)
        store.put("a b/k", data, deadline_ms=in_ms(5000))
        store.close()
        (request,) = server.requests
    assert (request.method, request.target) == ("PUT", "/bucket/pre/fix/a%20b/k")
    assert request.body == data
    checksum = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    assert request.headers["x-amz-checksum-crc32"] == checksum
    assert "expect" not in request.headers


def test_a_checksum_that_the_caller_knows_is_sent_as_it_is() -> None:
    with ScriptedServer(answer()) as server:
        store = raw_store(server)
        store.put("k", b"data", deadline_ms=in_ms(5000), crc32=1)
        store.close()
    assert server.requests[0].headers["x-amz-checksum-crc32"] == "AAAAAQ=="


def test_a_known_checksum_goes_through_all_wrappers() -> None:
    with ScriptedServer(answer()) as server:
        store = open_store("s3://bucket/p", parse_settings(conf(server.url), {})[0])
        FaultStore(store, CLOCK).put("k", b"data", deadline_ms=in_ms(5000), crc32=1)
        store.close()
    assert server.requests[0].headers["x-amz-checksum-crc32"] == "AAAAAQ=="


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (None, None)),
        ({"s3_sse": "AES256"}, ("AES256", None)),
        ({"s3_sse": "aws:kms", "s3_sse_kms_key_id": "key/1"}, ("aws:kms", "key/1")),
        ({"s3_sse": "aws:kms:dsse", "s3_sse_kms_key_id": "key/1"}, ("aws:kms:dsse", "key/1")),
    ],
)
def test_encryption_is_asked_for_with_every_put(
    settings: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    with ScriptedServer(answer()) as server:
        store = raw_store(server, **settings)
        store.put("k", memoryview(b"data"), deadline_ms=in_ms(5000))
        store.close()
    headers = server.requests[0].headers
    name = "x-amz-server-side-encryption"
    assert (headers.get(name), headers.get(f"{name}-aws-kms-key-id")) == expected


def test_a_range_is_read_and_the_connection_used_again() -> None:
    with ScriptedServer(partial(b"lo w", 3, 11)) as server:
        store = raw_store(server)
        for _ in range(3):
            assert store.get_range("k", ByteRange(3, 4), deadline_ms=in_ms(5000)) == b"lo w"
        store.close()
    assert server.requests[0].headers["range"] == "bytes=3-6"
    assert {request.connection_number for request in server.requests} == {1}


def test_reads_go_to_the_read_endpoint_and_writes_do_not() -> None:
    with ScriptedServer(answer()) as writes, ScriptedServer(partial(b"a", 0, 1)) as reads:
        store = raw_store(writes, s3_read_endpoint_url=f"{reads.url}/cache")
        store.put("k", b"a", deadline_ms=in_ms(5000))
        store.get_range("k", ByteRange(0, 1), deadline_ms=in_ms(5000))
        store.close()
        assert [request.method for request in writes.requests] == ["PUT"]
        assert [request.target for request in reads.requests] == ["/cache/bucket/pre/fix/k"]


@pytest.mark.parametrize(
    ("step", "error", "says"),
    [
        (refusal(503, "SlowDown"), StoreUnavailable, "SlowDown"),
        (refusal(500, "InternalError"), StoreUnavailable, "InternalError"),
        (refusal(403, "AccessDenied"), StoreDenied, "AKIAEXAMPLE"),
        (refusal(404, "NoSuchKey"), ObjectMissing, "bytes 3-6 wanted"),
        (refusal(404, "NoSuchBucket"), ConfigError, "create the bucket"),
        (refusal(416, "InvalidRange"), CorruptSegment, "3-6"),
        (answer(404, b"<html>"), ConfigError, "404"),
        (truncated(b"lo", 4, content_range="bytes 3-6/11"), StoreUnavailable, "2 are missing"),
        (reset(), StoreUnavailable, "reset"),
        (hang_up(), StoreUnavailable, "without an answer"),
        (raw(b"SSH-2.0-OpenSSH\r\n"), StoreUnavailable, "SSH"),
        (raw(b"HTTP/1.1 206 OK\r\nContent-Le"), StoreUnavailable, "within the headers"),
        (partial(b"lo", 3, 5), CorruptSegment, "only 5 bytes"),
        (partial(b"wrong", 2, 11), ConfigError, "ignores ranges"),
        (partial(b"too much", 3, 11), ConfigError, "ignores ranges"),
        (answer(200, b"whole object"), ConfigError, "ignores ranges"),
        (answer(200, b"four"), ConfigError, "ignores ranges"),
        (
            answer(206, b"lo", content_range="bytes 3-6/11"),
            StoreUnavailable,
            "2 are missing",
        ),
    ],
    ids=[
        "503",
        "500",
        "403",
        "404-key",
        "404-bucket",
        "416",
        "404-proxy",
        "truncated",
        "reset",
        "hang-up",
        "not-http",
        "half-a-head",
        "short-object",
        "wrong-start",
        "too-long",
        "whole-object",
        "whole-object-of-that-length",
        "length-below-range",
    ],
)
def test_each_bad_answer_to_a_get_is_a_typed_error(
    step: Step, error: type[BlobmsgError], says: str
) -> None:
    with ScriptedServer(step) as server:
        store = raw_store(server)
        with pytest.raises(BlobmsgError, match=says) as caught:
            store.get_range("k", ByteRange(3, 4), deadline_ms=in_ms(5000))
        store.close()
    assert type(caught.value) is error
    assert "secret" not in str(caught.value)


def test_a_store_that_ignores_ranges_is_fine_if_the_whole_object_is_wanted() -> None:
    with ScriptedServer(answer(200, b"four")) as server:
        store = raw_store(server)
        assert store.get_range("k", ByteRange(0, 4), deadline_ms=in_ms(5000)) == b"four"
        store.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put("k", b"data", deadline_ms=in_ms(150)),
        lambda store: store.get_range("k", ByteRange(0, 4), deadline_ms=in_ms(150)),
    ],
    ids=["put", "get_range"],
)
def test_a_peer_that_never_answers_is_a_timeout_at_the_deadline(
    call: Callable[[Store], object],
) -> None:
    with ScriptedServer(hang()) as server:
        store = raw_store(server)
        started = time.monotonic()
        with pytest.raises(StoreTimeout):
            call(store)
        assert 0.1 < time.monotonic() - started < 5
        store.close()


def test_a_body_that_trickles_is_a_timeout_at_the_deadline() -> None:
    head = b"HTTP/1.1 206 OK\r\nContent-Length: 9999\r\nContent-Range: bytes 0-9998/9999\r\n\r\n"
    with ScriptedServer(trickle(head, b"x", 0.02)) as server:
        store = raw_store(server)
        started = time.monotonic()
        with pytest.raises(StoreTimeout):
            store.get_range("k", ByteRange(0, 9999), deadline_ms=in_ms(200))
        assert time.monotonic() - started < 5
        store.close()


def test_a_peer_that_takes_no_more_bytes_is_a_timeout_at_the_deadline() -> None:
    with ScriptedServer(hang(), reads_body=False) as server:
        store = raw_store(server)
        started = time.monotonic()
        with pytest.raises(StoreTimeout):
            store.put("k", bytes(32 << 20), deadline_ms=in_ms(300))
        assert time.monotonic() - started < 5
        store.close()


def test_the_request_timeout_ends_a_request_before_its_deadline() -> None:
    with ScriptedServer(hang()) as server:
        store = raw_store(server, request_timeout_ms="1000")
        started = time.monotonic()
        with pytest.raises(StoreTimeout):
            store.size("k")
        with pytest.raises(StoreTimeout):
            store.get_range("k", ByteRange(0, 4), deadline_ms=in_ms(600_000))
        assert time.monotonic() - started < 10
        store.close()


def test_a_refusal_before_the_body_was_read_is_seen_through_the_broken_connection() -> None:
    """A server that refuses 32 MiB answers and hangs up; the answer tells why, not the break."""
    step = refusal_before_the_body(403, "AccessDenied")
    with ScriptedServer(step, reads_body=False) as server:
        store = raw_store(server)
        with pytest.raises(StoreDenied, match="AccessDenied"):
            store.put("k", bytes(32 << 20), deadline_ms=in_ms(5000))
        store.close()
        assert len(server.requests) == 1


def test_a_kept_connection_that_the_server_closed_is_replaced_without_an_error() -> None:
    with ScriptedServer(
        partial(b"a", 0, 1), reset(), partial(b"a", 0, 1), hang_up(), partial(b"a", 0, 1)
    ) as server:
        store = raw_store(server)
        for _ in range(3):
            assert store.get_range("k", ByteRange(0, 1), deadline_ms=in_ms(5000)) == b"a"
        store.close()
        assert len(server.requests) == 5


def test_closing_ends_a_request_that_hangs() -> None:
    with ScriptedServer(hang()) as server:
        store = raw_store(server)
        raised: list[BaseException] = []

        def work() -> None:
            try:
                store.put("k", b"data", deadline_ms=in_ms(60_000))
            except BlobmsgError as error:
                raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert server.request_came.wait(10)
        store.close()
        thread.join(10)
        assert [type(error) for error in raised] == [StoreUnavailable]


def test_a_closed_store_refuses_calls() -> None:
    store = raw_store("http://127.0.0.1:1")
    store.close()
    store.close()
    for call in (
        lambda: store.put("k", b"", deadline_ms=in_ms(100)),
        lambda: store.get_tail("k", 1),
        lambda: list(store.list_keys()),
        lambda: store.delete(["k"]),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1", "nothing listens"),
        ("http://no-such-host.invalid", "DNS"),
    ],
)
def test_no_network_is_reported_with_what_to_check(url: str, says: str) -> None:
    store = raw_store(url)
    for call in (
        lambda: store.put("k", b"", deadline_ms=in_ms(5000)),
        lambda: store.size("k"),
    ):
        with pytest.raises(StoreUnavailable, match=says):
            call()
    with pytest.raises(StoreUnavailable):
        list(store.list_keys())
    store.close()


def test_keys_that_lead_elsewhere_are_never_sent() -> None:
    with ScriptedServer(answer()) as server:
        store = raw_store(server)
        for key in ("../other/k", "/etc", "a//b", "a\r\nx: y"):
            with pytest.raises(ValueError, match="object key"):
                store.put(key, b"", deadline_ms=in_ms(1000))
            with pytest.raises(ValueError, match="object key"):
                store.get_range(key, ByteRange(0, 1), deadline_ms=in_ms(1000))
            with pytest.raises(ValueError, match="object key"):
                store.delete([key])
        store.close()
        assert server.requests == []


def test_without_credentials_the_error_names_the_settings() -> None:
    with ScriptedServer(answer()) as server:
        settings = conf(server.url)
        del settings["blobmsg.s3.access.key.id"], settings["blobmsg.s3.secret.access.key"]
        store = open_raw_store("s3://bucket/p", parse_settings(settings, {})[0], clock=CLOCK)
        with pytest.raises(StoreDenied, match=r"blobmsg\.s3\.access\.key\.id"):
            store.put("k", b"", deadline_ms=in_ms(1000))
        with pytest.raises(StoreDenied, match="credentials"):
            list(store.list_keys())
        store.close()
        assert server.requests == []


@pytest.fixture
def chain_store(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[Store, ScriptedServer]]:
    """A store with credentials from the environment; its server's script is the parameter."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIAOLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "old-token")
    with ScriptedServer(*request.param) as server:
        settings = conf(server.url)
        del settings["blobmsg.s3.access.key.id"], settings["blobmsg.s3.secret.access.key"]
        store = open_raw_store("s3://bucket/p", parse_settings(settings, {})[0], clock=CLOCK)
        yield store, server
        store.close()


EXPIRED = refusal(400, "ExpiredToken", "The provided token has expired.")


@pytest.mark.parametrize("chain_store", [(EXPIRED, answer())], indirect=True, ids=["once"])
def test_expired_credentials_are_renewed_from_the_sdks_chain_and_the_request_repeated(
    chain_store: tuple[Store, ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, server = chain_store
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIANEW")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "new-token")
    store.put("k", b"data", deadline_ms=in_ms(5000))
    tokens = [request.headers["x-amz-security-token"] for request in server.requests]
    assert tokens == ["old-token", "new-token"]
    assert "ASIANEW" in server.requests[1].headers["authorization"]


@pytest.mark.parametrize("chain_store", [(EXPIRED,)], indirect=True, ids=["always"])
def test_credentials_that_stay_expired_are_reported_with_their_identity_after_one_renewal(
    chain_store: tuple[Store, ScriptedServer],
) -> None:
    store, server = chain_store
    with pytest.raises(StoreDenied, match="ASIAOLD from env") as caught:
        store.put("k", b"data", deadline_ms=in_ms(5000))
    assert caught.value.details["expired"] is True
    assert len(server.requests) == 2
    with pytest.raises(StoreDenied, match="expired"):
        list(store.list_keys())
    assert len(server.requests) == 4


def test_credentials_of_our_own_settings_are_not_renewed() -> None:
    with ScriptedServer(EXPIRED) as server:
        store = raw_store(server)
        with pytest.raises(StoreDenied, match="expired"):
            store.put("k", b"data", deadline_ms=in_ms(5000))
        store.close()
        assert len(server.requests) == 1


def test_a_skewed_clock_ends_at_once_whatever_the_deadline() -> None:
    date = "Thu, 01 Jan 1998 12:00:00 GMT"
    with ScriptedServer(refusal(403, "RequestTimeTooSkewed", date=date)) as server:
        settings = parse_settings(conf(server.url), {})[0]
        store = open_store("s3://bucket/p", settings)
        with pytest.raises(StoreDenied, match=r"clock is \d+ s ahead of the store's"):
            store.put("k", b"data", deadline_ms=in_ms(60_000))
        store.close()
        assert len(server.requests) == 1


def test_with_all_wrappers_a_put_survives_every_passing_failure_under_one_key() -> None:
    steps = (
        refusal(503, "SlowDown"),
        refusal(500, "InternalError"),
        reset(),
        hang_up(),
        refusal(400, "BadDigest"),
        answer(),
    )
    with ScriptedServer(*steps) as server:
        settings = parse_settings(conf(server.url), {})[0]
        store = open_store("s3://bucket/p", settings, rng=random.Random(4))
        store.put("k", b"data", deadline_ms=in_ms(25_000))
        store.close()
        assert {request.target for request in server.requests} == {"/bucket/p/k"}
        assert {request.body for request in server.requests} == {b"data"}


def test_the_tail_of_an_empty_object_is_empty() -> None:
    with ScriptedServer(refusal(416, "InvalidRange")) as server:
        store = raw_store(server)
        assert store.get_tail("k", 5) == b""
        assert store.get_tail("k", 0) == b""
        store.close()


def test_a_tail_longer_than_asked_for_is_refused() -> None:
    with ScriptedServer(answer(200, b"whole object")) as server:
        store = raw_store(server)
        with pytest.raises(ConfigError, match="ignores ranges"):
            store.get_tail("k", 5)
        store.close()


def test_a_proxy_of_the_environment_is_used_unless_the_host_is_excepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer(answer()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:pass%20word@"))
        store = raw_store("http://s3.example")
        store.put("k", b"data", deadline_ms=in_ms(5000))
        store.close()
        (request,) = proxy.requests
        assert request.target == "http://s3.example/bucket/pre/fix/k"
        assert request.headers["host"] == "s3.example"
        pair = base64.b64decode(request.headers["proxy-authorization"].split()[1])
        assert pair == b"me:pass word"
        with ScriptedServer(answer()) as server:
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            store = raw_store(server)
            store.put("k", b"data", deadline_ms=in_ms(5000))
            store.close()
            assert len(server.requests) == 1


def test_a_proxy_that_refuses_a_tunnel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(answer(407)) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        store = raw_store("https://s3.example")
        with pytest.raises(StoreUnavailable, match=r"refused a tunnel to s3\.example:443: 407"):
            store.put("k", b"data", deadline_ms=in_ms(5000))
        store.close()
        assert (proxy.requests[0].method, proxy.requests[0].target) == ("CONNECT", "s3.example:443")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's context and its certificate, which nobody else trusts."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command makes the certificate"
)


@needs_openssl
def test_large_objects_go_both_ways_over_tls(
    tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls[1]))
    data = random.Random(6).randbytes(9_000_000)
    with ScriptedServer(answer(), partial(data, 0, len(data)), tls=tls[0]) as server:
        store = raw_store(server)
        store.put("k", data, deadline_ms=in_ms(20_000))
        got = store.get_range("k", ByteRange(0, len(data)), deadline_ms=in_ms(20_000))
        store.close()
        assert server.requests[0].body == data
        assert got == data
        assert {request.connection_number for request in server.requests} == {1}


@needs_openssl
def test_small_pieces_are_joined_over_tls(
    tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls[1]))
    rng = random.Random(7)
    pieces = [rng.randbytes(size) for size in [*range(1, 1500), 5_000_000, *range(1, 1500)]]
    sent: list[int] = []
    send = ssl.SSLSocket.send

    def counted(sock: ssl.SSLSocket, data: bytes) -> int:
        sent.append(len(data))
        return send(sock, data)

    monkeypatch.setattr(ssl.SSLSocket, "send", counted)
    with ScriptedServer(answer(), tls=tls[0]) as server:
        store = raw_store(server)
        store.put("k", pieces, deadline_ms=in_ms(20_000))
        store.close()
        assert server.requests[0].body == b"".join(pieces)
    # 64 KiB at a time, and 4 MiB of the large one: 36 for 2,999 pieces.
    assert len(sent) < 60


def test_a_kept_alive_connection_that_dies_within_an_upload_is_sent_all_pieces_again() -> None:
    pieces = [bytes([number % 251]) * 50_000 for number in range(200)]
    with ScriptedServer(answer(), hang_up(), answer()) as server:
        store = raw_store(server)
        store.put("first", b"x", deadline_ms=in_ms(20_000))
        store.put("k", pieces, deadline_ms=in_ms(20_000))
        store.close()
        assert server.requests[-1].body == b"".join(pieces)


@needs_openssl
def test_a_certificate_that_is_not_trusted_is_named_and_nothing_is_sent(
    tls: tuple[ssl.SSLContext, Path],
) -> None:
    with ScriptedServer(answer(), tls=tls[0]) as server:
        store = raw_store(server)
        with pytest.raises(StoreDenied, match="AWS_CA_BUNDLE"):
            store.put("k", b"data", deadline_ms=in_ms(5000))
        store.close()
        assert server.requests == []


@needs_openssl
def test_closing_ends_a_request_that_hangs_over_tls(
    tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls[1]))
    head = b"HTTP/1.1 206 OK\r\nContent-Length: 9999\r\nContent-Range: bytes 0-9998/9999\r\n\r\n"
    with ScriptedServer(trickle(head, b"x", 0.01), tls=tls[0]) as server:
        store = raw_store(server)
        raised: list[BaseException] = []

        def work() -> None:
            try:
                store.get_range("k", ByteRange(0, 9999), deadline_ms=in_ms(60_000))
            except BlobmsgError as error:
                raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert server.request_came.wait(10)
        store.close()
        thread.join(10)
        assert [type(error) for error in raised] == [StoreUnavailable]


DELETE_REFUSED = answer(
    200,
    b"<?xml version='1.0'?><DeleteResult><Error><Key>pre/fix/k</Key><Code>AccessDenied</Code>"
    b"<Message>no</Message></Error></DeleteResult>",
    content_type="application/xml",
)


def test_a_key_that_may_not_be_deleted_is_named() -> None:
    with ScriptedServer(DELETE_REFUSED) as server:
        store = raw_store(server)
        with pytest.raises(StoreDenied, match=r"delete of 'k'.*AccessDenied"):
            store.delete(["j", "k"])
        store.close()
        assert b"<Key>pre/fix/j</Key>" in server.requests[0].body


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (refusal(503, "SlowDown"), StoreUnavailable),
        (refusal(404, "NoSuchBucket"), ConfigError),
        (refusal(403, "AccessDenied"), StoreDenied),
        (reset(), StoreUnavailable),
        (hang(), StoreTimeout),
    ],
    ids=["503", "no-bucket", "denied", "reset", "hang"],
)
def test_listing_and_deleting_fail_with_the_same_errors(
    step: Step, error: type[BlobmsgError]
) -> None:
    with ScriptedServer(step) as server:
        store = raw_store(server, request_timeout_ms="1000")
        for call in (lambda: list(store.list_keys()), lambda: store.delete(["k"])):
            with pytest.raises(BlobmsgError) as caught:
                call()
            assert type(caught.value) is error
        store.close()


def test_a_profile_that_is_not_there_is_a_setting_to_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(ConfigError, match="no-such-profile"):
        raw_store("http://127.0.0.1:1")


def test_credentials_that_the_sdk_could_not_refresh_are_reported_with_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stale:
        method = "assume-role"

        def __init__(self) -> None:
            self._access_key = "ASIASTALE"
            # As a `credential_process` may say it.
            self._expiry_time = datetime.fromisoformat("2026-01-02T05:04:05+02:00")

        @property
        def access_key(self) -> str:
            raise AssertionError("telling who we are must not renew credentials")

        def get_frozen_credentials(self) -> None:
            raise RuntimeError("Credentials were refreshed, but are still expired.")

    with ScriptedServer(answer()) as server:
        store = raw_store(server)
        changed = dataclasses.replace(cast("Any", store)._sdk, credentials=Stale())
        monkeypatch.setattr(store, "_sdk", changed)
        with pytest.raises(
            StoreDenied, match="ASIASTALE from assume-role, valid until 2026-01-02 03:04:05 UTC"
        ) as caught:
            store.put("k", b"", deadline_ms=in_ms(1000))
        store.close()
    assert caught.value.details["expired"] is True
    assert server.requests == []


def test_a_service_that_gives_no_credentials_right_now_is_worth_a_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unreachable:
        method = "container-role"

        def get_frozen_credentials(self) -> None:
            raise MetadataRetrievalError(error_msg="no route")

    with ScriptedServer(answer()) as server:
        store = raw_store(server)
        changed = dataclasses.replace(cast("Any", store)._sdk, credentials=Unreachable())
        monkeypatch.setattr(store, "_sdk", changed)
        with pytest.raises(StoreUnavailable, match="no route"):
            store.put("k", b"", deadline_ms=in_ms(1000))
        store.close()


def test_connections_in_use_at_once_are_apart_and_only_so_many_are_kept() -> None:
    barrier = threading.Barrier(3)

    def together(connection: socket.socket, server: ScriptedServer) -> bool:
        barrier.wait(10)
        return answer()(connection, server)

    with ScriptedServer(together) as server:
        store = raw_store(server, upload_threads="1", fetch_threads="1")
        for _ in range(2):
            threads = [
                threading.Thread(
                    target=store.put,
                    args=(f"{n}", b"x"),
                    kwargs={"deadline_ms": in_ms(9000)},
                    daemon=True,
                )
                for n in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
        store.close()
        numbers = [request.connection_number for request in server.requests]
        assert len(set(numbers[:3])) == 3
        assert max(numbers) == 4  # two of the three were kept, one is new
