"""A segment as Arrow record batches: its buffers are wrapped, no record becomes an object.

Decides nothing about which records are read. What it wraps was decoded before, which checked that
the offsets of both columns ascend from 0 to their length; only headers are made record by record.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from blobmsg.cache.part_buffers import memory_of
from blobmsg.format.errors import FormatError
from blobmsg.format.segment import KEY_NULLS, KEYS, VALUE_NULLS, VALUES, segment_layout
from blobmsg_spark.source_schema import HEADERS, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blobmsg.format.headers import Headers
    from blobmsg.format.segment import Segment, SegmentLayout
    from blobmsg.message import RecordsView

__all__ = ["headers_array", "segment_batches", "spark_timestamp_type", "timestamps_in_us"]

_BIG_ENDIAN: Final = sys.byteorder == "big"
_ALIGNMENT: Final = 8  # of Arrow's buffers, and of a segment's from its beginning


def segment_batches(
    view: RecordsView, first: int, end: int, *, include_headers: bool, max_batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The records of a segment with these indices.

    Args:
        view: The decoded segment.
        first: Index of the first record.
        end: Behind the last one.
        include_headers: With the column `headers`.
        max_batch_bytes: Batches are cut at about this size: by records, as if all were of one size.

    Returns:
        Batches that share the segment's memory, and keep it.

    Raises:
        FormatError: A timestamp that Spark can't hold.

    Threads: any.
    """
    segment = view.segment
    data, records = segment.data, segment.records
    # What was decompressed is a buffer of its own; else the buffer that was read into may be
    # longer than the part.
    length = len(view.stored) if data is memory_of(view.stored) else len(data)
    layout = segment_layout(data, 0, length, records)
    buffer = _aligned(pa.py_buffer(data))
    columns: list[Any] = [
        _binary(buffer, layout, is_key=True),
        _binary(buffer, layout, is_key=False),
        pa.repeat(pa.scalar(view.topic, pa.string()), records),
        pa.repeat(pa.scalar(view.partition, pa.int32()), records),
        pa.array(np.arange(records, dtype=np.int64) + view.first_virtual_offset),
        _timestamps(view, buffer, layout),
        pa.repeat(pa.scalar(spark_timestamp_type(view.timestamp_type), pa.int32()), records),
    ]
    if include_headers:
        columns.append(_headers(segment, layout))
    batch = pa.RecordBatch.from_arrays(
        columns, schema=arrow_schema(include_headers=include_headers)
    )
    step = max(1, records * max_batch_bytes // length)
    for start in range(first, end, step):
        yield batch.slice(start, min(step, end - start))


def spark_timestamp_type(timestamp_type: int) -> int:
    """Kafka's number of a kind of timestamp, which Spark shows, from confluent_kafka's."""
    return timestamp_type - 1


def timestamps_in_us(timestamps_ms: Any) -> Any:
    """Timestamps as Spark has them.

    Args:
        timestamps_ms: Arrow's int64, ms since 1970 UTC.

    Raises:
        FormatError: One is outside of what Spark can hold.
    """
    try:
        return timestamps_ms.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid as error:
        raise FormatError(f"a timestamp is outside of what Spark can hold: {error}") from error


def headers_array(column: Sequence[Headers | None]) -> Any:
    """Headers of records, one entry each; none are null, as in spark-sql-kafka."""
    offsets = np.zeros(len(column) + 1, dtype=np.int32)
    np.cumsum([len(headers or ()) for headers in column], out=offsets[1:])
    flat = [header for headers in column if headers for header in headers]
    cells = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in flat], pa.string()),
            pa.array([value for _, value in flat], pa.binary()),
        ],
        fields=list(HEADERS.value_type),
    )
    has_none = pa.array([not headers for headers in column], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), cells, type=HEADERS, mask=has_none)


def _binary(buffer: Any, layout: SegmentLayout, *, is_key: bool) -> Any:
    """The keys or values, wrapped."""
    if is_key:
        present, nulls, data_bytes = KEYS, KEY_NULLS, layout.key_bytes
        validity_at, offsets_at = layout.key_validity, layout.key_offsets
        data_at = layout.key_data
    else:
        present, nulls, data_bytes = VALUES, VALUE_NULLS, layout.value_bytes
        validity_at, offsets_at = layout.value_validity, layout.value_offsets
        data_at = layout.value_data
    records = layout.records
    if not layout.flags & present:
        return pa.nulls(records, pa.binary())
    validity = None
    if layout.flags & nulls:
        validity = buffer.slice(validity_at, (records + 7) // 8)
    offsets = buffer.slice(offsets_at, 4 * (records + 1))
    if _BIG_ENDIAN:
        offsets = pa.py_buffer(np.frombuffer(offsets, "<i4").astype("=i4"))
    cells = buffer.slice(data_at, data_bytes)
    return pa.Array.from_buffers(pa.binary(), records, [validity, offsets, cells])


def _timestamps(view: RecordsView, buffer: Any, layout: SegmentLayout) -> Any:
    if view.log_append_ms is not None:
        appended = pa.repeat(pa.scalar(view.log_append_ms, pa.int64()), layout.records)
        return timestamps_in_us(appended)
    stored = buffer.slice(layout.timestamps, 8 * layout.records)
    if _BIG_ENDIAN:
        stored = pa.py_buffer(np.frombuffer(stored, "<i8").astype("=i8"))
    return timestamps_in_us(pa.Array.from_buffers(pa.int64(), layout.records, [None, stored]))


def _headers(segment: Segment, layout: SegmentLayout) -> Any:
    if not layout.headers_bytes:
        return pa.nulls(segment.records, HEADERS)
    return headers_array([segment.headers(index) for index in range(segment.records)])


def _aligned(buffer: Any) -> Any:
    """The buffer, copied when its memory begins where Arrow's may not."""
    if buffer.address % _ALIGNMENT == 0:
        return buffer
    return pa.py_buffer(np.frombuffer(buffer, np.uint8).copy())
