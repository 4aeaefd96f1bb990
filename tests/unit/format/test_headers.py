"""The headers column keeps order, repeats and nulls, and refuses what does not fit."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest

from blobmsg.format.errors import FormatError
from blobmsg.format.headers import Headers, decode_headers, encode_headers

COLUMN: list[Headers | None] = [
    None,
    [("b", b"2"), ("a", None), ("b", b"")],
    [],
    [("größe", b"\x00\xff")],
]


def test_order_repeated_names_and_nulls_are_kept() -> None:
    decoded = decode_headers(encode_headers(COLUMN), 4)

    assert decoded == [None, COLUMN[1], None, COLUMN[3]]


def test_column_is_one_flat_array() -> None:
    flat = msgpack.unpackb(encode_headers(COLUMN))

    assert flat == [0, 3, "b", b"2", "a", None, "b", b"", 0, 1, "größe", b"\x00\xff"]


def test_no_headers_at_all_take_no_bytes() -> None:
    assert encode_headers([None, [], None]) == b""


def test_thousands_of_headers_in_one_record_come_back() -> None:
    headers: Headers = [(f"n{i}", b"%d" % i) for i in range(70_000)]

    assert decode_headers(encode_headers([headers]), 1) == [headers]


@pytest.mark.parametrize(
    "flat",
    [
        [],
        [0],
        [0, 0, 0],
        [1, "n"],
        [1, "n", b"", 0, 0],
        [1, "n", "text", 0],
        [1, b"n", b"", 0],
        [1, None, b"", 0],
        [2, "n", b"", 0],
        [-1, 0],
        [True, "n", b"", 0],
        [1 << 40, "n", b"", 0],
        [1, "n", 5, 0],
        [[], 0],
        [{}, 0],
        {"n": 1},
    ],
)
def test_elements_that_do_not_fit_two_records_are_refused(flat: object) -> None:
    with pytest.raises(FormatError):
        decode_headers(msgpack.packb(flat), 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",
        b"\x92\x00",
        b"\x91\x00\x00",
        b"\x91\x00\xc4",
        b"\x93\x01\xa1\xff\xc4\x00",
    ],
)
def test_damaged_columns_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_headers(data, 1)


def test_nested_claims_take_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decode_headers(b"\xdd\x7f\xff\xff\xff" * 1000, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000
