"""The planted defects: readable, one for each row, applying to the code as it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.sim.defects import DEFECTS as LINE_DEFECTS
from tests.sim.defects import LineDefect
from tools import planted
from tools.planted import Defect, Outcome, PlantedError

DEFECTS = planted.read_defects()
# Of docs/failures.md; the others are for what blobmsg does not have yet, or are tested elsewhere.
ROWS = {*range(1, 18), 22, 24, *range(26, 33)}
DIFF = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
DEFECT = Defect(Path("02-x.patch"), 2, "breaks", "tests/unit/test_planted.py::test_x")


def _patch(folder: Path, header: str, name: str = "02-x.patch") -> Path:
    path = folder / name
    path.write_text(f"{header}\n{DIFF}")
    return path


def test_every_row_has_a_planted_defect() -> None:
    assert {defect.row for defect in DEFECTS} == ROWS


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_every_patch_applies_and_touches_the_library_alone(defect: Defect) -> None:
    planted.apply_patch(defect.path, planted.TOP, check=True)
    files = re.findall(r"^\+\+\+ b/(\S+)", defect.path.read_text(), re.MULTILINE)
    assert files
    assert all(name.startswith("blobmsg/") for name in files)


@pytest.mark.parametrize("defect", LINE_DEFECTS, ids=lambda defect: defect.name)
def test_the_code_of_every_simulated_defect_is_as_it_was(defect: LineDefect) -> None:
    code = (planted.TOP / "blobmsg" / defect.file).read_text()
    assert code.count(defect.before) == 1


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_every_named_test_exists(defect: Defect) -> None:
    tree = ast.parse((planted.TOP / defect.test_file).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert defect.test_function in names


def test_the_page_names_every_defect_and_its_test() -> None:
    page = (planted.TOP / "docs" / "failures.md").read_text()
    for defect in DEFECTS:
        [line] = [line for line in page.splitlines() if line.startswith(f"| {defect.row} |")]
        assert f"`{defect.name}`" in line
        assert f"`{defect.test_function}`" in line


def test_a_header_is_read(tmp_path: Path) -> None:
    path = _patch(tmp_path, "row: 2\nbreaks: a: b\ntest: tests/a.py::test_b[c]\nfails: timeout\n")
    found = planted.read_defect(path)
    assert (found.row, found.breaks) == (2, "a: b")
    assert (found.may_time_out, found.is_alone) == (True, False)
    assert (found.name, found.test_file, found.test_function) == ("02-x", "tests/a.py", "test_b")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("row: 2\nbreaks: a\n", "lacks test"),
        ("row: 3\nbreaks: a\ntest: b\n", "not that of the name"),
        ("row: two\nbreaks: a\ntest: b\n", "not that of the name"),
        ("row: 2\nbreaks: a\ntest: b\ncolour: red\n", "not a line of a header"),
        ("row: 2\nrow: 2\nbreaks: a\ntest: b\n", "not a line of a header"),
        ("row: 2\nbreaks: a\ntest: b\nfails: often\n", "may only be"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: str, says: str) -> None:
    with pytest.raises(PlantedError, match=says):
        planted.read_defect(_patch(tmp_path, header))


def test_a_header_without_a_diff_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "02-x.patch"
    path.write_text("row: 2\nbreaks: a\ntest: b\n")
    with pytest.raises(PlantedError, match="no line begins"):
        planted.read_defect(path)


def test_a_patch_that_does_not_apply_says_so(tmp_path: Path) -> None:
    patch = _patch(tmp_path, "row: 2\nbreaks: a\ntest: b\n")
    (tmp_path / "x").write_text("changed meanwhile\n")
    with pytest.raises(PlantedError, match="does not apply any more"):
        planted.apply_patch(patch, tmp_path)


def test_a_patch_is_applied_to_the_tree_it_is_given(tmp_path: Path) -> None:
    patch = _patch(tmp_path, "row: 2\nbreaks: a\ntest: b\n")
    (tmp_path / "x").write_text("a\n")
    planted.apply_patch(patch, tmp_path)
    assert (tmp_path / "x").read_text() == "b\n"


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [
        ([Outcome("passed")], "UNNOTICED"),
        ([Outcome("error", "no such fixture")], "did not run"),
        ([Outcome("skipped", "no real Kafka")], "did not run"),
        ([Outcome("passed"), Outcome("skipped")], "did not run"),
        ([Outcome("failed", "Failed: Timeout (>90.0s) from pytest-timeout.")], "timed out"),
    ],
)
def test_only_a_failure_of_the_test_itself_counts(outcomes: list[Outcome], says: str) -> None:
    with pytest.raises(PlantedError, match=says):
        planted.judge(DEFECT, outcomes)


def test_one_failed_case_is_enough() -> None:
    failed = Outcome("failed", "assert 1 == 2")
    assert planted.judge(DEFECT, [Outcome("passed"), failed]) == "assert 1 == 2"


@pytest.mark.parametrize(
    "text", ["assert 1 == 2", "AssertionError: why", "Failed: DID NOT RAISE <class 'X'>"]
)
def test_every_kind_of_assertion_counts(text: str) -> None:
    assert planted.judge(DEFECT, [Outcome("failed", text)]) == text


def test_an_exception_counts_only_where_the_patch_names_it() -> None:
    raised = Outcome("failed", "cimpl.KafkaException: KafkaError{code=_STATE}")
    named = Defect(DEFECT.path, 2, "breaks", DEFECT.test, raises="KafkaException")

    assert planted.judge(named, [raised]) == raised.text
    with pytest.raises(PlantedError, match="stumbled"):
        planted.judge(DEFECT, [raised])
    with pytest.raises(PlantedError, match="stumbled"):
        planted.judge(named, [Outcome("failed", "NameError: name 'KafkaException' is not defined")])


def test_what_breaks_liveness_may_time_out() -> None:
    waits = Defect(DEFECT.path, 2, "breaks", DEFECT.test, may_time_out=True)
    assert "Timeout" in planted.judge(waits, [Outcome("failed", "Failed: Timeout (>90.0s)")])


def test_a_report_tells_failures_from_errors(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase name="test_a"/>'
        '<testcase><failure message="assert 1&#10;more"/></testcase>'
        '<testcase><error message="in setup"/></testcase>'
        '<testcase><skipped message="why"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert planted.read_outcomes(report) == [
        Outcome("passed", name="test_a"),
        Outcome("failed", "assert 1"),
        Outcome("error", "in setup"),
        Outcome("skipped", "why"),
    ]


def test_rows_and_names_choose() -> None:
    names = [defect.name for defect in planted.chosen(DEFECTS, ["2", "15-no-checksum"])]
    assert names == ["02-new-name-on-retry", "15-no-checksum"]
    assert planted.chosen(DEFECTS, []) == DEFECTS
    with pytest.raises(PlantedError, match="no planted defect of 99"):
        planted.chosen(DEFECTS, ["99", "2"])
