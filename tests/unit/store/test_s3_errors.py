from __future__ import annotations

import socket
import ssl
from http.client import IncompleteRead, RemoteDisconnected

import pytest

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
from blobmsg.store.retrying import Verdict, classify
from blobmsg.store.s3_errors import (
    Refusal,
    S3Request,
    answer_error,
    network_error,
    parse_refusal,
)

NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
REQUEST = S3Request(
    "GET", "s3://b/p/ at http://h", "b", "k", ByteRange(10, 5), "access key AKIA from env"
)


def error_for(status: int, code: str, **more: str) -> BlobmsgError:
    return answer_error(Refusal(status, code, **more), REQUEST, timestamp_ms=NOON_MS)


@pytest.mark.parametrize(
    ("status", "code", "error", "verdict"),
    [
        (503, "SlowDown", StoreUnavailable, Verdict.SLOW_DOWN),
        (503, "ServiceUnavailable", StoreUnavailable, Verdict.SLOW_DOWN),
        (503, "", StoreUnavailable, Verdict.SLOW_DOWN),
        (429, "TooManyRequests", StoreUnavailable, Verdict.SLOW_DOWN),
        (400, "RequestLimitExceeded", StoreUnavailable, Verdict.SLOW_DOWN),
        (500, "InternalError", StoreUnavailable, Verdict.RETRY),
        (200, "InternalError", StoreUnavailable, Verdict.RETRY),
        (502, "", StoreUnavailable, Verdict.RETRY),
        (504, "", StoreUnavailable, Verdict.RETRY),
        (507, "XMinioStorageFull", StoreUnavailable, Verdict.RETRY),
        (400, "RequestTimeout", StoreUnavailable, Verdict.RETRY),
        (400, "IncompleteBody", StoreUnavailable, Verdict.RETRY),
        (400, "BadDigest", StoreUnavailable, Verdict.RETRY),
        (400, "XAmzContentChecksumMismatch", StoreUnavailable, Verdict.RETRY),
        (307, "TemporaryRedirect", StoreUnavailable, Verdict.RETRY),
        (403, "AccessDenied", StoreDenied, Verdict.GIVE_UP),
        (403, "InvalidAccessKeyId", StoreDenied, Verdict.GIVE_UP),
        (403, "SignatureDoesNotMatch", StoreDenied, Verdict.GIVE_UP),
        (403, "RequestTimeTooSkewed", StoreDenied, Verdict.GIVE_UP),
        (400, "ExpiredToken", StoreDenied, Verdict.GIVE_UP),
        (401, "", StoreDenied, Verdict.GIVE_UP),
        (404, "NoSuchKey", ObjectMissing, Verdict.GIVE_UP),
        (416, "InvalidRange", CorruptSegment, Verdict.GIVE_UP),
        (404, "NoSuchBucket", ConfigError, Verdict.GIVE_UP),
        (404, "", ConfigError, Verdict.GIVE_UP),
        (301, "PermanentRedirect", ConfigError, Verdict.GIVE_UP),
        (400, "AuthorizationHeaderMalformed", ConfigError, Verdict.GIVE_UP),
        (400, "InvalidRequest", ConfigError, Verdict.GIVE_UP),
        (501, "NotImplemented", ConfigError, Verdict.GIVE_UP),
    ],
)
def test_each_answer_has_its_error_and_verdict(
    status: int, code: str, error: type[BlobmsgError], verdict: Verdict
) -> None:
    made = error_for(status, code)
    assert type(made) is error
    assert classify(made) is verdict
    assert "s3://b/p/ at http://h" in str(made)
    assert made.details["bucket"] == "b"
    assert made.details["key"] == "k"
    assert (made.details["start"], made.details["length"]) == (10, 5)


def test_a_missing_bucket_says_what_to_do() -> None:
    assert "create the bucket or fix blobmsg.store.url" in str(error_for(404, "NoSuchBucket"))


def test_a_wrong_region_names_the_right_one() -> None:
    error = error_for(301, "PermanentRedirect", region="eu-west-1")
    assert "blobmsg.s3.region=eu-west-1" in str(error)
    assert "blobmsg.s3.region to the bucket's" in str(error_for(301, "PermanentRedirect"))


@pytest.mark.parametrize(
    ("date", "says"),
    [
        ("Thu, 01 Jan 2026 11:00:00 GMT", "3600 s ahead of the store's"),
        ("Thu, 01 Jan 2026 12:30:00 GMT", "1800 s behind the store's"),
        ("nonsense", "too far apart"),
        ("", "too far apart"),
    ],
)
def test_a_skewed_clock_is_named_with_how_far_it_is_off(date: str, says: str) -> None:
    text = str(error_for(403, "RequestTimeTooSkewed", date=date))
    assert says in text
    assert "clock" in text


def test_expired_and_refused_credentials_say_whose_they_are() -> None:
    expired = error_for(400, "ExpiredToken", message="The token has expired.")
    assert expired.details["expired"] is True
    assert "access key AKIA from env" in str(expired)
    assert "access key AKIA from env" in str(error_for(403, "AccessDenied"))


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (TimeoutError("timed out"), StoreTimeout, "no answer in time"),
        (socket.gaierror(-2, "Name or service not known"), StoreUnavailable, "DNS"),
        (ConnectionRefusedError(111, "refused"), StoreUnavailable, "nothing listens at http://h"),
        (ConnectionResetError(104, "reset by peer"), StoreUnavailable, "reset by peer"),
        (RemoteDisconnected("closed"), StoreUnavailable, "closed; if that goes on: is it an S3"),
        (OSError(101, "Network is unreachable"), StoreUnavailable, "unreachable"),
        (IncompleteRead(b"abc", 7), StoreUnavailable, "ended after 3 bytes, 7 are missing"),
        (ssl.SSLError("wrong version"), StoreUnavailable, "wrong version',); does it speak TLS"),
    ],
)
def test_each_network_failure_is_worth_a_retry_and_says_why(
    error: Exception, expected: type[BlobmsgError], says: str
) -> None:
    made = network_error(error, REQUEST, endpoint="http://h")
    assert type(made) is expected
    assert says in str(made)
    assert classify(made) is Verdict.RETRY


def test_an_untrusted_certificate_is_no_reason_to_retry() -> None:
    error = ssl.SSLCertVerificationError("self-signed certificate")
    error.verify_message = "self-signed certificate"
    made = network_error(error, REQUEST, endpoint="https://h")
    assert type(made) is StoreDenied
    assert "AWS_CA_BUNDLE" in str(made)


def test_an_s3_error_body_is_read() -> None:
    body = (
        b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>not &lt;here&gt;</Message>"
        b"<Region>eu-west-1</Region><RequestId>R1</RequestId></Error>"
    )
    refusal = parse_refusal("GET", 404, {"date": "today"}, body)
    assert refusal == Refusal(404, "NoSuchKey", "not <here>", "eu-west-1", "R1", "today")


@pytest.mark.parametrize(
    "body", [b"", b"<html>proxy says no</html>", b"\xff\xfe\x00", b"<Code><Code>", b"<" * 100_000]
)
def test_a_body_that_is_no_s3_error_gives_only_the_status(body: bytes) -> None:
    headers = {"x-amz-request-id": "R1", "x-amz-bucket-region": "r"}
    assert parse_refusal("GET", 404, headers, body) == Refusal(404, "", "", "r", "R1", "")


def test_the_status_of_a_head_stands_for_its_code() -> None:
    assert parse_refusal("HEAD", 404, {}, b"").code == "NoSuchKey"
    assert parse_refusal("HEAD", 403, {}, b"").code == "AccessDenied"
    assert parse_refusal("HEAD", 418, {}, b"").code == ""
