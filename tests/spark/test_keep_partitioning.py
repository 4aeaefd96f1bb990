"""After a repartitioning of ours a `groupBy` or join on the same columns adds no Exchange."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from blobmsg_spark import Shuffle, repartition
from blobmsg_spark.kept_partitioning import _Plan
from tests.helpers.spark_rows import rows_by_partition, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, SparkSession


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 600, 1, 3).select(
        "id",
        (F.col("id") % 7).alias("few"),
        F.expr("if(id % 5 = 0, null, concat('text ', id % 11))").alias("text"),
    )


@contextmanager
def _conf(spark: SparkSession, **settings: str) -> Iterator[None]:
    names = {name.replace("_", "."): text for name, text in settings.items()}
    before = {name: spark.conf.get(name) or "" for name in names}
    try:
        for name, text in names.items():
            spark.conf.set(name, text)
        yield
    finally:
        for name, text in before.items():
            spark.conf.set(name, text)


def _exchanges(df: DataFrame) -> int:
    """Of the plan that was run, with adaptive execution the final one."""
    query = df._jdf.queryExecution()
    return str(query.executedPlan().toString()).count("Exchange ")


@pytest.mark.parametrize("is_adaptive", ["true", "false"])
@pytest.mark.parametrize("keys", [("few",), ("text", "few")], ids="-".join)
def test_a_group_by_on_the_same_columns_adds_no_exchange(
    rows: DataFrame, store: str, keys: tuple[str, ...], is_adaptive: str
) -> None:
    with _conf(rows.sparkSession, spark_sql_adaptive_enabled=is_adaptive):
        ours = repartition(rows, 5, *keys, store=store, keep_partitioning=True)
        counts = ours.groupBy(*keys).agg(F.count("*"), F.sum("id"))
        forgotten = repartition(rows, 5, *keys, store=store).groupBy(*keys).count()
        native = rows.groupBy(*keys).agg(F.count("*"), F.sum("id"))

        assert rows_of(counts) == rows_of(native)
        assert _exchanges(counts) == 0
        # The one of the notifications, and the one that this is about.
        assert _exchanges(forgotten) == 2
        assert ours.schema == rows.schema
        assert rows_by_partition(ours) == rows_by_partition(rows.repartition(5, *keys))


@pytest.mark.parametrize("is_adaptive", ["true", "false"])
def test_two_of_them_are_joined_without_an_exchange(
    rows: DataFrame, store: str, is_adaptive: str
) -> None:
    other = rows.where("id % 3 = 0").select("few", F.col("id").alias("other"))
    spark = rows.sparkSession
    with (
        _conf(
            spark,
            spark_sql_adaptive_enabled=is_adaptive,
            spark_sql_autoBroadcastJoinThreshold="-1",
        ),
        Shuffle(spark, store) as shuffle,
    ):
        left = shuffle.repartition(rows, 4, "few", keep_partitioning=True)
        right = shuffle.repartition(other, 4, "few", keep_partitioning=True)
        joined = left.join(right, "few").groupBy("few").agg(F.count("*"), F.sum("other"))

        native = rows.join(other, "few").groupBy("few").agg(F.count("*"), F.sum("other"))
        assert rows_of(joined) == rows_of(native)
        assert _exchanges(joined) == 0


@pytest.mark.parametrize("key", ["column", "expression"])
def test_columns_of_the_input_still_mean_columns_of_the_result(
    rows: DataFrame, store: str, key: str
) -> None:
    keys: Column = rows["few"] if key == "column" else rows["id"] % 10
    ours = repartition(rows, 4, keys, store=store, keep_partitioning=True)
    counts = ours.where(rows["id"] > 100).groupBy(keys).count()

    assert rows_of(counts) == rows_of(rows.where("id > 100").groupBy(keys).count())
    assert _exchanges(counts) == 0


def test_other_columns_still_shuffle(rows: DataFrame, store: str) -> None:
    ours = repartition(rows, 4, "few", store=store, keep_partitioning=True)
    counts = ours.groupBy("text").count()

    assert rows_of(counts) == rows_of(rows.groupBy("text").count())
    assert _exchanges(counts) == 1


def test_it_can_be_joined_with_itself(rows: DataFrame, store: str) -> None:
    ours = repartition(rows, 4, "few", store=store, keep_partitioning=True)
    pairs = ours.alias("a").join(ours.alias("b"), "id").select("a.few", "b.text")

    assert rows_of(pairs) == rows_of(rows.select("few", "text"))


def test_rows_that_are_dealt_have_no_partitioning_to_keep(rows: DataFrame, store: str) -> None:
    with pytest.raises(ValueError, match="needs columns"):
        repartition(rows, 4, store=store, keep_partitioning=True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("NoSuchPartitioning", "JavaPackage"), ("HashPartitioning", "does not exist")],
    ids=["no class", "another constructor"],
)
def test_another_spark_is_refused_before_anything_runs(
    rows: DataFrame, store: str, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    def other(plan: Any, n: int) -> Any:
        return getattr(plan._physical, name)(n)

    monkeypatch.setattr(_Plan, "unknown", other)
    with Shuffle(rows.sparkSession, store) as shuffle:
        with pytest.raises(NotImplementedError, match=rf"(?s)Spark 4\.\d.*{reason}.*grouped\(\)"):
            shuffle.repartition(rows, 4, "few", keep_partitioning=True)

        assert shuffle.usage()["1 repartition(4, few)"].map.tasks == 0
