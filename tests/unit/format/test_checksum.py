"""The checksum is the one that the page names."""

from __future__ import annotations

from blobmsg.format import crc32


def test_checksum_has_the_published_check_value() -> None:
    # CRC-32/ISO-HDLC of the nine digits, from the catalogue of parametrised CRC algorithms.
    assert crc32(b"123456789") == 0xCBF43926


def test_checksum_takes_slices_without_a_copy() -> None:
    assert crc32(memoryview(b"__123456789__")[2:-2]) == 0xCBF43926
