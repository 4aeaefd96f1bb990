from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.lab import minio

if TYPE_CHECKING:
    from pathlib import Path


def test_there_are_two_drives_only_where_minio_would_start_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []

    def open_(_path: Path, _flags: int, *_: Any) -> int:
        if failures:
            raise OSError(failures[0], "no")
        return os.dup(1)

    monkeypatch.setattr(os, "open", open_)
    assert [drive.name for drive in minio.drives(tmp_path)] == ["drive-1", "drive-2"]
    failures.append(errno.EINVAL)
    assert [drive.name for drive in minio.drives(tmp_path)] == ["drive-1"]
    failures[0] = errno.EACCES
    with pytest.raises(PermissionError):
        minio.drives(tmp_path)


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert all(drive.parent == tmp_path for drive in minio.drives(tmp_path))
    assert list(tmp_path.iterdir()) == []
