"""Compression of one segment: none, lz4 (block format) or zstd (one frame).

Never guesses: a result of another size than the notification promised is refused, and memory
is bounded by that size before any is taken. Keeps no state: a context per call, because
zstd contexts are not safe to share between threads.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from blobmsg.format.errors import FormatError, UnsupportedFormatError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Codec", "compress", "decompress", "require_codec"]

# On flights as JSON level 1 took 1020 MB/s and zstd's default 3 only 850, for the same tenth of
# the size (bench/format.py, Intel Xeon VM); higher levels buy bytes, which cost nothing here,
# with CPU, which does.
ZSTD_LEVEL = 1

# What RFC 8878 asks every decoder to support. A frame may ask for more only if its content
# needs it, else 100 hostile bytes could claim a window of gigabytes.
ZSTD_MIN_WINDOW_LIMIT_BYTES = 8 << 20


# LZ4_MAX_INPUT_SIZE: what one lz4 block holds; the most a segment may have.
MAX_BLOCK_BYTES = 0x7E000000


class Codec(IntEnum):
    """How a segment's bytes are compressed; the numbers are part of the format."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


def require_codec(codec: Codec) -> None:
    """Check that the package for a codec is installed, so that settings can fail early.

    Raises:
        UnsupportedFormatError: It is not; the text names the extra to install.

    Threads: any.
    """
    if codec is Codec.LZ4:
        _lz4_block()
    elif codec is Codec.ZSTD:
        _zstandard()


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress a segment.

    Args:
        codec: How.
        data: The encoded segment; read in place, any contiguous bytes-like object.

    Returns:
        The compressed bytes; for `Codec.NONE` the data itself if it is `bytes`, else a copy.

    Raises:
        UnsupportedFormatError: The codec's package is not installed.

    Threads: any; the GIL is released while lz4 and zstd run.
    """
    if codec is Codec.NONE:
        return data if isinstance(data, bytes) else bytes(data)
    if codec is Codec.LZ4:
        # The block, not the frame format: the size to allocate comes from the checked
        # notification instead of a header, and our own checksum makes a second one waste.
        compressed: bytes = _lz4_block().compress(data, store_size=False)
        return compressed
    frame: bytes = _zstandard().ZstdCompressor(level=ZSTD_LEVEL).compress(data)
    # A copy: zstandard leaves its result in memory for the worst case, as long as the data, and a
    # segment may wait for an outage of minutes.
    return bytes(memoryview(frame))


def decompress(codec: Codec, data: Buffer, uncompressed_bytes: int) -> bytes:
    """Decompress a segment to exactly the size promised.

    Args:
        codec: How it was compressed.
        data: The stored bytes, checked against their checksum by the caller.
        uncompressed_bytes: The size promised, which the caller has checked against its limit.

    Returns:
        `uncompressed_bytes` bytes; for `Codec.NONE` the data itself if it is `bytes`.

    Raises:
        FormatError: Damaged, or of another size. No more than `uncompressed_bytes` (and for
            zstd its window) was allocated.
        UnsupportedFormatError: The codec's package is not installed.

    Threads: any; the GIL is released while lz4 and zstd run.
    """
    if not 0 < uncompressed_bytes <= MAX_BLOCK_BYTES:
        raise FormatError(f"{uncompressed_bytes} bytes uncompressed: not 1 to {MAX_BLOCK_BYTES}")
    if codec is Codec.NONE:
        result = data if isinstance(data, bytes) else bytes(data)
    elif codec is Codec.LZ4:
        result = _decompress_lz4(data, uncompressed_bytes)
    else:
        result = _decompress_zstd(data, uncompressed_bytes)
    if len(result) != uncompressed_bytes:
        raise FormatError(
            f"{codec.name.lower()} segment has {len(result)} bytes uncompressed,"
            f" {uncompressed_bytes} were promised"
        )
    return result


def _decompress_lz4(data: Buffer, uncompressed_bytes: int) -> bytes:
    block = _lz4_block()
    try:
        result: bytes = block.decompress(data, uncompressed_size=uncompressed_bytes)
    except block.LZ4BlockError as error:
        raise FormatError(f"damaged lz4 segment: {error}") from error
    return result


def _decompress_zstd(data: Buffer, uncompressed_bytes: int) -> bytes:
    zstandard = _zstandard()
    window_limit = max(ZSTD_MIN_WINDOW_LIMIT_BYTES, 2 * uncompressed_bytes)
    try:
        # The library allocates what the frame's header says, whatever maximum it is given:
        # so the header is checked first.
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size != uncompressed_bytes or frame.window_size > window_limit:
            raise FormatError(
                f"zstd frame states {frame.content_size} bytes, window {frame.window_size};"
                f" {uncompressed_bytes} were promised, window at most {window_limit}"
            )
        if frame.dict_id:
            raise UnsupportedFormatError(f"zstd frame needs dictionary {frame.dict_id}")
        result: bytes = zstandard.ZstdDecompressor().decompress(
            data, max_output_size=uncompressed_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise FormatError(f"damaged zstd segment: {error}") from error
    return result


def _lz4_block() -> Any:
    try:
        import lz4.block  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise _missing("lz4") from error
    return lz4.block


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise _missing("zstd") from error
    return zstandard


def _missing(extra: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f'codec {extra} needs a package that is not installed: pip install "blobmsg[{extra}]"'
    )
