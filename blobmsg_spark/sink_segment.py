"""Records in Arrow's columns as a segment, whose own layout is Arrow's.

Buffers are kept as they are; nothing of a record becomes an object but its headers. Decides nothing
about which records share a segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from blobmsg.format.encoded_segment import compress_gathered
from blobmsg.format.headers import encode_headers
from blobmsg.format.segment import LaidOutColumn, gather_columns
from blobmsg_spark.sink_rows import KEY, TIMESTAMP, VALUE

if TYPE_CHECKING:
    import numpy.typing as npt

    from blobmsg.format.codec import Codec
    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg.format.headers import Headers

__all__ = ["encode_records"]


def encode_records(
    records: pa.RecordBatch,
    codec: Codec,
    *,
    topic: str,
    partition: int,
    destination_zone: str,
    producer_id: bytes,
) -> EncodedSegment:
    """Encode and compress records, ready for an object or for an inline notification.

    Args:
        records: As in `TopicRows`, of one partition, at least one; a slice of a larger batch
            leaves the rest out. Kept, unless compressing gains something.
        codec: See `encode_object_segment`; likewise the others.
        topic: Their topic.
        partition: Their partition.
        destination_zone: The AZ where they are going to be read; "" when none.
        producer_id: 16 bytes.

    Raises:
        FormatError: They take 2 GiB or more.
        UnsupportedFormatError: The codec's package is not installed.

    Threads: any; Arrow, numpy and the codecs release the GIL.
    """
    timestamps = records.column(TIMESTAMP).to_numpy(zero_copy_only=False)
    found = gather_columns(
        _bytes_of(timestamps.astype("<i8", copy=False)),
        _laid_out(records.column(KEY)),
        _laid_out(records.column(VALUE)),
        _headers(records),
    )
    return compress_gathered(
        found,
        codec,
        records=records.num_rows,
        first_timestamp_ms=int(timestamps.min()),
        last_timestamp_ms=int(timestamps.max()),
        topic=topic,
        partition=partition,
        destination_zone=destination_zone,
        producer_id=producer_id,
    )


def _laid_out(column: Any) -> LaidOutColumn | None:
    """Keys or values as a segment has them; None when all are null."""
    if column.null_count == len(column):
        return None
    offsets = _offsets(column)
    validity = None
    if column.null_count:
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        if np.diff(offsets)[~is_valid].any():  # Arrow lets a null have bytes, a segment does not
            column = column.take(pa.array(np.arange(len(column))))
            offsets = _offsets(column)
        validity = np.packbits(is_valid, bitorder="little").tobytes()
    first, end = int(offsets[0]), int(offsets[-1])
    data = column.buffers()[2]
    return LaidOutColumn(
        validity,
        _bytes_of((offsets - offsets[0]).astype("<i4", copy=False)),
        memoryview(data).cast("B")[first:end] if data is not None and first < end else b"",
    )


def _offsets(column: Any) -> npt.NDArray[np.int32]:
    """Of a slice: its own offsets into the data of the whole."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")


def _headers(records: pa.RecordBatch) -> bytes:
    if records.num_columns <= VALUE + 1:
        return b""
    column: Any = records.column(VALUE + 1)
    if column.null_count == len(column):
        return b""
    cells = column.flatten()
    names, values = cells.field(0).to_pylist(), cells.field(1).to_pylist()
    ends = np.cumsum(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)).tolist()
    headers: list[Headers | None] = []
    start = 0
    for end in ends:
        headers.append(list(zip(names[start:end], values[start:end], strict=True)))
        start = end
    return encode_headers(headers)
