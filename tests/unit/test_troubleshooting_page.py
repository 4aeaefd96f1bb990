"""The texts in docs/troubleshooting.md are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from blobmsg import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
HEADINGS = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)


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


# Servers, programs and helpers for tests say what they say where they run.
_NOT_CLIENTS = {"lab", "sim", "demo", "cli", "testing"}


@cache
def warnings() -> tuple[str, ...]:
    """What clients write as a warning, before anything is filled in."""
    found: list[str] = []
    for path in (ROOT / "blobmsg").rglob("*.py"):
        if path.relative_to(ROOT / "blobmsg").parts[0] in _NOT_CLIENTS:
            continue
        found += [
            str(node.args[0].value)
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "warning"
            and isinstance(node.args[0], ast.Constant)
        ]
    return tuple(found)


def _is_of(heading: str, text: str) -> bool:
    return all(piece.strip() in text for piece in heading.split("…"))


def test_there_are_headings() -> None:
    assert len(HEADINGS) > 20


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_text_is_one_that_the_code_gives(heading: str) -> None:
    assert any(_is_of(heading, text) for text in texts()), heading


def test_there_are_warnings() -> None:
    assert len(warnings()) > 8


@pytest.mark.parametrize("text", warnings())
def test_what_the_log_warns_of_has_a_heading(text: str) -> None:
    assert any(_is_of(heading, text) for heading in HEADINGS), text


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n != "BlobmsgError"])
def test_every_class_of_errors_is_there(name: str) -> None:
    assert f"`{name}`" in PAGE
