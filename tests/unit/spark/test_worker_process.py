"""What tasks do to the process they run in, and never to the driver's."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg_spark import worker_process

if TYPE_CHECKING:
    from collections.abc import Iterator


class _FakeLibc:
    """Says what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def mallopt(self, what: int, value: int) -> int:
        self.told.append((what, value))
        return 1


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_process, "_most_modules", 0)
    for name in ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    worker_process._keep_freed_memory.cache_clear()
    yield
    worker_process._keep_freed_memory.cache_clear()


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> _FakeLibc:
    fake = _FakeLibc()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: fake)
    return fake


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the garbage collector was asked."""
    asked: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: asked.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    return asked


@pytest.fixture
def _in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Task:
        @staticmethod
        def get() -> object:
            return object()

    monkeypatch.setattr(worker_process, "TaskContext", _Task)


def _modules(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    class _Sys:
        modules: dict[str, Any] = dict.fromkeys(map(str, range(count)))

    monkeypatch.setattr(worker_process, "sys", _Sys)


def test_nothing_happens_outside_of_a_task(libc: _FakeLibc, frozen: list[str]) -> None:
    worker_process.tune_worker_process()

    assert (libc.told, frozen) == ([], [])


@pytest.mark.usefixtures("_in_a_task", "libc")
def test_modules_are_frozen_once_and_again_only_when_there_are_more(
    frozen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (5, 5, 4, 5, 4):
        _modules(monkeypatch, count)
        worker_process.tune_worker_process()
    assert frozen == ["collect", "freeze"]

    _modules(monkeypatch, 6)
    worker_process.tune_worker_process()
    assert frozen == ["collect", "freeze"] * 2


@pytest.mark.usefixtures("_in_a_task", "frozen")
def test_the_allocator_is_told_once(libc: _FakeLibc) -> None:
    worker_process.tune_worker_process()
    worker_process.tune_worker_process()

    assert libc.told == [(-8, 1), (-3, 32 << 20), (-1, 64 << 20)]


@pytest.mark.usefixtures("_in_a_task", "frozen")
def test_what_the_user_has_set_stays(libc: _FakeLibc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")

    worker_process.tune_worker_process()

    assert libc.told == []
