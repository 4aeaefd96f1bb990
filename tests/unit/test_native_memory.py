"""What the C code gives back to the system. Sanitizers have an allocator of their own."""

from __future__ import annotations

import platform

import pytest

from blobmsg.format.rows import NARROW, Rows, drop_unused, keep_free, trim_heap
from blobmsg.native import native
from tests.helpers.memory import rss_bytes

MEBIBYTE = 1 << 20


pytestmark = [
    pytest.mark.skipif(native is None, reason="no compiler built blobmsg.native here"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator"),
]


def test_memory_that_is_not_needed_any_more_goes_back_to_the_system() -> None:
    keep_free(256 * MEBIBYTE)
    segments = [Rows(NARROW) for _ in range(64)]
    others = []  # they lie at the end of the heap, so that nothing before them goes by itself
    for number in range(64 * 2000):
        segments[number % 64].extend((b"k", bytes(1000), 1))
        if not number % 64:
            others.append(bytes(100_000))
    held_bytes = rss_bytes()

    segments.clear()
    drop_unused()  # begins an interval in which nothing is needed
    drop_unused()

    assert held_bytes - rss_bytes() > 100 * MEBIBYTE


def test_memory_between_what_lives_goes_back_to_the_system() -> None:
    # Of the size of segments, but below that from which on glibc takes pages of their own; not of
    # zeros, which it has without writing them where its heap has just grown.
    freed = []
    living = []
    for number in range(2000):
        freed.append(b"%d" % (number % 10) * 100_000)
        living.append(b"%d" % (number % 10) * 1000)
    held_bytes = rss_bytes()

    freed.clear()
    trim_heap()

    assert held_bytes - rss_bytes() > 150 * MEBIBYTE
    assert len(living) == 2000
