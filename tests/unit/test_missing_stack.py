"""Where there can be no servers or no framework, tests that need them say so; in CI they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDS_STACK = (
    "tests/integration/test_dev_stack.py::test_three_brokers_answer_with_a_rack_each",
    "tests/integration/test_dev_stack.py::test_the_bucket_takes_and_gives_objects",
)
NEEDS_FRAMEWORK = "tests/frameworks/test_opentelemetry.py"


pytestmark = pytest.mark.timeout(120)  # each starts a pytest of its own, or makes an environment


def _run(tmp_path: Path, *tests: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BLOBMSG_", "PYTEST_"))}
    bare = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "JAVA_HOME": "", "CI": ""}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--color=no",
            *(tests or NEEDS_STACK),
        ],
        env={**kept, **bare, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_on_a_bare_machine_they_are_skipped_by_name(tmp_path: Path) -> None:
    answer = _run(tmp_path)

    assert answer.returncode == 0, answer.stdout
    assert "2 skipped" in answer.stdout
    assert "SKIPPED: no real Kafka and S3" in answer.stdout
    assert "no java: install a JDK" in answer.stdout
    for name in NEEDS_STACK:
        assert f"not run: {name}\n" in answer.stdout


def test_in_ci_they_fail(tmp_path: Path) -> None:
    answer = _run(tmp_path, CI="true")

    assert answer.returncode == 1, answer.stdout
    assert "2 errors" in answer.stdout
    assert "no real Kafka and S3 in CI: no java" in answer.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ci", ["", "true"])
def test_without_a_frameworks_packages_its_tests_are_skipped_by_name_and_in_ci_fail(
    tmp_path: Path, ci: str
) -> None:
    answer = _run(tmp_path, NEEDS_FRAMEWORK, PIP_NO_INDEX="1", CI=ci)

    assert answer.returncode == (1 if ci else 0), answer.stdout
    assert "opentelemetry can't be installed" in answer.stdout
    if ci:
        assert "no environment for frameworks in CI" in answer.stdout
    else:
        assert "SKIPPED: no environment for frameworks" in answer.stdout
        assert f"not run: {NEEDS_FRAMEWORK}::test_a_record_carries_its_trace" in answer.stdout


@pytest.mark.parametrize("name", ["BLOBMSG_DEV_STACK", "BLOBMSG_DEV_BOOTSTRAP"])
def test_a_stack_that_is_named_and_not_there_fails(name: str, tmp_path: Path) -> None:
    answer = _run(tmp_path, **{name: "nonsense"})

    assert answer.returncode != 0
    assert name in answer.stdout + answer.stderr
