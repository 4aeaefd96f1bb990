"""The texts in docs/troubleshooting.md are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADINGS = re.findall(
    r"^### `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE
)


@cache
def texts() -> tuple[str, ...]:
    """Every string of the code, those of f-strings with `…` for what is filled in."""
    found: list[str] = []
    for path in (ROOT / "blobmsg").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if node in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def test_there_are_headings() -> None:
    assert len(HEADINGS) > 20


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_text_is_one_that_the_code_gives(heading: str) -> None:
    pieces = [piece.strip() for piece in heading.split("…")]

    assert any(all(piece in text for piece in pieces) for text in texts()), heading
