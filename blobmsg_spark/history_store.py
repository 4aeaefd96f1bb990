"""Where a history is, and its objects read and written whole.

`HistoryPlace` says where, and travels to executors; `HistoryStore` is what a process has open
there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from blobmsg.config import parse_settings
from blobmsg.errors import ConfigError, CorruptSegment
from blobmsg.format.checksum import crc32
from blobmsg.format.ranges import ByteRange
from blobmsg_spark.worker import worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blobmsg.store.base import Buffer
    from blobmsg.store.retrying import RetryingStore
    from blobmsg_spark.worker import Worker

__all__ = ["HistoryPlace", "HistoryStore", "history_place"]

# A file is read in pieces: each has a request's time of its own, and only it is asked for again.
_READ_BYTES: Final = 32 << 20
# A whole attempt may hang and the request still be repeated.
_TIMEOUTS: Final = 3
# What executors have of their own, and what only tests and tools know.
_NOT_SENT: Final = (
    "BLOBMSG_ZONE", "BLOBMSG_CACHE_", "BLOBMSG_SPILL_", "BLOBMSG_DEV_", "BLOBMSG_TEST_",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """A store that has histories.

    Attributes:
        conf: Settings of blobmsg; `blobmsg.store.url` is the store's.
        environment: The driver's, as far as executors need it.

    Threads: any.
    """

    conf: Mapping[str, str] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)

    @property
    def url(self) -> str:
        """The store's."""
        return self.conf["blobmsg.store.url"]

    def open(self) -> HistoryStore:
        """The store, shared by all of this process that name it alike."""
        return HistoryStore(worker(self.conf, self.environment))

    def path_of(self, key: str) -> str:
        """An object as other programs name it: a path on this machine, else a url."""
        parts = urlsplit(self.url)
        if parts.scheme == "file":
            return f"{unquote(parts.path).rstrip('/')}/{key}"
        return f"{self.url.rstrip('/')}/{key}"


def history_place(conf: Mapping[str, Any], url: str | None = None) -> HistoryPlace:
    """Where a history is, by settings.

    Args:
        conf: Of blobmsg, as users give them; others are left out.
        url: The history's store; None: the one of the settings.

    Raises:
        ConfigError: A setting is wrong, or there is no url.
    """
    own = {key: str(value) for key, value in conf.items() if key.startswith("blobmsg.")}
    if url is not None:
        own["blobmsg.store.url"] = url
    settings, _ = parse_settings({"blobmsg.route": "plain", **own}, os.environ)
    if settings.store_url is None:
        raise ConfigError(
            '"blobmsg.store.url" must be set: say where the history is, e.g. s3://bucket/prefix',
            setting="blobmsg.store.url",
        )
    # The same store everywhere, whatever executors have in their environment.
    own["blobmsg.store.url"] = settings.store_url
    sent = {
        name: text
        for name, text in os.environ.items()
        if name.startswith("BLOBMSG_") and not name.startswith(_NOT_SENT)
    }
    return HistoryPlace(own, sent)


@dataclass(frozen=True, slots=True)
class HistoryStore:
    """An open store. Threads: any.

    Args:
        worker: Its client, settings and clock.
    """

    worker: Worker

    @property
    def store(self) -> RetryingStore:
        """Its client."""
        return self.worker.store

    def now_timestamp_ms(self) -> int:
        """Wall time."""
        return self.worker.clock.timestamp_ms()

    def deadline_ms(self) -> int:
        """Of a request that begins now."""
        return self.worker.clock.now_ms() + _TIMEOUTS * self.worker.settings.request_timeout_ms

    def put(self, key: str, pieces: Sequence[Buffer], checksum: int) -> None:
        """Store an object with this CRC-32."""
        self.store.put(key, pieces, deadline_ms=self.deadline_ms(), crc32=checksum)

    def read(self, key: str, size_bytes: int, checksum: int) -> bytearray:
        """A whole object, checked.

        Args:
            key: Which.
            size_bytes: As its manifest says.
            checksum: Likewise.

        Raises:
            ObjectMissing: It is not there.
            CorruptSegment: It is not what its manifest says.
        """
        store = self.store
        there_bytes = store.size(key)  # before memory is taken for it
        if there_bytes != size_bytes:
            raise CorruptSegment(
                f"file {key!r} in {store.describe()} has {there_bytes} bytes, {size_bytes} in its "
                "manifest: it was changed; restore it",
                key=key,
            )
        data = bytearray(size_bytes)
        view = memoryview(data)
        for start in range(0, size_bytes, _READ_BYTES):
            wanted = ByteRange(start, min(_READ_BYTES, size_bytes - start))
            target = view[start : wanted.end]
            store.read_range(key, wanted, [target], deadline_ms=self.deadline_ms())
        if crc32(data) != checksum:
            raise CorruptSegment(
                f"file {key!r} in {store.describe()} has another checksum than its manifest: it is "
                "damaged; restore it",
                key=key,
            )
        return data
