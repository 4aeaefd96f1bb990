"""The environments of the frameworks: installed before the first test, or loudly missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.lab import LabError
from tests.helpers.either import Either
from tests.helpers.framework_environment import (
    FRAMEWORKS,
    NO_FRAMEWORK,
    FrameworkProgram,
    install_framework,
)
from tests.helpers.stack import without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from blobmsg import lab

_pythons = pytest.StashKey[dict[str, Path | str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = {item.path.stem.removeprefix("test_") for item in session.items}.intersection(
        FRAMEWORKS
    )
    pythons = session.config.stash.setdefault(_pythons, {})
    if session.config.option.collectonly:
        return
    # Here and not in the fixture: the first installation takes longer than a test has.
    for name in sorted(wanted):
        pythons[name] = _install(name)


def _install(name: str) -> Path | str:
    """The Python of a framework's environment, or why there is none."""
    try:
        return install_framework(name, lambda text: print(f"\n{text}", flush=True))  # noqa: T201
    except LabError as error:
        return str(error)


@pytest.fixture(params=["stock", "blobmsg"])
def either(request: pytest.FixtureRequest, stack: lab.Stack, store_prefix: str) -> Either:
    """With which client the test runs: the control's or ours."""
    return Either(request.param == "blobmsg", stack, store_prefix)


@pytest.fixture(autouse=True)
def python(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Path:
    """That of the environment of the file's framework."""
    found = pytestconfig.stash[_pythons][request.path.stem.removeprefix("test_")]
    if isinstance(found, str):
        without(NO_FRAMEWORK, found)
    return found


@pytest.fixture
def start(
    python: Path, stack: lab.Stack, store_prefix: str
) -> Iterator[Callable[..., FrameworkProgram]]:
    """`start(module, **plan)` runs a program in that environment.

    What still runs when the test ends is killed.
    """
    started: list[FrameworkProgram] = []

    def start_program(module: str, **plan: Any) -> FrameworkProgram:
        started.append(FrameworkProgram(python, module, stack, store_prefix, **plan))
        return started[-1]

    yield start_program
    for program in started:
        program.kill()
