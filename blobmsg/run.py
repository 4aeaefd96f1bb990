"""`python -m blobmsg.run app.py …` or `-m blobmsg.run -m package …`: an application, patched.

The application runs as `python app.py …` runs it, with `confluent_kafka.Producer` and `Consumer`
replaced (`patching.patch`). Its settings stay as they are; blobmsg's come from `BLOBMSG_*`, for
example `BLOBMSG_STORE_URL=s3://bucket/prefix`.
"""

from __future__ import annotations

import io
import runpy
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from blobmsg.patching import patch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType

__all__ = ["main"]

_MISTAKE = 2
_USAGE = "usage: python -m blobmsg.run [-h] (app.py | -m module) [argument ...]"
_HELP = f"""{_USAGE}

Runs an application with confluent_kafka.Producer and Consumer replaced by BlobProducer and
BlobConsumer. blobmsg's settings come from BLOBMSG_* variables.

  app.py      a file, or a folder or zip with a __main__.py in it
  -m module   a module or package, as for python
  argument    for the application

Processes that the application starts by multiprocessing's spawn or forkserver are not patched:
let it call blobmsg.patch() first thing instead."""


def main(words: Sequence[str]) -> None:
    """Patch, then run the application in this process.

    Args:
        words: The command line behind `blobmsg.run`.

    Raises:
        SystemExit: 2 when there is no such application; else whatever the application raises.
    """
    first = words[0] if words else ""
    if first in ("-h", "--help"):
        print(_HELP)  # noqa: T201  (a command line's answer)
    elif first.startswith("-m"):
        rest = words[1:] if first == "-m" else [first[2:], *words[1:]]
        if not rest:
            _complain(_USAGE)
        _run_module(rest[0], rest[1:])
    elif not first or first.startswith("-"):
        _complain(_USAGE)
    else:
        _run_path(Path(first), words)


def _run_path(path: Path, words: Sequence[str]) -> None:
    if not path.exists():
        _complain(f"blobmsg.run: there is no file {path}")
    sys.argv = list(words)
    patch()
    if path.is_dir() or zipfile.is_zipfile(path):
        runpy.run_path(str(path), run_name="__main__")  # puts it on the path itself
        return
    if not sys.flags.safe_path:
        sys.path[0] = str(path.resolve().parent)
    file = str(path.absolute())
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec")
    _become(code, None, file)


def _run_module(name: str, arguments: Sequence[str]) -> None:
    sys.argv = ["-m", *arguments]
    patch()
    spec = _find(name)
    if spec.submodule_search_locations is not None:
        spec = _find(f"{name}.__main__")
    get_code = getattr(spec.loader, "get_code", None)
    code: CodeType | None = None if get_code is None else get_code(spec.name)
    if code is None or spec.origin is None:
        _complain(f"blobmsg.run: {name} is no module that can be run")
    sys.argv[0] = spec.origin
    _become(code, spec, spec.origin)


def _find(name: str) -> ModuleSpec:
    try:
        spec = find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of a package above it, which could not be imported
        spec = None
    if spec is None:
        _complain(f"blobmsg.run: there is no module {name}")
    return spec


def _become(code: CodeType, spec: ModuleSpec | None, file: str) -> None:
    """Run code as the program's main module, which stays it when the code has ended."""
    namespace = sys.modules["__main__"].__dict__
    namespace.clear()
    namespace.update(
        __name__="__main__",
        __builtins__=__builtins__,
        __file__=file,
        __spec__=spec,
        __package__=None if spec is None else spec.parent,
        __loader__=None if spec is None else spec.loader,
        __cached__=None,
        __doc__=None,
    )
    exec(code, namespace)  # noqa: S102  (what was asked for)


def _complain(text: str) -> NoReturn:
    print(text, file=sys.stderr)  # noqa: T201  (a command line's answer)
    raise SystemExit(_MISTAKE)


if __name__ == "__main__":
    # Out of the module, whose names stay when the application becomes `__main__`.
    from blobmsg.run import main as run

    run(sys.argv[1:])
