from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from blobmsg.fetcher import decode_stored
from blobmsg.format.batch_object import lay_out_object
from blobmsg.format.checksum import crc32
from blobmsg.format.codec import Codec
from blobmsg.format.errors import FormatError
from blobmsg.format.segment import Columns, decode_segment, encode_segment
from blobmsg_spark.row_segment import decode_rows, encode_rows

if TYPE_CHECKING:
    from blobmsg.format.encoded_segment import EncodedSegment

_ROWS = pa.record_batch(
    {
        "number": pa.array([1, None, 3], pa.int64()),
        "text": pa.array(["a", "", None]),
        "nested": pa.array([{"x": [1, 2]}, None, {"x": None}]),
        "amount": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
    }
)


def _encode(rows: pa.RecordBatch, codec: Codec = Codec.NONE) -> EncodedSegment:
    return encode_rows(
        rows,
        codec,
        timestamp_ms=1234,
        topic="exchange",
        partition=3,
        destination_zone="",
        producer_id=bytes(16),
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_rows_come_back_out_of_an_object(codec: Codec) -> None:
    segment = _encode(_ROWS, codec)
    laid_out = lay_out_object([segment])
    data = b"".join(laid_out.pieces)
    part = laid_out.entries[0].part

    decoded = decode_stored(part, data, part.byte_range.start)

    assert decoded.timestamps_ms.tolist() == [1234]
    start = part.byte_range.start if codec is Codec.NONE else 0
    assert list(decode_rows(decoded.data, start, part.uncompressed_bytes)) == [_ROWS]


def test_a_segment_of_rows_is_the_one_that_the_general_encoder_makes() -> None:
    segment = _encode(_ROWS)
    stored = b"".join(segment.pieces)

    value = decode_segment(stored, records=1).value(0)

    assert stored == encode_segment(Columns([None], [value], [1234]))
    assert (segment.length_bytes, segment.checksum) == (len(stored), crc32(stored))


def test_a_slice_takes_only_its_own_bytes() -> None:
    large = pa.record_batch({"text": pa.array(["x" * 100_000, "y", "z" * 100_000])})

    segment = _encode(large.slice(1, 1))

    assert segment.length_bytes < 2000
    stored = b"".join(segment.pieces)
    assert list(decode_rows(stored, 0, len(stored))) == [large.slice(1, 1)]


def test_inline_bytes_and_their_part_agree() -> None:
    segment = _encode(_ROWS, Codec.LZ4)

    part, data = segment.inline()

    assert decode_stored(part, data).records == 1


def test_a_record_that_is_no_stream_of_rows_is_refused() -> None:
    stored = encode_segment(Columns([None], [b"not an Arrow stream"], [0]))

    with pytest.raises(FormatError, match="no stream of rows"):
        list(decode_rows(stored, 0, len(stored)))


def test_a_stream_that_ends_early_is_refused() -> None:
    value = decode_segment(b"".join(_encode(_ROWS).pieces), records=1).value(0)
    assert value is not None
    stored = encode_segment(Columns([None], [value[: len(value) // 2]], [0]))

    with pytest.raises(FormatError, match="no stream of rows"):
        list(decode_rows(stored, 0, len(stored)))


def test_a_segment_of_several_records_is_refused() -> None:
    stored = encode_segment(Columns([None, None], [b"a", b"b"], [0, 0]))

    with pytest.raises(FormatError, match="2 records, 1 were promised"):
        list(decode_rows(stored, 0, len(stored)))
