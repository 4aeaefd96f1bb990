"""Stores that fail: the job ends with an error that says what, where and what to do."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from blobmsg.errors import ConfigError
from blobmsg_spark import Shuffle, repartition
from tests.helpers.spark_rows import rows_by_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 200, 1, 2).select("id", F.repeat(F.lit("x"), 50).alias("text"))


def _objects(store: str) -> list[Path]:
    return [path for path in Path(urlsplit(store).path).rglob("*") if path.is_file()]


def test_an_object_that_is_gone_is_named_with_a_remedy(rows: DataFrame, store: str) -> None:
    with Shuffle(rows.sparkSession, store) as shuffle:
        # An RDD, because a second action on it reads the objects of the first one.
        ours = shuffle.repartition(rows, 3, "id").rdd
        assert ours.count() == 200
        for path in _objects(store):
            path.unlink()

        with pytest.raises(Exception, match="ObjectMissing") as raised:
            ours.count()
    text = str(raised.value)
    assert "-1, partition" in text
    assert "does not run the map stage again" in text


def test_a_flipped_bit_is_found_and_no_row_comes_out(rows: DataFrame, store: str) -> None:
    with Shuffle(rows.sparkSession, store) as shuffle:
        ours = shuffle.repartition(rows, 1, "id").rdd
        assert ours.count() == 200
        for path in _objects(store):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

        with pytest.raises(Exception, match=r"CorruptSegment.*checksum"):
            ours.count()


def test_a_store_that_is_not_there_fails_the_job(rows: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    settings = {
        "blobmsg.store.url": f"file://{tmp_path}/file/below",
        "blobmsg.request.timeout.ms": 1000,
    }
    ours = repartition(rows, 2, "id", store=settings)

    with pytest.raises(PySparkException, match="Store"):
        ours.count()


def test_unknown_settings_are_refused_before_the_job(rows: DataFrame) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean \"blobmsg.store.url\""):
        repartition(rows, 2, store={"blobmsg.store.ur": "memory://a"})
    with pytest.raises(ConfigError, match=r"'bootstrap.servers' is no setting of a store"):
        repartition(rows, 2, store={"blobmsg.store.url": "file:///a", "bootstrap.servers": "b"})
    with pytest.raises(ConfigError, match=r"blobmsg.isolation"):
        repartition(
            rows, 2, store={"blobmsg.store.url": "file:///a", "blobmsg.isolation": "a" * 60}
        )
    with pytest.raises(ConfigError, match=r"in the memory of one process"):
        repartition(rows, 2, store="memory://a")


def test_a_cancelled_job_leaves_nothing_behind_after_close(rows: DataFrame, store: str) -> None:
    spark = rows.sparkSession
    begun = f"{urlsplit(store).path}-begun"

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        yield from batches
        Path(begun).touch()
        time.sleep(60)

    def cancel() -> None:
        while not Path(begun).exists():
            ended.wait(0.05)
        spark.sparkContext.cancelAllJobs()

    ended = threading.Event()
    canceller = threading.Thread(target=cancel)
    with Shuffle(spark, store, batch_bytes=1) as shuffle:
        canceller.start()
        with pytest.raises(Exception, match="SPARK_JOB_CANCELLED"):
            shuffle.repartition(rows.mapInArrow(slow, rows.schema), 2, "id").count()
        canceller.join()
    assert _objects(store) == []


def test_a_schema_that_changed_under_the_job_fails_it_and_leaves_nothing(
    spark: SparkSession, store: str, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    spark.range(0, 100, 1, 1).select("id", F.lit(1).alias("amount")).write.parquet(str(folder))
    rows = spark.read.parquet(str(folder))
    with Shuffle(spark, store) as shuffle:
        placed = shuffle.repartition(rows, 2, "id")
        (file,) = folder.glob("*.parquet")
        (folder / f".{file.name}.crc").unlink()
        parquet.write_table(pa.table({"id": range(100), "amount": ["many"] * 100}), file)

        # Py4J's own exception here: writers wrap what a task says.
        with pytest.raises(Exception, match="PARQUET_COLUMN_DATA_TYPE_MISMATCH"):
            placed.write.parquet(str(tmp_path / "out"))

    assert list((tmp_path / "out").glob("*.parquet")) == []
    assert _objects(store) == []


@pytest.mark.integration
def test_rows_go_through_s3(rows: DataFrame, conf: dict[str, Any]) -> None:
    settings = {key: value for key, value in conf.items() if key.startswith("blobmsg.")}
    with Shuffle(rows.sparkSession, settings) as shuffle:
        ours = shuffle.repartition(rows, 4, "id")

        assert rows_by_partition(ours) == rows_by_partition(rows.repartition(4, "id"))
        assert shuffle.usage()["1 repartition(4, id)"].map.puts == 2


@pytest.mark.integration
def test_a_store_that_refuses_us_fails_the_job(
    rows: DataFrame, conf: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {key: value for key, value in conf.items() if key.startswith("blobmsg.")}
    settings["blobmsg.s3.secret.access.key"] = "wrong"
    with (
        pytest.raises(PySparkException, match="StoreDenied"),
        Shuffle(rows.sparkSession, settings) as shuffle,
    ):
        shuffle.repartition(rows, 2, "id").count()
    # What can't be deleted then is only logged: it must not hide what has happened.
    assert "stay until their expiry hour" in caplog.text
