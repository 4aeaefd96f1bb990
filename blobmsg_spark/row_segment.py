"""Rows of a DataFrame as a segment: its only record's value is an Arrow IPC stream.

Arrow writes and reads the stream without an object per row, and hands its buffers out uncopied.
Specified in `docs/format.md`, "Rows of a DataFrame". Decides nothing about partitions or objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from blobmsg.format.encoded_segment import encode_object_value
from blobmsg.format.errors import FormatError
from blobmsg.format.segment import segment_layout

if TYPE_CHECKING:
    from mmap import mmap

    from blobmsg.format.codec import Codec
    from blobmsg.format.encoded_segment import EncodedSegment

__all__ = ["decode_rows", "encode_rows"]

# A stream that was cut behind a batch would have lost rows, and be one as well.
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"


def encode_rows(
    rows: pa.RecordBatch,
    codec: Codec,
    *,
    timestamp_ms: int,
    topic: str,
    partition: int,
    destination_zone: str,
    producer_id: bytes,
) -> EncodedSegment:
    """Encode rows as one segment.

    Args:
        rows: At least one row; a slice of a larger batch leaves the rest out.
        codec: See `encode_object_value`, likewise the others.
        timestamp_ms: Of its record, ms since 1970 UTC.
        topic: Names the exchange.
        partition: The rows' partition.
        destination_zone: Where they are read; "" when nobody knows.
        producer_id: 16 bytes.

    Raises:
        FormatError: The rows take 2 GiB or more.
        UnsupportedFormatError: The codec's package is not installed.

    Threads: any; Arrow and the codecs release the GIL.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return encode_object_value(
        memoryview(sink.getvalue()),
        codec,
        timestamp_ms=timestamp_ms,
        topic=topic,
        partition=partition,
        destination_zone=destination_zone,
        producer_id=producer_id,
    )


def decode_rows(data: bytes | mmap, start: int, length: int) -> list[pa.RecordBatch]:
    """The rows of a segment; they keep `data` alive and copy nothing of it.

    Args:
        data: Holds the segment, uncompressed and checked against its checksum.
        start: Where it begins in `data`.
        length: How long it is.

    Raises:
        FormatError: Not rows of a DataFrame: another kind of segment, or a damaged stream.

    Threads: any.
    """
    layout = segment_layout(data, start, length, 1)
    stream = memoryview(data)[start + layout.value_data :][: layout.value_bytes]
    if bytes(stream[-len(_END_OF_STREAM) :]) != _END_OF_STREAM:
        raise FormatError("a segment's record is no stream of rows: it has no end")
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            batches = list(reader)  # views of `data`
        for rows in batches:
            rows.validate()
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"a segment's record is no stream of rows: {error}") from error
    return batches
