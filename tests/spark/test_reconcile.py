"""`reconcile`: topics of real Kafka into sorted Parquet in real S3, run by run."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    NewPartitions,
)

from blobmsg.collector import ExpiredObjects
from blobmsg.errors import BlobmsgError
from blobmsg_spark import clean_history, history_files, read_history, reconcile
from blobmsg_spark.history_store import history_place
from tests.helpers.child_process import ChildProgram
from tests.helpers.histories import fill, live, rows_of_files
from tests.helpers.metadata import wait_until_all_know
from tests.helpers.records import recent_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

_DAY_MS = 86_400_000


def _in_order(frame: DataFrame) -> pa.Table:
    return frame.orderBy("partition", "offset").toArrow()


def test_a_history_has_what_the_source_reads_sorted_and_grows_run_by_run(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(2)
    options = {**source_options, "subscribe": topic}
    fill(conf, topic, 100)

    first = reconcile(spark, options, file_bytes=2000)
    files = history_files(conf, topic)
    fill(conf, topic, 40, routes=("blob",))
    admin = AdminClient({"bootstrap.servers": conf["bootstrap.servers"]})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    wait_until_all_know(conf["bootstrap.servers"], topic, 3)
    fill(conf, topic, 10, routes=("inline",), partition=2)
    second = reconcile(spark, options)
    third = reconcile(spark, options)

    expected = live(spark, source_options, topic)
    assert expected.num_rows == 550
    assert _in_order(read_history(spark, conf, topic)) == expected
    assert set(files) < set(history_files(conf, topic))
    assert rows_of_files(history_files(conf, topic), conf) == expected
    assert len(files) > 2  # cut by size
    assert [(one.topic, one.manifest, one.files, one.records) for one in first] == [
        (topic, 1, len(files), 500)
    ]
    assert [(one.manifest, one.files, one.records) for one in second] == [(2, 3, 50)]
    assert third == []


def test_pandas_spark_and_duckdb_read_the_files(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    tmp_path: Path,
) -> None:
    fill(conf, topic, 50)
    folder = f"file://{tmp_path}"

    reconcile(spark, {**source_options, "subscribe": topic}, to=folder, compression="snappy")

    expected = live(spark, source_options, topic)
    files = history_files(folder, topic)
    assert _in_order(spark.read.parquet(*files)) == expected
    frame = pd.concat(map(pd.read_parquet, files))
    assert frame["offset"].tolist() == expected["offset"].to_pylist()
    assert frame["value"].tolist() == expected["value"].to_pylist()
    assert frame["timestamp"].tolist() == expected["timestamp"].to_pandas().tolist()
    query = 'SELECT key, value, topic, partition, "offset", headers FROM read_parquet(?)'
    with duckdb.connect() as database:
        found = database.execute(f"{query} ORDER BY 5", [files]).fetchall()
    columns = expected.select(["key", "value", "topic", "partition", "offset", "headers"])
    assert found == [tuple(row.values()) for row in columns.to_pylist()]


def test_a_part_of_the_columns_is_read_by_name(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    tmp_path: Path,
) -> None:
    fill(conf, topic, 20, routes=("plain",))
    folder = f"file://{tmp_path}"
    reconcile(spark, {**source_options, "subscribe": topic}, to=folder)

    frame = read_history(spark, folder, topic, columns=["offset", "headers"])

    expected = live(spark, source_options, topic).select(["offset", "headers"])
    assert frame.orderBy("offset").toArrow() == expected
    with pytest.raises(ValueError, match="'ofset' is no column"):
        read_history(spark, folder, topic, columns=["ofset"])


def test_several_topics_and_more_tasks_than_partitions(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
) -> None:
    one, other = make_topic(1), make_topic(1)
    for _ in range(4):
        fill(conf, one, 5, routes=("blob",))
    fill(conf, other, 5, routes=("blob",))
    middle = live(spark, source_options, one)["offset"][13].as_py()
    ends = json.dumps({one: {"0": middle}, other: {"0": -1}})
    options = {**source_options, "subscribe": f"{one},{other}", "minPartitions": "4"}

    added = reconcile(spark, {**options, "endingOffsets": ends})
    rest = reconcile(spark, options)

    assert {each.topic: each.records for each in added} == {one: 13, other: 5}
    assert sum(each.files for each in added) == 4
    assert [(each.topic, each.records) for each in rest] == [(one, 7)]
    for topic in (one, other):
        assert _in_order(read_history(spark, conf, topic)) == live(spark, source_options, topic)


def test_the_collector_of_expired_objects_leaves_histories_alone(
    spark: SparkSession, conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    fill(conf, topic, 20, routes=("blob",))
    reconcile(spark, {**source_options, "subscribe": topic})
    store = history_place(conf).open().store
    in_years_ms = recent_ms() + 3650 * _DAY_MS

    expired = [info.key for info in ExpiredObjects(store, in_years_ms)]
    store.delete(expired)

    assert expired  # the batch object
    assert read_history(spark, conf, topic).count() == 20


def test_a_driver_that_is_killed_before_the_manifest_loses_and_doubles_nothing(
    spark: SparkSession, conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    fill(conf, topic, 100)
    options = {**source_options, "subscribe": topic}
    plan = {"options": options, "to": conf["blobmsg.store.url"]}
    with ChildProgram("tests.spark.programs.reconcile_killed", plan) as child:
        orphans = child.wait_for("files are written", 120)["files"]
        child.kill()
    assert orphans == 1

    added = reconcile(spark, options)

    assert [(one.manifest, one.records) for one in added] == [(1, 500)]
    assert _in_order(read_history(spark, conf, topic)) == live(spark, source_options, topic)
    left = clean_history(conf, topic, delete=False)
    assert len(left) == orphans
    assert not set(left) & set(history_files(conf, topic))
    assert clean_history(conf, topic) == left
    assert clean_history(conf, topic) == []
    assert read_history(spark, conf, topic).count() == 500


def _run_at_once(call: Callable[[], Any], count: int) -> list[Any]:
    """What each of some calls in threads of their own gave or raised."""
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append(call())
        except BlobmsgError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(outcomes) == count
    return outcomes


def test_two_runs_at_once_write_everything_once(
    spark: SparkSession, conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    fill(conf, topic, 100, routes=("blob",))
    options = {**source_options, "subscribe": topic}
    outcomes = _run_at_once(lambda: reconcile(spark, options), 2)

    # Which of them commits is chance, and one may have begun when the other one was done.
    errors = [str(found) for found in outcomes if isinstance(found, Exception)]
    assert all("another run has committed manifest 1" in text for text in errors)
    assert sum(one.records for added in outcomes if isinstance(added, list) for one in added) == 100
    assert _in_order(read_history(spark, conf, topic)) == live(spark, source_options, topic)
    assert len(clean_history(conf, topic)) == len(errors)
