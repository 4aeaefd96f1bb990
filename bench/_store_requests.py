"""Requests that a store has answered, by kind, as the store itself counts them; and their price.

So that clients of different makers are counted alike. MinIO tells it to whoever signs a token with
its keys.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

from blobmsg.lab import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.core.cost import PriceTable

__all__ = ["StoreRequests", "parse_requests", "request_usd"]

_PATH = "/minio/metrics/v3/api/requests"
_LINE = re.compile(r'^minio_api_requests_total\{.*?name="(\w+)".*\} (\d+)', re.MULTILINE)
_TOKEN_S = 24 * 3600
# As S3 bills: what writes or lists costs as a PUT, deleting nothing, all else as a GET.
_AS_PUT = ("Put", "Post", "Copy", "List", "NewMultipart", "CreateMultipart", "CompleteMultipart")
_FREE = ("Delete", "AbortMultipart")


def parse_requests(text: str) -> Counter[str]:
    """How often each kind was asked for, of a page of MinIO's metrics."""
    return Counter({name: int(count) for name, count in _LINE.findall(text)})


def request_usd(requests: Mapping[str, int], prices: PriceTable) -> float:
    """What they cost at S3's kinds and these prices."""
    usd = 0.0
    for name, count in requests.items():
        if not name.startswith(_FREE):
            usd += count * (prices.put_usd if name.startswith(_AS_PUT) else prices.get_usd)
    return usd


class StoreRequests:
    """Asks one store.

    Args:
        endpoint_url: Of MinIO.
        access_key_id: Of its root user.
        secret_access_key: Of the same.

    Raises:
        LabError: It is no MinIO, or does not tell.

    Threads: one.
    """

    def __init__(self, endpoint_url: str, access_key_id: str, secret_access_key: str) -> None:
        claims = {"exp": int(time.time()) + _TOKEN_S, "sub": access_key_id, "iss": "prometheus"}
        signed = f"{_base64({'alg': 'HS512', 'typ': 'JWT'})}.{_base64(claims)}"
        digest = hmac.new(secret_access_key.encode(), signed.encode(), hashlib.sha512).digest()
        token = f"{signed}.{_text(digest)}"
        self._request = urllib.request.Request(  # noqa: S310  (http, of the lab)
            endpoint_url + _PATH, headers={"Authorization": f"Bearer {token}"}
        )
        self.read()

    def read(self) -> Counter[str]:
        """All since it was started."""
        try:
            with urllib.request.urlopen(self._request, timeout=10) as answer:  # noqa: S310
                return parse_requests(answer.read().decode())
        except urllib.error.URLError as error:
            raise LabError(
                f"the store does not tell its requests ({error}): the bench needs MinIO, and the "
                "keys of its root user"
            ) from error


def _base64(value: Any) -> str:
    return _text(json.dumps(value).encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
