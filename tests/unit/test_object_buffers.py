"""ObjectBuffers: what is kept, what goes, and that a buffer in use is never lent twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from blobmsg.object_buffers import ObjectBuffers

if TYPE_CHECKING:
    import io

MIB = 1 << 20


def test_a_buffer_is_used_again() -> None:
    buffers = ObjectBuffers(keep_bytes=8 * MIB)
    with buffers.lend(MIB) as first:
        first.write(b"once")
    with buffers.lend(MIB + MIB // 32) as second:
        assert second is first
        assert second.getbuffer().nbytes >= MIB + MIB // 32


def test_two_at_once_are_two() -> None:
    buffers = ObjectBuffers(keep_bytes=8 * MIB)
    with buffers.lend(MIB) as first, buffers.lend(MIB) as second:
        assert first is not second
        assert buffers.total_bytes == 2 * (MIB + MIB // 16)


def test_the_one_used_last_is_lent_first() -> None:
    buffers = ObjectBuffers(keep_bytes=8 * MIB)
    with buffers.lend(MIB) as first, buffers.lend(MIB):
        pass
    with buffers.lend(MIB) as again:
        assert again is first


def test_one_that_is_too_small_is_passed_over() -> None:
    buffers = ObjectBuffers(keep_bytes=8 * MIB)
    with buffers.lend(MIB) as small:
        pass
    with buffers.lend(2 * MIB) as large:
        assert large is not small
        assert large.getbuffer().nbytes >= 2 * MIB


def test_writing_within_the_size_moves_nothing() -> None:
    with ObjectBuffers(keep_bytes=0).lend(MIB) as stream:
        capacity_bytes = stream.getbuffer().nbytes
        stream.writelines([b"x" * 1024] * 1024)
        assert stream.getbuffer().nbytes == capacity_bytes


@pytest.mark.parametrize("keep_bytes", [0, MIB, 3 * MIB])
def test_no_more_is_kept_than_agreed(keep_bytes: int) -> None:
    buffers = ObjectBuffers(keep_bytes)
    with buffers.lend(MIB), buffers.lend(MIB), buffers.lend(MIB), buffers.lend(MIB):
        pass
    assert buffers.total_bytes <= keep_bytes


def test_free_ones_make_room_for_a_new_one() -> None:
    buffers = ObjectBuffers(keep_bytes=4 * MIB)
    with buffers.lend(MIB), buffers.lend(MIB):
        pass
    with buffers.lend(3 * MIB):
        assert buffers.total_bytes <= 4 * MIB + MIB // 4


def test_unused_ones_go() -> None:
    buffers = ObjectBuffers(keep_bytes=8 * MIB)
    with buffers.lend(MIB):
        pass
    buffers.drop_unused(60.0)
    assert buffers.total_bytes > 0
    buffers.drop_unused(0.0)
    assert buffers.total_bytes == 0


def test_one_that_somebody_still_looks_at_is_not_lent_again() -> None:
    buffers = ObjectBuffers(keep_bytes=8 * MIB)
    with buffers.lend(MIB) as first:
        view = first.getbuffer()
    assert buffers.total_bytes == 0
    with buffers.lend(MIB) as second:
        assert second is not first
    del view


def test_an_exception_gives_it_back() -> None:
    buffers = ObjectBuffers(keep_bytes=8 * MIB)
    with pytest.raises(RuntimeError), buffers.lend(MIB):
        raise RuntimeError
    with buffers.lend(MIB):
        assert buffers.total_bytes == MIB + MIB // 16


def test_threads_never_share_one() -> None:
    buffers = ObjectBuffers(keep_bytes=MIB)
    lent: set[int] = set()
    lock = threading.Lock()
    shared: list[io.BytesIO] = []

    def work() -> None:
        for _ in range(300):
            with buffers.lend(4096) as stream:
                with lock:
                    if id(stream) in lent:
                        shared.append(stream)
                    lent.add(id(stream))
                with lock:
                    lent.remove(id(stream))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not shared
