"""Partitions by range: bounds from a sample of the keys, and a row's place among them.

As Spark's own range partitioning: as many rows are sampled, a sample of a task counts for the rows
that it stands for, and bounds that are equal make fewer partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from blobmsg_spark.by_value import by_value
from blobmsg_spark.worker import partition_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from pyspark.sql import Column, DataFrame

    from blobmsg_spark.sort_key import SortKey

__all__ = ["Ranges", "sample_ranges"]

# Spark's own numbers: so many samples per partition, at most so many in all, and three times a
# task's share from each because tasks differ in size. A task does not know how many there are: with
# more than 16 more is sampled, with fewer, less.
_SAMPLES_PER_PARTITION: Final = 100
_MOST_SAMPLES: Final = 1_000_000
_OVERSAMPLING: Final = 3
_TASKS: Final = 16
_BOUNDS, _WEIGHT = "_bounds", "_weight"


@dataclass(frozen=True, slots=True)
class Ranges:
    """The bounds between partitions.

    Attributes:
        keys: What rows are ordered by.
        bounds: A row per bound, a column per key; in order, and none twice but for NaN and
            strings that are equal by their collation: these make partitions without rows.
        schema: Theirs; Arrow knows no collations.
    """

    keys: Sequence[SortKey]
    bounds: pa.Table
    schema: StructType

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.bounds) + 1

    def with_partition(self, df: DataFrame) -> DataFrame:
        """The rows, and before their columns the partition of each; names are lost."""
        if not self.bounds.num_rows:
            return df.select(F.lit(0), "*")
        one_row = pa.table(
            {
                _BOUNDS: pa.ListArray.from_arrays(
                    [0, self.bounds.num_rows],
                    pa.StructArray.from_arrays(
                        [column.combine_chunks() for column in self.bounds.columns],
                        names=self.bounds.column_names,
                    ),
                )
            }
        )
        bounds = df.sparkSession.createDataFrame(
            one_row, StructType([StructField(_BOUNDS, ArrayType(self.schema))])
        )
        # Keys as columns of their own, so that each is computed once; names may come twice.
        key_names = self.bounds.column_names
        names = [f"c{number}" for number in range(len(df.columns))]
        keyed = df.select(*(key.value for key in self.keys), "*").toDF(*key_names, *names)
        joined = keyed.crossJoin(F.broadcast(bounds))
        return joined.select(self._partition(F.col(_BOUNDS)), *names)

    def _partition(self, bounds: Column) -> Column:
        """How many bounds lie before the row: a binary search without branches.

        `aggregate` takes steps of halving length; a step is taken when the bound at its end is
        before the row.
        """
        count = self.bounds.num_rows
        steps = [1 << bit for bit in reversed(range(count.bit_length()))]

        def take(place: Column, step: Column) -> Column:
            end = place + step
            bound = F.get(bounds, end - 1)
            return F.when((end <= count) & self._is_before(bound), end).otherwise(place)

        return F.aggregate(F.array(*map(F.lit, steps)), F.lit(0), take)

    def _is_before(self, bound: Column) -> Column:
        """Whether a bound comes before the row, key by key."""
        names = self.bounds.column_names
        result: Column = F.lit(False)
        for key, name in reversed(list(zip(self.keys, names, strict=True))):
            cell = bound.getField(name)
            own = F.col(name)
            result = key.is_less(cell, own) | (cell.eqNullSafe(own) & result)
        return result


def sample_ranges(df: DataFrame, keys: Sequence[SortKey], partitions: int) -> Ranges:
    """Read the keys once and choose bounds, as Spark's own range partitioning does.

    Args:
        df: The rows.
        keys: What they are ordered by.
        partitions: How many at most.
    """
    names = [f"k{number}" for number in range(len(keys))]
    selected = df.select(*(key.value.alias(name) for key, name in zip(keys, names, strict=True)))
    weighted = StructType([*selected.schema.fields, StructField(_WEIGHT, DoubleType(), False)])
    wanted = min(_SAMPLES_PER_PARTITION * partitions, _MOST_SAMPLES)
    per_task = -(-_OVERSAMPLING * wanted // _TASKS)
    samples = selected.mapInArrow(by_value(_SampleTask(per_task)), weighted)
    # With many tasks there are more than the driver should have.
    sample = samples.orderBy(F.rand(0)).limit(_OVERSAMPLING * wanted).toArrow()
    if not sample.num_rows:
        return Ranges(keys, sample.select(names), selected.schema)
    orders = [key.order_of(F.col(name)) for key, name in zip(keys, names, strict=True)]
    ordered = df.sparkSession.createDataFrame(sample, weighted).orderBy(*orders).toArrow()
    weights = ordered.column(_WEIGHT).to_numpy()
    bounds = _choose_bounds(ordered.select(names), weights, partitions)
    return Ranges(keys, bounds, selected.schema)


def _choose_bounds(
    samples: pa.Table, weights: npt.NDArray[np.float64], partitions: int
) -> pa.Table:
    """The samples that end a partition of equal weight, in order; one of those that are equal."""
    ends = np.cumsum(weights)
    wanted = ends[-1] * np.arange(1, partitions) / partitions
    places = np.unique(np.minimum(np.searchsorted(ends, wanted), len(ends) - 1))
    found = samples.take(pa.array(places)).combine_chunks()
    rows = [found.slice(number, 1) for number in range(found.num_rows)]
    news = [number for number in range(len(rows)) if not number or rows[number] != rows[number - 1]]
    return found.take(pa.array(news, pa.int64()))


@dataclass(frozen=True, slots=True)
class _SampleTask:
    """Called in an executor with the keys of one task: gives some of them by chance.

    Args:
        rows: How many.
    """

    rows: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Samples, and how many rows each of them stands for."""
        # The same ones when the task runs again.
        chance = np.random.default_rng(partition_id())
        kept: pa.Table | None = None
        drawn: npt.NDArray[np.float64] = np.empty(0)
        seen = 0
        for rows in batches:
            seen += rows.num_rows
            drawn = np.concatenate([drawn, chance.random(rows.num_rows)])
            new = pa.Table.from_batches([rows])
            kept = new if kept is None else pa.concat_tables([kept, new])
            if len(drawn) > self.rows:
                smallest = np.sort(np.argpartition(drawn, self.rows)[: self.rows])
                drawn, kept = drawn[smallest], kept.take(pa.array(smallest))
        if kept is not None and kept.num_rows:
            weights = pa.array(np.full(kept.num_rows, seen / kept.num_rows))
            field = pa.field(_WEIGHT, pa.float64(), nullable=False)
            yield from kept.append_column(field, weights).combine_chunks().to_batches()
