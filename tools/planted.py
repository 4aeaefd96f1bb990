#!/usr/bin/env python3
"""Breaks a guarantee on purpose, one planted defect at a time, and demands that its test fails.

A planted defect is a patch in `tests/planted/`, named by its row of `docs/failures.md`, that begins
with three lines:

    row: 2
    breaks: A retried PUT uses the name of the first attempt.
    test: tests/integration/test_order.py::test_a_stored_object_...

and where needed `fails: timeout`, for what waits for ever when it is broken, `raises: NAME`, for an
exception of the client that shows it, or `runs: alone`, for a test that pauses servers which all
share. All named tests must pass as the code is; then each defect is applied alone, in a copy of the
tree, and its test must fail there by an assertion of its own: with any other exception it has
stumbled, and an error in a fixture, in importing or collecting proves nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TOP = Path(__file__).resolve().parent.parent
FOLDER = TOP / "tests" / "planted"

# What the tests wait for comes at once where it comes at all: see tests/helpers/records.py.
_DEADLINE_S = "25"
_TEST_TIMEOUT_S = "120"
_RUN_TIMEOUT_S = 200
_BASELINE_TIMEOUT_S = 1200
_NEEDED = {"row", "breaks", "test"}
_OPTIONAL = {"fails": "timeout", "runs": "alone", "raises": None}  # None: any word
# How pytest begins what an assertion, `pytest.raises` or `pytest.fail` says.
_ASSERTIONS = ("assert ", "AssertionError", "Failed: ")
# A test that does not notice waits most of its time, so more run at once than there are cores.
_JOBS = 6


class PlantedError(Exception):
    """A patch or a run that proves nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One patch.

    Attributes:
        path: The patch.
        row: Of `docs/failures.md`.
        breaks: The guarantee that does not hold any more.
        test: The node id of the test that must notice it.
        may_time_out: The test may notice it by waiting until its timeout.
        is_alone: Nothing else may run beside the test.
        raises: A class of exceptions by which the test may notice it, besides assertions; "": none.
    """

    path: Path
    row: int
    breaks: str
    test: str
    may_time_out: bool = False
    is_alone: bool = False
    raises: str = ""

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def test_file(self) -> str:
        """Where the test is, from the repository's top."""
        return self.test.partition("::")[0]

    @property
    def test_function(self) -> str:
        """The test's name without parameters."""
        return self.test.partition("::")[2].partition("[")[0]


def read_defect(path: Path) -> Defect:
    """Return what a patch's header says.

    Raises:
        PlantedError: A line is missing, unknown or wrong, or there is no diff behind the header.
    """
    fields: dict[str, str] = {}
    header, mark, _ = path.read_text().partition("\ndiff --git ")
    if not mark:
        raise PlantedError(f"{path.name}: no line begins with 'diff --git'")
    for line in header.strip().splitlines():
        name, colon, value = line.partition(": ")
        if not colon or name not in _NEEDED | _OPTIONAL.keys() or name in fields:
            raise PlantedError(f"{path.name}: not a line of a header: {line!r}")
        fields[name] = value.strip()
    missing = _NEEDED - fields.keys()
    if missing:
        raise PlantedError(f"{path.name}: the header lacks {', '.join(sorted(missing))}")
    if not fields["row"].isdigit() or int(path.name[:2]) != int(fields["row"]):
        raise PlantedError(f"{path.name}: the row {fields['row']!r} is not that of the name")
    for name, only in _OPTIONAL.items():
        if only is not None and fields.get(name, only) != only:
            raise PlantedError(f"{path.name}: {name}: may only be {only!r}")
    return Defect(
        path,
        int(fields["row"]),
        fields["breaks"],
        fields["test"],
        may_time_out="fails" in fields,
        is_alone="runs" in fields,
        raises=fields.get("raises", ""),
    )


def read_defects(folder: Path = FOLDER) -> list[Defect]:
    """Return all planted defects, in the order of their rows."""
    return [read_defect(path) for path in sorted(folder.glob("*.patch"))]


def apply_patch(path: Path, tree: Path, *, check: bool = False) -> None:
    """Apply a patch to a tree, or only look whether it applies.

    Raises:
        PlantedError: It does not apply: the code has changed, and the patch must follow.
    """
    command = ["git", "apply", *(["--check"] if check else []), str(path)]
    # Ceiling: a tree inside of another repository is patched as one that is in none.
    environ = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    done = subprocess.run(  # noqa: S603  (git, and a patch of ours)
        command, cwd=tree, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PlantedError(
            f"{path.name} does not apply any more: {done.stderr.strip()}; make it anew against "
            "the code as it is"
        )


def copy_tree(to: Path) -> None:
    """Copy what git knows or would add, and the native module."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=TOP,
        capture_output=True,
        check=True,
    ).stdout.decode()
    native = [str(path.relative_to(TOP)) for path in TOP.glob("blobmsg/native/*.so")]
    for name in [*filter(None, listed.split("\0")), *native]:
        if (TOP / name).is_file():  # not one that is deleted and not committed yet
            target = to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, target)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one test did.

    Attributes:
        kind: `passed`, `failed`, `error` (outside of the test itself) or `skipped`.
        text: Of the failure, its first line.
        name: The test.
    """

    kind: str
    text: str = ""
    name: str = ""

    @property
    def is_timeout(self) -> bool:
        """Whether pytest-timeout ended it."""
        return self.text.startswith("Failed: Timeout")


def run_tests(
    tree: Path, tests: Sequence[str], environ: Mapping[str, str], *, timeout_s: float
) -> list[Outcome]:
    """Run tests in a copy; what each of them did.

    Raises:
        PlantedError: The run says nothing about the tests.
    """
    environ = {
        **environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "BLOBMSG_TEST_DEADLINE_S": _DEADLINE_S,
    }
    _check_imported(tree, environ)
    report = tree / "planted.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["--timeout-method=signal", "-o", f"timeout={_TEST_TIMEOUT_S}"]
    command += [f"--junitxml={report}", *tests]
    process = subprocess.Popen(  # noqa: S603  (pytest, on our own tests)
        command,
        cwd=tree,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise PlantedError(f"pytest did not end in {timeout_s} s\n{_tail(output)}") from None
    if process.returncode not in (0, 1) or not report.exists():
        raise PlantedError(f"pytest ended with {process.returncode}\n{_tail(output)}")
    outcomes = read_outcomes(report)
    if not outcomes:
        raise PlantedError(f"no test ran\n{_tail(output)}")
    return outcomes


def read_outcomes(report: Path) -> list[Outcome]:
    """Return what a JUnit report says of each test."""
    outcomes: list[Outcome] = []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  (pytest wrote it just now)
        name = case.get("name") or ""
        outcome = Outcome("passed", name=name)
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                kind = "failed" if child.tag == "failure" else child.tag
                first = (child.get("message") or "").splitlines()
                outcome = Outcome(kind, first[0] if first else "", name)
                break  # a failure, though its fixture failed as well behind it
        outcomes.append(outcome)
    return outcomes


def judge(defect: Defect, outcomes: Sequence[Outcome]) -> str:
    """Return how the test noticed the defect, in a line.

    Raises:
        PlantedError: It did not, or not by itself.
    """
    failed = [found for found in outcomes if found.kind == "failed"]
    noticed = [found for found in failed if _is_noticed_by(defect, found)]
    if noticed:
        return noticed[0].text
    if failed:
        what = "only timed out" if failed[0].is_timeout else "stumbled, by no assertion of its own"
        raise PlantedError(f"the test {what}: {failed[0].text}")
    other = next((found for found in outcomes if found.kind != "passed"), None)
    if other is not None:
        raise PlantedError(f"the test did not run: {other.kind}: {other.text}")
    raise PlantedError("UNNOTICED: the test passes")


def _is_noticed_by(defect: Defect, failure: Outcome) -> bool:
    if failure.is_timeout:
        return defect.may_time_out
    raised = failure.text.partition(":")[0].rpartition(".")[2]
    return failure.text.startswith(_ASSERTIONS) or bool(raised and raised == defect.raises)


def _check_imported(tree: Path, environ: Mapping[str, str]) -> None:
    """Make sure that tests in a copy test the copy."""
    found = subprocess.run(
        [sys.executable, "-c", "import blobmsg; print(blobmsg.__file__)"],
        cwd=tree,
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if Path(found.stdout.strip()) != tree / "blobmsg" / "__init__.py":
        raise PlantedError(
            f"not the copy is imported, but {found.stdout.strip()}\n{_tail(found.stderr)}"
        )


def _tail(output: str) -> str:
    return "\n".join(f"    {line}" for line in output.splitlines()[-15:])


@contextlib.contextmanager
def _stack() -> Iterator[dict[str, str]]:
    """The environment that names a running stack: the caller's, else one that is started."""
    from blobmsg import lab

    lab.install_parts(lambda text: print(text, flush=True))
    with lab.open_stack() as stack:
        stack.wait_ready()
        yield {**os.environ, "BLOBMSG_DEV_STACK": stack.name}


@contextlib.contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="blobmsg-planted-") as folder:
        tree = Path(folder).resolve() / "tree"
        copy_tree(tree)
        yield tree


def _check_baseline(defects: Sequence[Defect], environ: Mapping[str, str], jobs: int) -> None:
    """Demand that all named tests pass as the code is."""
    started = time.monotonic()
    shared = list(dict.fromkeys(d.test for d in defects if not d.is_alone))
    alone = list(dict.fromkeys(d.test for d in defects if d.is_alone))

    def run(tests: Sequence[str]) -> list[Outcome]:
        with _copy() as tree:
            return run_tests(tree, tests, environ, timeout_s=_BASELINE_TIMEOUT_S)

    groups = [group for group in (sorted(shared)[n::jobs] for n in range(jobs)) if group]
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = [outcome for found in pool.map(run, groups) for outcome in found]
    outcomes += run(alone) if alone else []
    bad = [found for found in outcomes if found.kind != "passed"]
    if bad:
        lines = "".join(f"\n    {found.name}: {found.kind}: {found.text}" for found in bad)
        raise PlantedError(f"without any defect {len(bad)} of the tests do not pass:{lines}")
    took_s = time.monotonic() - started
    print(f"{len(outcomes)} tests pass as the code is, {took_s:.0f} s", flush=True)


def _plant_all(defects: Sequence[Defect], environ: Mapping[str, str], jobs: int) -> list[str]:
    """Apply each defect alone; the names of those that went unnoticed."""
    shared = [defect for defect in defects if not defect.is_alone]
    alone = [defect for defect in defects if defect.is_alone]
    with ThreadPoolExecutor(jobs) as pool:
        noticed = list(pool.map(lambda defect: _plant(defect, environ), shared))
    noticed += [_plant(defect, environ) for defect in alone]
    return [d.name for d, is_noticed in zip(shared + alone, noticed, strict=True) if not is_noticed]


def _plant(defect: Defect, environ: Mapping[str, str]) -> bool:
    """Apply a defect and run its test; whether it was noticed."""
    started = time.monotonic()
    try:
        with _copy() as tree:
            apply_patch(defect.path, tree)
            outcomes = run_tests(tree, [defect.test], environ, timeout_s=_RUN_TIMEOUT_S)
        said, is_noticed = judge(defect, outcomes), True
    except PlantedError as problem:
        said, is_noticed = str(problem), False
    word = "noticed" if is_noticed else "NOT OK"
    print(f"{word}  {defect.name}  {time.monotonic() - started:.0f} s  {said[:300]}", flush=True)
    return is_noticed


def chosen(defects: Sequence[Defect], wanted: Sequence[str]) -> list[Defect]:
    """Return the defects of some rows (`14`) or with some names (`14-no-retry`); all if none.

    Raises:
        PlantedError: There is none of a wanted row or name.
    """
    unknown = [word for word in wanted if not any(word in (str(d.row), d.name) for d in defects)]
    if unknown:
        raise PlantedError(f"no planted defect of {', '.join(unknown)}")
    return [d for d in defects if not wanted or str(d.row) in wanted or d.name in wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tools/planted.py",
        description="Apply each planted defect alone and demand that the test it names fails. "
        "With BLOBMSG_DEV_STACK (see `blobmsg dev env`) on a stack that runs already.",
    )
    parser.add_argument("rows", nargs="*", help="only these rows or patches (default: all)")
    parser.add_argument("--list", action="store_true", help="show the defects and run nothing")
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not run the tests without a defect first"
    )
    parser.add_argument(
        "--jobs", type=int, default=_JOBS, help=f"how many tests at once (default: {_JOBS})"
    )
    options = parser.parse_args(arguments)
    try:
        defects = chosen(read_defects(), options.rows)
        if options.list:
            for defect in defects:
                print(f"{defect.name}: {defect.breaks}\n    {defect.test}")
            return 0
        for defect in defects:
            apply_patch(defect.path, TOP, check=True)
        with _stack() as environ:
            if not options.no_baseline:
                _check_baseline(defects, environ, options.jobs)
            unnoticed = _plant_all(defects, environ, options.jobs)
    except PlantedError as problem:
        print(f"planted: {problem}", file=sys.stderr)
        return 1
    print(f"{len(defects)} planted defects, {len(defects) - len(unnoticed)} noticed")
    if unnoticed:
        print(f"not noticed: {', '.join(unnoticed)}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(TOP))
    sys.exit(main())
