"""What only files can get wrong; what all stores promise is in `tests/contract`."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from blobmsg.errors import CorruptSegment, ObjectMissing, StoreDenied, StoreUnavailable
from blobmsg.format.ranges import ByteRange
from blobmsg.store import file as file_module
from blobmsg.store.file import TEMPORARY_PREFIX, FileStore

DEADLINE_MS = 1 << 60


def put(store: FileStore, key: str, data: bytes = b"data") -> None:
    store.put(key, data, deadline_ms=DEADLINE_MS)


def names_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_parts_of_a_key_become_folders(store: FileStore, root: Path) -> None:
    put(store, "shared/0/2026010100/az1/ff-1")
    assert (root / "shared/0/2026010100/az1/ff-1").read_bytes() == b"data"


def test_a_put_syncs_the_file_renames_it_and_syncs_every_new_folder(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        mode = os.fstat(descriptor).st_mode
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(f"sync {'folder' if stat.S_ISDIR(mode) else 'file'} {path.name[:13]}")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        steps.append(f"rename to {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    put(store, "a/b/k")
    assert steps == [
        f"sync folder {root.parent.name[:13]}",
        "sync folder root",
        "sync folder a",
        f"sync file {TEMPORARY_PREFIX}",
        "rename to k",
        "sync folder b",
    ]


@pytest.mark.parametrize("key", ["../k", "/etc/k", "a/../../k", "a/./k", "", "a//k", "a\0b"])
def test_nothing_outside_the_folder_is_ever_touched(
    store: FileStore, tmp_path: Path, key: str
) -> None:
    (tmp_path / "k").write_bytes(b"mine")
    calls = (
        lambda: put(store, key),
        lambda: store.get_range(key, ByteRange(0, 1), deadline_ms=DEADLINE_MS),
        lambda: store.size(key),
        lambda: store.get_tail(key, 1),
        lambda: store.delete([key]),
    )
    for call in calls:
        with pytest.raises(ValueError, match="object key"):
            call()
    assert names_below(tmp_path) == ["k"]


def test_temporary_names_are_neither_keys_nor_listed(store: FileStore, root: Path) -> None:
    put(store, "a/k")
    (root / "a" / f"{TEMPORARY_PREFIX}1-2-3").write_bytes(b"left by a killed process")
    assert [info.key for info in store.list_keys()] == ["a/k"]
    with pytest.raises(ValueError, match="may not have parts"):
        put(store, f"a/{TEMPORARY_PREFIX}1-2-3")


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StoreUnavailable),
        (errno.EIO, StoreUnavailable),
        (errno.EACCES, StoreDenied),
        (errno.EROFS, StoreDenied),
    ],
)
def test_a_failed_write_leaves_nothing_behind(
    store: FileStore,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[Exception],
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(error, match=os.strerror(number)) as caught:
        put(store, "k")
    assert isinstance(caught.value.__cause__, OSError)
    assert names_below(root) == []


def test_a_put_that_fails_while_it_syncs_is_not_seen(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "first")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "sync failed")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="sync failed"):
        put(store, "k")
    assert names_below(root) == ["first"]


def test_writes_and_reads_that_the_system_cuts_short_are_continued(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_pread = os.write, os.pread
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:3]))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real_pread(fd, min(length, 3), at))
    put(store, "k", b"0123456789")
    assert store.get_range("k", ByteRange(1, 8), deadline_ms=DEADLINE_MS) == b"12345678"
    assert store.get_tail("k", 7) == b"3456789"


def test_a_length_out_of_a_damaged_notification_takes_no_memory(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "k", b"0123456789")
    asked: list[int] = []
    real_pread = os.pread

    def pread(descriptor: int, length: int, at: int) -> bytes:
        asked.append(length)
        return real_pread(descriptor, length, at)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(CorruptSegment, match="only 10 bytes"):
        store.get_range("k", ByteRange(5, 1 << 40), deadline_ms=DEADLINE_MS)
    with pytest.raises(CorruptSegment, match="only 10 bytes"):
        store.get_range("k", ByteRange(1 << 30, 1 << 40), deadline_ms=DEADLINE_MS)
    assert asked == [5, 0]


def test_a_key_below_an_object_or_of_a_folder_is_missing(store: FileStore) -> None:
    put(store, "a/k")
    with pytest.raises(ObjectMissing):
        store.size("a/k/below")
    with pytest.raises(ObjectMissing):
        store.size("a")


def test_empty_folders_go_with_their_last_object(store: FileStore, root: Path) -> None:
    put(store, "a/b/1")
    put(store, "a/c/1")
    store.delete(["a/b/1"])
    assert names_below(root) == ["a", "a/c", "a/c/1"]
    store.delete(["a/c/1"])
    assert names_below(root) == []


def test_a_folder_that_vanishes_under_a_put_is_made_again(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_make = file_module._make_folder
    races = 3

    def make_and_lose(folder: Path) -> None:
        nonlocal races
        real_make(folder)
        if races:
            races -= 1
            folder.rmdir()

    monkeypatch.setattr(file_module, "_make_folder", make_and_lose)
    put(store, "a/k")
    assert (root / "a" / "k").read_bytes() == b"data"


def test_a_folder_that_another_client_makes_and_removes_is_made_again(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_mkdir = Path.mkdir
    races = 3

    def mkdir(self: Path, *arguments: Any, **more: Any) -> None:
        nonlocal races
        if races:
            races -= 1
            raise FileExistsError(errno.EEXIST, "made by another, and removed", str(self))
        real_mkdir(self, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    put(store, "a/k")
    assert (root / "a" / "k").read_bytes() == b"data"


def test_puts_and_deletes_in_one_folder_never_lose_an_object(store: FileStore) -> None:
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(60):
                key = f"a/b/{number}-{turn}"
                put(store, key, key.encode())
                assert store.get_tail(key, 99) == key.encode()
                store.delete([key])
        except Exception as error:  # noqa: BLE001  (reported by the main thread)
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
    assert errors == []
    assert list(store.list_keys()) == []


def test_a_listing_of_a_folder_that_is_not_there_is_empty(store: FileStore) -> None:
    assert list(store.list_keys()) == []


def test_a_root_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="could not write"):
        put(FileStore(tmp_path / "root"), "k")
