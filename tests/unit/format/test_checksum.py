"""The checksum is the one that the page names."""

from __future__ import annotations

import importlib
import sys

import pytest

from blobmsg.format import checksum, crc32


def test_checksum_has_the_published_check_value() -> None:
    # CRC-32/ISO-HDLC of the nine digits, from the catalogue of parametrised CRC algorithms.
    assert crc32(b"123456789") == 0xCBF43926


def test_checksum_takes_slices_without_a_copy() -> None:
    assert crc32(memoryview(b"__123456789__")[2:-2]) == 0xCBF43926


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others may hide the function")
def test_c_is_told_where_the_function_is() -> None:
    pytest.importorskip("zlib_ng")

    assert all(checksum.CRC32_ADDRESSES)


@pytest.mark.parametrize("missing", ["_ctypes", "zlib_ng"])
def test_checksums_need_neither_ctypes_nor_zlib_ng(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("ctypes", "_ctypes", "zlib_ng"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    try:
        without = importlib.reload(checksum)

        assert without.CRC32_ADDRESSES == (0, 0)
        assert without.crc32(b"123456789") == 0xCBF43926
    finally:
        monkeypatch.undo()
        importlib.reload(checksum)
