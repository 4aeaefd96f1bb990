"""The processes of one simulation and what lies between them: built, started and replaced.

Decides who is there; what goes wrong with them is `faults`' business, what they must hold to is
`simulation`'s.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from blobmsg.sim.client_settings import ClientSettings, settings_of
from blobmsg.sim.consumer_application import ConsumerApplication, ConsumerHabits
from blobmsg.sim.history import History
from blobmsg.sim.network import Network
from blobmsg.sim.producer_application import ProducerApplication, TransactionalApplication
from blobmsg.sim.producer_process import ProducerProcess
from blobmsg.sim.transformer import TRANSFORMED, Transformer
from blobmsg.sim.truth import Truth
from blobmsg.sim.virtual_broker import VirtualBroker, by_turns_that_move
from blobmsg.sim.virtual_store import VirtualStore
from blobmsg.sim.world import World

if TYPE_CHECKING:
    from blobmsg.sim.consumer_process import ConsumerProcess
    from blobmsg.sim.plan import Plan

__all__ = ["UPLOAD_MS", "System", "producer_id_of"]

#: The least and the most that a request takes without faults.
UPLOAD_MS: Final = (5, 40)
# The group that copies.
_TRANSFORMERS: Final = "x"


class System:
    """The system of one plan.

    Args:
        plan: How large it is.

    Attributes:
        plan: As above.
        world: Time and chance.
        network: Between clients and brokers.
        broker: All brokers.
        store: The store.
        history: What the applications saw.
        truth: What is in the log.
        topics: Those that applications produce to.
        all_topics: These, and that of the copies.
        groups: Names of the groups, that of the transformers included.
        applications: Those that produce.
        producers: Processes with a producer: of these, and of transformers.
        consumers: All that were ever started.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(f"run {plan.seed}")
        self._rng = self.world.rng
        self.network = Network(self.world, (1, 4))
        self.broker = VirtualBroker(self.world, by_turns_that_move)
        self.store = VirtualStore(self.world, UPLOAD_MS)
        self.history = History(self.world)
        self.truth = Truth(self.broker, self.store)
        self.topics = [f"t{number}" for number in range(plan.topics)]
        self.all_topics = [*self.topics, TRANSFORMED] if plan.transformers else self.topics
        for topic in self.all_topics:
            self.broker.create_topic(topic, plan.partitions)
        self.groups = [f"g{number}" for number in range(plan.groups)]
        if plan.transformers:
            self.groups.append(_TRANSFORMERS)
        self.applications: list[ProducerApplication] = []
        self.producers: list[ProducerProcess] = []
        self.consumers: list[ConsumerProcess] = []
        self._transformers = 0
        self._incarnations = 0
        self._settings = settings_of(plan, plan.route)
        self._second_settings = settings_of(plan, plan.second_route)

    def start(self) -> None:
        """Start what the plan has at the start."""
        plan = self.plan
        for number in range(plan.producers):
            records = plan.records // plan.producers
            if number == 0:
                records += plan.records % plan.producers
            self.start_producer(f"p{number}", records)
        for group in self.groups:
            for _ in range(plan.transformers if group == _TRANSFORMERS else plan.consumers):
                self.start_consumer(group)

    def start_producer(self, name: str, records: int) -> None:
        """Start an application that produces so many records, in place of any of that name."""
        plan = self.plan
        settings = self._settings if name == "p0" else self._second_settings
        process = self._make_producer(
            name, settings, transactional_id=name if plan.is_transactional else None
        )
        kind = TransactionalApplication if plan.is_transactional else ProducerApplication
        self.applications.append(kind(process, plan, self.history, records, self.topics))

    def _make_producer(
        self, name: str, settings: ClientSettings, transactional_id: str | None
    ) -> ProducerProcess:
        self._incarnations += 1
        incarnation = f"{name}.{self._incarnations}"
        process = ProducerProcess(
            self.world,
            incarnation,
            self.broker,
            self.network,
            self.store,
            settings,
            producer_id=producer_id_of(incarnation),
            transactional_id=transactional_id,
        )
        self.producers.append(process)
        return process

    def start_consumer(self, group: str, slot: int | None = None) -> None:
        """Start a member of a group; of transformers, `slot` as of `start_transformer`."""
        if group == _TRANSFORMERS:
            self.start_transformer(slot)
            return
        plan = self.plan
        habits = ConsumerHabits(
            plan.commits,
            self._rng.choice((1, 7, 100)) * plan.density,
            self._rng.choice((5, 30, 150)),
            plan.seek_share,
            plan.pause_share,
            plan.revoke_share,
        )
        self.consumers.append(
            ConsumerApplication(
                habits,
                *self._client(group, self._settings),
                group=group,
                is_cooperative=plan.is_cooperative,
                topics=self.all_topics,
                history=self.history,
            )
        )

    def start_transformer(self, slot: int | None) -> None:
        """Start one in place of another one, whose transactional id it has; None: one more."""
        if slot is None:
            slot = self._transformers
            self._transformers += 1
        settings = settings_of(self.plan, self.plan.route, is_transformer=True)
        name = f"{_TRANSFORMERS}{slot}"
        producer = self._make_producer(name, settings, transactional_id=name)
        self.consumers.append(
            Transformer(
                producer,
                slot,
                *self._client(_TRANSFORMERS, settings),
                group=_TRANSFORMERS,
                is_cooperative=self.plan.is_cooperative,
                topics=self.topics,
                history=self.history,
            )
        )

    def _client(self, group: str, settings: ClientSettings) -> tuple[Any, ...]:
        self._incarnations += 1
        name = f"{group}.{self._incarnations}"
        return self.world, name, self.broker, self.network, self.store, settings

    def living_transformers(self) -> list[Transformer]:
        """Those that were not killed and have not left."""
        return [c for c in self.living_consumers() if isinstance(c, Transformer)]

    def start_again(self, dead: ConsumerProcess) -> None:
        """Start another one in its place."""
        slot = dead.slot if isinstance(dead, Transformer) else None
        self.start_consumer(dead.group, slot)

    def replace_lost_transformers(self) -> None:
        """Start others for those that were fenced, unless their place is taken."""
        lost = [c for c in self.consumers if isinstance(c, Transformer) and c.is_lost]
        for transformer in lost:
            transformer.is_lost = False
            if transformer.slot not in {other.slot for other in self.living_transformers()}:
                self.start_again(transformer)

    def living_consumers(self) -> list[ConsumerProcess]:
        """Those that were not killed and have not left."""
        return [c for c in self.consumers if c.is_alive and not c.inner.is_closed]

    def lasting_applications(self) -> list[ProducerApplication]:
        """Those that live, and that nobody has fenced."""
        return [
            application
            for application in self.applications
            if application.process.is_alive and not application.process.inner.is_fenced
        ]

    def heal(self) -> None:
        """All is well from here on: nobody is paused, and each group has a member that stays."""
        now_ms = self.world.now_ms
        for process in [*self.producers, *self.consumers]:
            process.paused_until_ms = min(process.paused_until_ms, now_ms)
        staying = {c.group for c in self.living_consumers() if not c.is_leaving}
        for group in sorted(set(self.groups) - staying):
            self.start_consumer(group)
        for consumer in self.living_consumers():
            consumer.wake()


def producer_id_of(incarnation: str) -> bytes:
    """The 16 bytes that tell a producer's notifications from all others."""
    return blake2b(incarnation.encode(), digest_size=16).digest()
