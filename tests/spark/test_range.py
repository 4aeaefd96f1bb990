"""Partitions by range: every row once, ranges that ascend, and a size that a sample can give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from blobmsg_spark import Shuffle
from tests.helpers.spark_rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_COLUMNS = {
    "id": "(id * 7919) % 3000",
    "few": "id % 3",
    "maybe": "if(id % 4 = 0, null, id % 50)",
    "double": "case id % 9 when 0 then double('NaN') when 1 then -0.0d else id - 1500.5 end",
    "text": "concat(if(id % 2 = 0, 'ä', 'z'), id)",
    "collated": "concat(if(id % 2 = 0, 'Text', 'tEXT'), id % 40) collate UTF8_LCASE",
    "moment": "timestamp_micros(id * 98765432123 - 4000000000000)",
    "amount": "cast(id - 1500 as decimal(30, 2))",
    "struct": "struct(id % 5 as a, struct(if(id % 2 = 0, null, id) as c) as b)",
    "list": "sequence(0, id % 5)",
    "bytes": "unhex(hex(id * 31))",
}


@pytest.fixture(scope="module")
def shuffled(spark: SparkSession) -> DataFrame:
    return (
        spark.range(0, 3000, 1, 3)
        .select(*(F.expr(text).alias(name) for name, text in _COLUMNS.items()))
        .cache()
    )


def _orders() -> list[Any]:
    return [
        pytest.param(["id"], id="number"),
        pytest.param([("id", "desc")], id="descending"),
        pytest.param(["maybe", "id"], id="nulls-first"),
        pytest.param([("maybe", "asc_nulls_last"), ("id", "desc")], id="nulls-last"),
        pytest.param([("maybe", "desc_nulls_first"), "text"], id="descending-nulls-first"),
        pytest.param([("double", "desc"), "id"], id="nan-and-zeros"),
        pytest.param(["text"], id="text"),
        pytest.param(["collated", "id"], id="collated"),
        pytest.param([("moment", "desc")], id="timestamp"),
        pytest.param(["amount"], id="decimal"),
        pytest.param(["struct"], id="struct"),
        pytest.param(["list", "bytes"], id="list-and-bytes"),
    ]


def _column(order: str | tuple[str, str]) -> Column | str:
    if isinstance(order, str):
        return order
    name, direction = order
    found: Column = getattr(F.col(name), direction)()
    return found


@pytest.mark.parametrize("order", _orders())
def test_partitions_are_ranges_of_about_equal_size(
    shuffled: DataFrame, store: str, order: list[str | tuple[str, str]]
) -> None:
    columns = [_column(one) for one in order]
    with Shuffle(shuffled.sparkSession, store) as shuffle:
        ours = shuffle.repartition_by_range(shuffled, 4, *columns).withColumn(
            "partition", F.spark_partition_id()
        )
        ours = ours.cache()
        try:
            assert rows_of(ours.drop("partition")) == rows_of(shuffled)
            # In the order that Spark itself sorts by, the partition never falls; and rows that
            # are equal by it are in one partition.
            rank = F.rank().over(Window.orderBy(*columns))
            ranked: Any = ours.select("partition", rank.alias("rank")).toPandas()
        finally:
            ours.unpersist()
    partitions = ranked.groupby("rank")["partition"]
    assert (partitions.nunique() == 1).all()
    assert partitions.first().sort_index().is_monotonic_increasing
    sizes = ranked.groupby("partition").size()
    assert len(sizes) == 4
    assert sizes.max() < 2 * 3000 / 4


def test_few_values_make_few_partitions_as_with_spark_itself(
    shuffled: DataFrame, store: str
) -> None:
    with Shuffle(shuffled.sparkSession, store) as shuffle:
        ours = shuffle.repartition_by_range(shuffled, 20, "few")

        assert rows_of(ours) == rows_of(shuffled)
        native = shuffled.repartitionByRange(20, "few")
        assert ours.rdd.getNumPartitions() <= native.rdd.getNumPartitions() + 1 <= 5


def test_no_rows_are_one_partition_without_rows(shuffled: DataFrame, store: str) -> None:
    with Shuffle(shuffled.sparkSession, store) as shuffle:
        ours = shuffle.repartition_by_range(shuffled.where("id < 0"), 4, "id")

        assert ours.count() == 0
        assert ours.schema == shuffled.schema


def test_a_dataframe_without_columns_keeps_its_rows(spark: SparkSession, store: str) -> None:
    with Shuffle(spark, store) as shuffle:
        assert shuffle.repartition_by_range(spark.range(10).select(), 3, F.lit(1)).count() == 10


def test_keys_may_be_python_functions(spark: SparkSession, store: str) -> None:
    negated = F.udf(lambda number: -number, "long")
    rows = spark.range(0, 100, 1, 2).withColumn("_bounds", F.col("id"))
    with Shuffle(spark, store) as shuffle:
        ours = shuffle.repartition_by_range(rows, 3, negated("id"))

        assert rows_of(ours) == rows_of(rows)


def test_ranges_need_a_column(shuffled: DataFrame, store: str) -> None:
    with (
        Shuffle(shuffled.sparkSession, store) as shuffle,
        pytest.raises(ValueError, match="at least one column"),
    ):
        shuffle.repartition_by_range(shuffled, 4)
