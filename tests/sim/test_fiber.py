"""Callers that wait on virtual time: nothing else happens while they run."""

from __future__ import annotations

import gc
from functools import partial

import pytest

from blobmsg.sim.fiber import (
    VirtualJobThread,
    VirtualNews,
    in_fiber,
    sleep,
    start_fiber,
)
from blobmsg.sim.world import Process, World


def _run(world: World, ms: int = 10_000) -> None:
    world.run(world.now_ms + ms, lambda: False)


def test_who_sleeps_goes_on_in_virtual_time_and_others_meanwhile() -> None:
    world = World("fibers")
    process = Process(world, "p")
    begun_ms = world.now_ms
    seen: list[tuple[str, int, bool]] = []

    def body(name: str, duration_s: float) -> None:
        for _ in range(2):
            sleep(process, duration_s)
            seen.append((name, world.now_ms - begun_ms, in_fiber()))

    start_fiber(process, lambda: body("slow", 0.5))
    start_fiber(process, lambda: body("fast", 0.2))
    _run(world)

    assert seen == [
        ("fast", 200, True),
        ("fast", 400, True),
        ("slow", 500, True),
        ("slow", 1000, True),
    ]
    assert not in_fiber()


def test_news_end_a_wait_and_what_came_before_it_is_not_waited_for() -> None:
    world = World("news")
    process = Process(world, "p")
    news = VirtualNews(process)
    begun_ms = world.now_ms
    waited_ms: list[int] = []

    def body() -> None:
        with news.listening() as wakeup:
            for timeout_s in (5.0, None, 0.3):
                wakeup.wait(timeout_s)
                waited_ms.append(world.now_ms - begun_ms)
            news.tell()
            wakeup.wait(None)
            waited_ms.append(world.now_ms - begun_ms)

    start_fiber(process, body)
    world.after(100, news.tell)
    world.after(1000, news.tell)
    _run(world)

    assert len(waited_ms) == 4
    assert 100 <= waited_ms[0] <= 102
    assert 1000 <= waited_ms[1] <= 1002
    assert waited_ms[2] == waited_ms[3] == waited_ms[1] + 300


def test_a_killed_process_never_comes_back_and_a_paused_one_later() -> None:
    world = World("killed")
    killed, paused = Process(world, "killed"), Process(world, "paused")
    begun_ms = world.now_ms
    back: list[tuple[str, int]] = []

    def body(process: Process) -> None:
        try:
            sleep(process, 1)
        except BaseException:  # noqa: BLE001  (as production code does here and there)
            back.append((f"{process.name} after all", world.now_ms))
        back.append((process.name, world.now_ms - begun_ms))

    for process in (killed, paused):
        start_fiber(process, partial(body, process))
    world.after(500, killed.kill)
    world.after(500, lambda: paused.pause(2000))
    _run(world)
    gc.collect()

    assert back == [("paused", 2500)]


def test_what_a_fiber_raises_ends_the_run() -> None:
    world = World("raises")
    process = Process(world, "p")

    def body() -> None:
        sleep(process, 1)
        raise ValueError("a defect")

    start_fiber(process, body)

    with pytest.raises(ValueError, match="a defect"):
        _run(world)


def test_only_a_fiber_may_wait() -> None:
    with pytest.raises(AssertionError, match="only a fiber"):
        sleep(Process(World("hub"), "p"), 1)


def test_jobs_are_done_in_order_and_at_once_for_who_waits() -> None:
    world = World("jobs")
    jobs = VirtualJobThread(Process(world, "p"))
    done: list[int] = []

    jobs.put(lambda: done.append(1))
    jobs.put(lambda: done.append(2))
    assert done == []
    jobs.put_and_wait(lambda: done.append(3))
    assert done == [1, 2, 3]
    jobs.put(lambda: done.append(4))
    _run(world)

    assert done == [1, 2, 3, 4]
