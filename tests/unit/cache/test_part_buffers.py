from __future__ import annotations

import gc
import os
import threading
from typing import Any

import pytest

from blobmsg.cache.part_buffers import SMALLEST_BYTES, PartBuffer, PartBuffers


@pytest.mark.parametrize("length_bytes", [SMALLEST_BYTES, 131_073, 1_400_001, 16 << 20])
def test_a_buffer_is_as_long_as_its_part_and_takes_at_most_an_eighth_more(
    length_bytes: int,
) -> None:
    part = PartBuffers(0).take(length_bytes)
    assert len(part) == len(part.view()) == length_bytes
    assert length_bytes <= len(part.data) <= length_bytes * 9 / 8


def test_a_slice_of_a_part_is_bytes_of_its_own() -> None:
    part = PartBuffers(0).take(SMALLEST_BYTES)
    part.view()[:4] = b"0123"
    piece = part.data[1:3]
    part.view()[:4] = b"abcd"
    assert piece == b"12"
    assert type(piece) is bytes


def test_memory_is_used_again_once_nobody_refers_to_it() -> None:
    buffers = PartBuffers(1 << 20)
    part: Any = buffers.take(200_000)
    other = buffers.take(200_000)
    assert other.data is not part.data
    memory, view = id(part.data), part.view()
    del part
    assert buffers.free_bytes == 0
    del view
    assert buffers.free_bytes == len(other.data)
    again = buffers.take(201_000)
    assert id(again.data) == memory
    assert buffers.free_bytes == 0


def test_memory_of_garbage_is_not_used_again_before_it_is_gone() -> None:
    buffers = PartBuffers(1 << 20)
    part = buffers.take(200_000)
    part.view()[:4] = b"mine"
    seen: list[bytes] = []

    class Garbage:
        def __init__(self, part: PartBuffer) -> None:
            self.part = part
            self.itself = self

        def __del__(self) -> None:
            buffers.take(200_000).view()[:5] = b"other"
            seen.append(self.part.data[:4])

    Garbage(part)
    del part
    assert buffers.free_bytes == 0
    gc.collect()
    assert seen == [b"mine"]
    assert buffers.free_bytes >= 400_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_keeps_what_it_had() -> None:
    buffers = PartBuffers(1 << 20)
    part = buffers.take(200_000)
    part.view()[:4] = b"mine"
    to_child, from_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(to_child, 1)
        os._exit(0 if part.data[:4] == b"mine" else 1)
    memory = id(part.data)
    del part
    again = buffers.take(200_000)
    assert id(again.data) == memory
    again.view()[:5] = b"other"
    os.write(from_parent, b"x")
    _, status = os.waitpid(child, 0)
    os.close(to_child)
    os.close(from_parent)
    assert os.waitstatus_to_exitcode(status) == 0


def test_free_memory_beyond_the_limit_goes_when_new_is_needed() -> None:
    buffers = PartBuffers(500_000)
    parts = [buffers.take(200_000) for _ in range(5)]
    parts.clear()
    assert buffers.free_bytes >= 1_000_000
    one = buffers.take(400_000)
    assert 200_000 <= buffers.free_bytes <= 500_000
    buffers.drop_unused(60.0)
    assert buffers.free_bytes >= 200_000
    buffers.drop_unused(0.0)
    assert buffers.free_bytes == 0
    assert len(one) == 400_000


def test_no_two_threads_ever_have_one_buffer() -> None:
    buffers = PartBuffers(1 << 22)
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(300):
            part = buffers.take(SMALLEST_BYTES)
            view = part.view()
            view[:8] = bytes([number]) * 8
            gc.collect(0)
            if part.data[:8] != bytes([number]) * 8:
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
