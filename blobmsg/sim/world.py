"""Virtual time: one heap of events, one source of chance, one trace.

Decides which event comes next: the earliest one; among those of one millisecond chance decides, so
that every interleaving can come. Everything that happens in a simulation happens in an event.
"""

from __future__ import annotations

import heapq
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from _typeshed import SupportsLenAndGetItem
    from greenlet import greenlet

_Thing = TypeVar("_Thing")

# How often it is asked whether a run is over.
_LOOK_EVERY_MS: Final = 50

__all__ = ["Process", "RequestClock", "Violation", "World"]

#: Monotonic time at the start; not 0, which could be taken for "never".
START_MS: Final = 1_000_000
#: Wall time at the start: 2026-01-01 UTC.
START_WALL_MS: Final = 1_767_225_600_000


class Violation(BaseException):
    """A rule of DESIGN.md is broken; no `except Exception` of production code may keep it."""


class Chance(random.Random):
    """`random.Random`, number for number, without checks that take more time than the draw."""

    def randint(self, a: int, b: int) -> int:
        """A number from `a` to `b`."""
        width = b - a + 1
        bits = width.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= width:
            drawn = self.getrandbits(bits)
        return a + drawn

    def choice(self, seq: SupportsLenAndGetItem[_Thing]) -> _Thing:
        """One of these.

        Raises:
            IndexError: There is none.
        """
        if not seq:
            raise IndexError("a choice of nothing")
        return seq[self.randint(0, len(seq) - 1)]


class World:
    """The clock, the events to come and chance.

    Args:
        seed: Of chance; the same one gives the same events.

    Attributes:
        now_ms: Virtual time.
        rng: Decides delays, faults and interleavings.
        trace: What happened, in order: tuples of the time, a word and details.
    """

    def __init__(self, seed: str) -> None:
        self.now_ms = START_MS
        self.rng = Chance(seed)
        self.trace: list[tuple[Any, ...]] = []
        self._heap: list[tuple[int, float, int, Callable[[], object]]] = []
        self._count = 0

    def timestamp_ms(self) -> int:
        """Wall time."""
        return self.now_ms - START_MS + START_WALL_MS

    def at(self, at_ms: int, action: Callable[[], object]) -> None:
        """Have something happen at a time; not before now."""
        self._count += 1
        place = (max(at_ms, self.now_ms), self.rng.random(), self._count, action)
        heapq.heappush(self._heap, place)

    def after(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Have something happen so much later."""
        self.at(self.now_ms + delay_ms, action)

    def skip(self, duration_ms: int) -> None:
        """Let time pass in which nothing happens: what was to come comes so much later."""
        self.now_ms += duration_ms
        self._heap = [
            (at_ms + duration_ms, chance, count, action)
            for at_ms, chance, count, action in self._heap
        ]

    def note(self, *what: Any) -> None:
        """Write a line of the trace."""
        self.trace.append((self.now_ms - START_MS, *what))

    def run(self, until_ms: int, is_over: Callable[[], bool]) -> bool:
        """Let events happen until it is over; False: not before this time, or nothing is left.

        Args:
            until_ms: Not longer.
            is_over: Asked now and then.
        """
        heap = self._heap
        next_look_ms = self.now_ms
        while heap:
            if self.now_ms >= next_look_ms:
                next_look_ms = self.now_ms + _LOOK_EVERY_MS
                if is_over():
                    return True
            if heap[0][0] > until_ms:
                self.now_ms = until_ms
                return False
            self.now_ms, _, _, action = heapq.heappop(heap)
            action()
        return is_over()


class Process:
    """A process of the system: it can be paused, and it can be killed.

    Args:
        world: Its world.
        name: For the trace.

    Attributes:
        died_ms: When it was killed.
        paused_until_ms: It does nothing before.
        paused_ms: For how long, together.
        fibers: Its callers that may wait.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.died_ms: int | None = None
        self.paused_until_ms = 0
        self.paused_ms = 0
        self.fibers: list[greenlet] = []

    @property
    def is_alive(self) -> bool:
        """Whether it was not killed."""
        return self.died_ms is None

    @property
    def is_running(self) -> bool:
        """Whether it does anything now."""
        return self.died_ms is None and self.world.now_ms >= self.paused_until_ms

    def after(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Have it do something later, if it lives; after its pause if it is paused then."""
        self.world.after(delay_ms, partial(self._do, action))

    def _do(self, action: Callable[[], object]) -> None:
        if self.died_ms is not None:
            return
        if self.world.now_ms < self.paused_until_ms:
            self.world.at(self.paused_until_ms, partial(self._do, action))
            return
        action()

    def pause(self, duration_ms: int) -> None:
        """Stop it for a while, as SIGSTOP does."""
        self.paused_until_ms = max(self.paused_until_ms, self.world.now_ms + duration_ms)
        self.paused_ms += duration_ms
        self.world.note("pause", self.name, duration_ms)

    def kill(self) -> None:
        """End it at once; nothing of it is left."""
        self.died_ms = self.world.now_ms
        self.world.note("kill", self.name)

    # What the shells want of a `Clock`.

    def now_ms(self) -> int:
        """Monotonic time."""
        return self.world.now_ms

    def timestamp_ms(self) -> int:
        """Wall time."""
        return self.world.timestamp_ms()

    def monotonic_s(self) -> float:
        """Monotonic time in seconds."""
        return self.world.now_ms / 1000

    def sleep(self, duration_ms: float) -> None:
        """Nobody in a simulation may wait."""
        raise AssertionError(f"{self.name} waits {duration_ms} ms")

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        """As `sleep`."""
        raise AssertionError(f"{self.name} waits {timeout_ms} ms for {event}")


class RequestClock:
    """The clock of one request that is computed ahead: waiting moves it, and nothing else.

    So the production code that repeats a request runs in one go, and the virtual time at which it
    ends is known; what it does to the store is done at its own time.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ahead_ms = 0.0
        self._begun_ms = world.now_ms

    def begin(self) -> None:
        """A new request begins now."""
        self._begun_ms = self._world.now_ms
        self._ahead_ms = 0.0

    def now_ms(self) -> int:
        """Monotonic time."""
        return self._begun_ms + int(self._ahead_ms)

    def timestamp_ms(self) -> int:
        """Wall time."""
        return self.now_ms() - START_MS + START_WALL_MS

    def sleep(self, duration_ms: float) -> None:
        """Let so much time pass."""
        self._ahead_ms += max(0.0, duration_ms)

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        """Let so much time pass, unless the event is set."""
        if event.is_set():
            return True
        self.sleep(timeout_ms)
        return False
