"""`python -m blobmsg.run app.py …` or `-m blobmsg.run -m package …`: an application, patched.

The application runs as `python app.py …` runs it, with `confluent_kafka.Producer` and `Consumer`
replaced. Its settings stay as they are; blobmsg's come from `BLOBMSG_*`, for example
`BLOBMSG_STORE_URL=s3://bucket/prefix`.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from typing import TYPE_CHECKING

from blobmsg.patching import patch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_MISTAKE = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Patch, then run the application in this process.

    Args:
        argv: Arguments without the program's name; `sys.argv`'s if not given.

    Raises:
        SystemExit: 2 when there is no such application; else whatever the application raises.
    """
    parser = argparse.ArgumentParser(
        prog="python -m blobmsg.run",
        usage="python -m blobmsg.run [-h] (app.py | -m module) [argument ...]",
        description="Run an application with confluent_kafka.Producer and Consumer replaced by "
        "BlobProducer and BlobConsumer. blobmsg's settings come from BLOBMSG_* variables.",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module")
    parser.add_argument("application", help="file, folder or zip with __main__.py, or module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the application")
    asked = parser.parse_args(argv)
    application: str = asked.application
    sys.argv = [application, *asked.arguments]
    if asked.is_module:
        sys.path[0] = os.getcwd()  # noqa: PTH109  (as `python -m` does)
        patch()
        _run_module(application)
        return
    if not os.path.exists(application):  # noqa: PTH110  (as given)
        _complain(f"there is no file {application}")
    patch()
    # A folder or zip is put on the path by runpy itself.
    if os.path.isfile(application):  # noqa: PTH113
        sys.path[0] = os.path.dirname(os.path.abspath(application))  # noqa: PTH100, PTH120
    runpy.run_path(application, run_name="__main__")


def _run_module(name: str) -> None:
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        _complain(f"there is no module {name}")
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _complain(text: str) -> None:
    print(f"blobmsg.run: {text}", file=sys.stderr)  # noqa: T201  (a command line's answer)
    raise SystemExit(_MISTAKE)


if __name__ == "__main__":
    main()
