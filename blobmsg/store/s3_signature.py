"""AWS signature version 4 for single S3 requests, with the payload unsigned.

Decides which headers a request gets so that S3 believes it; pure, the time comes in. The body
is not hashed (`UNSIGNED-PAYLOAD`): SHA-256 of 16 MiB costs more than sending them, and a CRC32
header guards the upload. botocore's own signer costs five times as much per request, most of it
in objects for the parts of a request that S3 never uses.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from urllib.parse import quote

__all__ = ["Identity", "encode_path", "sign"]

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials at one moment.

    Attributes:
        access_key_id: Public part.
        secret_access_key: Secret part.
        session_token: Of temporary credentials.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def encode_path(path: str) -> str:
    """A path as S3 wants it in the request and in the signature."""
    return quote(path, safe="/~")


def sign(
    method: str,
    path: str,
    headers: dict[str, str],
    *,
    identity: Identity,
    region: str,
    timestamp_ms: int,
) -> None:
    """Add the headers that authenticate a request.

    Args:
        method: HTTP method.
        path: Encoded path (`encode_path`) without a query.
        headers: With lower-case names and single-spaced values; all are signed, `host` must be
            among them. Gets the date, payload, token and authorization headers.
        identity: Who asks.
        region: The bucket's region.
        timestamp_ms: Wall time; S3 refuses requests more than 15 minutes off.

    Source: AWS General Reference, "Create a signed AWS API request".
    """
    moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    amz_date = moment.strftime("%Y%m%dT%H%M%SZ")
    day = amz_date[:8]
    headers["x-amz-date"] = amz_date
    headers["x-amz-content-sha256"] = UNSIGNED_PAYLOAD
    if identity.session_token:
        headers["x-amz-security-token"] = identity.session_token
    names = sorted(headers)
    signed_names = ";".join(names)
    canonical_headers = "".join(f"{name}:{headers[name]}\n" for name in names)
    canonical = (
        f"{method}\n{path}\n\n{canonical_headers}\n{signed_names}\n{UNSIGNED_PAYLOAD}".encode()
    )
    scope = f"{day}/{region}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{amz_date}\n{scope}\n{hashlib.sha256(canonical).hexdigest()}"
    key = _signing_key(identity.secret_access_key, day, region)
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={identity.access_key_id}/{scope}, "
        f"SignedHeaders={signed_names}, Signature={signature}"
    )


@lru_cache(maxsize=8)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
