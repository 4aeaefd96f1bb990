"""A process with a consumer: the production `Consumption`, and an application that polls it.

Decides only what an application decides: how often it polls, when it commits, seeks and pauses.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from blobmsg.commits import commit_entries
from blobmsg.consumption import Consumption
from blobmsg.fetcher import Fetcher, FetchResult
from blobmsg.sim.history import committed_position
from blobmsg.sim.inner_consumer import InnerConsumer
from blobmsg.sim.virtual_store import StoreRequests
from blobmsg.sim.world import Process, Violation

if TYPE_CHECKING:
    from blobmsg.config import Settings
    from blobmsg.core.debatcher import FetchSection
    from blobmsg.core.positions import CommitEntry
    from blobmsg.kafka_settings import KafkaView
    from blobmsg.sim.history import History
    from blobmsg.sim.network import Network
    from blobmsg.sim.virtual_broker import VirtualBroker
    from blobmsg.sim.virtual_store import VirtualStore
    from blobmsg.sim.world import World

__all__ = ["ConsumerHabits", "ConsumerProcess"]

_Place = tuple[str, int]
_BITS = 20
_FETCH_TIMEOUT_MS = 5000
_IDLE_MS = 1000


@dataclass(frozen=True, slots=True)
class ConsumerHabits:
    """How an application uses its consumer.

    Attributes:
        group: Its group.
        commits: `auto`, `sync`, `async` (explicit positions), `stored` (what is stored).
        isolation: `read_committed` or `read_uncommitted`.
        most_records: Of one `consume`.
        poll_ms: The longest pause between two polls.
        seek_share: How often it seeks, of its polls.
        pause_share: How often it pauses a partition.
        is_cooperative: How its group rebalances.
        revoke_share: How often it commits when it hears that partitions are taken.
    """

    group: str
    commits: str
    isolation: str
    most_records: int
    poll_ms: int
    seek_share: float
    pause_share: float
    is_cooperative: bool
    revoke_share: float


class VirtualFetcher:
    """The production fetcher without its threads: a fetch is computed, and ends in its time.

    Args:
        process: Whose it is.
        store: The store.
        request_timeout_ms: How long one section may take.
    """

    def __init__(self, process: ConsumerProcess, store: VirtualStore, keep_bytes: int) -> None:
        self._process = process
        self._requests = StoreRequests(store, process)
        stores: Any = self._requests
        self._fetcher = Fetcher(
            stores,
            None,
            self._requests.clock,
            threads=0,
            request_timeout_ms=_FETCH_TIMEOUT_MS,
            keep_bytes=keep_bytes,
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
    """A member of a group.

    Args:
        world: Its world.
        name: Unique to this incarnation.
        broker: The cluster.
        network: Between them.
        store: The store.
        settings: Ours.
        view: The librdkafka settings that we interpret.
        habits: Of its application.
        topics: What it reads.
        history: Told of all that the application sees.
    """

    def __init__(
        self,
        world: World,
        name: str,
        broker: VirtualBroker,
        network: Network,
        store: VirtualStore,
        settings: Settings,
        view: KafkaView,
        habits: ConsumerHabits,
        topics: list[str],
        history: History,
    ) -> None:
        super().__init__(world, name)
        self.habits = habits
        self._broker = broker
        self._history = history
        self._settings = settings
        self._rng = world.rng
        self._paused: set[_Place] = set()
        self.fetcher = VirtualFetcher(self, store, settings.prefetch_max_bytes // 2)
        self.inner = InnerConsumer(
            self,
            broker,
            network,
            group=habits.group,
            member=name,
            is_committed=habits.isolation == "read_committed",
            reads_from=view.auto_offset_reset,
            on_commit=self._on_commit,
            is_cooperative=habits.is_cooperative,
        )
        fetcher: Any = self.fetcher
        clock: Any = self
        self.consumption = Consumption(
            self.inner,
            fetcher,
            settings,
            view,
            clock,
            on_error=lambda _error: None,
            on_commit=lambda _error, _partitions: None,
            monotonic_s=self.monotonic_s,
        )
        self.errors: list[KafkaError] = []
        self._largest_bytes = 0
        self.inner.subscribe(
            topics,
            on_assign=self._on_assigned,
            on_revoke=partial(self._on_taken, is_lost=False),
            on_lost=partial(self._on_taken, is_lost=True),
        )
        self._planned_ms = 0
        self._patience_ms = habits.poll_ms
        self.touch()

    # --- callbacks of the inner consumer, as `BlobConsumer` has them ----------------------------

    def _on_commit(self, error: KafkaError | None, partitions: list[Any]) -> None:
        with self.consumption.failures.keeping():
            if error is None:
                self.consumption.commits.confirmed(partitions)

    def _on_assigned(self, _inner: object, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.inner.told.pop((partition.topic, partition.partition), None)
        with self.consumption.failures.keeping():
            self.consumption.assignment.assign(
                partitions, is_incremental=self.habits.is_cooperative
            )
        for partition in partitions:
            self._history.began(
                self.habits.group, self.name, (partition.topic, partition.partition), None
            )

    def _on_taken(self, _inner: object, partitions: list[TopicPartition], *, is_lost: bool) -> None:
        failed_before = self.inner.failed_commits
        is_expelled = self.inner.is_expelled  # others may commit by now
        call_user = partial(self._hear_of_revocation, partitions)
        self.consumption.assignment.give_up(partitions, call_user, is_lost=is_lost)
        is_settled = self.inner.failed_commits == failed_before and not is_expelled
        for partition in partitions:
            place = (partition.topic, partition.partition)
            reading = self._history.reading(self.name, place)
            if reading is not None and reading.records and not is_lost and is_settled:
                self._check_last_commit(place, reading.records[-1][0] + 1)
            self._history.ended(self.name, place)

    def _check_last_commit(self, place: _Place, position: int) -> None:
        if self.habits.commits != "auto":
            return
        offset, metadata = self._broker.group(self.habits.group).committed.get(place, (0, ""))
        found = committed_position(offset, metadata)
        if found == position:
            return
        is_ahead = found is not None and found > position
        if found is None or not is_ahead or not self._history.may_pass(place, position, found):
            raise Violation(
                f"{self.name} gave {place} up with {offset}, {metadata!r} committed, at {position}"
            )

    # --- the application ------------------------------------------------------------------------

    def touch(self, at_ms: int = 0) -> None:
        """Something will be there at this time (0: now): the poll that waits for it returns."""
        self._patience_ms = self.habits.poll_ms
        delay_ms = max(0, at_ms - self.world.now_ms) + self._rng.randint(0, self.habits.poll_ms)
        self._plan(delay_ms)

    def _plan(self, delay_ms: int) -> None:
        at_ms = self.world.now_ms + delay_ms
        if self._planned_ms <= self.world.now_ms or at_ms < self._planned_ms:
            self._planned_ms = at_ms
            self.after(delay_ms, partial(self._poll, at_ms))

    def _poll(self, planned_ms: int) -> None:
        if self.inner.is_closed or planned_ms != self._planned_ms:
            return  # an earlier one was planned meanwhile
        self._planned_ms = 0
        try:
            messages = self.consumption.consume(self._rng.randint(1, self.habits.most_records), 0.0)
        except KafkaException as failure:
            self.errors.append(failure.args[0])
            messages = []
        records = 0
        for message in messages:
            error = message.error()
            if error is not None:
                self._failed(error)
                continue
            records += 1
            self._take(message)
        if records:
            self._patience_ms = self.habits.poll_ms
            self._check_memory()
            self._commit(messages)
        if self._rng.random() < self.habits.seek_share:
            self._seek()
        if self._rng.random() < self.habits.pause_share:
            self._pause()
        self._plan(self._rng.randint(1, self._patience_ms))
        # An empty poll waits for what wakes it, as one with a time-out does.
        self._patience_ms = _IDLE_MS

    def _failed(self, error: KafkaError) -> None:
        self.errors.append(error)
        self.world.note("error", self.name, error.name())
        if error.code() == KafkaError._FATAL:
            raise Violation(f"{self.name} is told of a defect: {error.str()}")

    def _take(self, message: Any) -> None:
        self._history.delivered(self.name, message)

    def begins_at(self, place: tuple[str, int]) -> int | None:
        """Where a partition begins that has no start of its own, as the group has told it."""
        offset, metadata, start = self.inner.told.get(place, (OFFSET_INVALID, "", 0))
        return start << _BITS if offset < 0 else committed_position(offset, metadata)

    def _hear_of_revocation(self, partitions: list[TopicPartition]) -> None:
        """What `on_revoke` does: commit what it has, as most applications do."""
        if self._rng.random() >= self.habits.revoke_share:
            return
        readings = [self._history.reading(self.name, (p.topic, p.partition)) for p in partitions]
        last = [r for r in readings if r is not None and r.records]
        if last:
            self._send_commit(
                commit_entries([TopicPartition(*r.place, r.records[-1][0] + 1) for r in last]),
                asynchronous=False,
            )

    def _commit(self, messages: list[Any]) -> None:
        commits = self.habits.commits
        if commits == "auto" or self._rng.random() < 0.5:
            return
        consumption = self.consumption
        if commits == "stored":
            entries = consumption.commits.stored_changes(consumption.assignment.keys())
        else:
            last = {(m.topic(), m.partition()): m for m in messages if m.error() is None}
            owned = set(consumption.assignment.keys())
            entries = commit_entries(
                [
                    TopicPartition(topic, partition, message.offset() + 1)
                    for (topic, partition), message in last.items()
                    if (topic, partition) in owned
                ]
            )
        if entries:
            self._send_commit(entries, asynchronous=commits == "async")

    def _send_commit(self, entries: list[CommitEntry], *, asynchronous: bool) -> None:
        with contextlib.suppress(KafkaException):
            self.consumption.commits.commit(entries, asynchronous=asynchronous)

    def _seek(self) -> None:
        """Go back to a record that was read before, of any partition that it has."""
        readings = [r for r in self._history.of_consumer(self.name) if r.records]
        if not readings:
            return
        reading = self._rng.choice(readings)
        offset = self._rng.choice(reading.records[-50:])[0]
        topic, partition = reading.place
        if offset >> _BITS < self._broker.log(reading.place).start:
            return
        self.consumption.assignment.seek(TopicPartition(topic, partition, offset))
        self._history.began(self.habits.group, self.name, reading.place, offset)

    def _pause(self) -> None:
        if self._paused:
            paused, self._paused = sorted(self._paused), set()
            self.consumption.assignment.pause(
                [TopicPartition(*place) for place in paused], is_paused=False
            )
            return
        keys = self.consumption.assignment.keys()
        if keys:
            place = self._rng.choice(keys)
            self._paused.add(place)
            self.consumption.assignment.pause([TopicPartition(*place)], is_paused=True)

    def wake(self) -> None:
        """Pause nothing any more: the end of a run waits for all records."""
        self.habits = replace(self.habits, seek_share=0.0, pause_share=0.0)
        if self._paused:
            self._pause()

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
