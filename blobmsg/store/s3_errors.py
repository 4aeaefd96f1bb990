"""From an S3 answer or a network error to one of our errors, with a text that says what to do.

Pure: it decides only which class fits and what the text says; whether to retry is decided in
`blobmsg.store.retrying`, and nothing here sends or logs.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import unescape

from blobmsg.errors import BlobmsgError, ConfigError, StoreDenied, StoreTimeout, StoreUnavailable
from blobmsg.store.base import object_missing, range_outside_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.format.ranges import ByteRange

__all__ = ["Refusal", "S3Request", "answer_error", "network_error", "parse_refusal"]

SLOW_DOWN_CODES = frozenset(
    {
        "SlowDown",
        "SlowDownRead",  # MinIO
        "SlowDownWrite",  # MinIO
        "RequestLimitExceeded",
        "ThrottlingException",
        "Throttling",
        "TooManyRequests",
        "TooManyRequestsException",
        "BandwidthLimitExceeded",
    }
)
# Refusals by status 4xx that another attempt may well pass.
TRANSIENT_CODES = frozenset(
    {
        "RequestTimeout",  # the socket was idle for too long while S3 waited for the body
        "IncompleteBody",
        "BadDigest",  # damaged on the way: our CRC32 did not match what arrived
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
        "OperationAborted",
        "ConditionalRequestConflict",
        "InternalError",
        "TemporaryRedirect",  # a new bucket whose name is not known everywhere yet
    }
)
EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
WRONG_REGION_CODES = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_NAMES = {  # of a HEAD's answer, which has no body to tell the code
    403: "AccessDenied",
    404: "NoSuchKey",
    412: "PreconditionFailed",
    416: "InvalidRange",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@dataclass(frozen=True, slots=True)
class S3Request:
    """What was asked, for texts and details.

    Attributes:
        operation: HTTP method or the API's name.
        place: `s3://bucket/prefix at endpoint`.
        bucket: Its bucket.
        key: Below the prefix; empty for lists.
        byte_range: What was to be read.
        identity: Who asked: access key id and where it came from.
    """

    operation: str
    place: str
    bucket: str
    key: str
    byte_range: ByteRange | None = None
    identity: str = "unknown"

    def details(self, **more: object) -> dict[str, Any]:
        """Facts for programs."""
        facts: dict[str, Any] = {"store": self.place, "bucket": self.bucket, "key": self.key}
        if self.byte_range is not None:
            facts |= {"start": self.byte_range.start, "length": self.byte_range.length}
        return facts | more

    def __str__(self) -> str:
        what = f" of {self.key!r}" if self.key else ""
        return f"{self.operation}{what} in {self.place}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an S3 error answer says.

    Attributes:
        status: HTTP status.
        code: S3's error code, e.g. `NoSuchBucket`; empty when the answer is not S3's.
        message: S3's text.
        region: The bucket's region, where S3 tells it.
        request_id: For the store's operator.
        date: The answer's `Date` header.
    """

    status: int
    code: str
    message: str = ""
    region: str = ""
    request_id: str = ""
    date: str = ""

    @property
    def is_expired_token(self) -> bool:
        """The credentials were good once; newer ones may do."""
        return self.code in EXPIRED_CODES


def parse_refusal(method: str, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
    """Read an error answer; anything may stand in it.

    Only a HEAD's bare status is taken for S3's word: a 404 without S3's code comes from a proxy
    or a wrong endpoint, and must not look like a missing object.
    """
    # Two regular expressions instead of an XML parser: the text comes from outside, and entity
    # bombs or a proxy's HTML page must do no harm.
    text = body[:65536].decode("utf-8", "replace")
    fields: dict[str, str] = {}
    for name in ("Code", "Message", "Region", "RequestId"):
        found = re.search(rf"<{name}>([^<]{{0,2000}})</{name}>", text)
        fields[name] = unescape(found.group(1)).strip() if found else ""
    return Refusal(
        status=status,
        code=fields["Code"] or (_NAMES.get(status, "") if method == "HEAD" else ""),
        message=fields["Message"],
        region=fields["Region"] or headers.get("x-amz-bucket-region", ""),
        request_id=fields["RequestId"] or headers.get("x-amz-request-id", ""),
        date=headers.get("date", ""),
    )


def answer_error(refusal: Refusal, request: S3Request, *, timestamp_ms: int) -> BlobmsgError:
    """The error for an answer that is no success.

    Args:
        refusal: What S3 said.
        request: What was asked.
        timestamp_ms: Our wall time, to tell how far the clocks are apart.
    """
    code = refusal.code
    details = request.details(
        status=refusal.status, s3_code=code, request_id=refusal.request_id or None
    )
    said = f"{code or 'HTTP status'} ({refusal.status})"
    if refusal.message:
        said += f": {refusal.message}"
    if code == "NoSuchBucket":
        return ConfigError(
            f"there is no bucket {request.bucket!r} ({request}): create the bucket or fix "
            "blobmsg.store.url and blobmsg.s3.endpoint.url",
            **details,
        )
    if code == "NoSuchKey":
        return object_missing(request.place, request.key, request.byte_range, bucket=request.bucket)
    if code == "InvalidRange" and request.byte_range is not None:
        return range_outside_object(
            request.place, request.key, request.byte_range, bucket=request.bucket
        )
    if code == "RequestTimeTooSkewed":
        return StoreDenied(
            f"{request} refused: {_skew(refusal.date, timestamp_ms)}; S3 takes at most 15 minutes: "
            "set this machine's clock (NTP)",
            **details,
        )
    if refusal.is_expired_token:
        return StoreDenied(
            f"{request} refused, the credentials have expired ({said}); identity: "
            f"{request.identity}; renew them where they come from",
            expired=True,
            **details,
        )
    if code in WRONG_REGION_CODES or refusal.status == 301:
        setting = f"={refusal.region}" if refusal.region else " to the bucket's region"
        return ConfigError(
            f"{request} refused, wrong region or endpoint ({said}): set blobmsg.s3.region{setting}"
            ", or fix blobmsg.s3.endpoint.url",
            **details,
        )
    if code in SLOW_DOWN_CODES or refusal.status in {429, 503}:
        return StoreUnavailable(
            f"{request} failed, the store asks for fewer requests: {said}",
            slow_down=True,
            **details,
        )
    if code in TRANSIENT_CODES or (refusal.status >= 500 and refusal.status != 501):
        return StoreUnavailable(f"{request} failed: {said}", **details)
    if refusal.status in {401, 403} or code == "InvalidAccessKeyId":
        return StoreDenied(
            f"{request} refused: {said}; identity: {request.identity}; fix the credentials or the "
            "policy of the bucket",
            **details,
        )
    return ConfigError(
        f"{request} refused: {said}; check the blobmsg.s3.* settings and what the endpoint "
        "supports",
        **details,
    )


def network_error(error: Exception, request: S3Request, *, endpoint: str) -> BlobmsgError:
    """The error for a request that got no whole answer."""
    details = request.details()
    if isinstance(error, TimeoutError):  # socket.timeout is the same class
        return StoreTimeout(f"{request} got no answer in time", **details)
    if isinstance(error, socket.gaierror):
        return StoreUnavailable(
            f"{request} failed: no address for {endpoint} ({error.strerror}); check the network's "
            "DNS and blobmsg.s3.endpoint.url",
            **details,
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreDenied(
            f"{request} refused by us: {endpoint} shows a certificate we do not trust "
            f"({error.verify_message}); set AWS_CA_BUNDLE or fix blobmsg.s3.endpoint.url",
            **details,
        )
    if isinstance(error, ConnectionRefusedError):
        return StoreUnavailable(
            f"{request} failed: nothing listens at {endpoint} (connection refused); start the "
            "store or fix blobmsg.s3.endpoint.url",
            **details,
        )
    if isinstance(error, http.client.IncompleteRead):
        return StoreUnavailable(
            f"{request} failed: the answer ended after {len(error.partial)} bytes, "
            f"{error.expected} are missing",
            **details,
        )
    cause = str(error) or type(error).__name__
    advice = ""
    if isinstance(error, ssl.SSLError):
        advice = "; does it speak TLS? if not, write http:// in blobmsg.s3.endpoint.url"
    elif isinstance(error, http.client.RemoteDisconnected):
        advice = "; if that goes on: is it an S3 endpoint? see blobmsg.s3.endpoint.url"
    return StoreUnavailable(f"{request} failed at {endpoint}: {cause}{advice}", **details)


def _skew(date: str, timestamp_ms: int) -> str:
    try:
        seconds = timestamp_ms / 1000 - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return "this machine's clock and the store's are too far apart"
    ahead = "ahead of" if seconds > 0 else "behind"
    return f"this machine's clock is {abs(seconds):.0f} s {ahead} the store's"
