"""The Spark programs in `examples/`, run as their README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from blobmsg import lab

_EXAMPLES = Path(__file__).parents[2] / "examples"


def _run(settings: dict[str, str], *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(_EXAMPLES / "spark_two_stages.py"), "--orders", "20000", *arguments],
        env={**os.environ, **settings, "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
def test_two_stages_give_the_same_through_s3_as_with_spark_alone(
    stack: lab.Stack, store_prefix: str
) -> None:
    settings = stack.environ(store_prefix)
    ours, native = _run(settings), _run(settings, "--native")

    assert len(native) == 5
    assert ours[:5] == native
    assert any(line.startswith("1 repartition(8, customer)") for line in ours[5:])
