"""Where `blobmsg inspect` reads an object: a file, or a store by key.

Decides how what the user wrote becomes one of them. Never interprets bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from blobmsg.clock import SystemClock
from blobmsg.format import FormatError, ObjectKey

if TYPE_CHECKING:
    from pathlib import Path

    from blobmsg.config import Settings
    from blobmsg.format import ByteRange
    from blobmsg.store.base import Store

_KEY_PARTS = 5  # of an object key: isolation, shard, hour, zone, writer and number


class Source(Protocol):
    """An object that can be read in parts."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def key(self) -> ObjectKey | None:
        """Its key; None if its name is not of the grammar."""
        ...

    def size(self) -> int:
        """Its length in bytes."""
        ...

    def read(self, byte_range: ByteRange) -> bytes:
        """Read a part that lies inside it."""
        ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """An object that lies in a file, below the folders of its key or not.

    Args:
        path: A file that is there.
    """

    path: Path

    @property
    def place(self) -> str:
        """The path as the user wrote it."""
        return str(self.path)

    @property
    def key(self) -> ObjectKey | None:
        """What the last folders of the path say."""
        return _decode_key("/".join(self.path.resolve().parts[-_KEY_PARTS:]))

    def size(self) -> int:
        """Its length in bytes."""
        return self.path.stat().st_size

    def read(self, byte_range: ByteRange) -> bytes:
        """Read a part of the file."""
        with self.path.open("rb") as file:
            file.seek(byte_range.start)
            return file.read(byte_range.length)


@dataclass(frozen=True, slots=True)
class StoreSource:
    """An object in a store.

    Args:
        store: Open.
        name: The object's key below the store's prefix.
        timeout_ms: Of each request with its retries.
    """

    store: Store
    name: str
    timeout_ms: int

    @property
    def place(self) -> str:
        """The key and where the store is."""
        return f"{self.name} in {self.store.describe()}"

    @property
    def key(self) -> ObjectKey | None:
        """What the name says."""
        return _decode_key(self.name)

    def size(self) -> int:
        """Its length in bytes."""
        return self.store.size(self.name)

    def read(self, byte_range: ByteRange) -> bytes:
        """Read a part with one request."""
        deadline_ms = SystemClock().now_ms() + self.timeout_ms
        return self.store.get_range(self.name, byte_range, deadline_ms=deadline_ms)


def split_object_url(url: str) -> tuple[str, str]:
    """Return the store's url and the key of an object's url; what precedes the key is the prefix.

    `s3://bucket/some/prefix/shared/3/2026112105/az1/0123…-7` is the key `shared/…-7` in the
    store `s3://bucket/some/prefix`. A name that is not of the grammar is taken whole.
    """
    parts = urlsplit(url)
    names = unquote(parts.path).strip("/").split("/")
    key = "/".join(names[-_KEY_PARTS:])
    if _decode_key(key) is None:
        return f"{parts.scheme}://{parts.netloc}", "/".join(names)
    prefix = "/".join(names[:-_KEY_PARTS])
    return f"{parts.scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else ""), key


def open_source(url: str, key: str, settings: Settings) -> StoreSource:
    """Return an object of the store at `url`.

    Raises:
        ConfigError: The url is none, or the scheme's extra is not installed.
    """
    from blobmsg.store.open import open_store

    return StoreSource(open_store(url, settings), key, settings.request_timeout_ms)


def _decode_key(text: str) -> ObjectKey | None:
    try:
        return ObjectKey.decode(text)
    except FormatError:
        return None
