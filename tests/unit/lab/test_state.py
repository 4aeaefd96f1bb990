from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from blobmsg.lab.errors import LabError
from blobmsg.lab.processes import ProcessId
from blobmsg.lab.state import (
    NodeState,
    StackState,
    forget_state,
    known_stacks,
    load_state,
    save_state,
    state_path,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def _state(name: str = "one") -> StackState:
    return StackState(
        name=name,
        runtime="native",
        folder="/tmp/somewhere",  # noqa: S108
        nodes=[
            NodeState("kafka-1", "az1", "127.0.0.1", 9092, ["java"], {"A": "b"}, "/log"),
            NodeState("minio", "", "127.0.0.1", 9000, process=ProcessId(12, "34")),
        ],
        bucket="bucket",
        region="region",
        access_key_id="id",
        secret_access_key="secret",  # noqa: S106
        owner=ProcessId(56, "78"),
    )


def test_what_is_saved_is_loaded() -> None:
    save_state(_state())

    assert load_state("one") == _state()
    assert known_stacks() == ["one"]


def test_a_forgotten_stack_is_unknown() -> None:
    save_state(_state())
    forget_state("one")
    forget_state("one")

    assert load_state("one") is None
    assert known_stacks() == []


def test_only_the_user_may_read_the_keys() -> None:
    save_state(_state())

    assert stat.S_IMODE(state_path("one").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", "A", "a/b", "../a", "-a", "a" * 41, "a b"])
def test_a_name_that_no_file_or_project_may_have_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="cannot be a stack's name"):
        load_state(name)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodes": [{}]}', "null"])
def test_a_damaged_file_is_named(text: str) -> None:
    state_path("one").write_text(text)

    with pytest.raises(LabError, match=r"one\.json does not describe a stack"):
        load_state("one")
