"""Hypothesis strategies for what the formats carry."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from blobmsg.format import ByteRange, Codec, Columns, Notification, ObjectKey, Part
from tests.helpers.format_reference import Record

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ids = st.binary(min_size=16, max_size=16)
names = st.text(min_size=1, max_size=20).filter(lambda name: len(name.encode()) <= 255)
cells = st.none() | st.binary(max_size=30) | st.sampled_from([b"", b"same"])
header_lists = st.none() | st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), min_size=1, max_size=3
)
byte_ranges = st.builds(ByteRange, st.integers(0, 1000), st.integers(1, 300))


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 40) -> list[Record]:
    """Records whose columns are by turns mixed, all null, or without nulls."""
    some = st.binary(max_size=30)
    key = draw(st.sampled_from([cells, st.none(), some]))
    value = draw(st.sampled_from([cells, st.none(), some]))
    headers = draw(st.sampled_from([st.none(), header_lists]))
    return draw(
        st.lists(st.builds(Record, key, value, INT64, headers), min_size=1, max_size=max_size)
    )


def to_columns(records: list[Record]) -> Columns:
    columns = Columns(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp_ms for record in records],
    )
    if any(record.headers for record in records):
        columns.headers = [record.headers for record in records]
    return columns


path_names = st.builds(
    str.__add__,
    st.sampled_from(string.ascii_letters + string.digits),
    st.text(string.ascii_letters + string.digits + "._-", max_size=62),
).filter(lambda name: name != "history")
expiry_hours = st.just("forever") | st.datetimes().map(
    lambda hour: f"{hour.year:04}{hour.month:02}{hour.day:02}{hour.hour:02}"
)
object_keys = st.builds(
    ObjectKey,
    path_names,
    st.sampled_from("0123456789abcdef"),
    expiry_hours,
    path_names,
    ids.map(bytes.hex),
    st.integers(0, 10**18 - 1),
)


@st.composite
def parts(draw: st.DrawFn, most_bytes: int | None = None) -> Part:
    """A part; with `most_bytes` one that lies inside that many bytes."""
    codec = draw(st.sampled_from(Codec if most_bytes is None else [Codec.NONE]))
    records = draw(st.integers(1, 50_000 if most_bytes is None else (most_bytes - 32) // 8))
    least = 32 + 8 * records
    uncompressed = draw(st.integers(least, most_bytes or (1 << 30)))
    length = uncompressed if codec is Codec.NONE else draw(st.integers(1, 1 << 30))
    last_start = (1 << 41) if most_bytes is None else most_bytes - length
    times = sorted((draw(INT64), draw(INT64)))
    return Part(
        ByteRange(draw(st.integers(0, last_start)), length),
        records,
        codec,
        uncompressed,
        draw(st.integers(0, (1 << 32) - 1)),
        times[0],
        times[1],
        draw(ids),
    )


@st.composite
def notifications(draw: st.DrawFn) -> Notification:
    """Of an object or inline, with one or several parts, of one or several producers."""
    inline = draw(st.none() | st.binary(min_size=40, max_size=200))
    part = parts(None if inline is None else len(inline))
    return Notification(
        tuple(draw(st.lists(part, min_size=1, max_size=4))),
        draw(st.integers(0, (1 << 63) - 1)),
        draw(ids),
        draw(object_keys).encode() if inline is None else None,
        draw(st.sampled_from(["", "", "archive2"])) if inline is None else "",
        inline,
    )
