"""The sink through Spark Connect. With executors in JVMs of their own: `test_sink_stream`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.sink import read_topic, write_files

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(400)

_ROOT = Path(__file__).parents[2]
# In a process of its own: a process has one kind of session.
_PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from blobmsg_spark import register_source
from tests.helpers.sink import lines_to_topic

options, folder = json.loads(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.remote("local[2]")
builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
spark = builder.getOrCreate()
register_source(spark)
rows = spark.range(0, 100, 1, 4).selectExpr("concat('batch-', id) AS value")
rows.write.format("blobmsg").options(**options).mode("append").save()
assert lines_to_topic(spark, Path(folder), options).start().awaitTermination(200)
spark.stop()
print("all is well")
"""


@pytest.mark.usefixtures("connect_port")
def test_batch_and_stream_write_each_record_once(
    group_conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    topic = make_topic(2)
    write_files(tmp_path / "in", 2)
    options = {**source_options, "topic": topic, "blobmsg.route": "blob"}
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(_ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(options), str(tmp_path)],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert "all is well" in done.stdout, done.stdout + done.stderr[-5000:]
    found = Counter(message.value().decode() for message in read_topic(group_conf, topic, 2))
    expected = [f"batch-{number}" for number in range(100)]
    expected += [f"{file}-{line}" for file in range(2) for line in range(10)]
    assert found == Counter(expected)
