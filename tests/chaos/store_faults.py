"""What the proxy before the store does to requests, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.helpers.fault_proxy import (
    Answer,
    Delay,
    Fault,
    FlipBit,
    FlipRequestBit,
    Hold,
    LoseAnswer,
    Reset,
    Truncate,
    by_chance,
)

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Callable

    from tests.helpers.fault_proxy import Request, Rule

#: All of them.
STORE_FAULTS: Final = (
    "503",
    "500",
    "403",
    "latency",
    "hang",
    "reset",
    "truncated",
    "bit flipped",
    "answer lost",
)

_LONGEST_DELAY_S = 2.0
_CUT_AFTER_BYTES = 10
_ANY_BYTE = 1 << 16


def store_rule(name: str, probability: float, rng: random.Random, healed: threading.Event) -> Rule:
    """The rule of a fault.

    Args:
        name: One of `STORE_FAULTS`.
        probability: Share of the requests that it hits.
        rng: Chance.
        healed: What hangs goes on when this is set.
    """
    return by_chance(_fault_of(name, rng, healed), probability, rng)


def _fault_of(
    name: str, rng: random.Random, healed: threading.Event
) -> Callable[[Request], Fault | None]:
    match name:
        case "503":
            return lambda _: Answer(503, "SlowDown")
        case "500":
            return lambda _: Answer(500, "InternalError")
        case "403":
            return lambda _: Answer(403, "AccessDenied")
        case "latency":
            return lambda _: Delay(rng.uniform(0.1, _LONGEST_DELAY_S))
        case "hang":
            return lambda _: Hold(healed)
        case "reset":
            return lambda _: Reset()
        case "truncated":
            return lambda _: Truncate(_CUT_AFTER_BYTES)
        case "bit flipped":
            return lambda request: (
                FlipRequestBit(rng.randrange(_ANY_BYTE))
                if request.method == "PUT"
                else FlipBit(rng.randrange(_ANY_BYTE))
            )
        case "answer lost":
            return lambda _: LoseAnswer()
        case _:
            raise ValueError(f"no store fault {name!r}")
