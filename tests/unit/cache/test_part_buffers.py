from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from blobmsg.cache.part_buffers import SMALLEST_BYTES, PartBuffers


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


def test_memory_is_used_again_once_nobody_refers_to_the_part() -> None:
    buffers = PartBuffers(1 << 20)
    part: Any = buffers.take(200_000)
    part.view()[:] = b"x" * 200_000
    other = buffers.take(200_000)
    assert other.data is not part.data
    keeper, memory = [part], part.data
    del part
    assert buffers.free_bytes == 0
    keeper.clear()
    assert buffers.free_bytes == len(memory)
    again = buffers.take(201_000)
    assert again.data is memory
    assert buffers.free_bytes == 0


def test_free_memory_stays_within_the_limit() -> None:
    buffers = PartBuffers(500_000)
    parts = [buffers.take(200_000) for _ in range(5)]
    parts.clear()
    assert 200_000 <= buffers.free_bytes <= 500_000
    buffers.drop_free()
    assert buffers.free_bytes == 0


def test_a_part_that_ends_while_another_is_taken_is_only_lost_for_reuse() -> None:
    buffers = PartBuffers(1 << 30)
    cycle: list[Any] = [buffers.take(200_000)]
    cycle.append(cycle)
    del cycle
    with buffers._lock:  # as when the collector runs within `take`
        gc.collect()
    assert buffers.free_bytes == 0
    assert len(buffers.take(200_000)) == 200_000


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
    assert buffers.free_bytes <= 1 << 22
