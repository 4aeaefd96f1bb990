"""Codecs give back exactly what was promised, or refuse."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import lz4.block
import pytest
import zstandard

from blobmsg.format import Codec, FormatError, UnsupportedFormatError, compress, decompress
from blobmsg.format.codec import MAX_BLOCK_BYTES, require_codec

DATA = b"records and more records " * 1000
BOMB_BYTES = 200 << 20


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_compressed_bytes_come_back(codec: Codec, wrap: type[bytes | bytearray]) -> None:
    stored = compress(codec, wrap(DATA))

    assert type(stored) is bytes
    assert decompress(codec, wrap(stored), len(DATA)) == DATA


def test_none_does_not_copy_bytes() -> None:
    assert compress(Codec.NONE, DATA) is DATA
    assert decompress(Codec.NONE, DATA, len(DATA)) is DATA


def test_stored_bytes_are_what_other_libraries_write() -> None:
    assert lz4.block.decompress(compress(Codec.LZ4, DATA), uncompressed_size=len(DATA)) == DATA
    assert zstandard.decompress(compress(Codec.ZSTD, DATA)) == DATA
    assert decompress(Codec.LZ4, lz4.block.compress(DATA, store_size=False), len(DATA)) == DATA
    strong = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(DATA)
    assert decompress(Codec.ZSTD, strong, len(DATA)) == DATA


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("promised", [1, len(DATA) - 1, len(DATA) + 1])
def test_other_size_than_promised_is_refused(codec: Codec, promised: int) -> None:
    with pytest.raises(FormatError):
        decompress(codec, compress(codec, DATA), promised)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("promised", [0, -1, MAX_BLOCK_BYTES + 1, 1 << 40])
def test_impossible_size_is_refused(codec: Codec, promised: int) -> None:
    with pytest.raises(FormatError):
        decompress(codec, compress(codec, DATA), promised)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_damaged_bytes_are_refused(codec: Codec, damage: str) -> None:
    stored = compress(codec, DATA)
    damaged = {"cut": stored[: len(stored) // 2], "empty": b"", "noise": b"\xff" * 40}[damage]

    with pytest.raises(FormatError):
        decompress(codec, damaged, len(DATA))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_bomb_takes_no_more_memory_than_promised(codec: Codec) -> None:
    bomb = compress(codec, bytes(BOMB_BYTES))

    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decompress(codec, bomb, 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_zstd_frame_without_its_size_is_refused() -> None:
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(DATA)

    with pytest.raises(FormatError, match="frame states"):
        decompress(Codec.ZSTD, stored, len(DATA))


def test_zstd_window_beyond_the_content_is_refused() -> None:
    # Magic, descriptor: 8-byte size, not single segment; window 2^30; content size as promised.
    frame = b"\x28\xb5\x2f\xfd" + bytes((0b11000000, 0xA0)) + (1000).to_bytes(8, "little")

    with pytest.raises(FormatError, match="window"):
        decompress(Codec.ZSTD, frame + b"\1\0\0", 1000)


def test_zstd_frame_that_needs_a_dictionary_is_refused() -> None:
    words = zstandard.ZstdCompressionDict(DATA[:500], dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    frame = b"\x28\xb5\x2f\xfd" + bytes((0b01100001, 0x07)) + (1000 - 256).to_bytes(2, "little")

    assert words.dict_id() == 0
    with pytest.raises(UnsupportedFormatError, match="dictionary 7"):
        decompress(Codec.ZSTD, frame + b"\1\0\0", 1000)


def test_bytes_after_the_zstd_frame_are_refused() -> None:
    with pytest.raises(FormatError):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, DATA) + b"x", len(DATA))


@pytest.mark.parametrize(
    ("codec", "package", "extra"),
    [(Codec.LZ4, "lz4", "blobmsg[lz4]"), (Codec.ZSTD, "zstandard", "blobmsg[zstd]")],
)
def test_missing_package_is_named_with_its_extra(
    codec: Codec, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.block", None)

    for use in (
        lambda: require_codec(codec),
        lambda: compress(codec, DATA),
        lambda: decompress(codec, DATA, 10),
    ):
        with pytest.raises(UnsupportedFormatError) as caught:
            use()
        assert extra in str(caught.value)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_bytes_hold_no_more_memory_than_they_have(codec: Codec) -> None:
    data = bytes(1 << 20)
    compress(codec, data)  # what is imported is not counted

    tracemalloc.start()
    try:
        kept = compress(codec, data)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(kept) < held_bytes < len(kept) + (64 << 10)


@pytest.mark.parametrize("codec", Codec)
def test_installed_codec_is_available(codec: Codec) -> None:
    require_codec(codec)  # does not raise


def test_formats_import_no_codec_and_no_numpy() -> None:
    code = (
        "import sys, blobmsg.format;"
        "print(*{'numpy', 'lz4', 'zstandard', 'pyarrow'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stdout.strip() == ""
