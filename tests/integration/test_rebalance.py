"""Partitions change hands while records are read ahead: nothing lost, nothing from old owners."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.child_process import ChildConsumer
from tests.helpers.fault_proxy import Answer, FaultProxy
from tests.helpers.private import private
from tests.helpers.records import (
    DEADLINE_S,
    Reports,
    flush,
    offsets_of,
    partition,
    produce,
    read,
    read_to_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PARTITIONS = 6
PER_PARTITION = 400
RECORDS_PER_BATCH = 20


@pytest.fixture
def group_conf(conf: dict[str, Any], store_prefix: str) -> dict[str, Any]:
    return {
        **conf,
        "group.id": store_prefix,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
    }


def _fill(conf: dict[str, Any], topic: str, partitions: int, per_partition: int) -> list[list[int]]:
    """Records 0, 1, 2 … in every partition, 20 to a notification; their virtual offsets."""
    reports = Reports()
    own = {key: value for key, value in conf.items() if key.startswith(("blobmsg.", "boot"))}
    with BlobProducer({**own, "blobmsg.route": "blob"}) as producer:
        for number in range(per_partition):
            for part in range(partitions):
                value = b"%d" % number
                produce(producer, topic, value, partition=part, on_delivery=reports)
            if (number + 1) % RECORDS_PER_BATCH == 0:
                flush(producer)
    offsets: list[list[int]] = [[] for _ in range(partitions)]
    for message in reports.messages():
        offsets[message.partition()].append(message.offset())
    return offsets


@dataclass(slots=True)
class Member:
    """A consumer that knows what it owns and has been given."""

    consumer: Any
    owned: set[int] = field(default_factory=set)
    given: list[tuple[int, int]] = field(default_factory=list)  # partition, record number
    assignments: int = 0
    revocations: int = 0
    commits_on_revoke: bool = False
    is_eager: bool = True

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        assert consumer is self.consumer
        if self.is_eager:
            assert not self.owned
        self.assignments += 1
        self.owned |= {found.partition for found in partitions}

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        assert consumer is self.consumer
        self.revocations += 1
        if self.commits_on_revoke:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                assert error.args[0].code() == KafkaError._NO_OFFSET  # noqa: PT017
        self.owned -= {found.partition for found in partitions}

    def read_ahead(self) -> int:
        """Records that it has read and not given."""
        notifications: int = self.consumer.stats()["notifications"]
        return notifications * RECORDS_PER_BATCH - len(self.given)

    def poll(self, most: int) -> int:
        """Take at most so many records."""
        count = 0
        for _ in range(most):
            message = self.consumer.poll(0.05)
            if message is None:
                break
            assert message.error() is None, message.error()
            assert message.partition() in self.owned, "a record of a partition given up"
            self.given.append((message.partition(), int(message.value())))
            count += 1
        return count


def _run(members: list[Member], is_done: Callable[[], bool], most: int = 20) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline, [(sorted(m.owned), len(m.given)) for m in members]
        for member in members:
            member.poll(most)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("commits", ["in on_revoke", "automatically", "never"])
def test_a_second_member_takes_over_partitions_that_were_read_ahead(
    group_conf: dict[str, Any], make_topic: Callable[..., str], strategy: str, commits: str
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    _fill(group_conf, topic, PARTITIONS, PER_PARTITION)
    conf = {
        **group_conf,
        "partition.assignment.strategy": strategy,
        "enable.auto.commit": commits == "automatically",
    }
    members = [
        Member(
            BlobConsumer(conf),
            commits_on_revoke=commits == "in on_revoke",
            is_eager=strategy == "range",
        )
        for _ in range(2)
    ]
    first, second = members
    everything = {(part, number) for part in range(PARTITIONS) for number in range(PER_PARTITION)}

    with first.consumer, second.consumer:
        first.subscribe(topic)
        # Until far more is in memory than was handed out.
        _run([first], lambda: len(first.given) >= 50 and first.read_ahead() > 200, most=1)
        second.subscribe(topic)
        _run(
            members,
            lambda: (
                len(first.owned) == len(second.owned) == PARTITIONS // 2
                and first.owned.isdisjoint(second.owned)
            ),
            most=3,
        )
        before = len(first.given)
        _run(members, lambda: everything <= {*first.given, *second.given})
        second.consumer.close()
        # Closed amidst a rebalance, librdkafka 2.8 may leave before it commits, or hang.
        _run([first], lambda: len(first.owned) == PARTITIONS)

    assert first.revocations >= 1
    assert before < len(everything)  # the new member had work left to do
    all_given = first.given + second.given
    if commits != "never":
        # What was committed on revoke is where the new owner went on: nothing twice.
        assert len(all_given) == len(everything)
    for part in range(PARTITIONS):
        numbers = [number for owner, number in first.given if owner == part]
        runs = _runs(numbers) + _runs([n for owner, n in second.given if owner == part])
        assert all(run == list(range(run[0], run[-1] + 1)) for run in runs)


def _runs(numbers: list[int]) -> list[list[int]]:
    """Cut where a partition began again, which without commits is at its first record."""
    runs: list[list[int]] = []
    for number in numbers:
        if not runs or number <= runs[-1][-1]:
            runs.append([])
        runs[-1].append(number)
    return runs


def test_a_member_that_leaves_hands_over_where_it_stood(
    group_conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    _fill(group_conf, topic, PARTITIONS, PER_PARTITION)
    conf = {**group_conf, "enable.auto.commit": True, "auto.commit.interval.ms": 3_600_000}
    members = [Member(BlobConsumer(conf)) for _ in range(2)]
    first, second = members
    everything = {(part, number) for part in range(PARTITIONS) for number in range(PER_PARTITION)}

    with second.consumer:
        with first.consumer:
            first.subscribe(topic)
            second.subscribe(topic)
            _run(
                members,
                lambda: len(first.owned) == len(second.owned) == 3 and len(first.given) > 100,
                most=3,
            )
        _run([second], lambda: everything <= {*first.given, *second.given})

    assert len(first.given) + len(second.given) == len(everything)


class MemberShortOfMemory(Member):
    """One that knows what blobmsg has paused because too much was read ahead."""

    paused_when_revoked: frozenset[int] = frozenset()

    def paused(self) -> set[int]:
        flows = private(self.consumer, "consumption")._core.flows
        return {number for (_, number), flow in flows.items() if flow.is_paused_by_us}

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        taken = {found.partition for found in partitions}
        self.paused_when_revoked = frozenset(self.paused() & taken)
        super()._revoked(consumer, partitions)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_partitions_paused_for_memory_are_read_on_when_they_come_back(
    group_conf: dict[str, Any],
    make_topic: Callable[..., str],
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
) -> None:
    # librdkafka keeps a pause while another member has the partition.
    monkeypatch.setattr("blobmsg.core.debatcher._PAUSE_AT_ENTRIES", 5)
    monkeypatch.setattr("blobmsg.core.debatcher._RESUME_AT_ENTRIES", 1)
    topic = make_topic(partitions=PARTITIONS)
    _fill(group_conf, topic, PARTITIONS, PER_PARTITION)
    conf = {
        **group_conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.request.timeout.ms": 1000,
        "partition.assignment.strategy": strategy,
    }
    first, second = (
        MemberShortOfMemory(BlobConsumer(conf), is_eager=strategy == "range") for _ in range(2)
    )
    everything = {(part, number) for part in range(PARTITIONS) for number in range(PER_PARTITION)}

    # Nothing can be handed out, so that what is read ahead stays.
    proxy.rule = lambda _: Answer(503, "SlowDown")
    with first.consumer:
        first.subscribe(topic)
        _run([first], lambda: len(first.paused()) == PARTITIONS)
        with second.consumer:
            second.subscribe(topic)
            _run([first, second], lambda: len(second.owned) == PARTITIONS // 2)
            assert second.owned <= first.paused_when_revoked
        _run([first], lambda: len(first.owned) == PARTITIONS)
        proxy.rule = None
        _run([first], lambda: everything == set(first.given))


@dataclass(slots=True)
class Committed:
    """A topic whose group has committed inside a notification of each partition."""

    topic: str
    offsets: list[list[int]]
    resume_at: list[int]


@pytest.fixture
def committed(group_conf: dict[str, Any], make_topic: Callable[..., str]) -> Committed:
    topic = make_topic(partitions=3)
    offsets = _fill(group_conf, topic, 3, 60)
    resume_at = [7, 33, 59]
    with BlobConsumer(group_conf) as consumer:
        places = [partition(topic, p, offsets[p][resume_at[p]]) for p in range(3)]
        answers = consumer.commit(offsets=places, asynchronous=False)
    assert offsets_of(answers) == [offsets[p][resume_at[p]] for p in range(3)]
    return Committed(topic, offsets, resume_at)


def _unchanged(consumer: Any, partitions: list[TopicPartition], _: Committed) -> None:
    consumer.assign(partitions)


def _stored(consumer: Any, partitions: list[TopicPartition], _: Committed) -> None:
    for found in partitions:
        found.offset = OFFSET_STORED
    consumer.assign(partitions)


def _invalid(consumer: Any, partitions: list[TopicPartition], _: Committed) -> None:
    for found in partitions:
        found.offset = OFFSET_INVALID
    consumer.assign(partitions)


def _some_changed(consumer: Any, partitions: list[TopicPartition], committed: Committed) -> None:
    for found in partitions:
        if found.partition == 1:
            found.offset = committed.offsets[1][45]
    consumer.assign(partitions)


def _incrementally(consumer: Any, partitions: list[TopicPartition], _: Committed) -> None:
    consumer.incremental_assign(partitions)


def _incrementally_stored(consumer: Any, partitions: list[TopicPartition], _: Committed) -> None:
    for found in partitions:
        found.offset = OFFSET_STORED
    consumer.incremental_assign(partitions)


def _not_at_all(consumer: Any, partitions: list[TopicPartition], _: Committed) -> None:
    pass


@pytest.mark.parametrize(
    ("strategy", "on_assign", "expected"),
    [
        pytest.param("range", _not_at_all, [7, 33, 59], id="no assign, eager"),
        pytest.param("cooperative-sticky", _not_at_all, [7, 33, 59], id="no assign, cooperative"),
        pytest.param("range", _unchanged, [7, 33, 59], id="unchanged"),
        pytest.param("range", _stored, [7, 33, 59], id="OFFSET_STORED"),
        pytest.param("range", _invalid, [7, 33, 59], id="OFFSET_INVALID"),
        pytest.param("range", _some_changed, [7, 45, 59], id="some changed"),
        pytest.param("cooperative-sticky", _incrementally, [7, 33, 59], id="incrementally"),
        pytest.param(
            "cooperative-sticky", _incrementally_stored, [7, 33, 59], id="incrementally, STORED"
        ),
    ],
)
def test_on_assign_that_assigns_by_itself_resumes_inside_notifications(
    group_conf: dict[str, Any],
    committed: Committed,
    strategy: str,
    on_assign: Callable[[Any, list[TopicPartition], Committed], None],
    expected: list[int],
) -> None:
    conf = {
        **group_conf,
        "partition.assignment.strategy": strategy,
        "enable.partition.eof": True,
    }
    with BlobConsumer(conf) as consumer:
        consumer.subscribe(
            [committed.topic],
            on_assign=lambda who, partitions: on_assign(who, partitions, committed),
        )
        messages = read_to_end(consumer, 3).messages

    numbers: list[list[int]] = [[], [], []]
    for message in messages:
        numbers[message.partition()].append(int(message.value()))
    assert numbers == [list(range(start, 60)) for start in expected]


def test_manual_assignments_grow_and_shrink(
    group_conf: dict[str, Any], committed: Committed
) -> None:
    topic, offsets = committed.topic, committed.offsets
    conf = {**group_conf, "enable.partition.eof": True}
    with BlobConsumer(conf) as consumer:
        consumer.assign([partition(topic, 0, offsets[0][25])])
        assert int(read(consumer, 1)[0].value()) == 25
        consumer.incremental_assign([partition(topic, 1), partition(topic, 2, offsets[2][0])])
        assert sorted(p.partition for p in consumer.assignment()) == [0, 1, 2]
        messages = read_to_end(consumer, 3).messages
        numbers: list[list[int]] = [[], [], []]
        for message in messages:
            numbers[message.partition()].append(int(message.value()))
        assert numbers == [list(range(26, 60)), list(range(33, 60)), list(range(60))]

        consumer.seek(partition(topic, 0, offsets[0][58]))
        consumer.seek(partition(topic, 1, offsets[1][58]))
        consumer.seek(partition(topic, 2, offsets[2][58]))
        consumer.incremental_unassign([partition(topic, 1)])
        assert sorted(p.partition for p in consumer.assignment()) == [0, 2]
        messages = read_to_end(consumer, 2).messages
        assert sorted((m.partition(), int(m.value())) for m in messages) == [
            (0, 58), (0, 59), (2, 58), (2, 59),
        ]  # fmt: skip

        consumer.assign([partition(topic, 1, offsets[1][57])])
        messages = read_to_end(consumer, 1).messages
        assert [(m.partition(), int(m.value())) for m in messages] == [(1, 57), (1, 58), (1, 59)]
        consumer.unassign()
        assert consumer.assignment() == []
        assert consumer.poll(0.2) is None


def test_nothing_that_was_read_ahead_comes_after_unassign(
    group_conf: dict[str, Any], committed: Committed
) -> None:
    topic = committed.topic
    with BlobConsumer(group_conf) as consumer:
        consumer.assign([partition(topic, p, 0) for p in range(3)])
        read(consumer, 105)  # of 180; the rest is in memory, that of one notification taken apart
        consumer.unassign()
        assert consumer.consume(10, 0.5) == []
        consumer.assign([partition(topic, 2, 0)])
        messages = read(consumer, 60)
        assert [(m.partition(), int(m.value())) for m in messages] == [(2, n) for n in range(60)]


def test_a_member_that_hung_beyond_its_session_hears_on_lost_and_reads_on_from_the_others_commit(
    group_conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2)
    _fill(group_conf, topic, 2, 60)
    child_conf = {**group_conf, "enable.auto.commit": True, "auto.commit.interval.ms": 3_600_000}

    with ChildConsumer(child_conf, topic, stop_after=30) as child:
        child.wait_for("stopped")
        child.stop()
        successor = Member(BlobConsumer({**group_conf, "client.id": "successor"}))
        with successor.consumer:
            successor.subscribe(topic)
            _run([successor], lambda: len(successor.given) == 120, most=50)
            successor.consumer.commit(asynchronous=False)
            child.resume()
            lost = child.wait_for("lost")
            child.say("close")
            child.wait_for("closed")
            # Lost partitions are not committed by the old owner: the successor's commit stands.
            places = successor.consumer.committed([partition(topic, p) for p in range(2)], 20)

    assert sorted(lost["partitions"]) == [0, 1]
    assert sorted(successor.given) == [(p, n) for p in range(2) for n in range(60)]
    assert offsets_of(places) == [3 << 20, 3 << 20]
