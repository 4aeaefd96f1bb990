"""The map side of an exchange: rows in, objects into the store, notifications out.

A shell: splits and encodes on one thread beside the task's own, which waits for Spark's rows.
A notification leaves only after the store has confirmed its object.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from blobmsg.errors import ObjectExpired
from blobmsg.format.batch_object import lay_out_object
from blobmsg.format.codec import Codec
from blobmsg.format.notification import Notification, encode_notification
from blobmsg.format.object_key import NO_ZONE, ObjectKey
from blobmsg_spark.row_segment import encode_rows
from blobmsg_spark.row_splitter import Dealer, RowSplitter, cut_rows
from blobmsg_spark.usage import ExchangeUsage, StageUsage
from blobmsg_spark.worker import partition_id, stage_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from pyspark import Accumulator

    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg_spark.exchange import Exchange
    from blobmsg_spark.worker import Worker

__all__ = ["NOTIFICATION_SCHEMA", "MapTask"]

#: Of what a map task gives to Spark's own shuffle.
NOTIFICATION_SCHEMA: Final = pa.schema(
    [pa.field("partition", pa.int32(), nullable=False), pa.field("notification", pa.binary())]
)
# Of `blobmsg.request.timeout.ms`: 2 minutes by default. Spark tries a failed task again, too.
_PUT_TIMES: Final = 4
# One is uploaded while the next one fills: more would only take memory, for a stage has many tasks.
_MOST_UPLOADS: Final = 1


@dataclass(frozen=True, slots=True)
class MapTask:
    """Called in an executor with the rows of one map task.

    Args:
        exchange: Of which it is a part.
        usage: Added to at the end; None: nobody asks.
    """

    exchange: Exchange
    usage: Accumulator[ExchangeUsage] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Notifications of these rows.

        Args:
            batches: Rows; unless they are dealt, their first column is their partition's number.

        Raises:
            BlobmsgError: The store does not take an object.
        """
        return _Map(self.exchange, self.exchange.worker()).run(batches, self.usage)


class _Uploaded(NamedTuple):
    """An object's partitions with their notifications, and what it took."""

    notifications: list[tuple[int, bytes]]
    usage: StageUsage


class _Map:
    """One task attempt. Threads: `_upload` runs on the executor's, one at a time."""

    def __init__(self, exchange: Exchange, here: Worker) -> None:
        self._exchange = exchange
        self._worker = here
        self._task = partition_id()
        self._codec = Codec[here.settings.compression_type.upper()]
        self._splitter = RowSplitter(
            exchange.partitions, exchange.batch_bytes, exchange.segment_bytes
        )
        self._dealer = Dealer(exchange.partitions, self._task) if exchange.is_dealt else None
        self._number = 0
        self._has_ended = threading.Event()
        self._uploads: deque[Future[_Uploaded]] = deque()
        self._usage = StageUsage(tasks=1)

    def run(
        self, batches: Iterator[pa.RecordBatch], usage: Accumulator[ExchangeUsage] | None
    ) -> Iterator[pa.RecordBatch]:
        before = self._worker.requests()
        executor = ThreadPoolExecutor(_MOST_UPLOADS, thread_name_prefix="blobmsg-spark-upload")
        try:
            cuts = (cut_rows(rows, self._exchange.batch_bytes) for rows in batches)
            for rows in chain.from_iterable(cuts):
                self._usage += StageUsage(rows=rows.num_rows, row_bytes=rows.nbytes)
                if self._splitter.would_overflow(rows):
                    yield from self._finish_uploads(_MOST_UPLOADS - 1)
                    self._begin_upload(executor)
                self._add(rows)
                if self._splitter.is_full:
                    yield from self._finish_uploads(_MOST_UPLOADS - 1)
                    self._begin_upload(executor)
            self._begin_upload(executor)
            yield from self._finish_uploads(0)
        finally:
            # Spark closes the generator of a task that it has cancelled.
            self._has_ended.set()
            executor.shutdown(wait=True, cancel_futures=True)
        if usage is not None:
            done = self._usage + (self._worker.requests() - before)
            usage.add(ExchangeUsage.of_map_task(done, self._worker.settings.zone, stage_id()))

    def _add(self, rows: pa.RecordBatch) -> None:
        if self._dealer is not None:
            self._splitter.add(rows, self._dealer.deal(rows.num_rows))
            return
        ids = rows.column(0).to_numpy(zero_copy_only=False)
        without = pa.RecordBatch.from_arrays(rows.columns[1:], schema=_without_first(rows.schema))
        self._splitter.add(without, ids)

    def _begin_upload(self, executor: ThreadPoolExecutor) -> None:
        pieces = self._splitter.seal()
        if pieces:
            self._uploads.append(executor.submit(self._upload, pieces, self._number))
            self._number += 1

    def _finish_uploads(self, but: int) -> Iterator[pa.RecordBatch]:
        while len(self._uploads) > but:
            uploaded = self._uploads.popleft().result()
            self._usage += uploaded.usage
            yield _as_batch(uploaded.notifications)

    def _upload(self, pieces: list[tuple[int, pa.RecordBatch]], number: int) -> _Uploaded:
        """Encode the rows of one object and store it."""
        exchange = self._exchange
        encode = partial(
            encode_rows,
            codec=self._codec,
            timestamp_ms=exchange.begun_ms,
            topic=exchange.name,
            destination_zone="",
            producer_id=exchange.producer_id,
        )
        segments: list[EncodedSegment] = []
        pieces.reverse()
        while pieces:
            partition, rows = pieces.pop()
            segments.append(encode(rows, partition=partition))
        size_bytes = sum(segment.length_bytes for segment in segments)
        if self._stays_local(size_bytes):
            notifications = self._inline(segments)
            usage = StageUsage(inline_bytes=size_bytes)
        else:
            notifications = self._store(segments, number)
            usage = StageUsage(objects=1)
        sizes = sum(len(notification) for _, notification in notifications)
        usage += StageUsage(segments=len(segments), notification_bytes=sizes)
        return _Uploaded(notifications, usage)

    def _stays_local(self, size_bytes: int) -> bool:
        reserve_bytes = self._exchange.disk_reserve_bytes
        if reserve_bytes is None:
            return False
        # Where Spark's own shuffle writes; it tells its Python workers so.
        folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        free = min(shutil.disk_usage(folder or os.curdir).free for folder in folders)
        return free - size_bytes >= reserve_bytes

    def _inline(self, segments: Sequence[EncodedSegment]) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for segment in segments:
            part, data = segment.inline()
            notification = Notification((part,), 0, self._exchange.producer_id, None, inline=data)
            found.append((segment.partition, encode_notification(notification)))
        return found

    def _store(self, segments: Sequence[EncodedSegment], number: int) -> list[tuple[int, bytes]]:
        exchange = self._exchange
        zone = self._worker.settings.zone or NO_ZONE
        key = exchange.object_key(self._task, number, segments, zone)
        laid_out = lay_out_object(segments)
        expiry_ms = ObjectKey.decode(key).expiry_ms()
        if expiry_ms is not None and self._worker.clock.timestamp_ms() >= expiry_ms:
            raise ObjectExpired(
                f"{key} would be past its expiry hour, and blobmsg gc might delete it while it is "
                "read: the Shuffle's retention_ms is over, which is counted from the call of "
                "repartition. Call it again, or give a longer retention_ms",
                key=key,
            )
        self._worker.store.put(
            key,
            laid_out.pieces,
            deadline_ms=self._worker.clock.now_ms()
            + _PUT_TIMES * self._worker.settings.request_timeout_ms,
            crc32=laid_out.crc32,
            is_wanted=lambda: not self._has_ended.is_set(),
        )
        return [
            (
                entry.partition,
                encode_notification(Notification((entry.part,), 0, exchange.producer_id, key)),
            )
            for entry in laid_out.entries
        ]


def _without_first(schema: pa.Schema) -> pa.Schema:
    return pa.schema(list(schema)[1:], metadata=schema.metadata)


def _as_batch(notifications: list[tuple[int, bytes]]) -> pa.RecordBatch:
    partitions, values = zip(*notifications, strict=True)
    columns: list[Any] = [
        pa.array(np.array(partitions, dtype=np.int32)),
        pa.array(values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=NOTIFICATION_SCHEMA)
