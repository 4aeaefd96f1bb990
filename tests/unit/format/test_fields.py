"""Bounded msgpack: the extension rule, and bytes that claim more than they are."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest

from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.fields import FieldReader, pack

KNOWN = frozenset({"a", "!b"})


def read(data: bytes) -> dict[str, int]:
    reader = FieldReader(data, "thing")
    fields = {name: reader.integer(name) for name in reader.fields(KNOWN)}
    reader.end()
    return fields


def test_known_fields_are_read_in_any_order() -> None:
    assert read(msgpack.packb({"!b": 1, "a": 2})) == {"!b": 1, "a": 2}


def test_unknown_optional_fields_are_skipped_whatever_they_hold() -> None:
    deep: object = 1
    for _ in range(200):
        deep = [deep, {"x": b"y"}]

    assert read(msgpack.packb({"z": deep, "a": 2, "y": 1.5})) == {"a": 2}


def test_unknown_critical_field_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormatError, match="thing: critical field '!signed'"):
        read(msgpack.packb({"a": 2, "!signed": 1}))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "map"),
        (b"\x90", "map"),
        (b"\xc1", "map"),
        (b"\x81", "field name"),
        (b"\x81\xa1", "field name"),
        (b"\x81\xa1\xff\x01", "field name"),
        (b"\x81\x01\x01", "field name"),
        (b"\x81\xa1z", "value of field 'z'"),
        (b"\x82\xa1a\x01\xa1a\x01", "twice"),
        (b"\x80\xc0", "1 bytes after the end"),
        (b"\xdf\xff\xff\xff\xff", "4294967295 fields"),
        (msgpack.packb({"n" * 65: 1}), "field name"),
        (msgpack.packb({"ü" * 33: 1}), "field name"),
        (msgpack.packb({str(i): 1 for i in range(65)}), "65 fields"),
        (msgpack.packb({"a": -1}), "a is no integer"),
        (msgpack.packb({"a": 1 << 63}), "a is no integer"),
        (msgpack.packb({"a": True}), "a is no integer"),
        (msgpack.packb({"a": 1.0}), "a is no integer"),
        (msgpack.packb({"a": [1]}), "can't read a"),
        (msgpack.packb({"a": {}}), "a is no integer"),
        (b"\x81\xa1a\xd6\xff\0\0\0\1", "can't read a"),
        (b"\x81\xa1z" + b"\x91" * 5000 + b"\xc0", "StackError"),
    ],
)
def test_damaged_maps_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read(data)


def test_texts_binaries_and_arrays_keep_their_limits() -> None:
    def reader(value: object) -> FieldReader:
        return FieldReader(pack(value), "thing")

    assert reader("ab").text("t", 2) == "ab"
    assert reader(b"ab").binary("b", 2, 2) == b"ab"
    assert reader(None).binary_or_nil("b", 2) is None
    assert reader(b"ab").binary_or_nil("b", 2) == b"ab"
    assert reader([1, 2]).array("l", 2, 2) == 2
    for refuse in (
        lambda: reader("abc").text("t", 2),
        lambda: reader("üü").text("t", 3),
        lambda: reader(b"ab").text("t", 2),
        lambda: reader(b"a").binary("b", 2, 3),
        lambda: reader(b"abcd").binary("b", 2, 3),
        lambda: reader("ab").binary("b", 2, 3),
        lambda: reader(b"a").binary_or_nil("b", 2),
        lambda: reader("ab").binary_or_nil("b", 2),
        lambda: reader([1]).array("l", 2, 3),
        lambda: reader([1] * 4).array("l", 2, 3),
        lambda: reader({}).array("l", 0, 3),
    ):
        with pytest.raises(FormatError):
            refuse()


@pytest.mark.parametrize(
    "claim", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xc6\x7f\0\0\0"]
)
def test_claims_take_no_memory(claim: bytes) -> None:
    # In the place of a scalar, of an unknown value, and as the document itself.
    tracemalloc.start()
    try:
        for data in (b"\x81\xa1a" + claim * 900, b"\x81\xa1z" + claim * 900, claim * 900):
            with pytest.raises(FormatError):
                read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("value", ["\udc80", 1 << 64, -(1 << 63) - 1])
def test_values_without_an_encoding_are_refused(value: object) -> None:
    with pytest.raises(FormatError, match="encoded"):
        pack(value)
