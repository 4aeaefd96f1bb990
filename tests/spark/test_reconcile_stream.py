"""`reconcile_stream`: a query that fills a history, its restarts, and a job beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from blobmsg import BlobProducer
from blobmsg.errors import ConfigError
from blobmsg_spark import history_files, read_history, reconcile, reconcile_stream
from tests.helpers.histories import fill, live
from tests.helpers.records import flush, produce

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

_AVAILABLE_NOW = {"availableNow": True}


class Stream:
    """A query into a history, which can be run again and again until it has what is there."""

    def __init__(self, spark: SparkSession, options: dict[str, str], folder: Path) -> None:
        self._spark = spark
        self._options = options
        self.checkpoint = folder / "checkpoint"

    def run(self, **more: str) -> None:
        query = reconcile_stream(
            self._spark,
            {**self._options, **more},
            checkpoint=str(self.checkpoint),
            trigger=_AVAILABLE_NOW,
        )
        assert query.awaitTermination(240)

    def forget_last_commit(self) -> None:
        """As if the driver had been killed before Spark wrote down that the batch was done."""
        commits = (self.checkpoint / "commits").glob("[0-9]*")
        last = max(commits, key=lambda found: int(found.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink()


@pytest.fixture
def stream(
    spark: SparkSession, tmp_path: Path, source_options: dict[str, str], topic: str
) -> Stream:
    return Stream(spark, {**source_options, "subscribe": topic}, tmp_path)


def test_a_query_fills_a_history_goes_on_after_a_restart_and_repeats_nothing(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    stream: Stream,
) -> None:
    fill(conf, topic, 60)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        stream.run(maxOffsetsPerTrigger="120")
        files = history_files(conf, topic)
        stream.forget_last_commit()
        stream.run()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(files) >= 3  # one of each micro-batch
    assert history_files(conf, topic) == files

    fill(conf, topic, 20, routes=("blob", "plain"))
    stream.run()

    found = read_history(spark, conf, topic).orderBy("partition", "offset").toArrow()
    assert found == live(spark, source_options, topic)
    assert found.num_rows == 340


def test_a_job_beside_a_query_writes_everything_once(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    stream: Stream,
) -> None:
    fill(conf, topic, 30, routes=("blob",))
    stream.run()
    fill(conf, topic, 30, routes=("inline",))
    reconcile(spark, {**source_options, "subscribe": topic})  # which the query does not know of
    fill(conf, topic, 30, routes=("plain",))
    stream.run()

    found = read_history(spark, conf, topic).orderBy("partition", "offset").toArrow()
    assert found == live(spark, source_options, topic)
    assert found.num_rows == 90


def test_a_new_query_goes_on_where_the_history_ends(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    stream: Stream,
) -> None:
    fill(conf, topic, 30, routes=("blob",))
    reconcile(spark, {**source_options, "subscribe": topic})
    with BlobProducer({**conf, "transactional.id": topic, "blobmsg.route": "blob"}) as producer:
        producer.init_transactions(30)
        for ends in ("abort", "commit"):
            producer.begin_transaction()
            for number in range(10):
                produce(producer, topic, f"{ends}-{number}".encode())
            flush(producer)
            getattr(producer, f"{ends}_transaction")(30)
    stream.run(startingOffsets="latest")

    found = read_history(spark, conf, topic).orderBy("partition", "offset").toArrow()
    assert found == live(spark, source_options, topic)
    assert found.num_rows == 40


@pytest.mark.parametrize("had", [10, 0], ids=["some", "none"])
def test_a_checkpoint_that_is_past_the_history_is_refused_and_a_job_fills_the_gap(
    had: int,
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    stream: Stream,
    tmp_path: Path,
) -> None:
    fill(conf, topic, 10, routes=("plain",))
    elsewhere = f"file://{tmp_path}/history"
    if had:
        reconcile(spark, {**source_options, "subscribe": topic}, to=elsewhere)
    fill(conf, topic, 10, routes=("plain",))
    stream.run()  # into the default store: its checkpoint is at the end now
    fill(conf, topic, 10, routes=("plain",))

    def run() -> None:
        query = reconcile_stream(
            spark,
            {**source_options, "subscribe": topic},
            checkpoint=str(stream.checkpoint),
            to=elsewhere,
            trigger=_AVAILABLE_NOW,
        )
        query.awaitTermination(240)

    with pytest.raises(StreamingQueryException, match="checkpoint is past them"):
        run()
    if had:
        assert read_history(spark, elsewhere, topic).count() == had
    else:
        with pytest.raises(ConfigError):
            history_files(elsewhere, topic)

    reconcile(spark, {**source_options, "subscribe": topic}, to=elsewhere)
    run()

    found = read_history(spark, elsewhere, topic).orderBy("partition", "offset").toArrow()
    assert found == live(spark, source_options, topic)
