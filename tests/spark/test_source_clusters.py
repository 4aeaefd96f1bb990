"""The source where executors have JVMs of their own, and through Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobProducer
from tests.helpers.records import flush, produce

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(400)

_ROOT = Path(__file__).parents[2]
# In a process of its own: a process has one kind of session.
_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from blobmsg_spark.source import register_source

kind, master, options, folder = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
builder = SparkSession.builder
builder = builder.remote(master) if kind == "connect" else builder.master(master)
for key, value in json.loads(sys.argv[5]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
register_source(spark)
batch = spark.read.format("blobmsg").options(minPartitions="4", **options).load()
stream = spark.readStream.format("blobmsg").options(
    startingOffsets="earliest", maxOffsetsPerTrigger="100", **options
).load()
query = (
    stream.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    .option("path", folder + "/out").trigger(availableNow=True).start()
)
query.awaitTermination()
written = spark.read.parquet(folder + "/out")
places = written.select("partition", "offset").distinct()
print("counts", batch.count(), written.count(), places.count())
spark.stop()
"""


@pytest.mark.usefixtures("connect_port")
@pytest.mark.parametrize(
    ("kind", "master"), [("classic", "local-cluster[2,1,1024]"), ("connect", "local[2]")]
)
def test_batch_and_stream_read_each_record_once(
    kind: str,
    master: str,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    if kind == "connect":
        pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    topic = make_topic(2)
    for _ in range(4):
        with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
            for number in range(75):
                produce(producer, topic, str(number).encode())
            flush(producer)
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    options = {**source_options, "subscribe": topic}
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(_ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _PROGRAM,
            kind,
            master,
            json.dumps(options),
            str(tmp_path),
            json.dumps(settings),
        ],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert "counts 300 300 300" in done.stdout, done.stdout + done.stderr[-5000:]
