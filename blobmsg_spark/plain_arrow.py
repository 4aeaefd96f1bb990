"""Records that came through Kafka itself, gathered into Arrow record batches.

Decides how many of them share a batch; never which are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from blobmsg_spark.segment_arrow import headers_array, spark_timestamp_type, timestamps_in_us
from blobmsg_spark.source_schema import arrow_schema

if TYPE_CHECKING:
    from blobmsg.format.headers import Headers
    from blobmsg.message import PlainView

__all__ = ["PlainRecords"]

# A batch costs some 100 us, a record in it 2: so many make the batch's share small.
_MAX_RECORDS: Final = 4096


class PlainRecords:
    """The records of the next batch.

    Args:
        include_headers: With the column `headers`.
        max_batch_bytes: A batch of this size is full.

    Threads: one.
    """

    def __init__(self, *, include_headers: bool, max_batch_bytes: int) -> None:
        self._schema = arrow_schema(include_headers=include_headers)
        self._include_headers = include_headers
        self._max_batch_bytes = max_batch_bytes
        self._clear()

    def _clear(self) -> None:
        self._size_bytes = 0
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._topics: list[str] = []
        self._partitions: list[int] = []
        self._offsets: list[int] = []
        self._timestamps_ms: list[int] = []
        self._timestamp_types: list[int] = []
        self._headers: list[Headers | None] = []

    @property
    def is_full(self) -> bool:
        """Whether a batch should be taken before more is added."""
        return len(self._keys) >= _MAX_RECORDS or self._size_bytes >= self._max_batch_bytes

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, view: PlainView) -> None:
        """Add a record."""
        message: Any = view.message
        key, value = message.key(), message.value()
        self._keys.append(key)
        self._values.append(value)
        self._topics.append(message.topic())
        self._partitions.append(message.partition())
        self._offsets.append(view.virtual_offset)
        timestamp_type, timestamp_ms = message.timestamp()
        self._timestamps_ms.append(timestamp_ms)
        self._timestamp_types.append(spark_timestamp_type(timestamp_type))
        self._size_bytes += len(key or b"") + len(value or b"")
        if self._include_headers:
            headers: Headers | None = message.headers()
            self._headers.append(headers)
            self._size_bytes += sum(len(name) + len(cell or b"") for name, cell in headers or ())

    def take(self) -> pa.RecordBatch:
        """All records added since the last call, as one batch.

        Raises:
            FormatError: A timestamp that Spark can't hold.
        """
        columns: list[Any] = [
            pa.array(self._keys, pa.binary()),
            pa.array(self._values, pa.binary()),
            pa.array(self._topics, pa.string()),
            pa.array(self._partitions, pa.int32()),
            pa.array(self._offsets, pa.int64()),
            timestamps_in_us(pa.array(self._timestamps_ms, pa.int64())),
            pa.array(self._timestamp_types, pa.int32()),
        ]
        if self._include_headers:
            columns.append(headers_array(self._headers))
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
