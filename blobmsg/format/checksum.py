"""The checksum of segments and indexes: CRC-32 as in gzip and zip, polynomial 0x04C11DB7.

It guards against damage, not against forgery. CRC-32C was the alternative: it needs a package,
while `zlib.crc32` is in the standard library, takes memoryviews, releases the GIL and ran at
5.5 GB/s (x86-64 with PCLMUL), five times what one S3 connection carries.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["crc32"]


def crc32(data: Buffer) -> int:
    """Checksum of stored bytes, that is, after compression.

    Args:
        data: Any contiguous bytes-like object; it is not copied.

    Returns:
        0 … 2^32 - 1.

    Threads: any; the GIL is released while it runs.
    """
    return zlib.crc32(data)
