"""The inner consumer: what librdkafka shows of a group's member, on the virtual network.

Behaves as the stock client does where `Consumption` and `Commits` look. Calls never wait: what
would take time says at once that it timed out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    OFFSET_END,
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from blobmsg.sim.virtual_broker import GroupMember

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from blobmsg.sim.network import Network
    from blobmsg.sim.partition_log import LogRecord
    from blobmsg.sim.virtual_broker import VirtualBroker
    from blobmsg.sim.world import Process

__all__ = ["Answer", "InnerConsumer", "KafkaRecord"]

_Place = tuple[str, int]
_HEARTBEAT_MS: Final = 100


@dataclass(slots=True)
class Answer:
    """A `TopicPartition` with an error, which only the stock client can make.

    Attributes:
        topic: The topic.
        partition: The partition.
        offset: Kafka's offset.
        metadata: What was committed with it.
        error: What was wrong with it.
    """

    topic: str
    partition: int
    offset: int
    metadata: str | None = None
    error: KafkaError | None = None


class KafkaRecord:
    """Stands for a stock Message."""

    __slots__ = ("_error", "_offset", "_partition", "_record", "_topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        record: LogRecord | None,
        error: KafkaError | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._record = record
        self._error = error

    def topic(self) -> str:
        """As stock."""
        return self._topic

    def partition(self) -> int:
        """As stock."""
        return self._partition

    def offset(self) -> int:
        """As stock."""
        return self._offset

    def error(self) -> KafkaError | None:
        """As stock."""
        return self._error

    def key(self) -> bytes | None:
        """As stock."""
        if self._record is None or self._record.message is None:
            return None
        return self._record.message.key

    def value(self) -> bytes | None:
        """As stock."""
        if self._record is None or self._record.message is None:
            return None if self._error is None else self._error.str().encode()
        return self._record.message.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """As stock."""
        if self._record is None or self._record.message is None:
            return None
        return self._record.message.headers

    def timestamp(self) -> tuple[int, int]:
        """As stock."""
        if self._record is None or self._record.message is None:
            return (0, 0)
        return (TIMESTAMP_CREATE_TIME, self._record.message.timestamp_ms)

    def leader_epoch(self) -> int | None:
        """As stock."""
        return 0

    def latency(self) -> float | None:
        """As stock."""
        return None


class InnerConsumer:
    """Stands for `confluent_kafka.Consumer`.

    Args:
        process: Whose it is.
        broker: The cluster.
        network: Between the two.
        group: The group's id.
        member: Its name in the group.
        is_committed: `isolation.level` is `read_committed`.
        reads_from: `auto.offset.reset`.
        on_commit: Hears the answers of commits that nobody waits for.
        is_cooperative: It keeps its partitions in a rebalance, but for those that others get.
    """

    def __init__(
        self,
        process: Process,
        broker: VirtualBroker,
        network: Network,
        *,
        group: str,
        member: str,
        is_committed: bool,
        reads_from: str,
        on_commit: Callable[[KafkaError | None, list[Any]], None],
        is_cooperative: bool = False,
    ) -> None:
        self._process = process
        self._world = process.world
        self._broker = broker
        self._network = network
        self._group = broker.group(group)
        self._name = member
        self._joins = 0
        self._is_committed = is_committed
        self._reads_from = reads_from
        self._on_commit = on_commit
        self._is_cooperative = is_cooperative
        self._member: GroupMember | None = None
        self._topics: Sequence[str] = ()
        self._callbacks: dict[str, Callable[[Any, list[TopicPartition]], None]] = {}
        self._positions: dict[_Place, int] = {}
        self._told_ends: dict[_Place, int] = {}
        self._stopped: set[_Place] = set()  # their offset was out of range, which is an error
        self._paused: set[_Place] = set()
        self._given: list[_Place] | None = None  # its assignment; None: it waits for one
        self._is_waiting = False  # it has joined, and waits for an assignment
        self._next_heartbeat_ms = 0
        self._answers: deque[Callable[[], None]] = deque()
        #: What `committed` has answered last: offset, metadata, and where the log began.
        self.told: dict[_Place, tuple[int, str, int]] = {}
        self.failed_commits = 0
        self.is_closed = False

    # --- group ----------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        on_assign: Callable[[Any, list[TopicPartition]], None],
        on_revoke: Callable[[Any, list[TopicPartition]], None],
        on_lost: Callable[[Any, list[TopicPartition]], None],
    ) -> None:
        """Join the group at the next poll."""
        self._topics = topics
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}

    @property
    def identity(self) -> tuple[str | None, int]:
        """Member id and generation, as commits carry them.

        librdkafka has the new generation as soon as all have joined, before the application hears
        of it.
        """
        if self._member is None:
            return None, -1
        return self._member.name, self._member.generation

    @property
    def is_expelled(self) -> bool:
        """Whether the group goes on without it, which it may not have heard yet."""
        return self._member is None or self._member.name not in self._group.members

    def group_metadata(self) -> tuple[str, str | None, int]:
        """What stands for `consumer_group_metadata`."""
        return (self._group.name, *self.identity)

    def _serve_group(self) -> None:
        """What librdkafka does about the group, in a poll."""
        if not self._topics or self.is_closed or self._world.now_ms < self._next_heartbeat_ms:
            return
        self._next_heartbeat_ms = self._world.now_ms + self._world.rng.randint(1, _HEARTBEAT_MS)
        member = self._member
        if member is None:
            self._join()
        elif member.name not in self._group.members:
            # Which callback it is was settled when librdkafka heard that it has to give up.
            has_heard = member.has_heard and not self._is_cooperative
            self._give_up("revoke" if has_heard else "lost")
            self._member = None
            self._join()
        elif self._group.is_preparing:
            if not member.has_joined:
                if not self._is_cooperative:
                    self._give_up("revoke")
                self._join_again(member)
        elif self._is_waiting and member.generation == self._group.generation:
            self._is_waiting = False
            if self._is_cooperative:
                self._take_over(member)
            else:
                self._given = list(member.assignment)
                self._callbacks["assign"](self, _partitions(self._given))

    def _take_over(self, member: GroupMember) -> None:
        """Give up what others get, begin what is new, and join again if anything was given up."""
        owned = self._given or []
        taken = [place for place in owned if place not in member.assignment]
        added = [place for place in member.assignment if place not in owned]
        if taken:
            self._callbacks["revoke"](self, _partitions(taken))
            self.incremental_unassign(_partitions(taken))
        self._given = list(member.assignment)
        self._callbacks["assign"](self, _partitions(added))
        if taken:
            self._join_again(member)

    def _join_again(self, member: GroupMember) -> None:
        if member.name in self._group.members:  # a callback may have taken its time
            member.owned = list(self._given or ())
            self._is_waiting = True
            self._group.join(member)

    @property
    def _is_behind_join(self) -> bool:
        """Whether brokers read what it sends only when the rebalance is over.

        They answer a connection's requests in order, and a join when all members have joined.
        """
        return self._is_waiting and self._group.is_preparing

    def _join(self) -> None:
        self._joins += 1
        name = f"{self._name}-{self._joins}"
        self._member = GroupMember(name, self._topics, self._is_reachable)
        self._is_waiting = True
        self._group.join(self._member)

    def _is_reachable(self) -> bool:
        return self._process.is_running and not self.is_closed

    def _give_up(self, callback: str) -> None:
        if self._given is not None:
            taken = _partitions(self._given)
            self._given = None
            self._callbacks[callback](self, taken)
        self._positions.clear()
        self._told_ends.clear()
        self._stopped.clear()

    # --- records --------------------------------------------------------------------------------

    def poll(self, _timeout_s: float = -1) -> KafkaRecord | None:
        """The next record or event; never waits."""
        self._serve_group()
        while self._answers:
            self._answers.popleft()()
        for record in self._records(1):
            return record
        return None

    def consume(self, count: int, _timeout_s: float = -1) -> list[KafkaRecord]:
        """The next records; never waits."""
        return self._records(count)

    def _records(self, count: int) -> list[KafkaRecord]:
        found: list[KafkaRecord] = []
        silent = self._paused | self._stopped
        places = [place for place in self._positions if place not in silent]
        self._world.rng.shuffle(places)
        for place in places:
            log = self._broker.log(place)
            since_ms = self._network.stale_since_ms(place)
            log_end = log.end if since_ms is None else log.end_at(since_ms)
            while len(found) < count:
                offset = self._positions[place]
                if offset < log.start or offset > log_end:
                    if self._reads_from == "error":
                        self._stopped.add(place)
                        error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
                        found.append(KafkaRecord(*place, offset, None, error))
                        break
                    self._positions[place] = (
                        log.start if self._reads_from == "earliest" else log_end
                    )
                    continue
                record = log.next_readable(
                    offset, self._world.now_ms, is_committed=self._is_committed
                )
                if record is None or record.offset >= log_end:
                    stands = log.passed(offset, self._world.now_ms, is_committed=self._is_committed)
                    stands = min(stands, log_end)
                    if stands > offset:
                        self._positions[place] = stands
                    # Not where open transactions hold back what it has read before.
                    end = min(log.last_stable if self._is_committed else log.end, log_end)
                    if stands == end and self._told_ends.get(place) != end:
                        self._told_ends[place] = end
                        error = KafkaError(KafkaError._PARTITION_EOF)
                        found.append(KafkaRecord(*place, end, None, error))
                    break
                self._positions[place] = record.offset + 1
                found.append(KafkaRecord(*place, record.offset, record))
        return found

    # --- assignment -----------------------------------------------------------------------------

    def _start_of(self, partition: TopicPartition) -> int:
        offset: int = partition.offset
        if offset >= 0:
            return offset
        place = (partition.topic, partition.partition)
        log = self._broker.log(place)
        committed = self._group.committed.get(place)
        if offset != OFFSET_END and committed is not None:
            return committed[0]
        if offset != OFFSET_END and self._reads_from == "error":
            return OFFSET_INVALID
        return log.start if self._reads_from == "earliest" and offset != OFFSET_END else log.end

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these."""
        self.unassign()
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these, too."""
        for partition in partitions:
            self._positions[partition.topic, partition.partition] = self._start_of(partition)

    def unassign(self) -> None:
        """Read nothing."""
        self._positions.clear()
        self._told_ends.clear()
        self._stopped.clear()

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        for partition in partitions:
            self._positions.pop((partition.topic, partition.partition), None)
            self._told_ends.pop((partition.topic, partition.partition), None)
            self._stopped.discard((partition.topic, partition.partition))

    def seek(self, partition: TopicPartition) -> None:
        """Go on elsewhere."""
        place = (partition.topic, partition.partition)
        if place not in self._positions:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._positions[place] = self._start_of(partition)
        self._told_ends.pop(place, None)
        self._stopped.discard(place)

    def assignment(self) -> list[TopicPartition]:
        """What it reads."""
        return [TopicPartition(*place) for place in self._positions]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Read nothing of these for now."""
        self._paused.update((p.topic, p.partition) for p in partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on with these; their ends are told again, as librdkafka does."""
        for partition in partitions:
            self._paused.discard((partition.topic, partition.partition))
            self._told_ends.pop((partition.topic, partition.partition), None)

    def get_watermark_offsets(
        self, partition: TopicPartition, *, cached: bool = False
    ) -> tuple[int, int]:
        """First and next offset."""
        del cached  # it is as the broker has it
        log = self._broker.log((partition.topic, partition.partition))
        return log.start, log.last_stable if self._is_committed else log.end

    # --- positions ------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> list[Any]:
        """What the group has committed."""
        asked = list(partitions)
        is_open = any(
            self._broker.has_pending_offsets(self._group.name, (p.topic, p.partition))
            for p in asked
        )
        if self._network.call_fault() or is_open or self._is_behind_join:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer in {timeout} s"))
        answers: list[Any] = []
        for partition in asked:
            place = (partition.topic, partition.partition)
            offset, metadata = self._group.committed.get(place, (OFFSET_INVALID, ""))
            answers.append(Answer(*place, offset, metadata or None))
            self.told[place] = (offset, metadata, self._broker.log(place).start)
        return answers

    def commit(self, *, offsets: Iterable[TopicPartition], asynchronous: bool) -> list[Any] | None:
        """Commit these."""
        wanted = [((o.topic, o.partition), o.offset, o.metadata or "") for o in offsets]
        fault = self._network.call_fault()
        if not asynchronous:
            code = 0
            if fault != "lost before":
                code = self._send_commit(wanted)
            self.failed_commits += bool(fault or code)
            if fault:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            if code:
                raise KafkaException(KafkaError(code))
            return [Answer(*place, offset, metadata or None) for place, offset, metadata in wanted]
        if fault != "lost before":
            # At once, for they are on one connection: none overtakes another.
            self._commit_arrived(wanted, fault)
        return None

    def _send_commit(self, wanted: list[tuple[_Place, int, str]]) -> int:
        if self._is_behind_join:
            return int(KafkaError.ILLEGAL_GENERATION)  # by then its generation is over
        return self._broker.commit(self._group.name, self.identity, wanted)

    def _commit_arrived(self, wanted: list[tuple[_Place, int, str]], fault: str) -> None:
        code = self._send_commit(wanted)
        if fault:
            return
        answers = [Answer(*place, offset, metadata or None) for place, offset, metadata in wanted]
        error = KafkaError(code) if code else None

        def answered() -> None:
            self._answers.append(partial(self._on_commit, error, answers))

        self._process.after(self._network.delay_ms(), answered)

    def close(self) -> None:
        """Give up what is assigned and leave the group."""
        if self.is_closed:
            return
        self._give_up("revoke")
        self.is_closed = True
        if self._member is not None:
            self._group.leave(self._member.name)


def _partitions(places: Iterable[_Place]) -> list[TopicPartition]:
    return [TopicPartition(*place) for place in places]
