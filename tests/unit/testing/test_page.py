"""The examples of docs/testing.md, as a project that has only what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pytest_blobmsg

PAGE = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
MARK = "<!-- run by tests/unit/testing/test_page.py -->\n"
EXAMPLES = re.findall(rf"{re.escape(MARK)}```python\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.timeout(120)


def test_every_example_is_run() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") > 0


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_passes(pytester: pytest.Pytester, number: int) -> None:
    example: str = EXAMPLES[number]
    pytester.makepyfile(example)

    done = pytester.runpytest_subprocess("-W", "error", timeout=100)

    done.assert_outcomes(passed=example.count("def test_"))


def test_the_page_names_every_fixture() -> None:
    named = set(re.findall(r"^\| `(blobmsg_\w+)`", PAGE, re.MULTILINE))

    assert named == set(pytest_blobmsg.__all__)
