"""A planted defect fails the simulation: it finds what it is there for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.sim.defects import DEFECTS, FIRST_SEEDS, PATCHES, TOP, LineDefect
from tools import planted

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = 1000  # most are found by one of the first ten
_STUMBLED = re.compile(r"(?m)^seed \d+: (Attribute|Name|Type|Import|Syntax|UnboundLocal)Error")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("defect", [*DEFECTS, *PATCHES], ids=lambda defect: defect.name)
def test_the_simulation_finds(defect: LineDefect | planted.Defect, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(TOP / "blobmsg", tmp_path / "blobmsg", ignore=ignored)
    if isinstance(defect, LineDefect):
        defect.plant(tmp_path)
    else:
        planted.apply_patch(defect.path, tmp_path)

    first = FIRST_SEEDS.get(defect.name, 0)
    done = subprocess.run(
        [sys.executable, "-m", "blobmsg.sim", "--seeds", f"{first}:{first + SEEDS}", "--no-shrink",
         "--state", str(tmp_path / "state.json")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 1, done.stdout + done.stderr
    assert "repeat: python -m blobmsg.sim --seed" in done.stdout
    # What only stumbles, for a name that is no more say, is no proof that a rule is checked.
    assert not _STUMBLED.search(done.stdout), done.stdout
