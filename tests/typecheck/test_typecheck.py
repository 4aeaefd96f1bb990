"""What mypy and pyright say of user code, as a user would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REFUSED = {
    number
    for number, line in enumerate((HERE / "refused.py").read_text().splitlines(), start=1)
    if line.endswith("# refused")
}

pytestmark = [pytest.mark.timeout(120)]


def mypy_lines(file: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    prefix = f"{file.name}:"
    return {
        int(line.split(prefix, 1)[1].split(":", 1)[0])
        for line in output.splitlines()
        if prefix in line and ": error:" in line
    }


def pyright_lines(file: Path) -> set[int]:
    command = [sys.executable, "-m", "pyright", "--outputjson", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(result.stdout)
    return {
        finding["range"]["start"]["line"] + 1
        for finding in report["generalDiagnostics"]
        if finding["severity"] == "error"
    }


@pytest.mark.parametrize("lines_with_errors", [mypy_lines, pyright_lines])
def test_code_for_the_stock_client_is_accepted(lines_with_errors: object) -> None:
    assert callable(lines_with_errors)
    assert lines_with_errors(HERE / "accepted.py") == set()


@pytest.mark.parametrize("lines_with_errors", [mypy_lines, pyright_lines])
def test_mistakes_are_refused_line_by_line(lines_with_errors: object) -> None:
    assert callable(lines_with_errors)
    assert lines_with_errors(HERE / "refused.py") == REFUSED
