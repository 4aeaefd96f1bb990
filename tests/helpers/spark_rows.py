"""Rows of DataFrames, to be compared with those of Spark's own shuffle."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["rows_by_partition", "rows_of"]


def rows_by_partition(df: DataFrame) -> dict[int, Counter[str]]:
    """Each partition's rows as texts, with how often each one is there."""
    table = df.select(F.spark_partition_id(), "*").toArrow()
    partitions = table.column(0).to_pylist()
    rows = zip(*(column.to_pylist() for column in table.columns[1:]), strict=True)
    found: dict[int, Counter[str]] = {}
    for partition, row in zip(partitions, rows, strict=True):
        found.setdefault(partition, Counter())[repr(row)] += 1
    return found


def rows_of(df: DataFrame) -> Counter[str]:
    """All rows, wherever they are."""
    return sum(rows_by_partition(df).values(), Counter())
