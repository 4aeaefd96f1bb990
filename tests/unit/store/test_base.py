from __future__ import annotations

import pytest

from blobmsg.errors import CorruptSegment, ObjectMissing
from blobmsg.format.ranges import ByteRange
from blobmsg.store.base import MAX_KEY_BYTES, check_key, object_missing, range_outside_object


@pytest.mark.parametrize("key", ["a", "shared/0/2026010100/az1/00ff-1", "a b+c=é", "a..b/.c", "…"])
def test_ordinary_keys_pass(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "../a",
        "a/../../b",
        "a/./b",
        "a\\..\\b",
        "a\x00b",
        "a\nb",
        "a\x7f",
        "\udc80",
        "é" * (MAX_KEY_BYTES // 2 + 1),
    ],
)
def test_keys_that_could_lead_elsewhere_or_fit_nowhere_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="object key"):
        check_key(key)


def test_a_missing_object_is_reported_with_bucket_key_and_range() -> None:
    error = object_missing("s3://b/p/", "k", ByteRange(5, 10), bucket="b")
    assert isinstance(error, ObjectMissing)
    assert "s3://b/p/" in str(error)
    assert "'k'" in str(error)
    assert "5-14" in str(error)
    assert error.details == {
        "store": "s3://b/p/",
        "bucket": "b",
        "key": "k",
        "start": 5,
        "length": 10,
    }


def test_an_object_shorter_than_the_range_is_corrupt_and_both_lengths_are_told() -> None:
    error = range_outside_object("memory://x", "k", ByteRange(5, 10), 7)
    assert isinstance(error, CorruptSegment)
    assert "only 7 bytes" in str(error)
    assert "5-14" in str(error)
