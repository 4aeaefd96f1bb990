"""The checksum of segments and indexes: CRC-32 as in gzip and zip, polynomial 0x04C11DB7.

It guards against damage, not against forgery. zlib-ng computes it at 12 to 100 GB/s, as the
processor multiplies, where the standard library's zlib ran at 5.5 (x86-64, 1 MiB in cache);
without that package zlib serves. See `docs/decisions/0001-crc32.md` for the choice of CRC-32.
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Final

from blobmsg.native import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

_crc32: Callable[[Buffer, int], int] = zlib.crc32
try:
    from zlib_ng import zlib_ng
except ImportError:  # no wheel for this platform
    pass
else:
    # Its stub names no type for the data.
    _crc32 = zlib_ng.crc32  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

__all__ = ["CRC32_ADDRESSES", "crc32", "crc32_of"]


def _zlib_ng_addresses() -> tuple[int, int]:
    """Where zlib-ng's own functions are; zeros where they can't be found: that costs only speed."""
    try:
        import ctypes  # some Pythons are built without

        library = ctypes.CDLL(sys.modules["zlib_ng.zlib_ng"].__file__)
        found = [
            ctypes.cast(function, ctypes.c_void_p).value or 0
            for function in (library.zng_crc32, library.zng_crc32_combine)
        ]
    except (ImportError, KeyError, OSError, AttributeError):
        return 0, 0
    return found[0], found[1]


#: Of `uint32_t zng_crc32(uint32_t value, const uint8_t *data, uint32_t length)` and
#: `uint32_t zng_crc32_combine(uint32_t first, uint32_t second, int64_t second_length)`.
CRC32_ADDRESSES: Final = _zlib_ng_addresses()
if native is not None:
    native.use_crc32(*CRC32_ADDRESSES)


def crc32(data: Buffer, value: int = 0) -> int:
    """Checksum of stored bytes, that is, after compression.

    Args:
        data: Any contiguous bytes-like object; it is not copied.
        value: The checksum of the bytes before `data`.

    Returns:
        0 … 2^32 - 1.

    Threads: any; the GIL is released while it runs over more than a few KiB.
    """
    return _crc32(data, value)


def crc32_of(pieces: Iterable[Buffer], value: int = 0) -> int:
    """Checksum of bytes in pieces; see `crc32`."""
    for piece in pieces:
        value = crc32(piece, value)
    return value
