"""The mutants: what is changed, what is not, and that the list of equivalent ones is true."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tools import mutation
from tools.mutants import mutants_of, mutated
from tools.mutation import CORES

NAMES = sorted(path.stem for path in CORES.glob("*.py") if path.stem != "__init__")


def _changes(source: str) -> list[str]:
    return [mutant.change for mutant in mutants_of(dedent(source))]


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("a < b", ["a < b -> a <= b", "a < b -> a >= b"]),
        ("a is b", ["a is b -> a is not b"]),
        ("a + b", ["a + b -> a - b"]),
        ("a += b", ["a += b -> nothing", "a += b -> a -= b"]),
        ("a = 7", ["7 -> 8"]),
        ("a = True", ["True -> False"]),
        ("a = 'text'", []),
        ("a and b", ["a and b -> a or b"]),
        ("not a", ["not a -> a"]),
        ("min(a)", ["min(a) -> nothing", "min -> max"]),
        ("a.b = c", ["a.b = c -> nothing"]),
        ("a = c", []),
        ("del a[b]", ["del a[b] -> nothing"]),
        ("[a for a in b if c]", ["c -> False", "c -> True"]),
        ("while a: break", ["a -> False", "break -> continue"]),
        ("if a: b()", ["a -> False", "a -> True", "b() -> nothing"]),
        ("def f(): return a", ["return a -> return None"]),
        ("def f(): return None", []),
        ("def f(): return False", ["False -> True"]),
    ],
)
def test_a_change_of_each_kind(source: str, changes: list[str]) -> None:
    assert _changes(source) == changes


@pytest.mark.parametrize(
    "source",
    [
        '"""A text of 3 words."""',
        "a: Literal[1]",
        "__slots__ = ('a', *b[1:])",
        "raise ValueError(a + b)",
        "b = zip(a, strict=True)",
        "f'{a + b}'",
        "if TYPE_CHECKING:\n    a = 1",
        "@dataclass(frozen=True)\nclass A: pass",
        "class A:\n    def __repr__(self): return 1",
        "class A:\n    def __init__(self): self.a = b",
    ],
)
def test_what_no_behaviour_hangs_on_is_not_changed(source: str) -> None:
    assert _changes(source) == []


def test_a_mutant_is_one_change_on_the_lines_of_the_code() -> None:
    source = "def f(a):\n    if a > 1:\n        return a + 1\n    return a\n"
    [at] = [m.number for m in mutants_of(source) if m.change == "a + 1 -> a - 1"]

    tree = mutated(source, at)

    assert ast.unparse(tree) == source.replace("a + 1", "a - 1").strip()
    assert [getattr(node, "lineno", 0) for node in ast.walk(tree)] == [
        getattr(node, "lineno", 0) for node in ast.walk(ast.parse(source))
    ]


def test_a_mutant_knows_its_function_and_when_it_is_run() -> None:
    mutants = mutants_of("class A:\n    b = 1\n    def f(self, c=2):\n        return lambda: 3\n")

    found = {m.change: (m.function, m.is_in_body) for m in mutants}

    assert found["1 -> 2"] == ("A", False)
    assert found["2 -> 3"] == ("A.f", False)
    assert found["3 -> 4"] == ("A.f", True)


@pytest.mark.parametrize("name", NAMES)
def test_every_mutant_that_is_called_equivalent_is_there(name: str) -> None:
    assert mutation.read_core(name).mutants
