"""`df.writeStream.format("blobmsg")` on real Kafka and S3: each micro-batch once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from blobmsg import BlobProducer
from tests.helpers.records import flush, produce
from tests.helpers.sink import lines_to_topic, read_topic, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

_ROOT = Path(__file__).parents[2]


class Query:
    """Lines of files into a topic, started again and again from one checkpoint."""

    def __init__(
        self, spark: SparkSession, folder: Path, options: dict[str, str], group_conf: dict[str, Any]
    ) -> None:
        self._spark = spark
        self.folder = folder
        self.options = options
        self._group_conf = group_conf
        self._files = 0

    def add_files(self, count: int) -> None:
        write_files(self.folder / "in", count, self._files)
        self._files += count

    def run(self, **more: str) -> None:
        query = lines_to_topic(self._spark, self.folder, {**self.options, **more}).start()
        assert query.awaitTermination(240)

    def forget_last_commit(self) -> None:
        """As if the driver had been killed before it wrote down that the last batch was done."""
        last = max(
            (self.folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda f: int(f.name)
        )
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink()

    def committed(self) -> set[str]:
        """The micro-batches that Spark knows to be done."""
        return {found.name for found in (self.folder / "checkpoint" / "commits").glob("[0-9]*")}

    def values(self) -> Counter[str]:
        messages = read_topic(self._group_conf, self.options["topic"])
        return Counter(message.value().decode() for message in messages)

    def lines(self, files: int) -> Counter[str]:
        """Those of the first files, each once."""
        return Counter(f"{number}-{line}" for number in range(files) for line in range(10))


@pytest.fixture
def query(
    spark: SparkSession,
    tmp_path: Path,
    source_options: dict[str, str],
    group_conf: dict[str, Any],
    topic: str,
) -> Query:
    return Query(spark, tmp_path, {**source_options, "topic": topic}, group_conf)


def test_a_query_goes_on_where_its_checkpoint_says(query: Query) -> None:
    query.add_files(2)
    query.run()
    query.add_files(1)
    query.run()
    query.run()

    assert query.values() == query.lines(3)


@pytest.mark.parametrize(
    ("dies", "master"),
    # Once with an executor in a JVM of its own, which goes with its driver.
    [("before", "local-cluster[1,1,1024]"), ("after", "local[1]")],
)
def test_a_driver_killed_around_its_commit_writes_each_record_once(
    query: Query, dies: str, master: str
) -> None:
    query.add_files(3)
    plan = {"folder": str(query.folder), "options": query.options, "dies": dies, "master": master}
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.programs.dying_sink", json.dumps(plan)],
        cwd=_ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(query.folder / "work"),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, said = child.communicate(timeout=200)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL, said[-5000:].decode()

    assert query.committed() == {"0"}  # Spark does not know of the second one
    assert query.values() == query.lines(1 if dies == "before" else 2)
    query.run()
    assert query.values() == query.lines(3)
    assert query.committed() == {"0", "1", "2"}


def test_a_micro_batch_whose_end_spark_forgot_is_not_written_again(query: Query) -> None:
    query.add_files(2)
    query.run()
    for _ in range(2):
        query.forget_last_commit()
        query.run()

    assert query.values() == query.lines(2)


def test_another_checkpoint_is_another_query(query: Query, tmp_path: Path) -> None:
    query.add_files(1)
    query.run()
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    query.run()

    assert query.values() == query.lines(1) + query.lines(1)


def test_a_micro_batch_that_can_not_be_stored_leaves_nothing_and_comes_later(query: Query) -> None:
    query.add_files(1)
    with pytest.raises(StreamingQueryException, match="StoreDenied"):
        query.run(**{"blobmsg.s3.secret.access.key": "wrong", "blobmsg.route": "blob"})
    assert query.values() == Counter()

    query.run()
    assert query.values() == query.lines(1)


def test_wrong_columns_and_options_end_a_query_before_any_task(query: Query) -> None:
    query.add_files(1)
    with pytest.raises(StreamingQueryException, match=r'Did you mean "topic"'):
        query.run(topik="t")
    with pytest.raises(StreamingQueryException, match="never plain records"):
        query.run(**{"blobmsg.route": "plain"})


def test_from_topic_to_topic_each_record_once_with_its_headers_and_time(
    query: Query,
    spark: SparkSession,
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    make_topic: Any,
) -> None:
    origin = make_topic(3)
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(300):
            headers: Any = [("n", str(number).encode())] if number % 3 else None
            produce(producer, origin, b"v%d" % number, key=b"k%d" % (number % 20), headers=headers)
        flush(producer)
    rows = (
        spark.readStream.format("blobmsg")
        .options(**source_options)
        .options(subscribe=origin, startingOffsets="earliest", includeHeaders="true")
        .option("maxOffsetsPerTrigger", 100)
        .load()
        .select("key", "value", "headers", "timestamp")
    )
    written = (
        rows.writeStream.format("blobmsg")
        .options(**{**query.options, "blobmsg.route": "blob"})
        .option("checkpointLocation", str(query.folder / "copy"))
        .trigger(availableNow=True)
        .start()
    )
    assert written.awaitTermination(240)

    def records(name: str, partitions: int) -> list[Any]:
        return sorted(
            (m.key(), m.value(), m.headers(), m.timestamp()[1])
            for m in read_topic(group_conf, name, partitions)
        )

    assert records(topic, 1) == records(origin, 3)
    assert len(records(topic, 1)) == 300
