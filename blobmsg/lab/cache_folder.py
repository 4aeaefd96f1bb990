"""The user's cache folder: servers built once, the state of running stacks, and the locks on both.

Decides where things lie and that only one process builds a part at a time. Never decides what is
built. A part is built under a temporary name and renamed when complete, so that a killed build
leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

Report = Callable[[str], None]
"""Told in a few words what takes long, for whoever waits."""


def ignore(news: object) -> None:
    """Tell nobody: the report of whoever does not wait."""


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/blobmsg`, or `~/.cache/blobmsg`; made if it is not there."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path.home() / ".cache") / "blobmsg"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(name: str, report: Report | None = None) -> Generator[None, None, None]:
    """Hold the lock `name` of the cache folder; waits for whichever process has it.

    Args:
        name: A file name without a suffix.
        report: Told once if there is somebody to wait for.

    Threads: any, but not twice in one thread: `flock` locks belong to the open file.
    """
    folder = cache_folder() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if report is not None:
                report(f"waiting for another process that holds the lock on {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_built(name: str) -> bool:
    """Whether the part `name` of the cache folder is there, complete."""
    return (cache_folder() / name).is_dir()


def build_once(name: str, build: Callable[[Path], None], report: Report | None = None) -> Path:
    """Return the folder `name` of the cache, built by `build` if it is not there yet.

    Args:
        name: Path below the cache folder, with the part's version in it.
        build: Fills the empty folder that it is given; raises to leave nothing behind.
        report: Told if another process is building already.
    """
    target = cache_folder() / name
    if target.is_dir():
        return target
    with locked(f"build-{name.replace('/', '-')}", report):
        if target.is_dir():  # built by the process that we waited for
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the target's own folder: a rename is atomic only within one file system.
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            build(unfinished)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target
