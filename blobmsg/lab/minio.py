"""MinIO without Docker: built once by `go install`, one process over a folder or two.

Decides which version and how it is started. Never starts it: `native` does.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from blobmsg.lab.cache_folder import Report, build_once
from blobmsg.lab.errors import LabError, PartsMissing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
MINIO_PART = f"minio-{MINIO_VERSION}"
_MODULE = "github.com/minio/minio"

BUCKET = "blobmsg"
REGION = "us-east-1"  # MinIO's own default
# Known to everybody and good for nothing: the server listens on the loopback interface only.
ACCESS_KEY_ID = "blobmsg"
SECRET_ACCESS_KEY = "blobmsg-dev-only"  # noqa: S105


def install_minio(report: Report) -> Path:
    """Return the path of the MinIO program.

    Raises:
        PartsMissing: `go` is not there.
        LabError: The build failed; the text has its last words.
    """

    def build(folder: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise PartsMissing("no go: install Go (MinIO is built with it), or start Docker")
        report("building MinIO with go install (once; two to five minutes)")
        answer = subprocess.run(  # noqa: S603  (fixed arguments)
            [go, "install", f"{_MODULE}@{MINIO_VERSION}"],
            env={**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise LabError(f"go install of MinIO failed:\n{answer.stderr.strip()[-2000:]}")

    return build_once(MINIO_PART, build, report) / "minio"


def drives(folder: Path) -> list[Path]:
    """Return where a server in this folder, which exists, keeps its data.

    Two drives where direct I/O works, because MinIO does it only to more than one: through the page
    cache, one drive took 1.9 to 2.9 CPU seconds per GiB stored, two take 1.5 to 1.9 (Intel Xeon VM,
    objects of 16 MiB). With more than one it does not start without direct I/O.
    """
    count = 2 if _takes_direct_io(folder) else 1
    return [folder / f"drive-{number}" for number in range(1, count + 1)]


def _takes_direct_io(folder: Path) -> bool:
    direct = getattr(os, "O_DIRECT", None)
    if direct is None:
        return False
    probe = folder / "direct-io"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY | direct))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def minio_command(program: Path, drives: Sequence[Path], address: str) -> list[str]:
    """Return the command that serves the drives at `address`.

    MinIO stands in for S3, whose processors are not ours: here it shares two cores with brokers and
    clients, and an MD5 of every object (its ETag, which nobody here reads) is half of its CPU. So
    `--no-compat`; checksums that a client sends are checked all the same.
    """
    options = ["--quiet", "--no-compat", "--address", address]
    return [str(program), "server", *options, *map(str, drives)]


def minio_environment() -> Mapping[str, str]:
    """Return the environment of the server: its keys, its drives, no console, no call home."""
    return {
        "MINIO_ROOT_USER": ACCESS_KEY_ID,
        "MINIO_ROOT_PASSWORD": SECRET_ACCESS_KEY,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        # The drives are folders of the machine's own disk, and no second copy is wanted.
        "MINIO_ROOTDRIVE_THRESHOLD_SIZE": "1",
        "MINIO_STORAGE_CLASS_STANDARD": "EC:0",
        "GOGC": "400",  # memory is not short here, processors are
    }
