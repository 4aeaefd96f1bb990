"""Virtual environments of frameworks, each with the confluent-kafka that its framework pins.

Kept in the user's cache beside the other parts, under a name with a hash of the lock file that they
were installed from. blobmsg itself is not installed: the programs run in the working copy.

`python -m tests.helpers.framework_environment` installs all of them and says what it does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blobmsg.lab import LabError
from blobmsg.lab.cache_folder import Report, build_once
from tests.helpers.child_process import ChildProgram

if TYPE_CHECKING:
    from blobmsg import lab

_FOLDER: Final = Path(__file__).parents[1] / "frameworks"
#: Every framework that has a lock file.
FRAMEWORKS: Final = tuple(sorted(path.stem for path in _FOLDER.glob("*.lock")))
#: In the reason of every test that is skipped because its framework can't be installed.
NO_FRAMEWORK: Final = "no environment for frameworks"


def install_framework(name: str, report: Report) -> Path:
    """Return the Python of a framework's environment, installed if it is not there yet.

    Raises:
        LabError: pip failed; the text has its last words.
    """
    lock = _FOLDER / f"{name}.lock"

    def build(folder: Path) -> None:
        report(f"installing {name} and what it pins (once; up to a minute)")
        _run([sys.executable, "-m", "venv", str(folder)], name)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--retries", "1", "--timeout", "20"]
        locked = ["--no-deps", "--require-hashes", "--requirement", str(lock)]
        _run([*pip, "install", "--quiet", *locked], name)

    return build_once(_part(name, lock), build, report) / "bin" / "python"


def _part(name: str, lock: Path) -> str:
    # What is compiled for one Python does not run on another.
    python = f"{sys.version_info}{sysconfig.get_platform()}{sys.base_prefix}"
    digest = hashlib.sha256(lock.read_bytes() + python.encode()).hexdigest()
    return f"frameworks/{name}-{digest[:16]}"


def _run(command: list[str], name: str) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        last = (answer.stdout + answer.stderr).strip()[-2000:]
        raise LabError(f"{name} can't be installed:\n{last}")


class FrameworkProgram(ChildProgram):
    """Runs one of `tests/frameworks/programs` in the environment of its framework.

    Args:
        python: Of that environment.
        module: The program's name.
        stack: What it speaks to.
        store_prefix: Where its records are stored, every one of them.
        plan: Its argument.
    """

    def __init__(
        self, python: Path, module: str, stack: lab.Stack, store_prefix: str, **plan: Any
    ) -> None:
        # As `Either.conf`: batches wait for nothing but the program.
        more = {"BLOBMSG_ROUTE": "blob", "BLOBMSG_BATCH_INTERVAL_MS": "50"}
        environ = {**os.environ, **stack.environ(store_prefix), **more}
        super().__init__(
            f"tests.frameworks.programs.{module}",
            {"bootstrap_servers": stack.bootstrap_servers, **plan},
            python=str(python),
            environ=environ,
        )


def main() -> None:
    """Install all environments."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--if-possible", action="store_true", help="what fails is no error")
    arguments = parser.parse_args()
    failures = [name for name in FRAMEWORKS if not _install_loudly(name)]
    if failures and not arguments.if_possible:
        sys.exit(1)


def _install_loudly(name: str) -> bool:
    try:
        install_framework(name, lambda text: print(text, flush=True))  # noqa: T201
    except LabError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return False
    return True


if __name__ == "__main__":
    main()
