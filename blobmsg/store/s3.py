"""Objects in S3 or in what speaks its protocol: `s3://bucket/prefix`.

PUT, GET and HEAD go over our own connections, signed here: boto3 costs 1 ms of CPU per request
and twice the CPU of the bare socket per byte, which is what a consumer of many small ranges
mostly pays for (`bench/store_cpu.py`). Credentials, endpoints, listing and deleting are the
SDK's. One call is one request (one more after expired credentials were renewed); retries, counts
and limits are wrappers. Every PUT carries a CRC32 that the store checks before it says yes.
"""

from __future__ import annotations

import base64
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from blobmsg.errors import BlobmsgError, ConfigError, StoreDenied, StoreTimeout, StoreUnavailable
from blobmsg.format.checksum import crc32_of
from blobmsg.store.base import Body, ObjectInfo, check_key, pieces_of, range_outside_object
from blobmsg.store.connections import ConnectionPool
from blobmsg.store.s3_errors import (
    Refusal,
    S3Request,
    answer_error,
    network_error,
    parse_refusal,
)
from blobmsg.store.s3_signature import Identity, encode_path, sign

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from mypy_boto3_s3.client import S3Client

    from blobmsg.clock import Clock
    from blobmsg.config import S3Settings
    from blobmsg.format.ranges import ByteRange
    from blobmsg.store.http_response import Response

__all__ = ["S3Store"]

DELETE_KEYS_PER_REQUEST = 1000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Sdk:
    """One generation of what the SDK gave us; replaced as a whole when credentials are renewed.

    Not its client: the description of S3 that a client keeps is 50,000 Python objects, which every
    full garbage collection of the process would visit. `LIST` and `DELETE` make one when needed.
    """

    credentials: Any  # botocore.credentials.Credentials, which has no public type
    region: str
    ca_bundle: str | None


class S3Store:
    """Objects below a prefix of one bucket.

    Args:
        bucket: Its name.
        prefix: Without slashes at its ends; empty for the whole bucket.
        s3: Endpoint, region, credentials, encryption.
        request_timeout_ms: Longest time for one request.
        max_connections: Threads that use the store at once.
        clock: Deadlines and the signature's date.

    Raises:
        ConfigError: The extra is not installed, or the settings contradict the SDK.

    Threads: any. `_sdk_lock` guards `_client` and the replacement of `_sdk`; readers of `_sdk`
    go without.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        s3: S3Settings,
        *,
        request_timeout_ms: int,
        max_connections: int,
        clock: Clock,
    ) -> None:
        if bucket.endswith("--x-s3"):
            raise ConfigError(
                f"bucket {bucket!r} is a directory bucket (S3 Express), which blobmsg does not "
                "speak to: use a general purpose bucket"
            )
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._s3 = s3
        self._request_timeout_ms = request_timeout_ms
        self._max_connections = max_connections
        self._clock = clock
        self._is_closed = False
        self._sdk_lock = threading.Lock()
        self._sdk = self._load_sdk()
        self._client: tuple[_Sdk, S3Client] | None = None
        from botocore.httpsession import get_cert_path

        write_url = self._bucket_url()
        ca_file = self._sdk.ca_bundle or get_cert_path(True)
        self._write_path = urlsplit(write_url).path.rstrip("/")
        self._write_pool = ConnectionPool(
            write_url, max_idle=max_connections, clock=clock, ca_file=ca_file
        )
        self._read_pool, self._read_path = self._write_pool, self._write_path
        if s3.read_endpoint_url:
            self._read_path = f"{urlsplit(s3.read_endpoint_url).path.rstrip('/')}/{bucket}"
            self._read_pool = ConnectionPool(
                s3.read_endpoint_url, max_idle=max_connections, clock=clock, ca_file=ca_file
            )
        self._place = f"s3://{bucket}/{self._prefix} at {self._write_pool.endpoint}"
        self._put_headers = _encryption_headers(s3)

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        """See `Store.put`; the store refuses bytes that were damaged on the way."""
        self._put(key, data, {}, deadline_ms, crc32)

    def put_if_absent(self, key: str, data: Body, *, deadline_ms: int) -> bool:
        """See `Store.put_if_absent`; S3's conditional write."""
        try:
            self._put(key, data, {"if-none-match": "*"}, deadline_ms, None)
        except ConfigError as error:
            if error.details.get("s3_code") == "PreconditionFailed":
                return False
            raise
        return True

    def _put(
        self,
        key: str,
        data: Body,
        conditions: Mapping[str, str],
        deadline_ms: int,
        crc32: int | None,
    ) -> None:
        pieces = pieces_of(data)
        checksum = (crc32_of(pieces) if crc32 is None else crc32).to_bytes(4, "big")
        headers = {
            **self._put_headers,
            **conditions,
            "content-type": "application/octet-stream",
            "x-amz-checksum-crc32": base64.b64encode(checksum).decode(),
        }

        asked = self._asked("PUT", key)
        self._request(asked, headers, pieces, _skip_body, deadline_ms=deadline_ms)

    def get_range(self, key: str, byte_range: ByteRange, *, deadline_ms: int) -> bytes:
        """See `Store.get_range`."""
        return self._request_range(
            key, byte_range, lambda r: r.read_exactly(byte_range.length), deadline_ms
        )

    def read_range(
        self,
        key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        """See `Store.read_range`."""
        self._request_range(key, byte_range, lambda r: r.read_into(targets), deadline_ms)

    def _request_range(
        self, key: str, byte_range: ByteRange, read: Callable[[Response], _T], deadline_ms: int
    ) -> _T:
        headers = {"range": f"bytes={byte_range.start}-{byte_range.end - 1}"}
        asked = self._asked("GET", key, byte_range)

        def finish(response: Response) -> _T:
            _check_partial(response, byte_range, asked)
            return read(response)

        return self._request(asked, headers, None, finish, deadline_ms=deadline_ms)

    def size(self, key: str) -> int:
        """See `Store.size`."""
        return self._request(self._asked("HEAD", key), {}, None, _content_length)

    def get_tail(self, key: str, length_bytes: int) -> bytes:
        """See `Store.get_tail`."""
        if length_bytes <= 0:
            return b""

        def read(response: Response) -> bytes:
            length = response.length
            if length is None or length > length_bytes:
                raise _RangeIgnored
            return response.read_exactly(length)

        headers = {"range": f"bytes=-{length_bytes}"}
        try:
            return self._request(self._asked("GET", key), headers, None, read)
        except ConfigError as error:
            if error.details.get("s3_code") == "InvalidRange":  # an empty object has no last byte
                return b""
            raise

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list_keys`; one request per 1000 keys."""
        self._check_open()
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        if start_after:
            arguments["StartAfter"] = self._prefix + start_after
        while True:
            page = self._sdk_call("list", prefix, "list_objects_v2", arguments)
            for item in page.get("Contents", ()):
                key = item["Key"][len(self._prefix) :]
                if key and not key.endswith("/"):  # folders that consoles make
                    yield ObjectInfo(key, item["Size"])
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store.delete`; one request per 1000 keys."""
        self._check_open()
        for key in keys:
            check_key(key)
        for first in range(0, len(keys), DELETE_KEYS_PER_REQUEST):
            part = keys[first : first + DELETE_KEYS_PER_REQUEST]
            objects = [{"Key": self._prefix + key} for key in part]
            arguments = {"Bucket": self._bucket, "Delete": {"Objects": objects, "Quiet": True}}
            answer = self._sdk_call("delete", part[0], "delete_objects", arguments)
            for error in answer.get("Errors", ()):
                code = error.get("Code", "")
                if code != "NoSuchKey":
                    status = 503 if code in {"InternalError", "SlowDown"} else 403
                    refusal = Refusal(status, code, error.get("Message", ""))
                    key = error.get("Key", "")[len(self._prefix) :]
                    raise answer_error(
                        refusal,
                        self._asked("delete", key),
                        timestamp_ms=self._clock.timestamp_ms(),
                    )

    def describe(self) -> str:
        """Bucket, prefix and endpoint."""
        return self._place

    def close(self) -> None:
        """See `Store.close`; requests under way end with an error."""
        self._is_closed = True
        self._write_pool.close()
        self._read_pool.close()
        with self._sdk_lock:
            if self._client is not None:
                self._client[1].close()

    def _request(
        self,
        asked: S3Request,
        headers: Mapping[str, str],
        body: Sequence[memoryview] | None,
        finish: Callable[[Response], _T],
        *,
        deadline_ms: int | None = None,
    ) -> _T:
        self._check_open()
        check_key(asked.key)
        latest_ms = self._clock.now_ms() + self._request_timeout_ms
        deadline_ms = latest_ms if deadline_ms is None else min(deadline_ms, latest_ms)
        is_write = asked.operation == "PUT"
        pool = self._write_pool if is_write else self._read_pool
        base_path = self._write_path if is_write else self._read_path
        path = encode_path(f"{base_path}/{self._prefix}{asked.key}")
        sdk = self._sdk
        answer = self._exchange(sdk, pool, asked, path, headers, body, finish, deadline_ms)
        if isinstance(answer, Refusal) and answer.is_expired_token and self._renew(sdk):
            sdk = self._sdk
            answer = self._exchange(sdk, pool, asked, path, headers, body, finish, deadline_ms)
        if isinstance(answer, Refusal):
            asked = replace(asked, identity=_describe_identity(sdk.credentials))
            raise answer_error(answer, asked, timestamp_ms=self._clock.timestamp_ms())
        return answer

    def _exchange(
        self,
        sdk: _Sdk,
        pool: ConnectionPool,
        asked: S3Request,
        path: str,
        headers: Mapping[str, str],
        body: Sequence[memoryview] | None,
        finish: Callable[[Response], _T],
        deadline_ms: int,
    ) -> _T | Refusal:
        method = asked.operation
        signed = {"host": pool.host_header, **headers}
        sign(
            method,
            path,
            signed,
            identity=self._identity(sdk, asked),
            region=sdk.region,
            timestamp_ms=self._clock.timestamp_ms(),
        )
        with (
            self._translated_network_errors(asked, pool.endpoint),
            pool.exchange(method, path, signed, body, deadline_ms=deadline_ms) as response,
        ):
            if 200 <= response.status < 300:
                return finish(response)
            error_body = b"" if method == "HEAD" else response.read_error()
            return parse_refusal(method, response.status, response.headers, error_body)

    def _sdk_call(
        self, operation: str, key: str, method: str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        asked = self._asked(operation, key)
        sdk = self._sdk
        try:
            try:
                return self._call(sdk, method, arguments)
            except ClientError as error:
                if not _refusal_of(error.response).is_expired_token or not self._renew(sdk):
                    raise
                sdk = self._sdk
                return self._call(sdk, method, arguments)
        except ClientError as error:
            asked = replace(asked, identity=_describe_identity(sdk.credentials))
            refusal = _refusal_of(error.response)
            raise answer_error(refusal, asked, timestamp_ms=self._clock.timestamp_ms()) from error
        except BotoCoreError as error:
            raise _sdk_error(error, asked, self._write_pool.endpoint) from error

    @contextmanager
    def _translated_network_errors(
        self, asked: S3Request, endpoint: str
    ) -> Generator[None, None, None]:
        try:
            yield
        except _RangeIgnored:
            raise ConfigError(
                f"{asked} was answered with other bytes than asked for: {endpoint} ignores ranges; "
                "fix blobmsg.s3.endpoint.url or blobmsg.s3.read.endpoint.url",
                **asked.details(),
            ) from None
        except (OSError, HTTPException) as error:
            raise network_error(error, asked, endpoint=endpoint) from error

    def _identity(self, sdk: _Sdk, asked: S3Request) -> Identity:
        from botocore.exceptions import BotoCoreError

        if sdk.credentials is None:
            raise StoreDenied(
                f"{asked} not sent: no credentials found; set blobmsg.s3.access.key.id and "
                "blobmsg.s3.secret.access.key, or what the AWS SDK reads (environment, profile, "
                "role)",
                **asked.details(),
            )
        try:
            frozen = sdk.credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise _sdk_error(error, asked, self._write_pool.endpoint) from error
        except RuntimeError as error:  # botocore: refreshed, but still expired
            raise StoreDenied(
                f"{asked} not sent: {error}; identity: {_describe_identity(sdk.credentials)}",
                expired=True,
                **asked.details(),
            ) from error
        return Identity(frozen.access_key, frozen.secret_key, frozen.token)

    def _renew(self, seen: _Sdk) -> bool:
        """Ask the SDK's chain again, once for all threads that saw these credentials expire."""
        if self._s3.access_key_id:
            return False  # our own settings do not change
        with self._sdk_lock:
            if self._sdk is seen:
                self._sdk = self._load_sdk()
        return True

    def _call(self, sdk: _Sdk, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with self._sdk_lock:
            if self._client is None or self._client[0] is not sdk:
                if self._client is not None:
                    self._client[1].close()
                self._client = (sdk, self._make_client()[1])
            client = self._client[1]
        answer: dict[str, Any] = getattr(client, method)(**arguments)
        return answer

    def _load_sdk(self) -> _Sdk:
        session, client = self._make_client()
        region = client.meta.region_name or ""
        client.close()
        core = session._session  # noqa: SLF001  (boto3 has no other way to its settings)
        return _Sdk(
            credentials=session.get_credentials(),
            region="us-east-1" if region in {"", "aws-global"} else region,
            ca_bundle=core.get_config_variable("ca_bundle"),
        )

    def _make_client(self) -> tuple[Any, S3Client]:
        """A session of the SDK and its client for S3."""
        try:
            import boto3
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise ConfigError(
                's3:// stores need the extra "s3": pip install "blobmsg[s3]"'
            ) from error
        timeout_s = self._request_timeout_ms / 1000
        config = Config(
            connect_timeout=min(5.0, timeout_s),
            read_timeout=timeout_s,
            max_pool_connections=self._max_connections,
            retries={"total_max_attempts": 1},  # ours retry, with one deadline and one limiter
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if self._s3.endpoint_url else {},
        )
        try:
            # Any: the stubs' overloads for hundreds of services are more than pyright takes.
            session: Any = boto3.session.Session(
                botocore_session=botocore.session.get_session(),
                aws_access_key_id=self._s3.access_key_id,
                aws_secret_access_key=self._s3.secret_access_key,
                region_name=self._s3.region,
            )
            client: S3Client = session.client(
                "s3", endpoint_url=self._s3.endpoint_url, config=config
            )
            session.get_credentials()  # kept by the session; what is wrong with them shows here
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"the AWS SDK refuses its settings: {error}") from error
        return session, client

    def _bucket_url(self) -> str:
        """Where the bucket is, as the SDK resolves it."""
        if self._s3.endpoint_url:
            return f"{self._s3.endpoint_url.rstrip('/')}/{self._bucket}"
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config

        # A request that is built and never sent: the SDK's rules for addressing style, dual
        # stack, partitions and the settings of profiles all apply. (A presigned url would name
        # the global endpoint, which redirects to other regions.)
        session: Any = boto3.session.Session(region_name=self._sdk.region)
        probe: S3Client = session.client("s3", config=Config(signature_version=UNSIGNED))

        def capture(request: Any, **_: object) -> None:
            raise _Resolved(request.url)

        probe.meta.events.register_first("request-created.s3.HeadObject", capture)
        try:
            probe.head_object(Bucket=self._bucket, Key="k")
        except _Resolved as resolved:
            return resolved.url.removesuffix("/k")
        finally:
            probe.close()
        raise AssertionError("the SDK built no request")

    def _asked(self, operation: str, key: str, byte_range: ByteRange | None = None) -> S3Request:
        return S3Request(
            operation=operation,
            place=self._place,
            bucket=self._bucket,
            key=key,
            byte_range=byte_range,
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"store {self.describe()} has been closed")


def _skip_body(response: Response) -> None:
    response.read_exactly(response.length or 0)


def _content_length(response: Response) -> int:
    return int(response.headers["content-length"])


class _Resolved(Exception):
    """The SDK has built a request to this url."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class _RangeIgnored(Exception):
    """The answer has other bytes than the range."""


def _check_partial(response: Response, byte_range: ByteRange, asked: S3Request) -> None:
    """Refuse, before memory is taken for it, an answer that is not the range."""
    # "bytes 5-9/100" of a 206; a 200 carries the whole object.
    place, _, total = response.headers.get("content-range", "").partition("/")
    first, _, last = place.removeprefix("bytes ").partition("-")
    if not (first.isdigit() and last.isdigit()):
        if byte_range.start == 0 and response.length == byte_range.length:
            return
        raise _RangeIgnored
    if int(first) == byte_range.start and int(last) < byte_range.end - 1:
        size_bytes = int(total) if total.isdigit() else None
        raise range_outside_object(
            asked.place, asked.key, byte_range, size_bytes, bucket=asked.bucket
        )
    if int(first) != byte_range.start or int(last) != byte_range.end - 1:
        raise _RangeIgnored


def _encryption_headers(s3: S3Settings) -> dict[str, str]:
    headers: dict[str, str] = {}
    if s3.sse:
        headers["x-amz-server-side-encryption"] = s3.sse
    if s3.sse_kms_key_id:
        headers.setdefault("x-amz-server-side-encryption", "aws:kms")
        headers["x-amz-server-side-encryption-aws-kms-key-id"] = s3.sse_kms_key_id
    return headers


def _describe_identity(credentials: Any) -> str:
    """Who asks, without a secret: key id, source and end of life, as far as the SDK knows."""
    if credentials is None:
        return "none"
    # Out of the fields: the properties of renewable credentials renew them.
    fields: dict[str, Any] = {**credentials.__dict__}
    key_id = fields.get("_access_key") or fields.get("access_key") or "(not known yet)"
    expiry = fields.get("_expiry_time")
    # Where it comes from decides in which time zone it is.
    end = f", valid until {expiry.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if expiry else ""
    # As botocore calls keys that it was given: they are our settings.
    given = credentials.method == "explicit"
    source = "blobmsg.s3.access.key.id" if given else credentials.method
    return f"access key {key_id} from {source}{end}"


def _refusal_of(response: Mapping[str, Any]) -> Refusal:
    error = response.get("Error", {})
    metadata = response.get("ResponseMetadata", {})
    headers = metadata.get("HTTPHeaders", {})
    return Refusal(
        status=metadata.get("HTTPStatusCode", 0),
        code=error.get("Code", ""),
        message=error.get("Message", ""),
        region=error.get("Region", "") or headers.get("x-amz-bucket-region", ""),
        request_id=metadata.get("RequestId", ""),
        date=headers.get("date", ""),
    )


def _sdk_error(error: Exception, asked: S3Request, endpoint: str) -> BlobmsgError:
    """The error for what the SDK raises instead of an answer."""
    from botocore import exceptions as sdk

    details = asked.details()
    if isinstance(error, (sdk.ConnectTimeoutError, sdk.ReadTimeoutError)):
        return StoreTimeout(f"{asked} got no answer from {endpoint} in time", **details)
    if isinstance(error, (sdk.NoCredentialsError, sdk.PartialCredentialsError)):
        return StoreDenied(f"{asked} not sent: {error}; fix the credentials", **details)
    if isinstance(error, (sdk.TokenRetrievalError, sdk.UnauthorizedSSOTokenError)):
        return StoreDenied(f"{asked} not sent, log in again: {error}", **details)
    if isinstance(error, sdk.ParamValidationError):
        return ConfigError(f"{asked} not sent, the SDK refuses it: {error}", **details)
    # Connections, endpoints, services that give credentials: they come back.
    return StoreUnavailable(f"{asked} failed at {endpoint}: {error}", **details)
