"""Histories written by programs: the example's query, and a job that spark-submit runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import blobmsg_spark
from blobmsg_spark import history_files
from tests.helpers.histories import fill
from tests.helpers.service import SERVICES, Service, post_orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.lab import Stack

pytestmark = pytest.mark.timeout(300)

_ROOT = Path(__file__).parents[2]


def _sell(which: str, environ: dict[str, str], orders: list[dict[str, int]]) -> None:
    """Have checkout, as it was before blobmsg or is after, take orders."""
    with Service(SERVICES / which / "checkout.py", environ) as shop:
        port = int(shop.wait_for(r"listening on port (\d+)")[1])
        assert set(post_orders(port, orders)) == {202}
        assert shop.terminate() == (0, f"delivered {len(orders)} orders, 0 failed\n")


def _run(environ: dict[str, str], *program: str) -> list[str]:
    done = subprocess.run(
        program, env={**os.environ, **environ}, capture_output=True, text=True, timeout=250,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout.splitlines()


def test_orders_of_the_services_get_into_parquet_by_a_query_and_by_spark_submit(
    stack: Stack,
    conf: dict[str, Any],
    make_topic: Callable[..., str],
    store_prefix: str,
    tmp_path: Path,
) -> None:
    topic = make_topic(partitions=3)
    environ = {
        **stack.environ(store_prefix),
        "BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "ORDERS_TOPIC": topic,
        "PORT": "0",
        "BLOBMSG_ROUTE": "blob",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    orders = [{"customer": n % 7, "cents": 100 * n} for n in range(200)]

    _sell("before", environ, orders[:50])  # plain records
    _sell("after", environ, orders[50:150])
    said = _run(
        environ, sys.executable, str(_ROOT / "examples" / "spark_orders_to_parquet.py"),
        "--topic", topic, "--checkpoint", str(tmp_path / "checkpoint"),
    )  # fmt: skip
    files = history_files(conf, topic)
    _sell("after", environ, orders[150:])
    submitted = _run(
        environ, str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]",
        str(Path(blobmsg_spark.__file__).parent / "__main__.py"), "reconcile", "--topics", topic,
        "--conf", f"kafka.bootstrap.servers={stack.bootstrap_servers}",
    )  # fmt: skip

    spent: Counter[str] = Counter()
    bought: Counter[str] = Counter()
    for order in orders[:150]:
        spent[str(order["customer"])] += order["cents"]
        bought[str(order["customer"])] += 1
    best = sorted(spent, key=lambda customer: (-spent[customer], customer))[:5]
    assert said == [
        *(f"customer {who}: {bought[who]} orders, {spent[who] / 100:.2f}" for who in best),
        f"150 orders in {len(files)} files, the last of them {files[-1]}",
    ]
    new = len(history_files(conf, topic)) - len(files)
    assert len(submitted) == 1
    assert submitted[0].startswith(f"{topic}: manifest 2, {new} files, 50 records, ")


@pytest.mark.usefixtures("connect_port")
def test_spark_connect_writes_and_reads_histories(
    conf: dict[str, Any], source_options: dict[str, str], topic: str, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    fill(conf, topic, 20)
    plan = {
        "conf": conf,
        "options": source_options,
        "topic": topic,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    environ = {"PYTHONPATH": str(_ROOT), "PYSPARK_PYTHON": sys.executable}
    program = str(_ROOT / "tests" / "spark" / "programs" / "reconcile_connect.py")

    assert _run(environ, sys.executable, program, json.dumps(plan)) == [
        "job 100",
        "query 150 True",
    ]
