"""Rows of a DataFrame as records of topics: columns in one form, and checked.

Decides which rows are refused. Columns are wrapped or calculated whole; no row becomes an object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from blobmsg.errors import BlobmsgError, ConfigError
from blobmsg.format.notification import HEADER_NAME
from blobmsg_spark.source_schema import HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["KEY", "TIMESTAMP", "VALUE", "TopicRows", "rows_by_topic"]

#: Columns of `TopicRows.records` by their place; one of headers may follow.
TIMESTAMP: Final = 0
KEY: Final = 1
VALUE: Final = 2
_US_PER_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Rows of one topic, in order.

    Attributes:
        topic: Its name.
        records: Timestamps in ms (int64), keys and values (binary), and perhaps headers.
        sizes: Of each the bytes of key, value and headers.
        partitions: What the rows say, -1 where they don't; None: none does.
    """

    topic: str
    records: pa.RecordBatch
    sizes: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int32] | None


def rows_by_topic(
    batch: pa.RecordBatch, topic: str | None, *, now_ms: int, max_record_bytes: int
) -> Iterator[TopicRows]:
    """The rows of a batch, topic by topic.

    Args:
        batch: As Spark gives it; `check_columns` has seen its schema.
        topic: Of all rows; None: the column says it.
        now_ms: Wall time, for rows without one.
        max_record_bytes: No record may be larger.

    Raises:
        ConfigError: A row has no topic, a negative partition, or headers that can't be.
        BlobmsgError: A record is too large.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = batch.num_rows
    key, value = _binary(columns.get("key"), rows), _binary(columns["value"], rows)
    arrays = [_timestamps_ms(columns.get("timestamp"), rows, now_ms), key, value]
    names = ["timestamp", "key", "value"]
    sizes = _lengths(key) + _lengths(value)
    headers = columns.get("headers")
    if headers is not None and headers.null_count < rows:
        headers = headers.cast(HEADERS)
        sizes += _header_bytes(headers)
        arrays.append(headers)
        names.append("headers")
    elif headers is not None:  # all batches of a task have the same columns
        arrays.append(pa.nulls(rows, HEADERS))
        names.append("headers")
    if rows and int(sizes.max()) > max_record_bytes:
        raise BlobmsgError(
            f"a record of {int(sizes.max())} bytes is larger than blobmsg.record.max.bytes "
            f"({max_record_bytes}): raise it, here and where it is read",
            code=KafkaError.MSG_SIZE_TOO_LARGE,
        )
    records = pa.RecordBatch.from_arrays(arrays, names=names)
    partitions = _partitions(columns.get("partition"))
    if topic is not None:
        yield TopicRows(topic, records, sizes, partitions)
        return
    yield from _split(records, sizes, partitions, columns["topic"])


def _split(
    records: pa.RecordBatch,
    sizes: npt.NDArray[np.int64],
    partitions: npt.NDArray[np.int32] | None,
    topics: Any,
) -> Iterator[TopicRows]:
    if topics.null_count:
        raise ConfigError(
            f"{topics.null_count} rows of {len(topics)} have no topic: fill the column, filter "
            "them out, or set the option topic"
        )
    encoded = topics.cast(pa.string()).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield TopicRows(names[0], records, sizes, partitions)
        return
    places = encoded.indices.to_numpy()
    for number, name in enumerate(names):
        mine = np.flatnonzero(places == number)
        own = None if partitions is None else partitions[mine]
        yield TopicRows(name, records.take(pa.array(mine)), sizes[mine], own)


def _binary(column: Any, rows: int) -> Any:
    """Keys or values; strings are their UTF-8, without a copy."""
    return pa.nulls(rows, pa.binary()) if column is None else column.cast(pa.binary())


def _timestamps_ms(column: Any, rows: int, now_ms: int) -> Any:
    if column is None:
        return pa.array(np.full(rows, now_ms, dtype=np.int64))
    in_us = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    # Rounded down, before 1970 too, as Spark's unix_millis.
    in_us = in_us.fill_null(now_ms * _US_PER_MS).to_numpy(zero_copy_only=False)
    return pa.array(in_us // _US_PER_MS)


def _partitions(column: Any) -> npt.NDArray[np.int32] | None:
    if column is None or column.null_count == len(column):
        return None
    least = pc.min(column).as_py()
    if least < 0:
        raise ConfigError(
            f"column partition has {least}: partitions count from 0 on, and null means that the "
            "partitioner decides"
        )
    found: npt.NDArray[np.int32] = column.fill_null(-1).to_numpy(zero_copy_only=False)
    return found


def _lengths(column: Any) -> npt.NDArray[np.int64]:
    lengths = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int64] = lengths.astype(np.int64)
    return found


def _header_bytes(column: Any) -> npt.NDArray[np.int64]:
    """Of each row what its headers take."""
    cells = column.flatten()
    names = cells.field(0)
    if names.null_count or cells.null_count:
        raise ConfigError("column headers has a header without a key: give it one, or drop it")
    if pc.any(pc.equal(names, HEADER_NAME)).as_py():
        raise ConfigError(
            f"column headers has a header {HEADER_NAME!r}, which marks notifications of blobmsg: "
            "use another name"
        )
    ends = np.zeros(len(cells) + 1, dtype=np.int64)
    np.cumsum(_lengths(names) + _lengths(cells.field(1)), out=ends[1:])
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    places = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(counts, out=places[1:])
    return ends[places[1:]] - ends[places[:-1]]
