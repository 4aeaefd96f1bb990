"""Histories read back: as a DataFrame, or as the files that count, for whatever reads Parquet.

What is in a folder does not count, what manifests name does: files of runs that failed lie beside
the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from blobmsg.errors import ConfigError
from blobmsg_spark.by_value import by_value
from blobmsg_spark.history_keys import file_key
from blobmsg_spark.history_log import HistoryLog
from blobmsg_spark.history_store import history_place
from blobmsg_spark.source_schema import arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from blobmsg_spark.history_manifest import HistoryFile
    from blobmsg_spark.history_store import HistoryPlace

__all__ = ["clean_history", "history_files", "read_history"]

# Spark's JVM copies each batch into memory of its own; as the source.
_MAX_BATCH_BYTES: Final = 4 << 20
_DELETED_AT_ONCE: Final = 1000
_SCHEMA: Final = arrow_schema(include_headers=True)


def history_files(store: str | Mapping[str, Any], *topics: str) -> list[str]:
    """The Parquet files of some topics' histories, for pandas, DuckDB, pyarrow, Spark.

    All of what any run has committed before the call; none of it changes or goes.

    Args:
        store: The url of the store, or settings of blobmsg (`blobmsg.store.url` …).
        *topics: At least one.

    Returns:
        Paths on this machine for `file://`, else urls; by topic as given, partition, offset.

    Raises:
        ConfigError: A setting is wrong, or a topic has no history there.
        BlobmsgError: A manifest is damaged, or the store refuses or does not answer.

    Threads: any.
    """
    place = _place(store)
    return [place.path_of(file_key(topic, file.name)) for topic, file in _files(place, topics)]


def read_history(
    spark: SparkSession,
    store: str | Mapping[str, Any],
    *topics: str,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Records of some topics, as `spark.read.format("blobmsg")` gives them, out of their histories.

    Files are read by blobmsg's own store, so Spark needs no JAR for S3; each is read by one task,
    whole, and checked against its manifest. It has what any run had committed before the call.

    Args:
        spark: The session; classic or Connect.
        store: The url of the store, or settings of blobmsg (`blobmsg.store.url` …).
        *topics: At least one.
        columns: Only these; the others are not decoded.

    Raises:
        ConfigError: A setting is wrong, or a topic has no history there.
        ValueError: There is no such column.
        BlobmsgError: A manifest is damaged, or the store refuses or does not answer.

    Threads: any.
    """
    schema = spark_schema(include_headers=True)
    names = schema.names if columns is None else list(columns)
    for name in names:
        if name not in schema.names:
            raise ValueError(f"{name!r} is no column of a history: {', '.join(schema.names)}")
    place = _place(store)
    files = tuple(_files(place, topics))
    task = _FilesTask(place, files, tuple(names))
    chosen = spark.createDataFrame([], schema).select(*names).schema
    numbers = spark.range(0, len(files), 1, max(1, len(files)))
    return numbers.mapInArrow(by_value(task), chosen)


def clean_history(store: str | Mapping[str, Any], *topics: str, delete: bool = True) -> list[str]:
    """Delete files that no manifest names and none will: of failed, killed and beaten runs.

    Safe at any time, beside runs and readers: what a run under way has written is not touched, and
    goes, if that run fails, when another one has written the same records.

    Args:
        store: The url of the store, or settings of blobmsg (`blobmsg.store.url` …).
        *topics: At least one.
        delete: Whether to delete them, or only to say which.

    Returns:
        Their paths or urls.

    Raises:
        ConfigError: A setting is wrong, or a topic has no history there.
        BlobmsgError: A manifest is damaged, or the store refuses or does not answer.

    Threads: any.
    """
    place = _place(store)
    opened = place.open()
    found: list[str] = []
    for history in _histories(place, topics):
        keys = (info.key for info in history.left_over())
        while batch := list(islice(keys, _DELETED_AT_ONCE)):
            if delete:
                opened.store.delete(batch)
            found += map(place.path_of, batch)
    return found


def _place(store: str | Mapping[str, Any]) -> HistoryPlace:
    return history_place({"blobmsg.store.url": store} if isinstance(store, str) else store)


def _files(place: HistoryPlace, topics: Sequence[str]) -> Iterator[tuple[str, HistoryFile]]:
    for history in _histories(place, topics):
        for file in history.files():
            yield history.topic, file


def _histories(place: HistoryPlace, topics: Sequence[str]) -> Iterator[HistoryLog]:
    if not topics:
        raise ConfigError("name at least one topic whose history is wanted")
    opened = place.open()
    for topic in topics:
        history = HistoryLog(opened, topic)
        history.refresh()
        if history.newest is None:
            raise ConfigError(
                f"there is no history of {topic} in {opened.store.describe()}: fix the store or "
                "the topic, or write one with blobmsg_spark.reconcile"
            )
        yield history


@dataclass(frozen=True, slots=True)
class _FilesTask:
    """Reads the files whose numbers it gets; runs in Python workers of Spark."""

    place: HistoryPlace
    files: tuple[tuple[str, HistoryFile], ...]
    columns: tuple[str, ...]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(*self.files[number])

    def _read(self, topic: str, file: HistoryFile) -> Iterator[pa.RecordBatch]:
        data = self.place.open().read(file_key(topic, file.name), file.size_bytes, file.crc32)
        parquet = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)))
        wanted = pa.schema([_SCHEMA.field(name) for name in self.columns])
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group, columns=list(self.columns))
            table = table.select(self.columns).cast(wanted)
            step = max(1, table.num_rows * _MAX_BATCH_BYTES // max(1, table.nbytes))
            yield from table.to_batches(max_chunksize=step)
