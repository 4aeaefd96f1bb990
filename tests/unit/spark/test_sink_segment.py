"""A segment out of Arrow's columns has the bytes that one out of Python's records has."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobmsg.format.codec import Codec, decompress
from blobmsg.format.segment import Columns, decode_segment, encode_segment
from blobmsg_spark.sink_segment import encode_records
from blobmsg_spark.source_schema import HEADERS

_CELLS = st.one_of(st.none(), st.just(b""), st.binary(max_size=20))
_HEADERS = st.one_of(
    st.none(),
    st.lists(
        st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3
    ),
)
_RECORDS = st.lists(
    st.tuples(st.integers(-(1 << 62), 1 << 62), _CELLS, _CELLS, _HEADERS), min_size=1, max_size=40
)


def _batch(records: list[Any]) -> pa.RecordBatch:
    times, keys, values, headers = zip(*records, strict=True)
    cells = [h and [{"key": name, "value": value} for name, value in h] for h in headers]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(times, pa.int64()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(cells, HEADERS),
        ],
        names=["timestamp", "key", "value", "headers"],
    )


def _encode(batch: pa.RecordBatch, codec: Codec = Codec.NONE) -> Any:
    return encode_records(
        batch, codec, topic="t", partition=3, destination_zone="az1", producer_id=bytes(16)
    )


@given(records=_RECORDS, data=st.data())
def test_any_slice_has_the_producers_bytes(records: list[Any], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(records) - 1))
    count = data.draw(st.integers(1, len(records) - first))
    chosen = records[first : first + count]
    times, keys, values, headers = map(list, zip(*chosen, strict=True))

    found = _encode(_batch(records).slice(first, count))

    stored = b"".join(found.pieces)
    assert stored == encode_segment(Columns(keys, values, times, headers))
    assert found.checksum == crc32(stored)
    assert (found.records, found.length_bytes) == (count, len(stored))
    assert (found.first_timestamp_ms, found.last_timestamp_ms) == (min(times), max(times))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_it_is_the_same_segment(codec: Codec) -> None:
    batch = _batch([(number, b"key", b"value" * 20, None) for number in range(50)])

    plain, packed = _encode(batch), _encode(batch, codec)

    assert packed.codec is codec
    unpacked = decompress(codec, b"".join(packed.pieces), packed.uncompressed_bytes)
    assert unpacked == b"".join(plain.pieces)


def test_nulls_that_have_bytes_in_arrow_have_none_in_a_segment() -> None:
    data = pa.py_buffer(b"onetwothree")
    offsets = pa.py_buffer(np.array([0, 3, 6, 11], dtype=np.int32))
    values = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3], pa.int64()), pa.nulls(3, pa.binary()), values],
        names=["timestamp", "key", "value"],
    )

    stored = b"".join(_encode(batch).pieces)

    assert stored == encode_segment(Columns([None] * 3, [b"one", None, b"three"], [1, 2, 3]))
    assert decode_segment(stored, records=3).value(2) == b"three"
