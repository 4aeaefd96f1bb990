"""What is shuffled in the Spark bench: rows, and what is done with them.

Every case is a function of a `place` that repartitions, so that all sides run the same plan but for
that. Rows are made where they are used, by expressions that cost next to nothing: what a value has
is cut from one block of a MiB at a place that follows from the row's number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["CASES", "MAP_TASKS", "PARTITIONS", "Case", "Place"]

MAP_TASKS = 8
PARTITIONS = 16
_BLOCK_BYTES = 1 << 20
_VALUE_BYTES = 1000
#: With its key and number.
_ROW_BYTES = 1024
_ORDER_BYTES = 96
_LINES_PER_ORDER = 4
_WORDS = (
    "carefully", "final", "deposits", "sleep", "furiously", "express", "requests", "among", "the",
    "blithely", "pending", "accounts", "haggle", "quickly", "regular", "ideas", "above", "slyly",
)  # fmt: skip


class Place(Protocol):
    """Repartitions by columns; with `keep` Spark may know the partitioning afterwards."""

    def __call__(self, df: DataFrame, n: int, *columns: str, keep: bool = False) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class Case:
    """One job.

    Attributes:
        name: In tables.
        what: It in words.
        share: Of the bench's size.
        is_by_partition: Whether rows must be in the same partitions as well.
        build: The DataFrame that is written; called with session, MiB and a `Place`.
    """

    name: str
    what: str
    share: float
    is_by_partition: bool
    build: Callable[[SparkSession, int, Place], DataFrame]


@lru_cache(maxsize=2)
def _block(is_text: bool) -> bytes:
    chance = random.Random(7)
    if not is_text:
        return chance.randbytes(_BLOCK_BYTES)
    words = " ".join(chance.choices(_WORDS, k=_BLOCK_BYTES // 4))
    return words[:_BLOCK_BYTES].encode()


@lru_cache(maxsize=2)
def _literal(is_text: bool) -> Column:
    """The block as a column, made once: handing a MiB to the JVM costs more than a small job."""
    return F.lit(bytearray(_block(is_text)))


def _cut(number: Column, length: int, *, is_text: bool) -> Column:
    start = F.pmod(F.xxhash64(number), F.lit(_BLOCK_BYTES - length)).cast("int") + 1
    return F.substring(_literal(is_text), start, length)


def _chance(seed: int, below: int) -> Column:
    return F.pmod(F.xxhash64(F.lit(seed), F.col("id")), F.lit(below))


def _rows(spark: SparkSession, mib: int, *, is_text: bool = False, skew: int = 0) -> DataFrame:
    """Rows of a KiB; so many percent have one and the same key."""
    rows = spark.range(0, mib * (1 << 20) // _ROW_BYTES, 1, MAP_TASKS)
    key = F.when(_chance(3, 100) < skew, F.lit(0)).otherwise(F.xxhash64("id"))
    return rows.select("id", key.alias("key"), _cut(F.col("id"), _VALUE_BYTES, is_text=is_text)
                       .alias("value"))  # fmt: skip


def _repartition(**options: Any) -> Callable[[SparkSession, int, Place], DataFrame]:
    return lambda spark, mib, place: place(_rows(spark, mib, **options), PARTITIONS, "key")


def _orders(spark: SparkSession, mib: int) -> DataFrame:
    count = mib * (1 << 20) // (_ORDER_BYTES * (1 + _LINES_PER_ORDER))
    return spark.range(0, count, 1, MAP_TASKS).select(
        F.col("id").alias("o_orderkey"),
        _chance(11, 150_000).alias("o_custkey"),
        F.date_add(F.lit("1992-01-01").cast("date"), _chance(12, 2400).cast("int"))
        .alias("o_orderdate"),
        (_chance(13, 5) + 1).cast("string").alias("o_orderpriority"),
        _cut(F.col("id"), 49, is_text=True).cast("string").alias("o_comment"),
    )  # fmt: skip


def _lines(spark: SparkSession, mib: int) -> DataFrame:
    orders = mib * (1 << 20) // (_ORDER_BYTES * (1 + _LINES_PER_ORDER))
    return spark.range(0, orders * _LINES_PER_ORDER, 1, MAP_TASKS).select(
        # As in TPC-H, some orders have many lines and some have none.
        _chance(21, orders).alias("l_orderkey"),
        (_chance(22, 50) + 1).cast("decimal(12,2)").alias("l_quantity"),
        (_chance(23, 9_000_000) / 100).cast("decimal(12,2)").alias("l_extendedprice"),
        (_chance(24, 11) / 100).cast("decimal(12,2)").alias("l_discount"),
        F.date_add(F.lit("1992-01-01").cast("date"), _chance(25, 2500).cast("int"))
        .alias("l_shipdate"),
        _chance(26, 7).cast("string").alias("l_shipmode"),
        _cut(F.col("id"), 27, is_text=True).cast("string").alias("l_comment"),
    )  # fmt: skip


def _join(spark: SparkSession, mib: int, place: Place) -> DataFrame:
    """Revenue by priority and ship mode, as TPC-H's queries 3 and 12 join orders and lines."""
    orders = place(_orders(spark, mib), PARTITIONS, "o_orderkey", keep=True)
    lines = place(_lines(spark, mib), PARTITIONS, "l_orderkey", keep=True)
    joined = orders.join(lines, F.col("o_orderkey") == F.col("l_orderkey"))
    revenue = F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount")))
    # Comments are asked for, so that whole rows are shuffled as the plain repartition does.
    words = F.sum(F.length("o_comment") + F.length("l_comment"))
    return joined.groupBy("o_orderpriority", "l_shipmode").agg(
        revenue, words, F.min("o_orderdate"), F.max("l_shipdate"), F.max("o_custkey"), F.count("*")
    )


def _aggregation(spark: SparkSession, mib: int, place: Place) -> DataFrame:
    """Orders of a large quantity, as TPC-H's query 18 groups lines."""
    lines = place(_lines(spark, mib), PARTITIONS, "l_orderkey", keep=True)
    sums = lines.groupBy("l_orderkey").agg(
        F.sum("l_quantity").alias("quantity"), F.max("l_comment"), F.max("l_shipdate"),
        F.sum("l_extendedprice"), F.min("l_discount"), F.min("l_shipmode"),
    )  # fmt: skip
    return sums.where("quantity > 150")


CASES = (
    Case("random", f"rows of 1 KiB to {PARTITIONS} partitions, values that do not compress", 1,
         is_by_partition=True, build=_repartition()),
    Case("text", "the same, values of words, which compress", 0.5,
         is_by_partition=True, build=_repartition(is_text=True)),
    Case("skew", "values that do not compress, 90 % of the rows in one partition", 0.5,
         is_by_partition=True, build=_repartition(skew=90)),
    Case("join", "orders and four times as many lines, both repartitioned by order, joined and "
         "aggregated", 0.5, is_by_partition=False, build=_join),
    Case("aggregation", "lines repartitioned by order and aggregated by it", 0.5,
         is_by_partition=False, build=_aggregation),
)  # fmt: skip
