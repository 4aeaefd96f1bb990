"""What executors get to load: it must load where this package is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.serializers import CloudPickleSerializer

from blobmsg_spark.worker import by_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOAD = """
import pickle, sys
sys.modules["blobmsg_spark"] = None  # as if it were not installed
with open(sys.argv[1], "rb") as file:
    run = pickle.load(file)
try:
    list(run(iter([1])))
except ModuleNotFoundError as error:
    print(error)
"""


def _doubled(batches: Iterator[int]) -> Iterator[int]:
    return (2 * batch for batch in batches)


def test_a_task_runs_as_it_would_by_itself() -> None:
    assert list(by_value(_doubled)(iter([1, 2]))) == [2, 4]


@pytest.mark.slow
def test_an_executor_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    pickled = tmp_path / "task"
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    pickled.write_bytes(serializer.dumps(by_value(_doubled)))

    done = subprocess.run(
        [sys.executable, "-c", _LOAD, pickled], capture_output=True, text=True, check=True
    )

    assert "no module 'blobmsg_spark'" in done.stdout
    assert "Install 'blobmsg[spark,s3]'" in done.stdout
    assert sys.executable in done.stdout
