"""Checks with `pyright --verifytypes` that the types of the public surface are complete.

pyright counts every module of the package as public. Ours are public as far as `blobmsg` exports
them, plus a few modules as a whole; what is inside mypy and strict pyright check already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import blobmsg

PUBLIC_MODULES = ("blobmsg.errors", "blobmsg.format", "blobmsg.offsets", "blobmsg.testing")


def public_prefixes() -> tuple[str, ...]:
    """Return the full names under which pyright lists what users may import."""
    names = list(PUBLIC_MODULES)
    for name in blobmsg.__all__:
        value = getattr(blobmsg, name)
        module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", name)
        names.append(f"{module}.{qualified}" if module else f"blobmsg.{name}")
    return tuple(names)


def report(top: Path) -> dict[str, Any]:
    """Return pyright's report on the package's type completeness."""
    folder = Path(sys.executable).parent
    answer = subprocess.run(  # noqa: S603  (our own environment's program)
        [str(folder / "pyright"), "--verifytypes", "blobmsg", "--ignoreexternal", "--outputjson"],
        # pyright asks the python on the path where packages are, and sees no import hooks.
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(top)},
        cwd=top,
        capture_output=True,
        text=True,
        check=False,
    )
    facts: dict[str, Any] = json.loads(answer.stdout)["typeCompleteness"]
    return facts


def main() -> int:
    """Print what is not completely typed and return the exit code."""
    facts = report(Path(__file__).resolve().parent.parent)
    prefixes = public_prefixes()
    checked = 0
    incomplete = 0
    for symbol in facts["symbols"]:
        name = symbol["name"]
        if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes):
            continue
        checked += 1
        if not symbol["isTypeKnown"]:
            incomplete += 1
            reasons = [problem["message"].split("\n")[0] for problem in symbol["diagnostics"]]
            print(f"{name}: {'; '.join(reasons) or 'something in it is not completely typed'}")
    print(f"{checked} public symbols, {incomplete} without a complete type")
    # No symbol at all means that pyright did not find the package.
    return 1 if incomplete or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
