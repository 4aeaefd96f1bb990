"""The same rows in the same partitions as Spark's own repartitioning, whatever they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from blobmsg.clock import SystemClock
from blobmsg_spark import Shuffle, UnsupportedColumn, repartition
from tests.helpers.spark_rows import rows_by_partition, rows_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_COLUMNS = {
    "id": "id",
    "few": "id % 7",
    "maybe": "if(id % 3 = 0, null, id % 11)",
    "always_null": "cast(null as string)",
    "void": "null",
    "flag": "id % 2 = 0",
    "byte": "cast(id % 100 as byte)",
    "short": "cast(id as short)",
    "float": "cast(if(id % 5 = 0, 'NaN', id / 3) as float)",
    "double": "case id % 4 when 0 then double('NaN') when 1 then -0.0d when 2 then 0d else id end",
    "amount": "cast(id / 100 as decimal(10, 2))",
    "large": "cast(id as decimal(38, 10)) * 1234567890123456",
    "text": "if(id % 13 = 0, '', concat('text ä€ ', id))",
    "bytes": "cast(concat('b', id) as binary)",
    "day": "date_add(date'1969-12-01', cast(id as int))",
    "moment": "timestamp_micros(id * 987654321 - 4000000000000)",
    "local_moment": "to_timestamp_ntz('2026-03-29 02:30:00') + make_dt_interval(0, id)",
    "interval": "make_dt_interval(id % 3, id)",
    "clock": "make_time(cast(id % 24 as int), 5, 1.5)",
    "list": "if(id % 6 = 0, null, sequence(0, id % 4))",
    "empty_list": "cast(array() as array<string>)",
    "struct": "struct(id as a, struct(string(id) as c, if(id % 2 = 0, null, id) as d) as b)",
    "map": "map('k', id, concat('k', id), null)",
    # Of nullable parts: without them pyarrow 26 can't cast an array with a null.
    "lists_of_structs": "array(struct(nullif(id, 5) as x, if(id = 1, null, array(id)) as y), null)",
    "variant": "parse_json(concat('{\"a\":', id, ', \"b\": [1, null]}'))",
    "collated": "concat('Text ', id % 9) collate UTF8_LCASE",
}
_KEYS: list[tuple[str, ...]] = [
    ("id",),
    ("few",),
    ("maybe", "flag"),
    ("always_null",),
    ("void",),
    ("byte", "short"),
    ("float",),
    ("double",),
    ("amount", "large"),
    ("text",),
    ("bytes",),
    ("day", "moment"),
    ("local_moment", "interval"),
    ("clock",),
    ("list",),
    ("struct", "lists_of_structs"),
]


@pytest.fixture(scope="module")
def everything(spark: SparkSession) -> DataFrame:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    return (
        spark.range(0, 600, 1, 3)
        .select(*(F.expr(text).alias(name) for name, text in _COLUMNS.items()))
        .cache()
    )


def _objects(store: str) -> list[Path]:
    return [path for path in Path(urlsplit(store).path).rglob("*") if path.is_file()]


@pytest.mark.parametrize("keys", _KEYS, ids="-".join)
def test_rows_are_in_the_partitions_that_spark_gives_them(
    everything: DataFrame, store: str, keys: tuple[str, ...]
) -> None:
    with Shuffle(everything.sparkSession, store) as shuffle:
        ours = shuffle.repartition(everything, 5, *keys)

        assert ours.schema == everything.schema
        assert rows_by_partition(ours) == rows_by_partition(everything.repartition(5, *keys))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_rows_come_back_unchanged(
    everything: DataFrame, store: str, compression: str
) -> None:
    ours = repartition(everything, 4, "id", store=store, compression=compression)

    assert rows_by_partition(ours) == rows_by_partition(everything.repartition(4, "id"))


def test_small_objects_and_little_prefetch_change_nothing(
    everything: DataFrame, store: str
) -> None:
    ours = repartition(everything, 4, "few", store=store, batch_bytes=20_000, prefetch_bytes=1)

    assert rows_by_partition(ours) == rows_by_partition(everything.repartition(4, "few"))
    assert len(_objects(store)) >= 6


def test_keys_may_be_expressions_and_columns(everything: DataFrame, store: str) -> None:
    keys: list[Column | str] = [F.col("id") % 10, "flag", F.upper("text")]
    native = rows_by_partition(everything.repartition(6, *keys))

    assert rows_by_partition(repartition(everything, 6, *keys, store=store)) == native
    assert rows_by_partition(repartition(everything, 6, keys, store=store)) == native


def test_without_keys_rows_are_spread_evenly(everything: DataFrame, store: str) -> None:
    ours = rows_by_partition(repartition(everything, 4, store=store))

    sizes = [sum(rows.values()) for rows in ours.values()]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 3  # one per map task
    assert sum(ours.values(), Counter()) == rows_of(everything)


@pytest.mark.parametrize("keys", [("few",), ("double", "maybe"), ("struct",)], ids="-".join)
def test_groups_are_those_of_spark(
    everything: DataFrame, store: str, keys: tuple[str, ...]
) -> None:
    def count(group: pa.Table) -> pa.Table:
        ids = sorted(group.column("id").to_pylist())
        return pa.table({"rows": [len(ids)], "ids": [",".join(map(str, ids))]})

    with Shuffle(everything.sparkSession, store) as shuffle:
        ours = shuffle.grouped(everything, 3, *keys, func=count, schema="rows long, ids string")

        native = everything.groupBy(*keys).agg(
            F.count("*").alias("rows"), F.array_join(F.sort_array(F.collect_list("id")), ",")
        )
        assert rows_of(ours) == rows_of(native.drop(*keys))
        assert "hashpartitioning" not in ours._jdf.queryExecution().executedPlan().toString()


def test_keys_of_groups_may_be_columns_of_the_frame_and_are_computed_once(
    everything: DataFrame, store: str
) -> None:
    def ids(group: pa.Table) -> pa.Table:
        keys = group.column("few").to_pylist()
        return pa.table({"key": [repr(sorted(set(keys), key=repr))], "rows": [len(keys)]})

    with Shuffle(everything.sparkSession, store) as shuffle:
        by_column = shuffle.grouped(
            everything, 3, everything.few, func=ids, schema="rows long, key string"
        ).collect()
        # Computed again behind the exchange, a random key would make a group in every partition.
        by_chance = shuffle.grouped(
            everything, 4, F.floor(F.rand() * 2), func=ids, schema="rows long, key string"
        ).collect()

    native = everything.groupBy("few").count().collect()
    assert sorted(row.rows for row in by_column) == sorted(row["count"] for row in native)
    assert len(by_chance) == 2
    assert sum(row.rows for row in by_chance) == everything.count()


@pytest.mark.parametrize("keys", [(), ("id",)], ids=["dealt", "hashed"])
def test_no_rows_and_empty_partitions_are_fine(
    everything: DataFrame, store: str, keys: tuple[str, ...]
) -> None:
    none = everything.where("id < 0")
    few = everything.where("id in (3, 4)")

    with Shuffle(everything.sparkSession, store) as shuffle:
        assert rows_of(shuffle.repartition(none, 3, *keys)) == Counter()
        ours = shuffle.repartition(few, 9, *keys)
        assert rows_of(ours) == rows_of(few)
        # Asked of RDDs, because only these count partitions without rows.
        assert ours.rdd.getNumPartitions() == 9


def test_nine_tenths_of_the_rows_in_one_partition(spark: SparkSession, store: str) -> None:
    skewed = spark.range(0, 20_000, 1, 2).select(
        F.expr("if(id % 10 = 0, id, 0)").alias("key"), F.repeat(F.lit("x"), 300).alias("text")
    )
    ours = repartition(skewed, 4, "key", store=store, batch_bytes=1 << 20, prefetch_bytes=1 << 20)

    assert rows_by_partition(ours) == rows_by_partition(skewed.repartition(4, "key"))


def test_rows_wider_than_an_object(spark: SparkSession, store: str) -> None:
    wide = spark.range(0, 6, 1, 2).select("id", F.repeat(F.lit("wide"), 1 << 20).alias("text"))
    ours = repartition(wide, 3, "id", store=store, batch_bytes=1 << 20, prefetch_bytes=1 << 20)

    assert rows_by_partition(ours) == rows_by_partition(wide.repartition(3, "id"))


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (("id", "id", "a.b `c` _partition"), "`a.b ``c`` _partition`"),
        (("id", "a.b"), "`a.b`"),
        (("id", "a`b"), "`a``b`"),
        (("id", "*"), "`*`"),
        (("id", "with space"), "`with space`"),
        (("id", "ſ", "s"), "id"),  # noqa: RUF001  (one name to Spark)
        (("id", "_partition"), "_partition"),
        (("__partition", "_partition"), "_partition"),
        (("id", "ID", "other"), "other"),
    ],
)
def test_columns_may_have_any_name(
    spark: SparkSession, store: str, names: tuple[str, ...], key: str
) -> None:
    values = (F.col("id") + number for number in range(len(names)))
    odd = spark.range(10).select(*values).toDF(*names)

    with Shuffle(spark, store) as shuffle:
        for ours in (shuffle.repartition(odd, 2, key), shuffle.repartition(odd, 2)):
            assert ours.columns == odd.columns
            assert rows_of(ours) == rows_of(odd)


def test_a_dataframe_without_columns_keeps_its_number_of_rows(
    spark: SparkSession, store: str
) -> None:
    assert repartition(spark.range(10).select(), 3, store=store).count() == 10


def test_a_task_that_runs_again_deals_its_rows_alike(spark: SparkSession, store: str) -> None:
    # Binary keys of maps, and zeros of two signs: what hashes and texts easily get wrong.
    rows = spark.range(0, 300, 1, 2).select(
        F.expr("map(cast(concat('k', id) as binary), if(id % 2 = 0, -0.0d, 0.0d))").alias("map"),
        F.expr("array(struct(if(id % 3 = 0, -0.0d, 0.0d) as zero))").alias("zeros"),
    )
    shuffled = rows.orderBy(F.rand(1)), rows.orderBy(F.rand(2))
    first, second = (
        rows_by_partition(repartition(one.coalesce(1), 3, store=store)) for one in shuffled
    )

    assert first == second


def test_nullability_and_metadata_stay(spark: SparkSession, store: str) -> None:
    noted = spark.range(5).select(F.col("id").alias("id", metadata={"unit": "m"}))

    assert repartition(noted, 2, "id", store=store).schema == noted.schema


def test_large_variable_types_pass(everything: DataFrame, store: str) -> None:
    spark = everything.sparkSession
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        ours = repartition(everything, 3, "text", store=store)
        assert rows_by_partition(ours) == rows_by_partition(everything.repartition(3, "text"))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_exchanges_follow_each_other(everything: DataFrame, store: str) -> None:
    with Shuffle(everything.sparkSession, store) as shuffle:
        once = shuffle.repartition(everything, 5, "few").where("id % 2 = 0")
        twice = shuffle.repartition(once, 3, "text")

        native = everything.where("id % 2 = 0").repartition(3, "text")
        assert rows_by_partition(twice) == rows_by_partition(native)


def test_a_second_action_reads_the_same_rows(everything: DataFrame, store: str) -> None:
    with Shuffle(everything.sparkSession, store) as shuffle:
        ours = shuffle.repartition(everything, 3, "id")

        assert ours.count() == ours.count() == 600
        assert rows_of(ours) == rows_of(everything)


def test_close_deletes_every_object_and_refuses_what_comes_later(
    everything: DataFrame, store: str
) -> None:
    shuffle = Shuffle(everything.sparkSession, store)
    assert shuffle.repartition(everything, 3, "id").count() == 600
    assert _objects(store)

    shuffle.close()
    shuffle.close()

    assert _objects(store) == []
    with pytest.raises(RuntimeError, match="closed"):
        shuffle.repartition(everything, 3, "id")


def test_another_time_zone_of_the_session_changes_no_row_and_no_partition(
    everything: DataFrame, store: str
) -> None:
    spark = everything.sparkSession
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        native = rows_by_partition(everything.repartition(5, "day", "moment", "local_moment"))
        ours = repartition(everything, 5, "day", "moment", "local_moment", store=store)
        assert ours.schema == everything.schema
        assert rows_by_partition(ours) == native
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_rows_stay_on_local_disk_while_it_has_room(everything: DataFrame, store: str) -> None:
    spark = everything.sparkSession
    native = rows_by_partition(everything.repartition(3, "id"))
    with Shuffle(spark, store, disk_reserve_bytes=0) as roomy:
        assert rows_by_partition(roomy.repartition(everything, 3, "id")) == native
        assert _objects(store) == []
        assert roomy.usage()["1 repartition(3, id)"].map.inline_bytes > 0
    with Shuffle(spark, store, disk_reserve_bytes=1 << 60) as full:
        assert rows_by_partition(full.repartition(everything, 3, "id")) == native
        assert _objects(store)
        assert full.usage()["1 repartition(3, id)"].map.inline_bytes == 0


def test_the_report_counts_what_the_tasks_of_both_stages_did(
    everything: DataFrame, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"blobmsg.store.url": store, "blobmsg.zone": "az2"}
    with Shuffle(everything.sparkSession, settings) as shuffle:
        assert shuffle.repartition(everything, 4, "id").count() == 600
        usage = shuffle.usage()["1 repartition(4, id)"]
        text = shuffle.report()

    wrote, read = usage.map, usage.reduce
    assert (wrote.tasks, read.tasks) == (3, 4)
    assert wrote.rows == read.rows == 600
    assert wrote.objects == wrote.puts == 3  # one per map task
    assert wrote.segments == read.segments == read.gets == 12
    assert wrote.put_bytes > read.get_bytes > wrote.row_bytes > 0
    assert (wrote.gets, read.puts, read.foreign_bytes) == (0, 0, 0)
    assert usage.zones == {"az2": usage.total}
    assert text in capsys.readouterr().out
    assert "1 repartition(4, id): map" in text
    assert "\naz2 " in text


def test_progress_is_shown_only_when_it_is_asked_for(
    spark: SparkSession, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = spark.range(0, 100, 1, 2)
    with Shuffle(spark, store) as silent:
        assert silent.repartition(rows, 3, "id").count() == 100
    assert capsys.readouterr().err == ""
    with Shuffle(spark, store, progress=True) as shuffle:
        assert shuffle.repartition(rows, 3, "id").count() == 100

    # Not a terminal: a line for each stage, none drawn over another.
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "[1 repartition(3, id) map",
        "[1 repartition(3, id) reduce",
    ]
    assert "=(2 + 0) / 2" in lines[0]
    assert "=(3 + 0) / 3" in lines[1]


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("make_ym_interval(1, 2)", "interval year to month"),
        ("array(struct(make_interval(1, 2, 3)))", "interval"),
        ("named_struct('a', 1, 'a', 2)", "struct<a:int,a:int>"),
        ("array()", "array<void>"),  # of no nulls, which Arrow does not have
    ],
)
def test_a_type_that_can_not_pass_is_refused_before_the_job(
    spark: SparkSession, store: str, expression: str, name: str
) -> None:
    df = spark.range(1).select(F.expr(expression).alias("odd"))

    with pytest.raises(UnsupportedColumn, match=f"'odd'.*{name}.*[Cc]ast"):
        repartition(df, 2, store=store)


def test_a_collated_key_is_refused_and_says_what_to_do(everything: DataFrame, store: str) -> None:
    with pytest.raises(UnsupportedColumn, match=r"'collated'.*repartition_by_range"):
        repartition(everything, 2, "collated", store=store)

    ours = repartition(everything, 3, F.expr("lower(collated collate UTF8_BINARY)"), store=store)
    assert rows_of(ours) == rows_of(everything)


def test_an_action_after_the_shuffles_retention_is_refused(
    everything: DataFrame, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Planned long ago.
    monkeypatch.setattr(SystemClock, "timestamp_ms", lambda _: 1_700_000_000_000)
    with Shuffle(everything.sparkSession, store, retention_ms=1) as shuffle:
        late = shuffle.repartition(everything, 2, "id")

        with pytest.raises(PySparkException, match="past its expiry hour"):
            late.collect()


def test_wrong_arguments_are_refused_before_the_job(everything: DataFrame, store: str) -> None:
    spark = everything.sparkSession
    with pytest.raises(ValueError, match="n is 0"):
        repartition(everything, 0, store=store)
    with pytest.raises(TypeError, match="number of partitions"):
        repartition(everything, "id", store=store)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"7 is no column: give names"):
        repartition(everything, 2, "id", 7, store=store)  # type: ignore[arg-type]
    for size in (0, 1 << 31):
        with pytest.raises(ValueError, match=f"batch_bytes is {size}"):
            repartition(everything, 2, store=store, batch_bytes=size)
    with pytest.raises(UnsupportedColumn, match=r"'map'.*maps and variants"):
        repartition(everything, 2, "map", store=store)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ValueError, match="foreachBatch"):
        repartition(stream, 2, store=store)
