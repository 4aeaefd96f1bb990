"""The network between clients and brokers: delays, and windows of time in which it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from blobmsg.sim.world import World

__all__ = ["Network", "NetworkFault", "Request"]


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """What goes wrong in a window of time.

    Attributes:
        kind: `lost` (requests or their answers), `slow`, `leader` (partitions without one),
            `calls` (what asks a coordinator times out), `stale` (see `Network.stale_since_ms`).
        start_ms: From here on, monotonic.
        end_ms: Until here.
        share: Of the requests or partitions, 0 to 1.
    """

    kind: str
    start_ms: int
    end_ms: int
    share: float

    def meets_partition(self, place: tuple[str, int], now_ms: int) -> bool:
        """Whether a partition is hit now: by its number and not by chance, as long as it lasts."""
        is_hit = (place[1] * 7 + self.start_ms) % 10 < self.share * 10
        return is_hit and self.start_ms <= now_ms < self.end_ms


@dataclass(frozen=True, slots=True)
class Request:
    """What becomes of one request.

    Attributes:
        delay_ms: Until it arrives.
        answer_ms: Until its answer arrives after that.
        is_lost: It never arrives.
        is_answer_lost: It arrives; its answer does not.
    """

    delay_ms: int
    answer_ms: int
    is_lost: bool
    is_answer_lost: bool


# For how long a broker that takes itself for a leader had stood still.
_STOOD_STILL_MS: Final = 2000


class Network:
    """Between all clients and all brokers.

    Args:
        world: Its world.
        delay_ms: The least and the most of one way.

    Attributes:
        faults: Windows.
    """

    def __init__(self, world: World, delay_ms: tuple[int, int]) -> None:
        self._world = world
        self._delay_ms = delay_ms
        self.faults: list[NetworkFault] = []

    def delay_ms(self) -> int:
        """One way."""
        delay_ms = self._world.rng.randint(*self._delay_ms)
        return delay_ms * 20 if self._meets("slow") else delay_ms

    def request(self) -> Request:
        """What becomes of the next request."""
        is_hit = self._meets("lost")
        is_lost = is_hit and self._world.rng.random() < 0.5
        return Request(self.delay_ms(), self.delay_ms(), is_lost, is_hit and not is_lost)

    def call_fault(self) -> str:
        """Of a call that waits for its answer: "", "lost before" or "lost after" its effect."""
        if not self._meets("calls"):
            return ""
        return "lost before" if self._world.rng.random() < 0.5 else "lost after"

    def is_leader_away(self, place: tuple[str, int]) -> bool:
        """Whether a partition has no leader now."""
        now_ms = self._world.now_ms
        return any(
            fault.kind == "leader" and fault.meets_partition(place, now_ms) for fault in self.faults
        )

    def stale_since_ms(self, place: tuple[str, int]) -> int | None:
        """Since when the broker has heard nothing that consumers take for a partition's leader.

        It has stood still, and another one leads; it does not know that yet, nor do they.
        """
        now_ms = self._world.now_ms
        for fault in self.faults:
            if fault.kind == "stale" and fault.meets_partition(place, now_ms):
                return fault.start_ms - _STOOD_STILL_MS
        return None

    def _meets(self, kind: str) -> bool:
        now_ms = self._world.now_ms
        return any(
            fault.kind == kind
            and fault.start_ms <= now_ms < fault.end_ms
            and self._world.rng.random() < fault.share
            for fault in self.faults
        )
