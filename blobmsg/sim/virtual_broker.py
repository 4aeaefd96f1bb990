"""The cluster as clients see it: partitions, transactions, groups.

Decides what brokers decide. Requests come and answers go at the virtual time at which the inner
clients (`inner_producer`, `inner_consumer`) say; here everything happens at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError

from blobmsg.sim.partition_log import PartitionLog, SentMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blobmsg.sim.world import World

__all__ = [
    "Group",
    "GroupMember",
    "ProducerIdentity",
    "VirtualBroker",
    "by_range",
    "by_turns_that_move",
]

_Place = tuple[str, int]  # topic, partition
_Committed = tuple[int, str]  # offset, metadata
# Which of the members gets a partition: partition, partitions, members, generation.
_Assignor = Callable[[int, int, int, int], int]
# How long a group waits for its members to join again.
_REBALANCE_MS: Final = 60_000


class _Position(NamedTuple):
    """A position that is committed, or is to be with its transaction."""

    offset: int
    metadata: str
    number: int  # among all commits


@dataclass(slots=True)
class _Transaction:
    """The coordinator's view of one transactional id."""

    producer_id: int
    epoch: int
    is_open: bool = False
    places: dict[_Place, None] = field(default_factory=dict[_Place, None])
    # By group.
    offsets: dict[str, dict[_Place, _Position]] = field(
        default_factory=dict[str, dict[_Place, "_Position"]]
    )
    opened_ms: int = 0
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What a producer got when it began.

    Attributes:
        producer_id: Kafka's.
        epoch: Kafka's.
        transactional_id: None: it has no transactions.
    """

    producer_id: int
    epoch: int
    transactional_id: str | None


class GroupMember:
    """A member of a group, as the coordinator sees it.

    Args:
        name: Its id.
        topics: What it subscribes to.
        is_reachable: Whether its process sends heartbeats now.

    Attributes:
        owned: The partitions that it keeps while it joins again; a cooperative member says so.
        has_joined: In the rebalance that is under way.
        is_leaving: It leaves when that rebalance is over.
        has_heard: A heartbeat has told it of that rebalance, whether its application polls or not.
    """

    def __init__(self, name: str, topics: Sequence[str], is_reachable: Callable[[], bool]) -> None:
        self.name = name
        self.topics = topics
        self.is_reachable = is_reachable
        self.owned: list[_Place] = []
        self.has_joined = False
        self.is_leaving = False
        self.has_heard = False
        self.generation = -1
        self.assignment: list[_Place] = []
        self.unreachable_since_ms: int | None = None


def by_range(partition: int, partitions: int, members: int, _turn: int) -> int:
    """As librdkafka's `range`, its default: neighbours, and the first members have one more."""
    share, more = divmod(partitions, members)
    of_larger = more * (share + 1)
    if partition < of_larger:
        return partition // (share + 1)
    return more + (partition - of_larger) // share


def by_turns_that_move(partition: int, _partitions: int, members: int, turn: int) -> int:
    """One after the other, and others in each turn.

    No assignor of Kafka's: member ids are random there, so that a partition may go to any member.
    """
    return (partition + turn) % members


class Group:
    """A consumer group; all members are eager, or all are cooperative.

    A cooperative member keeps what it has while it joins again. What the assignor gives to another
    one is nobody's in that generation: the member gives it up and joins again, and with the next
    generation the other one has it.

    Args:
        broker: Its cluster.
        name: The group's id.

    Attributes:
        committed: Offset and metadata by partition.
        committed_by: The number of that commit, among all.
        members: By id.
        generation: Counts the assignments.
        turn: Counts those that follow from members who came or went, and not from what a
            cooperative one gave up.
        is_preparing: Members must give up their partitions and join again.
    """

    def __init__(self, broker: VirtualBroker, name: str) -> None:
        self._broker = broker
        self.name = name
        self.committed: dict[_Place, _Committed] = {}
        self.committed_by: dict[_Place, int] = {}
        self.members: dict[str, GroupMember] = {}
        self.generation = 0
        self.turn = 0
        self.is_preparing = False
        self._begun_ms = 0

    def join(self, member: GroupMember) -> None:
        """A member joins, for the first time or again."""
        self.turn += member.name not in self.members
        self.members[member.name] = member
        self.prepare()
        member.has_joined = True
        member.has_heard = False
        self.assign_if_complete()

    def leave(self, name: str) -> None:
        """A member leaves, or is expelled."""
        member = self.members.get(name)
        if member is not None and self.is_preparing and member.has_joined:
            # Brokers read a connection's requests in order: this one behind the join's answer.
            member.is_leaving = True
        elif self.members.pop(name, None) is not None:
            self._broker.world.note("leave", self.name, name)
            self.turn += 1
            self.prepare()
            self.assign_if_complete()
            if not self.members:
                self.is_preparing = False
                self.generation += 1  # to have nobody is a generation, too

    def prepare(self) -> None:
        """Begin a rebalance, unless one is under way."""
        if self.is_preparing or not self.members:
            return
        self.is_preparing = True
        self._broker.on_rebalance(self.name)
        self._begun_ms = self._broker.world.now_ms
        for member in self.members.values():
            member.has_joined = False

    def assign_if_complete(self) -> None:
        """Give out the partitions when all members have joined."""
        if not self.is_preparing or not self.members:
            return
        if not all(member.has_joined for member in self.members.values()):
            return
        self.is_preparing = False
        self._broker.on_rebalance(self.name)
        self.generation += 1
        members = sorted(self.members.values(), key=lambda member: member.name)
        for member in members:
            member.assignment = []
            member.generation = self.generation
        topics = sorted({topic for member in members for topic in member.topics})
        for topic in topics:
            readers = [member for member in members if topic in member.topics]
            partitions = self._broker.partitions_of(topic)
            for partition in range(partitions):
                number = self._broker.assignor(partition, partitions, len(readers), self.turn)
                if self._may_have(readers[number], (topic, partition), members):
                    readers[number].assignment.append((topic, partition))
        self._broker.world.note("generation", self.name, self.generation, len(members))
        for member in members:
            if member.is_leaving:
                self.leave(member.name)

    @staticmethod
    def _may_have(member: GroupMember, place: _Place, members: Sequence[GroupMember]) -> bool:
        """Whether nobody else has to give it up first."""
        return not any(other is not member and place in other.owned for other in members)

    def look(self, session_timeout_ms: int) -> None:
        """Expel members that were not heard of for too long."""
        now_ms = self._broker.world.now_ms
        for member in list(self.members.values()):
            if member.is_reachable():
                member.unreachable_since_ms = None
                member.has_heard |= self.is_preparing and not member.has_joined
            elif self.is_preparing and member.has_joined:
                # Who waits for a join's answer owes no heartbeats: it is given partitions, dead or
                # not, and its session begins with them.
                member.unreachable_since_ms = None
            elif member.unreachable_since_ms is None:
                member.unreachable_since_ms = now_ms
            elif now_ms - member.unreachable_since_ms >= session_timeout_ms:
                self.leave(member.name)
        if self.is_preparing and now_ms - self._begun_ms >= _REBALANCE_MS:
            for member in list(self.members.values()):
                if not member.has_joined:
                    self.leave(member.name)
            self.assign_if_complete()

    def check(self, name: str | None, generation: int) -> int:
        """The error code for a commit of this member; 0: it may. None: no member, no group."""
        if name is None:
            return 0 if not self.members else KafkaError.UNKNOWN_MEMBER_ID
        if name not in self.members:
            return KafkaError.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return KafkaError.ILLEGAL_GENERATION
        return 0


class VirtualBroker:
    """All brokers as one.

    Args:
        world: Its world.
        assignor: Says which member of a group has which partition.

    Attributes:
        topics: Partitions by topic.
        on_append: Hears of every batch that is appended: partition, first offset, messages,
            when readers get them.
        on_end: Hears of the partitions in which a transaction has ended.
        on_rebalance: Hears when a group begins or ends a rebalance.
        on_commit: Hears of every position that a member may commit, those of transactions when they
            are sent: group, member, partition, offset, metadata.
    """

    def __init__(self, world: World, assignor: _Assignor = by_range) -> None:
        self.world = world
        self.assignor = assignor
        self.topics: dict[str, list[PartitionLog]] = {}
        self.groups: dict[str, Group] = {}
        self._transactions: dict[str, _Transaction] = {}
        self._next_producer_id = 1000
        self._epochs: dict[int, int] = {}
        self._commits = 0
        self.on_append: Callable[[_Place, int, Sequence[SentMessage], int], None] = _ignore
        self.on_end: Callable[[list[_Place]], None] = _ignore
        self.on_rebalance: Callable[[str], None] = _ignore
        self.on_commit: Callable[[str, str, _Place, int, str], None] = _ignore

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        self.topics[topic] = [PartitionLog() for _ in range(partitions)]

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has."""
        return len(self.topics[topic])

    def log(self, place: _Place) -> PartitionLog:
        """A partition."""
        return self.topics[place[0]][place[1]]

    def group(self, name: str) -> Group:
        """A group; made when it is asked for."""
        if name not in self.groups:
            self.groups[name] = Group(self, name)
        return self.groups[name]

    # --- producers ----------------------------------------------------------------------------

    def init_producer(
        self,
        transactional_id: str | None,
        timeout_ms: int = 60_000,
        before: ProducerIdentity | None = None,
    ) -> ProducerIdentity:
        """Give a producer its id and epoch; fence others of its transactional id.

        Args:
            transactional_id: None: it has no transactions.
            timeout_ms: `transaction.timeout.ms`.
            before: What it has, when it asks for another epoch.
        """
        if transactional_id is None:
            producer_id = self._next_producer_id if before is None else before.producer_id
            self._next_producer_id += before is None
            epoch = self._epochs[producer_id] = self._epochs.get(producer_id, -1) + 1
            return ProducerIdentity(producer_id, epoch, None)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            transaction = _Transaction(self._next_producer_id, -1)
            self._next_producer_id += 1
            self._transactions[transactional_id] = transaction
        transaction.epoch += 1
        if transaction.is_open:
            self._end(transaction, is_commit=False)
        transaction.timeout_ms = timeout_ms
        self._epochs[transaction.producer_id] = transaction.epoch
        return ProducerIdentity(transaction.producer_id, transaction.epoch, transactional_id)

    def is_fenced(self, identity: ProducerIdentity) -> bool:
        """Whether a later one has its place."""
        return identity.epoch < self._epochs[identity.producer_id]

    def append(
        self,
        place: _Place,
        identity: ProducerIdentity,
        first_sequence: int,
        messages: Sequence[SentMessage],
        visible_ms: int,
    ) -> tuple[int | None, int]:
        """Append a batch; see `PartitionLog.append`."""
        producer = (identity.producer_id, identity.epoch)
        if self.is_fenced(identity):
            return None, KafkaError.INVALID_PRODUCER_EPOCH
        if identity.transactional_id is not None:
            transaction = self._transactions[identity.transactional_id]
            self._open(transaction)
            transaction.places[place] = None
        log = self.log(place)
        end = log.end
        offset, code = log.append(
            producer,
            first_sequence,
            messages,
            is_transactional=identity.transactional_id is not None,
            visible_ms=visible_ms,
        )
        if log.end > end:
            self.on_append(place, end, messages, visible_ms)
        return offset, code

    def _open(self, transaction: _Transaction) -> None:
        if not transaction.is_open:
            transaction.is_open = True
            transaction.opened_ms = self.world.now_ms

    def add_offsets(
        self,
        identity: ProducerIdentity,
        group: str,
        member: tuple[str | None, int],
        offsets: Iterable[tuple[_Place, int, str]],
    ) -> int:
        """Add positions to a transaction.

        Returns:
            An error code; 0 for none.
        """
        if self.is_fenced(identity):
            return int(KafkaError.INVALID_PRODUCER_EPOCH)
        # Without a member Kafka takes them whoever is in the group: its older clients name none.
        code = 0 if member[0] is None else self.group(group).check(*member)
        if code:
            return code
        transaction = self._transactions[str(identity.transactional_id)]
        self._open(transaction)
        pending = transaction.offsets.setdefault(group, {})
        for place, offset, metadata in offsets:
            self._commits += 1
            pending[place] = _Position(offset, metadata, self._commits)
            self.on_commit(group, member[0] or "", place, offset, metadata)
        return 0

    def end_transaction(self, identity: ProducerIdentity, *, is_commit: bool) -> int:
        """Commit or abort; an error code, 0 for none."""
        if self.is_fenced(identity):
            return int(KafkaError.INVALID_PRODUCER_EPOCH)
        transaction = self._transactions[str(identity.transactional_id)]
        if transaction.is_open:
            self._end(transaction, is_commit=is_commit)
        return 0

    def _end(self, transaction: _Transaction, *, is_commit: bool) -> None:
        producer = (transaction.producer_id, transaction.epoch)
        for place in transaction.places:
            self.log(place).end_transaction(
                producer, is_commit=is_commit, visible_ms=self.world.now_ms
            )
        if is_commit:
            for group, offsets in transaction.offsets.items():
                for place, pending in offsets.items():
                    # A commit that came between has the last word, as in Kafka.
                    if pending.number > self.group(group).committed_by.get(place, 0):
                        self._commit(group, place, pending)
        self.on_end(list(transaction.places))
        transaction.is_open = False
        transaction.places = {}
        transaction.offsets = {}
        self.world.note("end", transaction.producer_id, transaction.epoch, is_commit)

    def look(self) -> None:
        """Abort transactions that have been open for too long, and fence their producers."""
        for transaction in self._transactions.values():
            age_ms = self.world.now_ms - transaction.opened_ms
            if transaction.is_open and age_ms >= transaction.timeout_ms:
                transaction.epoch += 1
                self._epochs[transaction.producer_id] = transaction.epoch
                self._end(transaction, is_commit=False)

    # --- groups -------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        member: tuple[str | None, int],
        offsets: Iterable[tuple[_Place, int, str]],
    ) -> int:
        """Commit positions of a member; an error code, 0 for none."""
        code = self.group(group).check(*member)
        if not code:
            for place, offset, metadata in offsets:
                self._commits += 1
                self._commit(group, place, _Position(offset, metadata, self._commits))
                self.on_commit(group, member[0] or "", place, offset, metadata)
        return code

    def _commit(self, group: str, place: _Place, position: _Position) -> None:
        self.group(group).committed_by[place] = position.number
        self.group(group).committed[place] = (position.offset, position.metadata)
        self.world.note("commit", group, *place, position.offset, position.metadata)

    def has_pending_offsets(self, group: str, place: _Place) -> bool:
        """Whether an open transaction may change what is committed."""
        return any(
            place in transaction.offsets.get(group, {})
            for transaction in self._transactions.values()
            if transaction.is_open
        )


def _ignore(*_: object) -> None:
    """Nobody listens."""
