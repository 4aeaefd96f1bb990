"""The messages of a batch: what is plain, and what is refused before the first is queued."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from blobmsg.record_arguments import check_fields
from blobmsg.record_step import unusual_places


@pytest.mark.parametrize(
    "message",
    [
        {"value": b"v"},
        {"key": None, "value": b"v"},
        {"key": "text", "value": b"v"},
        {"key": b"", "value": b"v"},
        OrderedDict(key=b"k", value=b"v"),
        {"key": b"k", "other": b"v"},
        {b"key": b"k", "value": b"v"},
        {},
        {"key": b"k", "value": b"v", "partition": 1},
        {"key": b"k", "headers": []},
    ],
    ids=str,
)
def test_only_bytes_for_key_and_value_are_plain(message: dict[str, Any]) -> None:
    name = "".join(["k", "ey"])  # another object than the literal
    plain = {"value": b"", "key": b"k"}, {"key": b"k", "value": b"v"}, {name: b"k", "value": b"v"}

    assert unusual_places([message, *plain, message]) == [0, 4]


@pytest.mark.parametrize("unusual", [None, {}, OrderedDict(key=b"k", value=b"v"), {"key": b"k"}])
def test_the_unusual_are_found_in_lists_of_any_length(unusual: Any) -> None:
    for length in range(40):
        messages: list[Any] = [{"key": b"k", "value": b"v"}] * length
        assert unusual_places(messages) == []
        for place in range(length):
            changed = [*messages[:place], unusual, *messages[place + 1 :]]
            assert unusual_places(changed) == [place]


@pytest.mark.parametrize(
    "message",
    [
        {"value": 5},
        {"key": 5.0},
        {"value": b"v", "partition": "1"},
        {"value": b"v", "timestamp": None},
        {"value": b"v", "headers": 7},
    ],
    ids=str,
)
def test_wrong_fields_are_refused(message: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        check_fields(message, 0)


@pytest.mark.parametrize("field", ["partition", "timestamp"])
def test_a_number_that_is_too_large_is_refused_before_the_first_is_queued(field: str) -> None:
    with pytest.raises(OverflowError):
        check_fields({"value": b"v", field: 1 << 70}, 0)


def test_what_the_broker_or_the_partitioner_refuses_is_no_wrong_field() -> None:
    check_fields({"value": "text", "key": None, "partition": -5, "timestamp": 0, "headers": {}}, 0)
