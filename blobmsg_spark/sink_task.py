"""What runs in a Python worker of Spark for one task of the sink: rows in, objects into the store.

A shell: the task's own thread splits Spark's rows by partition, another one encodes and uploads
what is full. Nothing that a task does can be seen by anybody before the driver commits.
"""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np

from blobmsg.core.segments import LaneKey
from blobmsg.kafka_settings import KafkaView
from blobmsg.producer_topics import ENVELOPE_BYTES
from blobmsg_spark.row_splitter import cut_rows
from blobmsg_spark.sink_lane import SinkLane
from blobmsg_spark.sink_message import SinkMessage, SinkNotification
from blobmsg_spark.sink_objects import SinkObjects
from blobmsg_spark.sink_partitioner import SinkPartitioner
from blobmsg_spark.sink_rows import KEY, rows_by_topic
from blobmsg_spark.sink_topics import topics_of
from blobmsg_spark.worker import worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from blobmsg.topic_directory import TopicFacts
    from blobmsg_spark.sink_options import SinkOptions
    from blobmsg_spark.sink_rows import TopicRows

__all__ = ["write_rows"]

# Of `blobmsg.batch.size.bytes`: what waits in all lanes of a task together. Beyond it the fullest
# lane is sealed early, so many zones and retention classes make smaller objects, not more memory.
_MOST_WAITING_BATCHES: Final = 4
# One is uploaded while the next one fills: more would only take memory, for a stage has many tasks.
_MOST_UPLOADS: Final = 1
# A reader takes at most 256 MiB by default, and holds at least one segment.
_MOST_SEGMENT_BYTES: Final = 64 << 20


def write_rows(
    options: SinkOptions, query_id: str | None, batches: Iterator[pa.RecordBatch]
) -> SinkMessage:
    """Store the rows of one task.

    Args:
        options: Of the sink.
        query_id: Of the streaming query; None in a batch.
        batches: Its rows.

    Raises:
        BlobmsgError: Something can't be written. What is in the store by then is never notified.
    """
    return _SinkTask(options).run(query_id, batches)


class _SinkTask:
    """One task attempt. Threads: `SinkObjects` on the executor's, one at a time."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._worker = worker(options.conf, {})
        self._settings = self._worker.settings
        _, kafka_conf = options.settings()
        self._view = KafkaView.parse(kafka_conf)
        self._topics = topics_of(options)
        self._facts: dict[str, TopicFacts] = {}
        self._partitioners: dict[str, SinkPartitioner] = {}
        self._lanes: dict[LaneKey, SinkLane] = {}
        self._rng = np.random.default_rng()
        self._has_ended = threading.Event()
        self._uploads: list[Future[list[SinkNotification]]] = []
        self._notifications: list[SinkNotification] = []
        self._objects = SinkObjects(
            self._worker, secrets.token_bytes(16), lambda: not self._has_ended.is_set()
        )

    def run(self, query_id: str | None, batches: Iterator[pa.RecordBatch]) -> SinkMessage:
        executor = ThreadPoolExecutor(_MOST_UPLOADS, thread_name_prefix="blobmsg-spark-upload")
        try:
            for batch in batches:
                for rows in cut_rows(batch, self._settings.batch_size_bytes):
                    self._add(rows, executor)
            for lane in self._lanes.values():
                self._begin_upload(lane, executor)
            self._finish_uploads(0)
        finally:
            # Without this a task that has failed, or was cancelled, would wait for its store.
            self._has_ended.set()
            executor.shutdown(wait=True, cancel_futures=True)
        return SinkMessage(query_id, tuple(self._notifications), self._objects.commit_by_ms)

    def _add(self, batch: pa.RecordBatch, executor: ThreadPoolExecutor) -> None:
        split = rows_by_topic(
            batch,
            self._options.topic,
            now_ms=self._worker.clock.timestamp_ms(),
            max_record_bytes=self._settings.record_max_bytes,
        )
        for rows in split:
            facts = self._facts_of(rows.topic)
            partitions = self._partitioners[rows.topic].partitions(
                rows.records.column(KEY), rows.sizes, rows.partitions
            )
            for zone, records, of_records in _by_zone(facts, rows, partitions):
                lane = self._lane(facts, zone)
                if lane.would_overflow(records):
                    self._begin_upload(lane, executor)
                inline_max_bytes = self._inline_max_bytes(facts)
                lane.add(rows.topic, facts, records, of_records, inline_max_bytes)
                if lane.is_full:
                    self._begin_upload(lane, executor)
        limit_bytes = _MOST_WAITING_BATCHES * self._settings.batch_size_bytes
        while sum(lane.waiting_bytes for lane in self._lanes.values()) > limit_bytes:
            fullest = max(self._lanes.values(), key=lambda lane: lane.waiting_bytes)
            self._begin_upload(fullest, executor)

    def _facts_of(self, topic: str) -> TopicFacts:
        facts = self._facts.get(topic)
        if facts is None:
            facts = self._facts[topic] = self._topics.facts(topic)
            self._partitioners[topic] = SinkPartitioner(
                topic, self._view, len(facts.destination_zones), facts.unavailable, self._rng
            )
        return facts

    def _lane(self, facts: TopicFacts, zone: str) -> SinkLane:
        key = LaneKey(self._settings.isolation, facts.retention_class, zone)
        lane = self._lanes.get(key)
        if lane is None:
            batch_bytes = self._settings.batch_size_bytes
            segment_bytes = min(batch_bytes, _MOST_SEGMENT_BYTES)
            if self._settings.route == "inline":
                # So that all but very large records fit, whatever their segment takes besides.
                segment_bytes = min(segment_bytes, self._inline_max_bytes(facts) // 2)
            lane = self._lanes[key] = SinkLane(key, batch_bytes, segment_bytes)
        return lane

    def _inline_max_bytes(self, facts: TopicFacts) -> int:
        return min(self._view.message_max_bytes, facts.max_message_bytes) - ENVELOPE_BYTES

    def _begin_upload(self, lane: SinkLane, executor: ThreadPoolExecutor) -> None:
        self._finish_uploads(_MOST_UPLOADS - 1)
        sealed = lane.seal()
        if sealed.segments:
            self._uploads.append(executor.submit(self._objects.write, sealed))

    def _finish_uploads(self, but: int) -> None:
        while len(self._uploads) > but:
            self._notifications += self._uploads.pop(0).result()


def _by_zone(
    facts: TopicFacts, rows: TopicRows, partitions: np.ndarray
) -> Iterator[tuple[str, pa.RecordBatch, np.ndarray]]:
    """Records by where they are going to be read; nearly always there is one answer for all."""
    zones = sorted(set(facts.destination_zones))
    if len(zones) == 1:
        yield zones[0], rows.records, partitions
        return
    numbers = np.array([zones.index(zone) for zone in facts.destination_zones])[partitions]
    for number, zone in enumerate(zones):
        places = np.flatnonzero(numbers == number)
        if len(places):
            yield zone, rows.records.take(places), partitions[places]
