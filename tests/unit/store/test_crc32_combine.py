from __future__ import annotations

import random
import zlib

import pytest

from blobmsg.format.ranges import ByteRange
from blobmsg.store import crc32_combine
from blobmsg.store.crc32_combine import MIN_COMBINED_BYTES, combine_crc32, object_crc32


@pytest.mark.parametrize(
    ("first", "second"),
    [(b"", b""), (b"a", b""), (b"", b"b"), (b"a", b"b"), (b"ab" * 1000, b"\0" * 70_000)],
)
def test_two_blocks_combine_to_what_zlib_says_of_both(first: bytes, second: bytes) -> None:
    combined = combine_crc32(zlib.crc32(first), zlib.crc32(second), len(second))
    assert combined == zlib.crc32(first + second)


def test_blocks_of_any_length_combine() -> None:
    rng = random.Random(7)
    data = rng.randbytes(300_000)
    for _ in range(50):
        start, end = sorted(rng.sample(range(len(data) + 1), 2))
        combined = combine_crc32(zlib.crc32(data[:start]), zlib.crc32(data[start:end]), end - start)
        assert combined == zlib.crc32(data[:end])


def test_an_objects_checksum_follows_from_its_segments_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = random.Random(8).randbytes(400_000)
    ranges = [ByteRange(8, 100_000), ByteRange(100_016, 50), ByteRange(150_000, 240_000)]
    known = [(r, zlib.crc32(data[r.start : r.end])) for r in ranges]
    read = 0

    def counting_crc32(part: memoryview, crc: int = 0) -> int:
        nonlocal read
        read += len(part)
        return zlib.crc32(part, crc)

    expected = zlib.crc32(data)
    monkeypatch.setattr(crc32_combine, "crc32", counting_crc32)
    assert object_crc32(data, known[::-1]) == expected
    assert read == len(data) - 340_000  # only what no large segment covers


def test_without_known_segments_all_is_read() -> None:
    assert object_crc32(b"abc", []) == zlib.crc32(b"abc")
    assert object_crc32(memoryview(bytearray(b"abc")), []) == zlib.crc32(b"abc")


def test_a_damaged_segment_changes_the_checksum_that_the_store_will_compare() -> None:
    data = bytearray(random.Random(9).randbytes(2 * MIN_COMBINED_BYTES))
    known = [(ByteRange(0, len(data)), zlib.crc32(data))]
    data[100] ^= 1
    assert object_crc32(data, known) != zlib.crc32(data)


@pytest.mark.parametrize(
    "ranges", [[ByteRange(0, 10), ByteRange(9, 2)], [ByteRange(90, 11)], [ByteRange(200, 1)]]
)
def test_ranges_that_overlap_or_end_behind_the_data_are_refused(ranges: list[ByteRange]) -> None:
    with pytest.raises(ValueError, match="overlaps"):
        object_crc32(bytes(100), [(byte_range, 0) for byte_range in ranges])
