from __future__ import annotations

import mmap
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from blobmsg.cache.part_buffers import PartBuffer
from blobmsg.format.errors import FormatError
from blobmsg.format.segment import Columns, decode_segment, encode_segment
from blobmsg.message import RecordsView
from blobmsg_spark.segment_arrow import headers_array, segment_batches
from blobmsg_spark.source_schema import arrow_schema, spark_schema

LOG_APPEND = 2


def _view(columns: Columns, *, log_append_ms: int | None = None, spare_bytes: int = 0) -> Any:
    data = encode_segment(columns)
    stored: Any = data
    if spare_bytes:
        memory = mmap.mmap(-1, len(data) + spare_bytes)
        memory[: len(data)] = data
        stored = PartBuffer(memory, len(data))
    segment = decode_segment(
        stored.data if spare_bytes else data, length=len(data), records=columns.record_count
    )
    return RecordsView(
        "topic",
        3,
        segment,
        stored,
        first_virtual_offset=1000,
        first_record_index=0,
        timestamp_type=1 if log_append_ms is None else LOG_APPEND,
        log_append_ms=log_append_ms,
        leader_epoch=None,
    )


def _table(view: Any, first: int = 0, end: int | None = None, **arguments: Any) -> Any:
    settings = {"include_headers": True, "max_batch_bytes": 1 << 20, **arguments}
    batches = list(segment_batches(view, first, view.records if end is None else end, **settings))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_columns_are_what_spark_expects(include_headers: bool) -> None:
    expected = to_arrow_schema(spark_schema(include_headers=include_headers), timezone="UTC")

    assert arrow_schema(include_headers=include_headers).equals(expected)


_CELLS = st.none() | st.binary(max_size=40)
_HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), _CELLS), max_size=3)


@given(
    st.lists(
        st.tuples(_CELLS, _CELLS, st.integers(-(10**12), 10**13), _HEADERS),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 400),
    st.data(),
)
def test_every_record_comes_as_it_was_written(
    records: list[tuple[Any, Any, int, Any]], max_batch_bytes: int, data: st.DataObject
) -> None:
    keys, values, timestamps, headers = (list(column) for column in zip(*records, strict=True))
    columns = Columns(keys, values, timestamps, headers if any(headers) else None)
    first = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(first + 1, len(records)))

    table = _table(_view(columns), first, end, max_batch_bytes=max_batch_bytes)

    assert table["key"].to_pylist() == keys[first:end]
    assert table["value"].to_pylist() == values[first:end]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [
        time_ms * 1000 for time_ms in timestamps[first:end]
    ]
    assert table["offset"].to_pylist() == list(range(1000 + first, 1000 + end))
    assert set(table["topic"].to_pylist()) == {"topic"}
    assert set(table["partition"].to_pylist()) == {3}
    assert set(table["timestampType"].to_pylist()) == {0}
    assert table["headers"].to_pylist() == [
        [{"key": name, "value": value} for name, value in found] if found else None
        for found in headers[first:end]
    ]


def test_values_are_not_copied() -> None:
    columns = Columns([b"k"] * 100, [b"v" * 1000] * 100, [5] * 100)
    view = _view(columns, spare_bytes=5000)
    base = pa.py_buffer(view.stored.data).address

    (batch,) = segment_batches(view, 0, 100, include_headers=False, max_batch_bytes=1 << 30)

    for name in ("key", "value"):
        address = batch.column(name).buffers()[2].address
        assert base <= address < base + len(view.stored)


def test_memory_is_held_as_long_as_a_batch_refers_to_it() -> None:
    view = _view(Columns([None], [b"v"], [5]), spare_bytes=1)
    memory = view.stored.data
    (batch,) = segment_batches(view, 0, 1, include_headers=False, max_batch_bytes=1)
    del view

    with pytest.raises(BufferError):
        memory.close()
    assert batch.column("value").to_pylist() == [b"v"]


def test_the_brokers_time_is_that_of_all_records_where_it_is_appended() -> None:
    table = _table(_view(Columns([None] * 2, [b"a"] * 2, [5, 6]), log_append_ms=77))

    assert table["timestamp"].cast(pa.int64()).to_pylist() == [77_000, 77_000]
    assert table["timestampType"].to_pylist() == [1, 1]


def test_a_time_that_spark_cannot_hold_is_an_error() -> None:
    with pytest.raises(FormatError, match="a timestamp is outside"):
        _table(_view(Columns([None], [b"a"], [1 << 62])))


def test_headers_of_no_record_are_an_array_of_nulls() -> None:
    assert headers_array([None, []]).to_pylist() == [None, None]
