from __future__ import annotations

from typing import TYPE_CHECKING

from tools import stock_suite
from tools.stock_suite import Comparison, read_outcomes, read_reasons

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_REPORT = """
<testsuites><testsuite>
  <testcase classname="tests.test_a" name="test_good"/>
  <testcase classname="tests.test_a" name="test_bad"><failure message="no"/></testcase>
  <testcase classname="tests.test_a" name="test_left"><skipped message="no broker"/></testcase>
  <testcase classname="tests.test_a" name="test_leaks"><error message="teardown"/></testcase>
  <testcase classname="tests.test_a" name="test_leaks"/>
</testsuite></testsuites>
"""


def test_outcomes_are_read_from_pytests_report() -> None:
    assert read_outcomes(_REPORT) == {
        "tests.test_a::test_good": "passed",
        "tests.test_a::test_bad": "failed",
        "tests.test_a::test_left": "skipped",
        "tests.test_a::test_leaks": "failed",
    }


def test_only_what_passes_on_stock_alone_needs_a_reason() -> None:
    compared = Comparison(
        stock={"a": "passed", "b": "passed", "c": "failed", "d": "passed", "e": "skipped"},
        ours={"a": "passed", "b": "failed", "c": "failed", "e": "skipped"},
        reasons={"b": "virtual offsets", "a": "of old"},
    )

    assert compared.differences == ["b", "d"]
    assert compared.unexplained == ["d"]
    assert compared.stale == ["a"]
    assert compared.lines() == [
        "stock: 3 passed, 1 failed, 1 skipped of 5",
        "blobmsg: 1 passed, 2 failed, 1 skipped of 4",
        "failed on both: c",
        "only on stock: b: virtual offsets",
        "only on stock: d: NO REASON IS KNOWN",
    ]


def test_every_difference_has_a_reason() -> None:
    reasons = read_reasons()

    assert reasons
    assert all("::" in test and len(reason) > 20 for test, reason in reasons.items())


def test_a_folder_that_is_no_checkout_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stock_suite.main([str(tmp_path)]) == 2
    assert "no checkout" in capsys.readouterr().err
