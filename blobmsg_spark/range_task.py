"""What runs in a Python worker of Spark for one range: `read_range`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blobmsg_spark.range_reader import RangeReader
from blobmsg_spark.read_session import sessions
from blobmsg_spark.worker_process import tune_worker_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from blobmsg_spark.offset_ranges import OffsetRange
    from blobmsg_spark.source_options import SourceOptions

__all__ = ["read_range"]


def read_range(options: SourceOptions, wanted: OffsetRange | None) -> Iterator[pa.RecordBatch]:
    """The records of a range as record batches.

    Args:
        options: Of the source.
        wanted: None, which Spark sends when there is nothing to read: nothing.

    Raises:
        BlobmsgError: Something can't be read.
    """
    if wanted is None:
        return
    tune_worker_process()
    session = sessions.take(options.conf)
    reader: RangeReader | None = None
    is_finished = False
    try:
        reader = RangeReader(
            wanted,
            session,
            fail_on_data_loss=options.fail_on_data_loss,
            include_headers=options.include_headers,
            poll_timeout_ms=options.poll_timeout_ms,
        )
        yield from reader.batches()
        is_finished = True
    finally:
        if is_finished:
            sessions.give_back(options.conf, session)
        else:  # an error, or Spark wants no more (LIMIT, a killed task)
            if reader is not None:
                reader.abandon()
            session.close()
