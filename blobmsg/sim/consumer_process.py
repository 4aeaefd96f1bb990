"""A process with a consumer: the production `Consumption`, and what `BlobConsumer` does around it.

Decides nothing; who polls it is `consumer_application`'s and `transformer`'s.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from blobmsg.consumption import Consumption
from blobmsg.fetcher import Fetcher, FetchResult
from blobmsg.sim.history import committed_position
from blobmsg.sim.inner_consumer import InnerConsumer
from blobmsg.sim.virtual_store import StoreRequests
from blobmsg.sim.world import Process, Violation

if TYPE_CHECKING:
    from blobmsg.config import Settings
    from blobmsg.core.debatcher import FetchSection
    from blobmsg.sim.client_settings import ClientSettings
    from blobmsg.sim.history import History
    from blobmsg.sim.network import Network
    from blobmsg.sim.virtual_broker import VirtualBroker
    from blobmsg.sim.virtual_store import VirtualStore
    from blobmsg.sim.world import World

__all__ = ["ConsumerProcess"]

_Place = tuple[str, int]
_BITS = 20
_FETCH_TIMEOUT_MS = 5000


class VirtualFetcher:
    """The production fetcher without its threads: a fetch is computed, and ends in its time.

    Args:
        process: Whose it is.
        store: The store.
        settings: Ours.
    """

    def __init__(self, process: ConsumerProcess, store: VirtualStore, settings: Settings) -> None:
        self._process = process
        self._requests = StoreRequests(store, process, settings)
        stores: Any = self._requests
        self._fetcher = Fetcher(
            stores,
            None,
            self._requests.clock,
            threads=0,
            request_timeout_ms=_FETCH_TIMEOUT_MS,
            keep_bytes=settings.prefetch_max_bytes // 2,
            name=process.name,
        )
        self._results: list[FetchResult] = []
        self.in_flight_bytes: dict[int, int] = {}
        self._count = 0

    def is_idle(self) -> bool:
        """Whether nothing is fetched, and nothing fetched waits to be taken."""
        return not self.in_flight_bytes and not self._results

    @property
    def cache_hits(self) -> int:
        """There is no cache."""
        return self._fetcher.cache_hits

    @property
    def mismatches(self) -> int:
        """As `Fetcher`."""
        return self._fetcher.mismatches

    def submit(self, section: FetchSection) -> None:
        """See `Fetcher.submit`."""
        self._count += 1
        number = self._count
        self.in_flight_bytes[number] = section.section.length
        self._requests.begin()
        outcomes = self._fetcher.fetch(section)
        self._requests.later(partial(self._ended, number, FetchResult(section, outcomes)))

    def _ended(self, number: int, result: FetchResult) -> None:
        del self.in_flight_bytes[number]
        self._results.append(result)
        self._process.touch()

    def wait(self, timeout_s: float) -> None:
        """Nobody waits."""

    def take_results(self) -> list[FetchResult]:
        """See `Fetcher.take_results`."""
        results, self._results = self._results, []
        return results


class ConsumerProcess(Process):
    """A member of a group, without an application.

    Args:
        world: Its world.
        name: Unique to this incarnation.
        broker: The cluster.
        network: Between them.
        store: The store.
        settings: Its.
        group: Its group.
        is_cooperative: How its group rebalances.
        topics: What it reads.
        history: Told of all that the application sees.

    Attributes:
        errors: What the application was told.
        forged: Where it was told of forgeries by the last `take`, and where to go on.
        is_leaving: It ends soon, or has ended, in an orderly way.
    """

    def __init__(
        self,
        world: World,
        name: str,
        broker: VirtualBroker,
        network: Network,
        store: VirtualStore,
        settings: ClientSettings,
        *,
        group: str,
        is_cooperative: bool,
        topics: list[str],
        history: History,
    ) -> None:
        super().__init__(world, name)
        self.group = group
        self._is_cooperative = is_cooperative
        self._broker = broker
        self._history = history
        self._settings = settings.ours
        self._rng = world.rng
        self._is_automatic = settings.view.enable_auto_commit
        self.fetcher = VirtualFetcher(self, store, settings.ours)
        self.inner = InnerConsumer(
            self,
            broker,
            network,
            group=group,
            member=name,
            is_committed=settings.inner_consumer.isolation_level == "read_committed",
            reads_from=settings.inner_consumer.auto_offset_reset,
            on_commit=self._on_commit,
            is_cooperative=is_cooperative,
        )
        fetcher: Any = self.fetcher
        clock: Any = self
        self.consumption = Consumption(
            self.inner,
            fetcher,
            settings.ours,
            settings.view,
            clock,
            on_error=lambda _error: None,
            on_commit=lambda _error, _partitions: None,
            monotonic_s=self.monotonic_s,
        )
        self.errors: list[KafkaError] = []
        self.forged: list[tuple[_Place, int]] = []
        self.is_leaving = False
        self._largest_bytes = 0
        self.inner.subscribe(
            topics,
            on_assign=self._on_assigned,
            on_revoke=partial(self._on_taken, is_lost=False),
            on_lost=partial(self._on_taken, is_lost=True),
        )

    # --- callbacks of the inner consumer, as `BlobConsumer` has them ----------------------------

    def _on_commit(self, error: KafkaError | None, partitions: list[Any]) -> None:
        with self.consumption.failures.keeping():
            if error is None:
                self.consumption.commits.confirmed(partitions)

    def _on_assigned(self, _inner: object, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.inner.told.pop((partition.topic, partition.partition), None)
        with self.consumption.failures.keeping():
            self.consumption.assignment.assign(partitions, is_incremental=self._is_cooperative)
        for partition in partitions:
            self._history.began(self.group, self.name, (partition.topic, partition.partition), None)

    def _on_taken(self, _inner: object, partitions: list[TopicPartition], *, is_lost: bool) -> None:
        failed_before = self.inner.failed_commits
        is_expelled = self.inner.is_expelled  # others may commit by now
        call_user = partial(self.hear_of_revocation, partitions)
        self.consumption.assignment.give_up(partitions, call_user, is_lost=is_lost)
        is_settled = self.inner.failed_commits == failed_before and not is_expelled
        for partition in partitions:
            place = (partition.topic, partition.partition)
            reading = self._history.reading(self.name, place)
            if reading is not None and reading.records and not is_lost and is_settled:
                self._check_last_commit(place, reading.records[-1][0] + 1)
            self._history.ended(self.name, place)

    def _check_last_commit(self, place: _Place, position: int) -> None:
        if not self._is_automatic:
            return
        offset, metadata = self._broker.group(self.group).committed.get(place, (0, ""))
        found = committed_position(offset, metadata)
        if found == position:
            return
        is_ahead = found is not None and found > position
        if found is None or not is_ahead or not self._history.may_pass(place, position, found):
            raise Violation(
                f"{self.name} gave {place} up with {offset}, {metadata!r} committed, at {position}"
            )

    # --- for applications -------------------------------------------------------------------------

    def touch(self, at_ms: int = 0) -> None:
        """Something will be there at this time (0: now): the poll that waits for it returns."""
        raise NotImplementedError

    def wake(self) -> None:
        """Go on without pauses and seeks: the end of a run waits for all records."""

    def leave(self) -> None:
        """End, in an orderly way."""
        self.is_leaving = True
        self.close()

    def hear_of_revocation(self, partitions: list[TopicPartition]) -> None:
        """What the application does in `on_revoke` and `on_lost`."""

    def take(self, messages: list[Any]) -> bool:
        """Tell the history what was handed out; whether there were records."""
        records = 0
        self.forged = []
        for message in messages:
            if message.error() is not None:
                self._told(message)
                continue
            records += 1
            self._history.delivered(self.name, message)
        if records:
            self._check_memory()
        return records > 0

    def _told(self, message: Any) -> None:
        error: KafkaError = message.error()
        self.errors.append(error)
        self.world.note("error", self.name, error.name())
        if error.code() == KafkaError._FATAL:
            raise Violation(f"{self.name} is told of a defect: {error.str()}")
        if message.topic() is None:
            return
        place, offset = (message.topic(), message.partition()), message.offset()
        self._history.told_of_failure(self.name, place, offset, error)
        if self._history.is_forged(place, offset >> _BITS):
            self.forged.append((place, ((offset >> _BITS) + 1) << _BITS))

    def pass_over(self) -> None:
        """Go on behind forgeries, as a person has it do who has looked at them."""
        for place, offset in self.forged:
            self.seek(place, offset)

    def seek(self, place: _Place, offset: int) -> None:
        """Go on at another position of a partition."""
        self.consumption.assignment.seek(TopicPartition(*place, offset))
        self._history.began(self.group, self.name, place, offset)

    def begins_at(self, place: tuple[str, int]) -> int | None:
        """Where a partition begins that has no start of its own, as the group has told it."""
        offset, metadata, start = self.inner.told.get(place, (OFFSET_INVALID, "", 0))
        return start << _BITS if offset < 0 else committed_position(offset, metadata)

    def _check_memory(self) -> None:
        """Rule 6, by what the store is asked for and by what the core says of itself."""
        limit = self._settings.prefetch_max_bytes
        in_flight = sum(self.fetcher.in_flight_bytes.values())
        self._largest_bytes = max([self._largest_bytes, *self.fetcher.in_flight_bytes.values()])
        held = self.consumption.stats()["held_bytes"]
        if in_flight > max(limit, self._largest_bytes):
            raise Violation(f"{self.name} fetches {in_flight} bytes at once, {limit} are allowed")
        if held < in_flight:
            raise Violation(f"{self.name} is charged {held} bytes and fetches {in_flight}")

    def close(self) -> None:
        """Leave the group, as `BlobConsumer.close`."""
        self.consumption.close(commits_first=False)
        self.consumption.assignment.forget(self.consumption.assignment.keys())
        self.world.note("close", self.name)
        self.consumption.failures.raise_first()
