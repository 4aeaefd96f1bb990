"""Without the native module the Python twins do the same: their tests, once more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from blobmsg.native import native

TESTS = Path(__file__).parent.parent
# What touches a twin, whatever else it tests.
TWINS = (
    "unit/test_native_record_step.py",
    "unit/test_record_step.py",
    "unit/test_record_path.py",
    "unit/test_producer_signals.py",
    "unit/test_producer_pipeline.py",
    "unit/core/test_segments.py",
    "unit/core/test_batcher.py",
    "unit/core/test_producer_core.py",
    "unit/format",
    "unit/test_message.py",
    "unit/test_consumption.py",
    "vectors",
)


def run_python(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_twins_pass_the_same_tests() -> None:
    files = [str(TESTS / name) for name in TWINS]
    told = run_python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, BLOBMSG_PURE_PYTHON="1"
    )

    outcome = told.rstrip().splitlines()[-1]  # librdkafka's lines above may say "failed", too
    assert " passed" in outcome
    assert " failed" not in outcome


@pytest.mark.parametrize(("asked", "is_there"), [("1", False), ("", True), ("0", True)])
def test_the_environment_can_leave_it_out(asked: str, is_there: bool) -> None:
    if native is None and is_there:
        pytest.skip("no compiler built blobmsg.native here")
    code = "from blobmsg.native import native; print(native is not None)"

    assert run_python("-c", code, BLOBMSG_PURE_PYTHON=asked) == f"{is_there}\n"


def test_it_is_built_where_there_is_a_compiler() -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not shutil.which(compiler) or not header.exists() or sys.byteorder == "big":
        pytest.skip(f"nothing to build it with: {compiler}, {header}")
    if os.environ.get("BLOBMSG_PURE_PYTHON", "0") not in ("", "0"):
        pytest.skip("left out on purpose")

    assert native is not None, "make setup builds it: was it run since blobmsg/native/*.c changed?"
