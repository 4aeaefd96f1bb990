"""The Protocol that every object store and every wrapper around one satisfies.

Keys are relative: a store knows its bucket and prefix (or folder) and nobody else does, so a
key out of a notification can't lead anywhere else. Names are never reused, so an object never
changes once it is there, and repeating a PUT under the same key is harmless. Nothing here
retries, counts or caches; wrappers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from blobmsg.errors import CorruptSegment, ObjectMissing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blobmsg.format.ranges import ByteRange

__all__ = [
    "Body",
    "Buffer",
    "ObjectInfo",
    "Store",
    "check_key",
    "fill_targets",
    "object_missing",
    "pieces_of",
    "range_outside_object",
]

Buffer: TypeAlias = "bytes | bytearray | memoryview"
#: Bytes, or pieces of them in order.
Body: TypeAlias = "Buffer | Sequence[Buffer]"

MAX_KEY_BYTES = 900  # S3 allows 1024 with the prefix; the rest is for the prefix


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing.

    Attributes:
        key: Below the store's prefix.
        size_bytes: Its length.
    """

    key: str
    size_bytes: int


class Store(Protocol):
    """Immutable objects by key.

    Every method raises, besides what it names: `StoreUnavailable` and `StoreTimeout` (try
    again), `StoreDenied` (identity or clock), `ConfigError` (no such bucket, wrong region),
    `ValueError` for a key that no store would take, `RuntimeError` after `close`.

    Threads: any.
    """

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        """Store an object; it is durable and readable by all when this returns.

        After an error the object may be there nevertheless (the answer was lost), so a retry
        takes the same key.

        Args:
            key: Below the store's prefix.
            data: The whole object; not changed until this returns, not copied where the store
                can avoid it.
            deadline_ms: On the monotonic clock (`Clock.now_ms`); nothing more is tried after.
            crc32: Of the whole object, if the caller knows it; saves stores that check uploads a
                pass over the data.
        """
        ...

    def put_if_absent(self, key: str, data: Body, *, deadline_ms: int) -> bool:
        """Store an object unless there is one of this name: of several clients one succeeds.

        Args:
            key: Below the store's prefix.
            data: As in `put`.
            deadline_ms: As in `put`.

        Returns:
            Whether it was stored. False: there is an object of this name, and it was not changed.
            It may be this very one, where an earlier attempt of the call had stored it and its
            answer was lost; who must know compares what is there.

        Raises:
            ConfigError: The store can't do that.
        """
        ...

    def get_range(self, key: str, byte_range: ByteRange, *, deadline_ms: int) -> bytes:
        """Read exactly these bytes of an object.

        Args:
            key: Below the store's prefix.
            byte_range: Inside the object.
            deadline_ms: As in `put`.

        Returns:
            `byte_range.length` bytes. Nothing vouches for their content: check the segment's
            checksum.

        Raises:
            ObjectMissing: There is no such object.
            CorruptSegment: The object is shorter than the range says.
        """
        ...

    def read_range(
        self,
        key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        """Read exactly these bytes of an object into memory of the caller.

        Args:
            key: Below the store's prefix.
            byte_range: Inside the object.
            targets: Filled one after the other; together as long as the range, of single bytes.
                After an error anything can be in them.
            deadline_ms: As in `put`.

        Raises:
            ObjectMissing: There is no such object.
            CorruptSegment: The object is shorter than the range says.
        """
        ...

    def size(self, key: str) -> int:
        """Length of an object in bytes.

        Raises:
            ObjectMissing: There is no such object.
        """
        ...

    def get_tail(self, key: str, length_bytes: int) -> bytes:
        """The last bytes of an object; all of it when it is shorter.

        Raises:
            ObjectMissing: There is no such object.
        """
        ...

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects in the order of their keys' UTF-8 bytes.

        Args:
            prefix: Only keys that begin so; need not end at a slash.
            start_after: Only keys behind this one.
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there count as deleted."""
        ...

    def describe(self) -> str:
        """Where this store is, for error texts and reports; no secrets."""
        ...

    def close(self) -> None:
        """Free connections and end waits of other threads; a second call is fine."""
        ...


def pieces_of(data: Body) -> list[memoryview]:
    """Its bytes as views of single bytes, in order, none of them empty."""
    pieces = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
    return [view for view in (memoryview(piece).cast("B") for piece in pieces) if view.nbytes]


def fill_targets(targets: Sequence[memoryview], data: bytes) -> None:
    """Copy bytes into targets that together are as long, as `Store.read_range` fills them."""
    rest = memoryview(data)
    for target in targets:
        target[:] = rest[: len(target)]
        rest = rest[len(target) :]


def check_key(key: str) -> None:
    """Refuse keys that could lead outside a store or that one of the stores can't hold.

    Raises:
        ValueError: Empty or longer than 900 bytes; an empty part, `.` or `..` between slashes;
            a backslash or a control character.
    """
    if not key or len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise ValueError(f"object key must have 1 to {MAX_KEY_BYTES} bytes: {key[:80]!r}")
    if any(part in {"", ".", ".."} for part in key.split("/")) or "\\" in key:
        raise ValueError(f"object key may not have empty, '.' or '..' parts: {key!r}")
    if not key.isprintable():
        raise ValueError(f"object key may not have control characters: {key!r}")


def object_missing(
    place: str, key: str, byte_range: ByteRange | None = None, *, bucket: str = ""
) -> ObjectMissing:
    """The error for an object that is not there, with all that helps to find out why."""
    wanted = (
        "" if byte_range is None else f" (bytes {byte_range.start}-{byte_range.end - 1} wanted)"
    )
    return ObjectMissing(
        f"object {key!r} is not in {place}{wanted}: deleted before its time, or this store is "
        "not the one it was written to",
        **_details(place, key, byte_range, bucket),
    )


def range_outside_object(
    place: str,
    key: str,
    byte_range: ByteRange,
    size_bytes: int | None = None,
    *,
    bucket: str = "",
) -> CorruptSegment:
    """The error for an object that is there but shorter than its notification says."""
    has = "fewer" if size_bytes is None else f"only {size_bytes}"
    return CorruptSegment(
        f"object {key!r} in {place} has {has} bytes, but {byte_range.start}-{byte_range.end - 1} "
        "are wanted: it was cut or overwritten, or the notification is wrong",
        **_details(place, key, byte_range, bucket),
    )


def _details(place: str, key: str, byte_range: ByteRange | None, bucket: str) -> dict[str, Any]:
    details: dict[str, Any] = {"store": place, "bucket": bucket, "key": key}
    if byte_range is not None:
        details["start"] = byte_range.start
        details["length"] = byte_range.length
    return details
