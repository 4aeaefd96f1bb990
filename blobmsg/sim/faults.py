"""What goes wrong in a simulation, at the times of its plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from blobmsg.sim.forgery import FORGERIES, forge
from blobmsg.sim.network import NetworkFault
from blobmsg.sim.virtual_store import StoreFault
from blobmsg.sim.world import START_MS

if TYPE_CHECKING:
    from blobmsg.sim.consumer_process import ConsumerProcess
    from blobmsg.sim.plan import Fault
    from blobmsg.sim.producer_application import ProducerApplication
    from blobmsg.sim.system import System

__all__ = ["Faults"]

# What is missing for no longer than this comes late, and no consumer may skip it.
_MAY_BE_LATE_MS: Final = 3000


class Faults:
    """Hurts a system.

    Args:
        system: Whose processes, network and store.

    Attributes:
        hidden: Objects that were missing for so long that a consumer may have skipped them.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self.hidden: set[str] = set()

    def schedule(self, fault: Fault) -> None:
        """Have it happen at its time."""
        start_ms, end_ms = START_MS + fault.at_ms, START_MS + fault.at_ms + fault.duration_ms
        kind = fault.kind
        if kind.startswith("net-"):
            window = NetworkFault(kind.removeprefix("net-"), start_ms, end_ms, fault.share)
            self._system.network.faults.append(window)
        elif kind in ("outage", "hang", "lost", "slow", "corrupt"):
            self._system.store.faults.append(StoreFault(kind, start_ms, end_ms, fault.share))
        else:
            self._system.world.at(start_ms, partial(self._meet, fault))

    def _meet(self, fault: Fault) -> None:
        kind, target = fault.kind, fault.target
        producers = [a for a in self._system.applications if a.process.is_alive and not a.is_done]
        consumers = self._system.living_consumers()
        if kind.endswith("-producer") and producers:
            self._meet_producer(kind, producers[target % len(producers)], fault.duration_ms)
        elif kind == "fence":
            self._fence(target, producers)
        elif kind == "forge":
            self._forge(target)
        elif kind == "stall-transformer":
            self._stall(target, fault.duration_ms)
        elif kind == "join-consumer":
            self._system.start_consumer(self._system.groups[target % len(self._system.groups)])
        elif kind.endswith("-consumer") and consumers:
            self._meet_consumer(kind, consumers[target % len(consumers)], fault.duration_ms)
        elif kind == "hide" and self._system.store.objects:
            self._hide(target, fault.duration_ms)
        elif kind == "retention":
            for place in self._system.truth.places():
                log = self._system.broker.log(place)
                log.delete_before(log.last_stable * target // 20)

    def _hide(self, target: int, duration_ms: int) -> None:
        """Let an object be missing for a while."""
        store, world = self._system.store, self._system.world
        key = sorted(store.objects)[-1 - target % len(store.objects)]
        if duration_ms > _MAY_BE_LATE_MS or key in store.hidden_until_ms:
            self.hidden.add(key)
        store.hidden_until_ms[key] = world.now_ms + duration_ms
        world.note("hide", key, duration_ms)

    def _forge(self, target: int) -> None:
        """Let somebody write a notification who is none of us."""
        system, rng = self._system, self._system.world.rng
        real = system.truth.notifications_of_objects()
        if not real:
            return
        kind = rng.choice(FORGERIES)
        message = forge(kind, rng.choice(real), rng)
        place = (system.topics[target % len(system.topics)], target % system.plan.partitions)
        system.truth.add_forgery(message)
        system.world.note("forge", kind, *place)
        identity = system.broker.init_producer(None)
        system.broker.append(place, identity, 0, [message], system.world.now_ms)

    def _fence(self, target: int, producers: list[ProducerApplication]) -> None:
        """Start another process with the same transactional id, though the old one lives."""
        transformers = self._system.living_transformers()
        if transformers and (target % 2 or not self._system.plan.is_transactional):
            self._system.start_transformer(transformers[target % len(transformers)].slot)
        elif producers and self._system.plan.is_transactional:
            old = producers[target % len(producers)]
            self._system.start_producer(old.process.name.partition(".")[0], min(20, old.left))

    def _stall(self, target: int, duration_ms: int) -> None:
        transformers = self._system.living_transformers()
        if transformers:
            transformers[target % len(transformers)].stall(duration_ms)

    def _meet_producer(self, kind: str, hit: ProducerApplication, duration_ms: int) -> None:
        if kind == "pause-producer":
            hit.process.pause(duration_ms)
            return
        hit.process.kill()
        self._system.history.dead.add(hit.process.name)
        name = hit.process.name.partition(".")[0]
        left = hit.left
        self._system.world.after(duration_ms, lambda: self._system.start_producer(name, left))

    def _meet_consumer(self, kind: str, hit: ConsumerProcess, duration_ms: int) -> None:
        if kind == "pause-consumer":
            hit.pause(duration_ms)
            return
        others = [
            c
            for c in self._system.consumers
            if c is not hit and c.is_running and c.group == hit.group
        ]
        if kind == "leave-consumer":
            if others and hit.is_running and not hit.inner.is_closed:
                hit.leave()
            return
        hit.kill()
        self._system.world.note("killed", hit.name)
        self._system.world.after(duration_ms, partial(self._system.start_again, hit))
