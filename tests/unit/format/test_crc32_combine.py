from __future__ import annotations

import random
import zlib

import pytest

from blobmsg.format import crc32_combine
from blobmsg.format.crc32_combine import combine_crc32


@pytest.fixture(params=["as it is", "without C"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without C":
        monkeypatch.setattr(crc32_combine, "native", None)


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
