"""The demo as a user runs it: a process, watched from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def start_demo(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start `blobmsg demo` with `folder` for temporary files, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "blobmsg", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), **(environ or {})},
        start_new_session=True,
    )


def run_demo(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> tuple[int, str, dict[str, Any]]:
    """Run it to its end; returns exit code, all output, and the figures if there are any."""
    figures = folder / "figures.json"
    process = start_demo(folder, *arguments, "--json", str(figures), environ=environ)
    output, errors = process.communicate()
    found = json.loads(figures.read_text()) if figures.exists() else {}
    return process.returncode, output + errors, found


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes whose temporary files are in this folder."""
    wanted = f"TMPDIR={folder}".encode()
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # noqa: PERF203  (it has just ended, or is not ours)
            continue
    return found
