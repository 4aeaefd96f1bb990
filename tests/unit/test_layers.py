"""The layers of STYLE.md: who may import whom, read from the source itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import blobmsg

PACKAGE = Path(blobmsg.__file__).parent

# What each layer may import of ours, and what of others it may not. `native` reads one variable of
# the environment, once: whether C or its twin serves, which do the same.
LAYERS = {
    "format": {"format", "native"},
    "core": {"core", "format", "native"},
    # `clock` is a Protocol and a dozen lines that import nothing of ours.
    "store": {"store", "format", "errors", "config", "clock"},
    "cache": {"cache", "store", "format", "errors", "config", "clock"},
}
PURE = ("format", "core")
FORBIDDEN_IN_PURE = {
    "asyncio", "boto3", "botocore", "concurrent", "confluent_kafka", "http", "multiprocessing",
    "os", "pathlib", "queue", "secrets", "select", "selectors", "signal", "socket", "subprocess",
    "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
FORBIDDEN_RANDOM = {"random", "randrange", "randint", "choice", "shuffle", "sample", "getrandbits"}


def imports(source: str) -> list[tuple[str, str, bool]]:
    """Module, name taken from it ("" for the module itself), and whether for types only."""
    found: list[tuple[str, str, bool]] = []

    def visit(node: ast.AST, *, is_typing: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, "", is_typing) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports are absolute"
                found.extend((child.module or "", a.name, is_typing) for a in child.names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for statement in child.body:
                    visit(ast.Module([statement], []), is_typing=True)
                for statement in child.orelse:
                    visit(ast.Module([statement], []), is_typing=is_typing)
            else:
                visit(child, is_typing=is_typing)

    visit(ast.parse(source), is_typing=False)
    return found


def layer_of(module: str, name: str) -> str | None:
    """Which part of the package an import reaches; None for others' packages."""
    parts = module.split(".")
    if parts[0] != "blobmsg":
        return None
    return parts[1] if len(parts) > 1 else name


def _name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def sources(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).rglob("*.py"))


every_source = pytest.mark.parametrize(
    ("layer", "path"),
    [(layer, path) for layer in LAYERS for path in sources(layer)],
    ids=lambda value: value if isinstance(value, str) else _name_of(value),
)
every_pure_source = pytest.mark.parametrize(
    "path", [path for layer in PURE for path in sources(layer)], ids=_name_of
)


@every_source
def test_a_layer_imports_only_those_below_it(layer: str, path: Path) -> None:
    reached = {layer_of(module, name) for module, name, _ in imports(path.read_text())}

    assert reached - {None} <= LAYERS[layer]


@every_source
def test_only_shells_parse_settings(layer: str, path: Path) -> None:
    taken = {name for module, name, _ in imports(path.read_text()) if module == "blobmsg.config"}

    assert taken <= {"S3Settings", "Settings"}, f"{layer} takes settings that are parsed already"


@every_pure_source
def test_pure_layers_reach_no_thread_network_clock_environment_or_client(path: Path) -> None:
    found = imports(path.read_text())

    assert not {module.split(".")[0] for module, _, _ in found} & FORBIDDEN_IN_PURE
    assert not {name for module, name, _ in found if module == "random"} & FORBIDDEN_RANDOM


@every_pure_source
def test_pure_layers_ask_neither_clock_nor_chance(path: Path) -> None:
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }

    assert not {f"random.{name}" for name in FORBIDDEN_RANDOM} & calls
    assert not [call for call in calls if call.endswith((".now", ".utcnow", ".today"))]


@pytest.mark.parametrize("layer", [*LAYERS])
def test_each_layer_has_sources(layer: str) -> None:
    assert sources(layer)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import time", [("time", "", False)]),
        ("from blobmsg import config", [("blobmsg", "config", False)]),
        ("def f():\n    import socket", [("socket", "", False)]),
        (
            "if TYPE_CHECKING:\n    import a\nelse:\n    import b",
            [("a", "", True), ("b", "", False)],
        ),
    ],
)
def test_imports_are_found_wherever_they_stand(
    source: str, expected: list[tuple[str, str, bool]]
) -> None:
    assert imports(source) == expected
