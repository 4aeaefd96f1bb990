"""Turns in the thread of an asyncio client."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from blobmsg.aio.client_thread import ClientThread

LATE_S = 1.0  # what the API allows beyond a call's time


async def make() -> ClientThread:
    return ClientThread(asyncio.get_running_loop(), "test")


async def hold(thread: ClientThread) -> tuple[threading.Event, asyncio.Future[bool]]:
    """Keep the thread busy until the event is set."""
    let_go = threading.Event()
    holding = asyncio.ensure_future(thread.call(let_go.wait, 30))
    await asyncio.sleep(0)  # it is in the queue now
    return let_go, holding


def test_a_call_gets_what_is_left_of_its_time() -> None:
    async def run() -> list[float | None]:
        thread = await make()
        let_go, holding = await hold(thread)
        asyncio.get_running_loop().call_later(0.3, let_go.set)
        limited = await thread.call_in_time(lambda rest_s: rest_s, 20)
        await holding
        endless = await thread.call_outside_in_time(lambda rest_s: rest_s, -1)
        thread.stop()
        return [limited, endless]

    limited, endless = asyncio.run(run())
    assert limited is not None
    assert 10 < limited <= 19.7
    assert endless == -1


@pytest.mark.parametrize("timeout_s", [0.0, 0.2])
def test_a_call_whose_turn_does_not_come_in_time_is_not_made(timeout_s: float) -> None:
    made: list[float] = []

    def note(rest_s: float) -> bool:
        made.append(rest_s)
        return True

    async def run() -> float:
        thread = await make()
        let_go, holding = await hold(thread)
        began = time.monotonic()
        assert await thread.call_in_time(note, timeout_s) is None
        took_s = time.monotonic() - began
        let_go.set()
        await holding
        await thread.call(note, -2.0)  # behind it
        thread.stop()
        return took_s

    assert asyncio.run(run()) <= timeout_s + LATE_S
    assert made == [-2.0]


def test_what_a_call_raises_that_has_begun_is_raised_however_late() -> None:
    def fail(_rest_s: float) -> None:
        time.sleep(0.5)
        raise LookupError("late")

    async def run() -> None:
        thread = await make()
        try:
            await thread.call_in_time(fail, 0.0)
        finally:
            thread.stop()

    with pytest.raises(LookupError, match="late"):
        asyncio.run(run())


def test_every_call_has_its_turn_among_many() -> None:
    """Who asks again and again, each time behind all others, has its turn in the time it gives."""

    async def run() -> int:
        thread = await make()
        others = [asyncio.ensure_future(_again_and_again(thread)) for _ in range(10)]
        turns = [await thread.call_outside_in_time(lambda _: True, 20) for _ in range(3)]
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        thread.stop()
        return turns.count(True)

    assert asyncio.run(run()) == 3


async def _again_and_again(thread: ClientThread) -> None:
    while True:
        await thread.call(time.sleep, 0.06)
