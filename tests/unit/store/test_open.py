from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from blobmsg.config import Settings, parse_settings
from blobmsg.errors import ConfigError
from blobmsg.format.ranges import ByteRange
from blobmsg.store import StoreCounters, open_store, resolve_store_url
from blobmsg.store.s3 import S3Store
from blobmsg.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path


def settings(url: str = "memory://x", **more: str) -> Settings:
    conf = {"blobmsg.store.url": url}
    conf |= {f"blobmsg.{name.replace('_', '.')}": value for name, value in more.items()}
    return parse_settings(conf, {})[0]


def test_memory_stores_of_one_name_share_their_objects() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    writer, reader = open_store(url, settings()), open_store(url, settings())
    writer.put("k", b"abc", deadline_ms=1 << 60)
    assert reader.get_range("k", ByteRange(0, 3), deadline_ms=1 << 60) == b"abc"


def test_a_file_url_names_a_folder(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/a%20b", settings())
    store.put("x/k", b"abc", deadline_ms=1 << 60)
    assert (tmp_path / "a b" / "x" / "k").read_bytes() == b"abc"


def test_requests_are_counted_where_the_caller_says() -> None:
    counters = StoreCounters()
    store = open_store(
        f"memory://{uuid.uuid4().hex}", settings(), clock=ManualClock(), counters=counters
    )
    store.put("k", b"abc", deadline_ms=1 << 60)
    assert counters.snapshot().puts == 1


def test_an_s3_url_is_split_into_bucket_and_prefix_and_sends_nothing() -> None:
    store = open_store(
        "s3://bucket/some/prefix/",
        settings(s3_endpoint_url="http://127.0.0.1:1", s3_region="eu-west-1"),
    )
    assert store.describe() == "s3://bucket/some/prefix/ at http://127.0.0.1:1"
    store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gopher://x", "s3://bucket/prefix, file:///folder, memory://name"),
        ("bucket/prefix", "s3://bucket/prefix, file:///folder, memory://name"),
        ("memory://", "memory://name"),
        ("file://host/folder", "file:///folder"),
        ("s3:///prefix", "s3://bucket/prefix"),
        ("s3://bucket--use1-az1--x-s3/p", "S3 Express"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_what_there_is(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(url, settings())


def test_a_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match=r"blobmsg\.s3\.secret\.access\.key") as caught:
        open_store("s3://key:hunter2@bucket/p", settings())
    assert "hunter2" not in str(caught.value)


def test_without_the_sdk_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r'pip install "blobmsg\[s3\]"'):
        open_store("s3://bucket/p", settings())


def test_names_are_resolved_by_the_readers_own_settings() -> None:
    mine = settings("memory://default", store_old_url="memory://old")
    assert resolve_store_url("", mine) == "memory://default"
    assert resolve_store_url("old", mine) == "memory://old"
    with pytest.raises(ConfigError, match=r"named stores: old.*blobmsg\.store\.new\.url"):
        resolve_store_url("new", mine)


def test_without_a_default_store_the_error_names_the_setting() -> None:
    plain = parse_settings({"blobmsg.route": "plain"}, {})[0]
    with pytest.raises(ConfigError, match=r"blobmsg\.store\.url is not set"):
        resolve_store_url("", plain)


def test_addresses_on_aws_come_from_the_sdks_own_rules() -> None:
    keys = {"s3_access_key_id": "A", "s3_secret_access_key": "S"}
    for bucket, region, endpoint, path in (
        ("bucket", "eu-west-1", "https://bucket.s3.eu-west-1.amazonaws.com", ""),
        ("dotted.bucket", "eu-west-1", "https://s3.eu-west-1.amazonaws.com", "/dotted.bucket"),
        ("bucket", "cn-north-1", "https://bucket.s3.cn-north-1.amazonaws.com.cn", ""),
    ):
        with_region = settings(s3_region=region, **keys)
        store = S3Store(
            bucket,
            "p",
            with_region.s3,
            request_timeout_ms=1000,
            max_connections=1,
            clock=ManualClock(),
        )
        assert store.describe() == f"s3://{bucket}/p/ at {endpoint}"
        assert store._write_path == path
        store.close()
