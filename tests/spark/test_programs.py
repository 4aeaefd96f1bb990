"""What needs a Spark of another kind than the tests' own: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


def _run(name: str, *arguments: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, f"tests/spark/programs/{name}.py", *arguments],
        cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


@pytest.mark.timeout(300)
def test_killed_workers_and_executors_lose_and_double_nothing(store: str, tmp_path: Path) -> None:
    printed = _run("failing_executors", store, str(tmp_path))

    assert printed.splitlines() == [
        "worker killed: 0",
        "executor killed: 0",
        "executors that ended: 1",
        "objects left: 0",
    ]


@pytest.mark.timeout(300)
def test_a_second_attempt_of_a_slow_task_doubles_nothing(store: str, tmp_path: Path) -> None:
    printed = _run("speculation", store, str(tmp_path))

    assert printed.splitlines() == [
        "rows differ: False",
        "second attempt: True",
        "objects left: 0",
    ]


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("connect_port")
def test_spark_connect_gets_the_same_rows(store: str) -> None:
    assert _run("connect", store).splitlines()[-1] == "all is well"
