"""Bounded reading of our msgpack: one value at a time, and the extension rule for maps.

Decides which map keys are read, skipped or refused; never builds a container it was not asked
for. `msgpack.unpackb` allocates an array for whatever length a header claims, at every one of
1024 levels, so a few KiB could take gigabytes. Here nested containers are entered by hand, and
what is unknown is skipped without being built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from blobmsg.format.errors import FormatError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CRITICAL_MARK",
    "INT64_MAX",
    "INT64_MIN",
    "MAX_FIELDS",
    "FieldReader",
    "UnpackException",
    "open_unpacker",
    "pack",
]

# msgpack has no types: everything of it that we use comes through here, typed.
_msgpack: Any = msgpack
UnpackException: type[Exception] = _msgpack.UnpackException

CRITICAL_MARK = "!"
MAX_FIELDS = 64
MAX_FIELD_NAME_BYTES = 64

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def pack(value: object) -> bytes:
    """Encode a value as msgpack in its shortest form.

    Raises:
        FormatError: It is too large, or a str has no UTF-8.
    """
    try:
        packed: bytes = _msgpack.packb(value)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"can't be encoded: {error}") from error
    return packed


def open_unpacker(data: bytes) -> Any:
    """A `msgpack.Unpacker` of `data` that builds scalars only.

    Lengths of str and bin need no limit of their own: the library builds them only from bytes
    that are there.
    """
    unpacker = _msgpack.Unpacker(
        raw=False, max_array_len=0, max_map_len=0, max_ext_len=0, max_buffer_size=max(len(data), 1)
    )
    unpacker.feed(data)
    return unpacker


class FieldReader:
    """Reads the values of one msgpack document in order.

    Args:
        data: The whole document.
        what: Its name in error texts.

    Threads: one at a time.
    """

    __slots__ = ("_size_bytes", "_unpack", "_unpacker", "what")

    def __init__(self, data: bytes, what: str) -> None:
        self.what: str = what
        self._size_bytes = len(data)
        self._unpacker = open_unpacker(data)
        self._unpack = self._unpacker.unpack

    def fields(self, known: frozenset[str]) -> Iterator[str]:
        """Enter a map and yield its known keys; the caller reads the value of each.

        The extension rule: an unknown key is skipped with its value, one that begins with `!`
        is refused by name.

        Raises:
            FormatError: Not a map, too many or repeated keys, a key that is no str.
            UnsupportedFormatError: A critical key that is not in `known`.
        """
        count = self._call(self._unpacker.read_map_header, "a map")
        if count > MAX_FIELDS:
            raise FormatError(f"{self.what}: {count} fields, at most {MAX_FIELDS}")
        seen: set[str] = set()
        for _ in range(count):
            name = self.text("field name", MAX_FIELD_NAME_BYTES)
            if name in seen:
                raise FormatError(f"{self.what}: field {name!r} twice")
            seen.add(name)
            if name in known:
                yield name
            elif name.startswith(CRITICAL_MARK):
                raise UnsupportedFormatError(
                    f"{self.what}: critical field {name!r} is unknown to this version: upgrade"
                )
            else:
                self._call(self._unpacker.skip, f"value of field {name!r}")

    def extensions(self) -> None:
        """Enter a map of which this version knows no field, and skip it by the same rule."""
        list(self.fields(frozenset()))

    def array(self, name: str, low: int, high: int) -> int:
        """Enter an array of `low` … `high` elements and return how many it has."""
        count: int = self._call(self._unpacker.read_array_header, name)
        if not low <= count <= high:
            raise FormatError(f"{self.what}: {name} has {count} elements, not {low} to {high}")
        return count

    def integer(self, name: str, low: int = 0, high: int = INT64_MAX) -> int:
        """Read an integer in `low` … `high`."""
        value = self._call(self._unpack, name)
        if type(value) is not int or not low <= value <= high:
            raise FormatError(f"{self.what}: {name} is no integer in {low} … {high}")
        return value

    def text(self, name: str, max_bytes: int) -> str:
        """Read a str of at most `max_bytes` bytes of UTF-8."""
        value = self._call(self._unpack, name)
        if type(value) is not str or len(value.encode()) > max_bytes:
            raise FormatError(f"{self.what}: {name} is no str of at most {max_bytes} bytes")
        return value

    def binary(self, name: str, low: int, high: int) -> bytes:
        """Read a bin of `low` … `high` bytes."""
        value = self._call(self._unpack, name)
        if type(value) is not bytes or not low <= len(value) <= high:
            raise FormatError(f"{self.what}: {name} is no bin of {low} to {high} bytes")
        return value

    def binary_or_nil(self, name: str, length: int) -> bytes | None:
        """Read a bin of exactly `length` bytes, or nil."""
        value = self._call(self._unpack, name)
        if value is not None and (type(value) is not bytes or len(value) != length):
            raise FormatError(f"{self.what}: {name} is neither nil nor a bin of {length} bytes")
        return value

    def end(self) -> None:
        """Check that the document ends here."""
        left = self._size_bytes - self._unpacker.tell()
        if left:
            raise FormatError(f"{self.what}: {left} bytes after the end")

    def _call(self, read: Callable[[], Any], name: str) -> Any:
        try:
            return read()
        except (ValueError, RecursionError, UnpackException) as error:
            raise FormatError(
                f"{self.what}: can't read {name}: {str(error) or type(error).__name__}"
            ) from error
