#!/usr/bin/env python3
"""Runs the stock client's own tests on the stock client and on ours, and compares.

    python tools/stock_suite.py CHECKOUT [test ...]

CHECKOUT is a copy of confluent-kafka-python's repository, at the version of interest: nothing of it
is kept here. Its tests run in a virtual environment of their own (`.venv-stock-suite`), with what
its requirement files ask for and the confluent-kafka that is installed here; first as they are,
then by `python -m blobmsg.run -m pytest`, against the same three brokers and object store.

What passes on stock and not on ours must stand in `tools/stock_suite_differences.toml`, with the
reason; a whole run demands that each reason is still needed. Not run: what needs a schema registry
or another cluster, is no test of a client (`ducktape`, `soak`, `oauthbearer`, `_util`), share
consumers on a broker, which stay stock's, and `test_Wakeable`: where stock does not hear the SIGINT
that its tests send themselves, the run hangs or ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import confluent_kafka
import tomllib

TOP = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(TOP))

from blobmsg.lab import stack_from_environ, start_stack  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from blobmsg.lab import Stack

VENV = TOP / ".venv-stock-suite"
DIFFERENCES = TOP / "tools" / "stock_suite_differences.toml"
_FOLDERS: Final = (
    "tests/avro",
    "tests/integration/admin",
    "tests/integration/consumer",
    "tests/integration/producer",
    "tests/integration/serialization",
)
_NOT_RUN: Final = "test_Wakeable.py"
_TIMEOUT_S: Final = 120
_OUTCOMES: Final = ("passed", "failed", "skipped")
_MISTAKE: Final = 2


class SuiteError(Exception):
    """A run that says nothing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of the same tests.

    Attributes:
        stock: Outcome by test.
        ours: Likewise.
        reasons: Why a test that passes on stock does not on ours, by test.
    """

    stock: Mapping[str, str]
    ours: Mapping[str, str]
    reasons: Mapping[str, str]

    @property
    def differences(self) -> list[str]:
        """Tests that pass on stock and not on ours."""
        return [
            test
            for test, outcome in self.stock.items()
            if outcome == "passed" and self.ours.get(test) != "passed"
        ]

    @property
    def unexplained(self) -> list[str]:
        """Those of them without a reason."""
        return [test for test in self.differences if test not in self.reasons]

    @property
    def stale(self) -> list[str]:
        """Reasons for what does not differ; of a whole run."""
        return [test for test in self.reasons if test not in self.differences]

    def lines(self) -> list[str]:
        """The report."""
        lines = [_counts("stock", self.stock), _counts("blobmsg", self.ours)]
        both = [t for t, found in self.stock.items() if found == self.ours.get(t) == "failed"]
        lines += [f"failed on both: {test}" for test in both]
        for test in self.differences:
            reason = self.reasons.get(test, "NO REASON IS KNOWN")
            lines.append(f"only on stock: {test}: {reason}")
        return lines


def _counts(name: str, outcomes: Mapping[str, str]) -> str:
    counts = Counter(outcomes.values())
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES)
    return f"{name}: {told} of {len(outcomes)}"


def read_outcomes(junit: str) -> dict[str, str]:
    """What came of each test, by class and name, from pytest's XML."""
    outcomes: dict[str, str] = {}
    for case in ET.fromstring(junit).iter("testcase"):  # noqa: S314  (pytest's, of a run of ours)
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcomes[name] = "failed"
        elif outcomes.get(name) != "failed":  # a test whose teardown fails is told of twice
            outcomes[name] = "skipped" if "skipped" in kinds else "passed"
    return outcomes


def read_reasons(path: Path = DIFFERENCES) -> dict[str, str]:
    """Why tests differ, by test."""
    found = tomllib.loads(path.read_text())
    return {entry["test"]: entry["reason"] for entry in found["difference"]}


def _install(checkout: Path) -> Path:
    """The environment's Python; made when it is not there."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)  # noqa: S603
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    requirements = checkout / "requirements" / "requirements-tests-install.txt"
    for words in (
        ["-r", str(requirements)],
        [f"confluent-kafka=={confluent_kafka.__version__}", "-e", f"{TOP}[all]"],
    ):
        subprocess.run([*pip, *words], cwd=checkout, check=True)  # noqa: S603
    return python


def _run(
    command: Sequence[str], checkout: Path, tests: Iterable[str], environ: Mapping[str, str]
) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(  # noqa: S603
            [*command, "-q", "--timeout", str(_TIMEOUT_S), "-p", "no:cacheprovider",
             "--continue-on-collection-errors", "--junitxml", str(report), *tests],
            cwd=checkout, env=environ, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise SuiteError(f"pytest ended with {done.returncode}: not all tests have run")
        outcomes = read_outcomes(report.read_text())
        broken = [name for name in outcomes if name.startswith(("::", "None::"))]
        if broken:
            raise SuiteError(f"these can't be collected, so their tests have not run: {broken}")
        return outcomes


def _environ_of(stack: Stack) -> dict[str, str]:
    """Of both runs; the stock client does not look at blobmsg's settings."""
    return {
        **os.environ,
        **stack.environ(f"stock-suite-{uuid.uuid4().hex[:8]}"),
        "BLOBMSG_ROUTE": "blob",
        "BROKERS": stack.bootstrap_servers,
        "PYTHONPATH": "",  # their `tests` and not ours
    }


def _tests_of(checkout: Path) -> list[str]:
    found = sorted((checkout / "tests").glob("test_*.py"))
    files = [file for file in found if file.name != _NOT_RUN]
    return [str(file.relative_to(checkout)) for file in files] + [
        folder for folder in _FOLDERS if (checkout / folder).is_dir()
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Run and compare; 1: something differs that has no reason."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="of confluent-kafka-python's repository")
    parser.add_argument("tests", nargs="*", help="only these, as pytest takes them")
    arguments = parser.parse_args(words)
    checkout = arguments.checkout.resolve()
    if not (checkout / "requirements" / "requirements-tests-install.txt").exists():
        print(f"{checkout} is no checkout of confluent-kafka-python", file=sys.stderr)
        return _MISTAKE
    # Where a shell has started this in the background it is ignored, and the tests that interrupt
    # themselves would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tests = arguments.tests or _tests_of(checkout)
    python = str(_install(checkout))
    with contextlib.ExitStack() as exits:
        given = stack_from_environ(os.environ)
        environ = _environ_of(given or exits.enter_context(start_stack(report=print)))
        stock = _run([python, "-m", "pytest"], checkout, tests, environ)
        if "passed" not in stock.values():
            raise SuiteError("no test passes on the stock client: nothing to compare with")
        patched = [python, "-m", "blobmsg.run", "-m", "pytest"]
        ours = _run(patched, checkout, tests, environ)
    comparison = Comparison(stock, ours, read_reasons())
    stale = [] if arguments.tests else comparison.stale
    print("\n".join([*comparison.lines(), *(f"needs no reason any more: {t}" for t in stale)]))
    return 1 if comparison.unexplained or stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SuiteError as problem:
        sys.exit(str(problem))
