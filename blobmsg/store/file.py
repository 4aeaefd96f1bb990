"""Objects as files below one folder: `file:///folder`.

A key's parts become subfolders. An object appears whole or not at all: it is written under a
temporary name in its own folder, synced, renamed, and the folder is synced, so it survives a
power cut once `put` has returned. For one machine, or a shared file system that keeps POSIX
renames atomic. It never leaves its folder and never changes a file that is there, except by
the same object again.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from blobmsg.errors import BlobmsgError, StoreDenied, StoreUnavailable
from blobmsg.store.base import (
    Body,
    ObjectInfo,
    check_key,
    object_missing,
    pieces_of,
    range_outside_object,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from blobmsg.format.ranges import ByteRange

__all__ = ["FileStore"]

TEMPORARY_PREFIX = ".blobmsg-tmp-"  # never part of a key: `check_key` of this store refuses it
FOLDER_ATTEMPTS = 10  # each lost race against a `delete` that removes the empty folder
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class FileStore:
    """Objects in a folder of this machine.

    Args:
        root: The folder; made when the first object is stored.

    Threads: any. Files are the state; `_numbers` is atomic.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        self._numbers = itertools.count()
        self._is_closed = False

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        """See `Store.put`; file systems take no deadline."""
        path = self._path(key)
        with self._translated("write", key), self._written(path, data) as temporary:
            temporary.replace(path)

    def put_if_absent(self, key: str, data: Body, *, deadline_ms: int) -> bool:
        """See `Store.put_if_absent`; the file system must have hard links."""
        path = self._path(key)
        with self._translated("write", key), self._written(path, data) as temporary:
            try:
                os.link(temporary, path)  # a rename would replace what is there
            except FileExistsError:
                return False
            finally:
                temporary.unlink()
        return True

    @contextmanager
    def _written(self, path: Path, data: Body) -> Generator[Path, None, None]:
        """A synced file beside `path`, to be moved; what became of its folder is synced, too."""
        temporary = path.parent / (
            f"{TEMPORARY_PREFIX}{os.getpid()}-{threading.get_ident()}-{next(self._numbers)}"
        )
        descriptor = self._create(temporary)
        try:
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(path.parent)

    def get_range(self, key: str, byte_range: ByteRange, *, deadline_ms: int) -> bytes:
        """See `Store.get_range`; file systems take no deadline."""
        with self._opened(key, byte_range) as descriptor:
            data = _read_all(descriptor, byte_range.start, byte_range.length)
            if len(data) != byte_range.length:
                size = os.fstat(descriptor).st_size
                raise range_outside_object(self.describe(), key, byte_range, size)
            return data

    def read_range(
        self,
        key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        """See `Store.read_range`; file systems take no deadline."""
        with self._opened(key, byte_range) as descriptor:
            place = byte_range.start
            for target in targets:
                rest = target
                while rest:
                    got = os.preadv(descriptor, [rest], place)
                    if not got:
                        size = os.fstat(descriptor).st_size
                        raise range_outside_object(self.describe(), key, byte_range, size)
                    place += got
                    rest = rest[got:]

    def size(self, key: str) -> int:
        """See `Store.size`."""
        with self._opened(key) as descriptor:
            return os.fstat(descriptor).st_size

    def get_tail(self, key: str, length_bytes: int) -> bytes:
        """See `Store.get_tail`."""
        with self._opened(key) as descriptor:
            size = os.fstat(descriptor).st_size
            start = max(0, size - length_bytes)
            return _read_all(descriptor, start, size - start)

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list_keys`; one folder's names are held at a time."""
        self._check_open()
        with self._translated("list", prefix):
            yield from self._walk(self._root, "", prefix, start_after.encode())

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store.delete`; folders that got empty go, too."""
        for key in keys:
            path = self._path(key)
            with self._translated("delete", key):
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                self._remove_empty_folders(path.parent)

    def describe(self) -> str:
        """The store's url."""
        return f"file://{self._root}"

    def close(self) -> None:
        """Refuse further calls."""
        self._is_closed = True

    def _path(self, key: str) -> Path:
        self._check_open()
        check_key(key)
        if any(part.startswith(TEMPORARY_PREFIX) for part in key.split("/")):
            raise ValueError(f"object key may not have parts that begin {TEMPORARY_PREFIX}: {key}")
        return self._root / key

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"store {self.describe()} has been closed")

    def _create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(FOLDER_ATTEMPTS):
            # The folder is new, or a client's `delete` just removed it or one of its parents.
            with suppress(FileNotFoundError):
                return os.open(path, flags, 0o644)
            with suppress(FileNotFoundError):
                _make_folder(path.parent)
        return os.open(path, flags, 0o644)

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # not empty, or already gone
                return
            folder = folder.parent

    def _walk(
        self, folder: Path, parent: str, prefix: str, start_after: bytes
    ) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(folder) as entries:
                # A folder sorts as its keys do, by name and slash: "a-b" < "a/…" < "a0".
                found = sorted(
                    ((entry.name + "/" if entry.is_dir() else entry.name).encode(), entry)
                    for entry in entries
                    if not entry.name.startswith(TEMPORARY_PREFIX)
                )
        except FileNotFoundError:
            return
        for name, entry in found:
            key = parent + name.decode()
            if key.endswith("/"):
                may_match = key.startswith(prefix) or prefix.startswith(key)
                # Skip a whole folder that sorts before the start.
                if may_match and (
                    key.encode() > start_after or start_after.startswith(key.encode())
                ):
                    yield from self._walk(folder / entry.name, key, prefix, start_after)
            elif key.startswith(prefix) and (not start_after or key.encode() > start_after):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    yield ObjectInfo(key, entry.stat().st_size)

    @contextmanager
    def _opened(self, key: str, byte_range: ByteRange | None = None) -> Generator[int, None, None]:
        path = self._path(key)
        with self._translated("read", key):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise object_missing(self.describe(), key, byte_range) from None
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise object_missing(self.describe(), key, byte_range)
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def _translated(self, what: str, key: str) -> Generator[None, None, None]:
        """Turn the system's errors into ours."""
        try:
            yield
        except BlobmsgError:
            raise
        except OSError as error:
            place = f"{key!r} in {self.describe()}"
            if error.errno in _DENIED:
                raise StoreDenied(
                    f"may not {what} {place}: {error.strerror}; fix the folder's permissions or "
                    "blobmsg.store.url",
                    key=key,
                ) from error
            advice = "free space on its disk" if error.errno in _FULL else "check its disk"
            raise StoreUnavailable(
                f"could not {what} {place}: {error.strerror or error}; {advice}", key=key
            ) from error


def _write_all(descriptor: int, data: Body) -> None:
    for piece in pieces_of(data):
        rest = piece
        while rest:
            rest = rest[os.write(descriptor, rest) :]  # Linux writes at most 2 GiB at once


def _read_all(descriptor: int, start: int, length_bytes: int) -> bytes:
    """Up to `length_bytes` bytes; fewer only at the end of the file."""
    # Ask the file first: a length out of a damaged notification must not take memory.
    length_bytes = max(0, min(length_bytes, os.fstat(descriptor).st_size - start))
    data = os.pread(descriptor, length_bytes, start)
    if len(data) == length_bytes:
        return data
    chunks = [data]
    while data and length_bytes > sum(map(len, chunks)):
        done = sum(map(len, chunks))
        data = os.pread(descriptor, length_bytes - done, start + done)
        chunks.append(data)
    return b"".join(chunks)


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents so that they survive a power cut."""
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        # Another client has made it, and its `delete` may have removed it again: then what follows
        # does not find it, and it is tried anew. What follows also tells if it is no folder.
        with suppress(FileExistsError):
            path.mkdir()
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
