from __future__ import annotations

import string
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobmsg.store.s3_signature import Identity, encode_path, sign

TIMESTAMP_MS = 1_767_225_600_000


def botocore_authorization(
    method: str, url: str, headers: dict[str, str], identity: Identity, region: str, amz_date: str
) -> str:
    """What botocore's own signer puts into the header: the oracle."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(method=method, url=url, headers=dict(headers))
    request.context["timestamp"] = amz_date
    request.context["client_config"] = SimpleNamespace(s3={"payload_signing_enabled": False})
    credentials = Credentials(
        identity.access_key_id, identity.secret_access_key, identity.session_token
    )
    signer = S3SigV4Auth(credentials, "s3", region)
    request.headers["X-Amz-Date"] = amz_date
    request.headers["X-Amz-Content-SHA256"] = "UNSIGNED-PAYLOAD"
    if identity.session_token:
        request.headers["X-Amz-Security-Token"] = identity.session_token
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    names = signer.signed_headers(signer.headers_to_sign(request))
    scope = signer.scope(request)
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}"


@pytest.mark.parametrize("token", [None, "session-token=="])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_it_signs_as_botocore_does(method: str, token: str | None) -> None:
    identity = Identity("AKIAEXAMPLE", "wJalrXUtnFEMI/K7MDENG", token)
    headers = {"host": "b.s3.eu-west-1.amazonaws.com", "range": "bytes=0-9"}
    path = encode_path("/prefix/a b+c=é~x")
    expected = botocore_authorization(
        method,
        f"https://{headers['host']}{path}",
        headers,
        identity,
        "eu-west-1",
        "20260101T000000Z",
    )
    sign(method, path, headers, identity=identity, region="eu-west-1", timestamp_ms=TIMESTAMP_MS)
    assert headers["authorization"] == expected
    assert headers["x-amz-date"] == "20260101T000000Z"
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert headers.get("x-amz-security-token") == token


@given(
    key=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40),
    secret=st.text(string.ascii_letters + "/+", min_size=1),
    timestamp_ms=st.integers(0, 4_000_000_000_000),
)
def test_any_key_secret_and_time_sign_as_in_botocore(
    key: str, secret: str, timestamp_ms: int
) -> None:
    identity = Identity("AKIAEXAMPLE", secret)
    headers = {"host": "127.0.0.1:9000"}
    path = encode_path(f"/bucket/{key}")
    moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    expected = botocore_authorization(
        "GET",
        f"http://127.0.0.1:9000{path}",
        headers,
        identity,
        "us-east-1",
        f"{moment:%Y%m%dT%H%M%SZ}",
    )
    sign("GET", path, headers, identity=identity, region="us-east-1", timestamp_ms=timestamp_ms)
    assert headers["authorization"] == expected


def test_secrets_do_not_show_in_the_identitys_text() -> None:
    text = repr(Identity("AKIAEXAMPLE", "hunter2", "hunter3"))
    assert "AKIAEXAMPLE" in text
    assert "hunter" not in text
