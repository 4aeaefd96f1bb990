"""Repartitioning through the store: what the driver does.

Builds the plan of an exchange and deletes its objects in the end. The rows go through the store;
what Spark shuffles are their notifications.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.errors import BlobmsgError, ConfigError
from blobmsg.format.errors import FormatError
from blobmsg.format.object_key import NO_ZONE, ObjectKey, expiry_hour, retention_class
from blobmsg.resources import Stores
from blobmsg_spark.by_value import by_value
from blobmsg_spark.columns import all_columns, as_column
from blobmsg_spark.exchange import Exchange
from blobmsg_spark.group_function import GroupFunction
from blobmsg_spark.group_task import GroupTask
from blobmsg_spark.kept_partitioning import check_can_keep, with_hash_partitioning
from blobmsg_spark.map_task import MapTask
from blobmsg_spark.partitioning import content_hash, hash_partition
from blobmsg_spark.progress import Progress
from blobmsg_spark.ranges import sample_ranges
from blobmsg_spark.reduce_task import ReduceTask
from blobmsg_spark.row_types import check_key_types, check_row_types
from blobmsg_spark.sort_key import sort_keys
from blobmsg_spark.usage import ExchangeUsage, UsageParam, usage_table
from blobmsg_spark.worker import check_is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession
    from typing_extensions import Self

    from blobmsg_spark.columns import Columns

__all__ = ["DEFAULT_BATCH_BYTES", "Shuffle", "repartition"]

logger = logging.getLogger("blobmsg.spark")

#: Of the rows of an object, in memory. 1 GiB in 9 map tasks and 16 partitions takes 17 PUTs and
#: 272 GETs; with 16 MiB it would be 66 and 1,056 (Intel Xeon VM, PySpark 4.3), dearer than any
#: other way.
DEFAULT_BATCH_BYTES: Final = 64 << 20
# A reduce task holds `prefetch_bytes` and one segment more, which so has a bound in skewed data,
# too. Larger ones gain nothing: a request to S3 is bound by its bandwidth from about 8 MiB on.
_SEGMENT_BYTES: Final = 16 << 20
# A task holds five times as much, and Arrow's strings end at 2 GiB.
_MOST_BATCH_BYTES: Final = 1 << 30
_DAY_MS: Final = 24 * 3_600_000
_DELETED_AT_ONCE: Final = 1000
_PARTITION: Final = "_partition"
_MOST_PARTITIONS: Final = (1 << 31) - 1


class Shuffle:
    """Repartitions DataFrames through the store, and deletes what it wrote when it is closed.

    Args:
        spark: The session of the DataFrames.
        store: The store's url, or settings of blobmsg as its producers take them
            (`blobmsg.store.url`, `blobmsg.s3.endpoint.url` …). What they leave out comes from the
            environment of this process, and in executors from theirs.
        batch_bytes: Rows of one object, as bytes in memory. Larger objects make fewer requests;
            a map task holds about five times as much.
        compression: `none`, `lz4` or `zstd`; by default `blobmsg.compression.type`.
        prefetch_bytes: A reduce task holds at most so much and one segment (16 MiB, or one row);
            by default `blobmsg.prefetch.max.bytes`.
        disk_reserve_bytes: Rows stay on the executors' local disks, with Spark's own shuffle, as
            long as so much of a disk is free, then they go to the store, and back; None: always
            to the store.
        retention_ms: How long the objects of a job that never closed its shuffle live; by default
            `blobmsg.retention.ms`, else a day. Counted from the call that makes an exchange, whose
            last action must be over by then.
        progress: Whether a line on stderr tells how far each exchange is; by default when stderr
            is a terminal and Spark's own console progress, which has the same line, is off.

    Raises:
        ConfigError: A setting is unknown, out of range or contradicts another.
        ValueError: A size is not positive.

    Threads: any.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: str | Mapping[str, Any],
        *,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        compression: str | None = None,
        prefetch_bytes: int | None = None,
        disk_reserve_bytes: int | None = None,
        retention_ms: int | None = None,
        progress: bool | None = None,
    ) -> None:
        conf = {"blobmsg.store.url": store} if isinstance(store, str) else dict(store)
        if compression is not None:
            conf["blobmsg.compression.type"] = compression
        _check_size("batch_bytes", batch_bytes, 1)
        if batch_bytes > _MOST_BATCH_BYTES:
            raise ValueError(f"batch_bytes is {batch_bytes}: expected at most {_MOST_BATCH_BYTES}")
        _check_size("prefetch_bytes", prefetch_bytes, 1)
        _check_size("disk_reserve_bytes", disk_reserve_bytes, 0)
        _check_size("retention_ms", retention_ms, 1)
        self._settings, rest = parse_settings(conf, os.environ)
        if rest:
            raise ConfigError(
                f"{min(rest)!r} is no setting of a store: give those that begin with blobmsg.",
                setting=min(rest),
            )
        if self._settings.store_url is None:
            raise ConfigError(
                '"blobmsg.store.url" must be set: say where rows go, e.g. s3://bucket/prefix',
                setting="blobmsg.store.url",
            )
        check_is_shared(self._settings)
        self._spark = spark
        # The same url everywhere, whatever executors have in their environment.
        self._conf = {**conf, "blobmsg.store.url": self._settings.store_url}
        self._batch_bytes = batch_bytes
        self._prefetch_bytes = prefetch_bytes or self._settings.prefetch_max_bytes
        self._disk_reserve_bytes = disk_reserve_bytes
        self._token = secrets.token_hex(8)
        self._isolation = _isolation(self._settings.isolation, self._token)
        keep_ms = retention_ms or self._settings.retention_ms or _DAY_MS
        self._retention = retention_class(keep_ms)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._exchanges: list[tuple[str, Accumulator[ExchangeUsage] | None]] = []
        self._is_closed = False
        self._stores = Stores(self._settings)
        self._progress = _progress(spark, self.usage, progress)
        _open_shuffles.add(self)

    def repartition(
        self, df: DataFrame, n: int, *cols: Columns, keep_partitioning: bool = False
    ) -> DataFrame:
        """The same rows in `n` partitions; see `repartition`."""
        _check_partitions(n)
        columns = all_columns(cols)
        self._check(df)
        if keep_partitioning:
            check_can_keep(df, columns)
            placed = self.repartition(df, n, *columns)
            return with_hash_partitioning(placed, df, n, columns)
        if not df.columns:  # Arrow does not tell how many rows without columns there are
            return self.repartition(df.select(F.lit(0)), n, *columns).select()
        label = _label("repartition", n, columns)
        if not columns:
            # As Spark does: else a task that runs again may deal rows differently.
            unique = df.toDF(*_names(df))
            ordered = unique.sortWithinPartitions(content_hash(unique.schema))
            return self._exchange(ordered, df, n, label, is_dealt=True)
        keys = [as_column(one) for one in columns]
        check_key_types(df.select(*keys).schema)
        keyed = df.select(hash_partition(keys, n), "*")
        return self._exchange(keyed, df, n, label, is_dealt=False)

    def repartition_by_range(self, df: DataFrame, n: int, *cols: Columns) -> DataFrame:
        """The same rows in partitions of ascending ranges; reads the keys once for a sample.

        As `DataFrame.repartitionByRange`: fewer than `n` partitions when a sample of the keys has
        fewer distinct values.

        Args:
            df: The rows.
            n: How many partitions at most.
            *cols: At least one, or one list of them; with `asc()`, `desc()` and their kin if
                wanted.

        Raises:
            UnsupportedColumn: A column can't pass through the store.
            ValueError: No column; a streaming DataFrame; no partitions.
            RuntimeError: The shuffle is closed.
        """
        _check_partitions(n)
        columns = all_columns(cols)
        if not columns:
            raise ValueError("repartition_by_range needs at least one column to order rows by")
        self._check(df)
        if not df.columns:
            return self.repartition(df, n)
        ranges = sample_ranges(df, sort_keys(columns), n)
        keyed = ranges.with_partition(df)
        label = _label("repartition_by_range", n, columns)
        return self._exchange(keyed, df, ranges.partitions, label, is_dealt=False)

    def grouped(
        self,
        df: DataFrame,
        n: int,
        *cols: Columns,
        func: Callable[..., pa.Table | Iterator[pa.RecordBatch]],
        schema: StructType | str,
    ) -> DataFrame:
        """Apply a function to each group of rows, without a shuffle of Spark's behind ours.

        As `df.groupBy(*cols).applyInArrow(func, schema)`: rows are repartitioned through the
        store, and each partition is sorted by its keys by Spark, on disk where need be. One group
        is in memory at a time.

        Args:
            df: The rows.
            n: How many partitions.
            *cols: What makes a group, at least one; or one list of them.
            func: Called with the rows of a group, all columns of `df`, in any form that
                `applyInArrow` takes: `(table)`, `(keys, table)` with a tuple of `pyarrow.Scalar`,
                or by its hints an `Iterator[pyarrow.RecordBatch]` in and out. Gives rows of
                `schema`.
            schema: Of what comes out.

        Raises:
            UnsupportedColumn: A column can't pass through the store.
            TypeError: The function takes neither one nor two arguments.
            ValueError: No column; a streaming DataFrame; no partitions.
            RuntimeError: The shuffle is closed.
        """
        function = GroupFunction(func)
        keys = [as_column(one) for one in all_columns(cols)]
        if not keys:
            raise ValueError("grouped needs at least one column that makes a group")
        key_names = [f"k{number}" for number in range(len(keys))]
        # The keys go along: behind the exchange `df.k` means nothing, and a key that is not the
        # same each time would be another one than rows were placed by. By number: names may come
        # twice.
        keyed = df.select("*", *keys).toDF(*_names(df), *key_names)
        placed = self.repartition(keyed, n, *key_names)
        serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
        result_names = tuple(self._spark.createDataFrame([], schema).columns)
        task = GroupTask(len(keys), tuple(df.columns), result_names, serializer.dumps(function))
        return placed.sortWithinPartitions(*key_names).mapInArrow(by_value(task), schema)

    def _check(self, df: DataFrame) -> None:
        if self._is_closed:
            raise RuntimeError("the Shuffle is closed: its objects are deleted")
        if df.isStreaming:
            raise ValueError(
                "a streaming DataFrame never ends, objects of a shuffle do: repartition each "
                "micro-batch in foreachBatch"
            )
        check_row_types(df.schema)

    def _exchange(
        self, rows: DataFrame, df: DataFrame, n: int, label: str, *, is_dealt: bool
    ) -> DataFrame:
        """The plan of one exchange.

        Args:
            rows: Those of `df`; unless they are dealt, the first column is their partition.
            df: Whose names and types come out.
            n: How many partitions.
            label: For the report.
            is_dealt: See `Exchange`.
        """
        with self._lock:
            number = len(self._exchanges) + 1
            usage = _accumulator(self._spark)
            self._exchanges.append((f"{number} {label}", usage))
        now_ms = SystemClock().timestamp_ms()
        exchange = Exchange(
            conf=self._conf,
            environment=_environment(),
            name=f"{self._token}-{number}",
            partitions=n,
            isolation=self._isolation,
            expiry_hour=expiry_hour(now_ms, now_ms, self._retention, 0),
            begun_ms=now_ms,
            producer_id=secrets.token_bytes(16),
            batch_bytes=self._batch_bytes,
            segment_bytes=min(_SEGMENT_BYTES, self._batch_bytes),
            prefetch_bytes=self._prefetch_bytes,
            disk_reserve_bytes=self._disk_reserve_bytes,
            is_dealt=is_dealt,
        )
        names = _plain_names(df)
        numbered = rows.toDF(*([] if is_dealt else [_new_name(names)]), *names)
        schema = StructType(
            [
                StructField(name, field.dataType, field.nullable, field.metadata)
                for name, field in zip(names, df.schema.fields, strict=True)
            ]
        )
        notifications = numbered.mapInArrow(
            by_value(MapTask(exchange, usage)), "partition int not null, notification binary"
        )
        placed = notifications.repartitionById(n, F.col("partition"))
        reduced = placed.mapInArrow(by_value(ReduceTask(exchange, usage)), schema)
        return reduced if names == df.columns else reduced.toDF(*df.columns)

    def usage(self) -> dict[str, ExchangeUsage]:
        """What both stages of each exchange did, by number and call; empty with Spark Connect.

        Of tasks that have succeeded; a second action on the same DataFrame adds what it does, and
        one that ends early (`limit`, `show`) may add less than it did.
        """
        with self._lock:
            return {name: usage.value for name, usage in self._exchanges if usage is not None}

    def report(self) -> str:
        """Print tables of `usage`, by stage and by zone, at list prices, and return them."""
        with self._lock:
            is_known = all(usage is not None for _, usage in self._exchanges)
        if not is_known:
            text = "usage is not known here: Spark Connect has no accumulators"
        else:
            text = usage_table(list(self.usage().items()), self._settings.price_table)
        sys.stdout.write(f"{text}\n")
        return text

    def close(self) -> None:
        """Delete the objects of all its exchanges, those of failed attempts included.

        DataFrames that came from it must not be read any more: Spark would run their map tasks
        again, and nobody would delete those objects before their expiry hour. A second call does
        nothing.

        Raises:
            BlobmsgError: The store does not do it; a further call tries again. What nobody deletes
                goes with its expiry hour (`blobmsg gc`).
        """
        if self._is_closed:
            return
        if self._progress is not None:
            self._progress.stop()
        store = self._stores.get().store
        keys = (info.key for info in store.list_keys(f"{self._isolation}/"))
        while found := list(islice(keys, _DELETED_AT_ONCE)):
            store.delete(found)
        self._is_closed = True
        _open_shuffles.discard(self)
        self._stores.close()

    def close_quietly(self) -> None:
        """Close it; what fails is only logged, and not tried again."""
        if self._pid != os.getpid():
            return  # a child of a fork: the objects are its parent's
        try:
            self.close()
        except BlobmsgError as error:
            _open_shuffles.discard(self)
            self._stores.close()
            logger.warning(
                "objects below %s/ stay until their expiry hour (blobmsg gc): %s",
                self._isolation,
                error,
            )

    def __enter__(self) -> Self:
        """The shuffle itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; after an error what fails then is only logged."""
        if error is None:
            self.close()
        else:
            self.close_quietly()


# Those that nobody has closed are closed when Python ends.
_open_shuffles: Final[set[Shuffle]] = set()


@atexit.register
def _close_all() -> None:
    for shuffle in list(_open_shuffles):
        shuffle.close_quietly()


def repartition(
    df: DataFrame,
    n: int,
    *cols: Columns,
    store: str | Mapping[str, Any],
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    compression: str | None = None,
    prefetch_bytes: int | None = None,
    keep_partitioning: bool = False,
) -> DataFrame:
    """The same rows in `n` partitions, through the store: as `df.repartition(n, *cols)`.

    With columns each row is in the same partition as with Spark's own; without, every partition
    gets as many rows, up to one per map task. The objects live until this process ends: a `Shuffle`
    deletes them sooner and tells what they cost.

    Args:
        df: Rows; not streaming.
        n: How many partitions, at least 1.
        *cols: By whose hash rows are placed; or one list of them.
        store: See `Shuffle`, likewise the others.
        batch_bytes: Rows of one object, as bytes in memory.
        compression: `none`, `lz4` or `zstd`.
        prefetch_bytes: A reduce task holds at most so much and one segment.
        keep_partitioning: Tell Spark how rows are partitioned, so that a `groupBy` or a join on the
            same columns does not shuffle them again. Needs a classic session and private classes
            of Spark 4.3, and with adaptive execution runs the map stage at once.

    Raises:
        ConfigError: A setting is unknown, out of range or contradicts another.
        NotImplementedError: `keep_partitioning` can't be had here.
        UnsupportedColumn: A column can't pass through the store.
        ValueError: A streaming DataFrame; no partitions; a size is not positive; no columns whose
            partitioning could be kept.
    """
    shuffle = Shuffle(
        df.sparkSession,
        store,
        batch_bytes=batch_bytes,
        compression=compression,
        prefetch_bytes=prefetch_bytes,
    )
    return shuffle.repartition(df, n, *cols, keep_partitioning=keep_partitioning)


def _names(df: DataFrame) -> list[str]:
    return [f"c{number}" for number in range(len(df.columns))]


def _plain_names(df: DataFrame) -> list[str]:
    """Names by which mapInArrow finds the columns: their own where that is easy, else numbers.

    It parses each name, and dots, backticks and stars mean something there; names that differ only
    in case may be one to Spark. A `toDF` behind it that gives them back takes a copy of every row.
    """
    names = df.columns
    is_easy = all(name.isascii() and name.isidentifier() for name in names)
    return names if is_easy and len({name.lower() for name in names}) == len(names) else _names(df)


def _new_name(names: list[str]) -> str:
    """One for the partition that none of them is."""
    longest = max(map(len, names), default=0)
    return "_" * longest + _PARTITION


def _label(method: str, n: int, columns: Iterable[Column | str]) -> str:
    """The call of a method, for the report."""
    return f"{method}({', '.join([str(n), *map(_text, columns)])})"


def _text(column: Column | str) -> str:
    return column if isinstance(column, str) else str(column)[len("Column<'") : -len("'>")]


def _check_partitions(n: int) -> None:
    if type(n) is not int:
        raise TypeError(f"n is {n!r}: give the number of partitions, then the columns")
    if not 1 <= n <= _MOST_PARTITIONS:
        raise ValueError(f"n is {n}: expected 1 to {_MOST_PARTITIONS} partitions")


def _check_size(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ValueError(f"{name} is {value}: expected at least {least}")


def _isolation(isolation: str, token: str) -> str:
    """The path element below which all objects of a shuffle lie."""
    own = f"{isolation}.{token}"
    try:
        ObjectKey(own, "0", "forever", NO_ZONE, "0" * 32, 0)
    except FormatError as error:
        raise ConfigError(
            f'"blobmsg.isolation" {isolation!r} leaves no room for the name of a shuffle: {error}',
            setting="blobmsg.isolation",
        ) from error
    return own


def _environment() -> dict[str, str]:
    """What executors need of this process' environment; their zone and their disks are theirs."""
    own = ("BLOBMSG_ZONE", "BLOBMSG_CACHE_", "BLOBMSG_SPILL_", "BLOBMSG_DEV_", "BLOBMSG_TEST_")
    return {
        name: text
        for name, text in os.environ.items()
        if name.startswith("BLOBMSG_") and not name.startswith(own)
    }


def _accumulator(spark: SparkSession) -> Accumulator[ExchangeUsage] | None:
    try:
        context = spark.sparkContext
    except PySparkException:
        return None  # Spark Connect has no accumulators
    return context.accumulator(ExchangeUsage(), UsageParam())


def _progress(
    spark: SparkSession, usages: Callable[[], dict[str, ExchangeUsage]], is_wanted: bool | None
) -> Progress | None:
    """What draws how far exchanges are; None when it is not wanted, or nobody knows."""
    if is_wanted is False or (is_wanted is None and not sys.stderr.isatty()):
        return None
    try:
        context = spark.sparkContext
    except PySparkException:
        return None  # Spark Connect has progress of its own: spark.registerProgressHandler
    if is_wanted is None and context.getConf().get("spark.ui.showConsoleProgress") == "true":
        return None
    progress = Progress(usages, context.statusTracker(), sys.stderr)
    progress.start()
    return progress
