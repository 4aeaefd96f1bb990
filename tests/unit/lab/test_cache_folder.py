from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from blobmsg.lab.cache_folder import build_once, cache_folder, is_built, locked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def _listing() -> list[str]:
    return sorted(p.name for p in cache_folder().iterdir() if p.name != "locks")


def test_cache_is_below_xdg_cache_home(tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "blobmsg"


def test_cache_is_in_the_home_folder_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert cache_folder() == tmp_path / "home" / ".cache" / "blobmsg"


def test_a_part_is_built_once() -> None:
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "program").write_text("x")

    first = build_once("part-1", build)
    second = build_once("part-1", build)

    assert first == second
    assert len(builds) == 1
    assert (first / "program").read_text() == "x"
    assert is_built("part-1")
    assert _listing() == ["part-1"]


def test_a_failed_build_leaves_nothing_and_the_next_one_builds() -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"):
        build_once("part-1", fail)

    assert not is_built("part-1")
    assert _listing() == []
    assert build_once("part-1", lambda folder: None).is_dir()


def test_two_processes_build_a_part_one_after_the_other(tmp_path: Path) -> None:
    builds = tmp_path / "builds"
    program = (
        "import sys, time, pathlib\n"
        "from blobmsg.lab.cache_folder import build_once\n"
        "def build(folder):\n"
        "    with open(sys.argv[1], 'a') as f: f.write('built\\n')\n"
        "    time.sleep(0.5)\n"
        "build_once('part-1', build)\n"
    )
    command = [sys.executable, "-c", program, str(builds)]
    processes = [subprocess.Popen(command) for _ in range(2)]

    assert [process.wait(20) for process in processes] == [0, 0]
    assert builds.read_text() == "built\n"


def test_who_waits_for_a_lock_is_told() -> None:
    program = (
        "import sys\n"
        "from blobmsg.lab.cache_folder import locked\n"
        "with locked('thing'):\n"
        "    print('has it', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    told: list[str] = []

    def report(text: str) -> None:
        told.append(text)
        assert holder.stdin is not None
        holder.stdin.close()

    with locked("thing", report):
        pass

    assert told == ["waiting for another process that holds the lock on thing"]
    assert holder.wait(10) == 0
    holder.stdout.close()
