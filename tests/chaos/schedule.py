"""What is done when: an endless row of steps from a seed. Pure: one seed, one row."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.chaos.store_faults import STORE_FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What can happen to Kafka. The names say it; `all` is all three brokers, which are restarted one
#: after the other, as for an upgrade.
KAFKA_FAULTS: Final = ("kill one", "pause one", "kill all", "pause all", "restart all")
#: What can happen to a child: SIGKILL, SIGSTOP for longer than the session, SIGTERM.
CHILD_FAULTS: Final = ("kill", "pause", "end")

PROBABILITIES: Final = (0.2, 1.0)
_STEP_S = 20.0
# Of the store: longer than records may take (a minute), and than clients try without a pause.
_OUTAGE_S = 180.0
_ALL_BROKERS_S = 15.0
# Between two kills of members of one group. A group whose members die more often gets nowhere.
_APART_S = 7.0
_ROLES = ("writer", "reader", "transformer")
_ZOMBIE_EVERY = 3
_OUTAGE_EVERY = 16
_KAFKA_EVERY = 3


@dataclass(frozen=True, slots=True)
class ChildFault:
    """Something done to a child.

    Attributes:
        at_s: Seconds after the step's begin.
        action: One of `CHILD_FAULTS`.
        role: `writer`, `reader` or `transformer`.
        slot: Which of them, from 0.
    """

    at_s: float
    action: str
    role: str
    slot: int


@dataclass(frozen=True, slots=True)
class Step:
    """Faults that begin together and are healed together.

    Attributes:
        number: From 0.
        seconds: For so long.
        store: One of `STORE_FAULTS`; "": the store is well.
        probability: Share of the requests that it hits.
        kafka: One of `KAFKA_FAULTS`; "": Kafka is well.
        broker: The one that is hit, from 0.
        children: What is done to them meanwhile.
        zombie: The slot of the transformer that is paused, replaced and continued after all is
            well again; None: nobody.
    """

    number: int
    seconds: float
    store: str
    probability: float
    kafka: str
    broker: int
    children: tuple[ChildFault, ...]
    zombie: int | None

    def __str__(self) -> str:
        parts: list[str] = []
        if self.store:
            parts.append(f"store: {self.store} ({self.probability})")
        if self.kafka:
            parts.append(f"Kafka: {self.kafka}")
        parts += [f"{c.action} {c.role} {c.slot}" for c in self.children]
        if self.zombie is not None:
            parts.append(f"zombie {self.zombie}")
        return f"step {self.number}, {self.seconds:.0f} s: {', '.join(parts) or 'nothing'}"


def schedule(seed: int, slots: int = 2) -> Iterator[Step]:
    """All steps, without end.

    Every store fault comes with every probability before any comes again.

    Args:
        seed: Of chance.
        slots: Children of each role.
    """
    rng = random.Random(seed)
    kinds = [(fault, probability) for fault in STORE_FAULTS for probability in PROBABILITIES]
    number = itertools.count()
    quiet_s = dict.fromkeys(_ROLES, _APART_S)
    while True:
        for store, probability in rng.sample(kinds, len(kinds)):
            yield _step(rng, next(number), store, probability, slots, quiet_s)


def short_schedule(seed: int, slots: int = 2) -> list[Step]:
    """Two steps in which most happens once, for every run of the tests."""
    rng = random.Random(seed)
    first, second = rng.sample(STORE_FAULTS, 2)
    kills = tuple(ChildFault(1.0, "kill", role, rng.randrange(slots)) for role in _ROLES)
    return [
        Step(0, 4.0, first, 1.0, "", 0, kills, zombie=None),
        Step(1, 4.0, second, 0.2, "pause one", rng.randrange(3), (), rng.randrange(slots)),
    ]


def _step(
    rng: random.Random,
    number: int,
    store: str,
    probability: float,
    slots: int,
    quiet_s: dict[str, float],
) -> Step:
    """One step; for how long nothing was done to each role, when it ends, goes into `quiet_s`."""
    kafka, seconds = "", _STEP_S
    if number % _KAFKA_EVERY == _KAFKA_EVERY - 1:
        kafka = rng.choice(KAFKA_FAULTS)
        if kafka.endswith("all"):
            seconds = _ALL_BROKERS_S
    if number % _OUTAGE_EVERY == _OUTAGE_EVERY - 1:
        store, probability, seconds = rng.choice(["503", "hang", "reset"]), 1.0, _OUTAGE_S
    children: list[ChildFault] = []
    for role in _ROLES:
        at_s = max(round(rng.uniform(0.5, 2.5), 2), _APART_S - quiet_s[role])
        quiet_s[role] += seconds
        while at_s < min(seconds, 2 * _STEP_S) - 1:
            action = rng.choices(CHILD_FAULTS, weights=(6, 1, 1))[0]
            children.append(ChildFault(at_s, action, role, rng.randrange(slots)))
            quiet_s[role] = seconds - at_s
            at_s += _APART_S + round(rng.uniform(0.1, 2), 2)
    zombie = rng.randrange(slots) if number % _ZOMBIE_EVERY == 1 else None
    return Step(
        number,
        seconds,
        store,
        probability,
        kafka,
        rng.randrange(3),
        tuple(sorted(children, key=lambda child: child.at_s)),
        zombie,
    )
