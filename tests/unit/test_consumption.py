"""Consumption on an inner consumer that is a few lines of Python: nothing is lost by exceptions."""

from __future__ import annotations

import itertools
import logging
import random
import signal
import threading
import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from blobmsg import consumption as consumption_module
from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.consumption import Consumption
from blobmsg.fetcher import Fetcher, FetchResult
from blobmsg.format import ByteRange, Notification, crc32, encode_notification
from blobmsg.format.notification import HEADER_NAME, HEADER_VALUE
from blobmsg.format.segment import Columns, decode_segment, encode_segment
from blobmsg.kafka_settings import KafkaView
from blobmsg.message import Message, RecordsView
from blobmsg.resources import Stores
from tests.helpers.consuming import EXPIRED, PRODUCER_ID, notification, object_key, part

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "orders"
FULL = 1 << 20


class Kafka:
    """The inner consumer: plain records of one partition."""

    def __init__(self, count: int) -> None:
        self.records = deque(
            Message(TOPIC, 0, offset, value=b"%d" % offset) for offset in range(count)
        )
        self.failures: deque[BaseException] = deque()
        self.committed_offsets: list[Any] = []
        self.is_waited_for = False  # of the last commit
        self.committed_answers: deque[Any] = deque()  # or exceptions, of the next calls
        self.commit_answers: deque[Any] = deque()  # else what is committed
        self.paused: set[int] = set()
        self.sought: list[tuple[int, int]] = []
        self.on_consume: Callable[[], None] = lambda: None
        self.closes = 0
        self.log_start = 0
        self.is_assigned = True

    def poll(self, _timeout: float) -> Message | None:
        return self.records.popleft() if self.records else None

    def consume(self, count: int, _timeout: float) -> list[Message]:
        if self.failures:
            raise self.failures.popleft()
        self.on_consume()
        return [self.records.popleft() for _ in range(min(count, len(self.records)))]

    def assign(self, _partitions: list[TopicPartition]) -> None:
        """Nothing to do; as in librdkafka what is paused stays paused."""

    incremental_assign = assign

    def unassign(self) -> None:
        """The same."""

    def seek(self, partition: TopicPartition) -> None:
        self.sought.append((partition.partition, partition.offset))

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, 0)] if self.is_assigned else []

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {found.partition for found in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {found.partition for found in partitions}

    def committed(self, _partitions: list[TopicPartition], timeout: float) -> list[Any]:
        assert timeout <= 1.0
        answers = self.committed_answers.popleft()
        if isinstance(answers, BaseException):
            raise answers
        return list(answers)

    def commit(
        self, *, offsets: list[TopicPartition], asynchronous: bool
    ) -> list[TopicPartition] | None:
        if self.failures:
            raise self.failures.popleft()
        self.committed_offsets += [(o.partition, o.offset) for o in offsets]
        self.is_waited_for = not asynchronous
        if asynchronous:
            return None
        return self.commit_answers.popleft() if self.commit_answers else offsets

    def get_watermark_offsets(self, _partition: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached
        return self.log_start, 1_000_000

    def close(self) -> None:
        self.closes += 1


@pytest.fixture(autouse=True)
def _a_librdkafka_that_counts_ends_rightly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumption_module, "_CONSUME_SKIPS", False)


def answer(
    number: int, offset: int, metadata: str | None = None, error: KafkaError | None = None
) -> Any:
    """What Kafka says of a partition; nobody but the stock client can make one with an error."""
    return SimpleNamespace(
        topic=TOPIC, partition=number, offset=offset, metadata=metadata, error=error
    )


def consumption_of(kafka: Kafka, *, assigns: bool = True, **conf: Any) -> Consumption:
    settings, kafka_conf = parse_settings(
        {
            "blobmsg.store.url": "memory://test-consumption",
            "auto.commit.interval.ms": 3_600_000,
            **conf,
        },
        {},
    )
    clock = SystemClock()
    fetcher = Fetcher(
        Stores(settings),
        None,
        clock,
        threads=1,
        request_timeout_ms=1000,
        keep_bytes=1 << 20,
        name="test",
    )
    consumption = Consumption(
        kafka, fetcher, settings, KafkaView.parse(kafka_conf), clock, on_error=lambda _: None
    )
    if assigns:
        consumption.assignment.assign([TopicPartition(TOPIC, 0, 0)], is_incremental=False)
    return consumption


def numbered(records: int) -> RecordsView:
    """A run's source whose records are their numbers, the first one at `4 * FULL - 5`."""
    values: list[bytes | None] = [b"%d" % number for number in range(records)]
    data = encode_segment(Columns([None] * records, values, [0] * records))
    return RecordsView(
        TOPIC,
        0,
        decode_segment(data, records=records),
        data,
        first_virtual_offset=4 * FULL - 5,
        first_record_index=0,
        timestamp_type=TIMESTAMP_CREATE_TIME,
        log_append_ms=None,
        leader_epoch=None,
    )


def polled(consumption: Consumption) -> Message:
    message = consumption.poll(1.0)
    assert message is not None
    return message


def values(messages: list[Message]) -> list[int]:
    return [int(message.value()) for message in messages]


def test_what_was_polled_survives_an_exception_of_the_next_call() -> None:
    kafka = Kafka(5)
    consumption = consumption_of(kafka)
    kafka.failures.append(ValueError("a callback"))

    with pytest.raises(ValueError, match="a callback"):
        consumption.consume(5, 1.0)

    assert values(consumption.consume(5, 1.0)) == [0, 1, 2, 3, 4]


def callbacks_raise(consumption: Consumption, *failures: BaseException) -> None:
    for failure in failures:
        with consumption.failures.keeping():
            raise failure


@pytest.mark.parametrize("call", ["poll", "consume"])
def test_a_call_without_time_serves_kafka_once_each_time(call: str) -> None:
    served: list[str] = []

    class Counting(Kafka):
        def poll(self, _timeout: float) -> Message | None:
            served.append(call)
            return super().poll(_timeout)

    consumption = consumption_of(Counting(0))
    served.clear()

    # The later ones come before the time at which Kafka is served while there are records.
    for _ in range(3):
        if call == "poll":
            assert consumption.poll(0) is None
        else:
            assert consumption.consume(10, 0) == []

    assert len(served) == 3


def test_a_callbacks_exception_surfaces_after_what_came_with_it_is_safe() -> None:
    kafka = Kafka(3)
    consumption = consumption_of(kafka)
    callbacks_raise(consumption, ValueError("a callback"))

    with pytest.raises(ValueError, match="a callback"):
        consumption.poll(1.0)

    assert values(consumption.consume(3, 1.0)) == [0, 1, 2]


def test_an_error_of_the_member_is_handed_out_before_what_follows_from_it() -> None:
    kafka, callbacks = Kafka(1), []
    kafka.records.appendleft(Message(None, None, error=KafkaError(KafkaError._MAX_POLL_EXCEEDED)))
    kafka.on_consume = lambda: callbacks.append("the partitions are lost")
    consumption = consumption_of(kafka)

    error = polled(consumption).error()

    assert error is not None
    assert error.code() == KafkaError._MAX_POLL_EXCEEDED
    assert not callbacks
    assert values([polled(consumption)]) == [0]
    assert callbacks


def test_ctrl_c_of_a_callback_surfaces_before_what_others_raised() -> None:
    consumption = consumption_of(Kafka(1))
    callbacks_raise(consumption, ValueError("a"), KeyboardInterrupt(), ValueError("b"))

    with pytest.raises(KeyboardInterrupt):
        consumption.poll(1.0)

    assert values(consumption.consume(1, 1.0)) == [0]


def test_what_an_interrupted_consume_gathered_is_neither_lost_nor_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka(3)
    consumption = consumption_of(kafka)
    gathered = consumption.consume(2, 1.0)
    consumption.commits.commit_stored(consumption.assignment.keys(), asynchronous=False)
    kafka.records.extend(Message(TOPIC, 0, offset, value=b"%d" % offset) for offset in (3, 4))
    # The next service raises when three of the ten wanted are gathered.
    original = consumption._wait

    def interrupted(deadline: float, *, is_served: bool) -> bool:
        if not kafka.records:
            raise KeyboardInterrupt
        return original(deadline, is_served=is_served)

    monkeypatch.setattr(consumption, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        consumption.consume(10, 5.0)
    consumption.commits.commit_stored(consumption.assignment.keys(), asynchronous=False)

    assert values(gathered) == [0, 1]
    assert set(kafka.committed_offsets) == {(0, 2)}
    assert values(consumption.consume(3, 1.0)) == [2, 3, 4]
    consumption.commits.commit_stored(consumption.assignment.keys(), asynchronous=False)
    assert kafka.committed_offsets[-1] == (0, 5)


def test_progress_before_a_seek_stays_stored() -> None:
    kafka = Kafka(4)
    consumption = consumption_of(kafka)
    consumption.consume(4, 1.0)

    consumption.assignment.seek(TopicPartition(TOPIC, 0, 1 << 20))
    consumption.commits.commit_stored(consumption.assignment.keys(), asynchronous=False)

    assert kafka.committed_offsets == [(0, 4)]


def test_a_new_assignment_commits_what_it_replaces() -> None:
    kafka = Kafka(4)
    consumption = consumption_of(kafka)
    consumption.consume(4, 1.0)

    consumption.assignment.assign([TopicPartition(TOPIC, 0, 4 << 20)], is_incremental=False)

    assert kafka.committed_offsets == [(0, 4)]
    assert not kafka.is_waited_for  # it may be away


def test_what_a_callback_gives_up_is_committed_before_the_next_member_has_it() -> None:
    kafka = Kafka(4)
    consumption = consumption_of(kafka)
    consumption.consume(4, 1.0)
    consumption.assignment.give_up(
        [TopicPartition(TOPIC, 0)], lambda: consumption.assignment.unassign(None), is_lost=False
    )

    assert kafka.committed_offsets == [(0, 4)]
    assert kafka.is_waited_for


def test_a_seek_in_a_callback_drops_what_was_polled_before_it() -> None:
    kafka = Kafka(3)
    consumption = consumption_of(kafka)

    def seek() -> None:
        kafka.on_consume = lambda: None
        kafka.records.clear()  # librdkafka gives nothing older than the seek
        consumption.assignment.seek(TopicPartition(TOPIC, 0, 7 * FULL))
        kafka.records.append(Message(TOPIC, 0, 7, value=b"7"))

    kafka.on_consume = seek

    assert values(consumption.consume(1, 1.0)) == [7]


def test_a_seek_in_a_callback_drops_what_that_consume_had_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka(2)
    consumption = consumption_of(kafka)
    original = consumption._wait

    def seeks_once(deadline: float, *, is_served: bool) -> bool:
        if not kafka.sought and not kafka.records:
            consumption.assignment.seek(TopicPartition(TOPIC, 0, 7 * FULL))
            kafka.records.append(Message(TOPIC, 0, 7, value=b"7"))
        return original(deadline, is_served=is_served)

    monkeypatch.setattr(consumption, "_wait", seeks_once)

    assert values(consumption.consume(3, 0.3)) == [7]
    assert consumption.position_of((TOPIC, 0)) == 8 * FULL


def test_what_a_seek_drops_of_an_interrupted_consume_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka(4)
    consumption = consumption_of(kafka)
    assert values(consumption.consume(1, 1.0)) == [0]

    def interrupts(_deadline: float, *, is_served: bool) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(consumption, "_wait", interrupts)
        with pytest.raises(KeyboardInterrupt):
            consumption.consume(10, 1.0)  # has gathered the other three

    consumption.assignment.seek(TopicPartition(TOPIC, 0, 0))

    (change,) = consumption.commits.stored_changes([(TOPIC, 0)])
    assert change.kafka_offset == 1


def test_a_position_is_behind_what_poll_handed_out_whatever_it_has_read_ahead() -> None:
    consumption = consumption_of(Kafka(5))
    for number in range(5):
        assert values([polled(consumption)]) == [number]
        assert consumption.position_of((TOPIC, 0)) == (number + 1) * FULL
        assert consumption.stats()["records"] == number + 1
        (change,) = consumption.commits.stored_changes([(TOPIC, 0)])
        assert change.kafka_offset == number + 1


def end_at(kafka_offset: int) -> Message:
    """What librdkafka says where it reaches the end of the partition."""
    return Message(TOPIC, 0, kafka_offset, error=KafkaError(KafkaError._PARTITION_EOF))


def test_a_position_is_behind_what_nobody_sees_once_all_is_handed_out() -> None:
    kafka = Kafka(3)
    kafka.records.append(end_at(9))  # behind the end of a transaction
    consumption = consumption_of(kafka)
    assert values([polled(consumption)]) == [0]
    assert consumption.position_of((TOPIC, 0)) == FULL
    assert values(consumption.consume(2, 1.0)) == [1, 2]

    assert consumption.poll(0.5) is None

    assert consumption.position_of((TOPIC, 0)) == 9 * FULL
    (change,) = consumption.commits.stored_changes([(TOPIC, 0)])
    assert (change.kafka_offset, change.metadata) == (9, None)


def test_an_end_where_the_position_is_moves_nothing() -> None:
    kafka = Kafka(0)
    kafka.records.append(end_at(0))
    consumption = consumption_of(kafka)
    assert consumption.poll(0.5) is None
    assert consumption.position_of((TOPIC, 0)) == OFFSET_INVALID

    kafka.records.append(end_at(4))
    assert consumption.poll(0.5) is None

    assert consumption.position_of((TOPIC, 0)) == 4 * FULL


def test_an_end_is_told_to_who_wishes_it_and_moves_the_position_first() -> None:
    kafka = Kafka(1)
    kafka.records.append(end_at(3))
    consumption = consumption_of(kafka, **{"enable.partition.eof": True})

    assert values(consumption.consume(1, 1.0)) == [0]
    told = polled(consumption)

    assert told.error() == KafkaError(KafkaError._PARTITION_EOF)
    assert told.offset() == 3 * FULL
    assert consumption.position_of((TOPIC, 0)) == 3 * FULL


def test_a_librdkafka_whose_consume_counts_ends_is_polled_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumption_module, "_CONSUME_SKIPS", True)
    kafka = Kafka(200)
    kafka.failures.append(AssertionError("consume was called"))
    consumption = consumption_of(kafka)

    assert values(consumption.consume(200, 1.0)) == list(range(200))


def test_an_end_from_before_the_position_moves_nothing() -> None:
    kafka = Kafka(3)
    kafka.records.append(end_at(2))  # of a replica that lags
    consumption = consumption_of(kafka)

    assert values(consumption.consume(3, 1.0)) == [0, 1, 2]
    assert consumption.poll(0.5) is None

    assert consumption.position_of((TOPIC, 0)) == 3 * FULL


def test_what_was_read_ahead_is_not_handed_out_by_a_member_that_was_fenced() -> None:
    kafka = Kafka(5)
    consumption = consumption_of(kafka)
    assert values([polled(consumption)]) == [0]
    fenced = KafkaError(KafkaError._FATAL, "fenced")
    kafka.records.append(Message(None, None, None, value=b"fenced", error=fenced))
    kafka.is_assigned = False

    messages = consumption.consume(10, 0.5)

    assert [message.error() for message in messages] == [fenced]
    assert consumption.assignment.keys() == []


def test_a_seek_takes_back_what_was_read_ahead() -> None:
    consumption = consumption_of(Kafka(0))
    flow = consumption._core.flows[TOPIC, 0]
    assert consumption._core.records_received(flow, 3, [numbered(5)], 5, 100)
    assert values([polled(consumption)]) == [0]
    assert consumption.stats()["records"] == 1

    consumption.assignment.seek(TopicPartition(TOPIC, 0, 9 * FULL))

    assert consumption.stats()["records"] == 1
    assert consumption.poll(0.0) is None
    (change,) = consumption.commits.stored_changes([(TOPIC, 0)])
    assert (change.kafka_offset, change.metadata) == (3, "blobmsg1:4")


def test_read_ahead_is_of_one_run_whose_bytes_stay_charged() -> None:
    consumption = consumption_of(Kafka(0))
    flow = consumption._core.flows[TOPIC, 0]
    for kafka_offset in range(3):
        assert consumption._core.records_received(flow, kafka_offset, [numbered(2)], 2, 100)
    for held_bytes in (300, 300, 200, 200, 100, 100):
        polled(consumption)
        assert consumption._core.held_bytes == held_bytes


class Interrupted(BaseException):
    """What the handler raises in the middle of anything."""


def test_signals_that_raise_anywhere_in_poll_lose_and_double_nothing() -> None:
    class Endless(Kafka):
        def poll(self, _timeout: float) -> Message | None:
            number = next(numbers)
            return Message(TOPIC, 0, number, value=b"%d" % number)

        def consume(self, _count: int, _timeout: float) -> list[Message]:
            return []

    numbers = itertools.count()
    consumption = consumption_of(Endless(0))
    got: list[int] = []
    is_armed = is_over = False
    interrupts = 0

    def strike(*_: object) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise Interrupted

    def strike_often() -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not is_over:
            time.sleep(0.0005 * random.random())
            signal.pthread_kill(main, signal.SIGINT)

    handler = signal.signal(signal.SIGINT, strike)
    striker = threading.Thread(target=strike_often)
    striker.start()
    try:
        while interrupts < 800:
            found: Message | None = None
            taken = len(got)
            try:
                is_armed = True
                while True:
                    found = consumption.poll(0.0)
                    if found is not None:
                        got.append(int(found.value()))
                        found = None
                        taken = len(got)
            except Interrupted:
                interrupts += 1
                # It may have come between the return and the list.
                if found is not None and len(got) == taken:
                    got.append(int(found.value()))
    finally:
        is_armed, is_over = False, True
        striker.join()
        signal.signal(signal.SIGINT, handler)
    assert got == list(range(len(got)))


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_paused_partition_hands_out_nothing_that_was_taken_before(
    monkeypatch: pytest.MonkeyPatch, *, interrupted: bool
) -> None:
    kafka = Kafka(4)
    consumption = consumption_of(kafka)
    assert values(consumption.consume(1, 1.0)) == [0]
    if interrupted:

        def interrupts(_deadline: float, *, is_served: bool) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(consumption, "_wait", interrupts)
            with pytest.raises(KeyboardInterrupt):
                consumption.consume(10, 1.0)
    else:
        assert values([polled(consumption)]) == [1]
    partition = TopicPartition(TOPIC, 0)
    behind = consumption.position_of((TOPIC, 0))

    consumption.assignment.pause([partition], is_paused=True)
    assert consumption.poll(0.0) is None
    assert consumption.consume(5, 0.2) == []
    assert consumption.position_of((TOPIC, 0)) == behind

    consumption.assignment.pause([partition], is_paused=False)
    assert values(consumption.consume(5, 0.2)) == list(range(behind // FULL, 4))


def _given_up_by_unassign(consumption: Consumption) -> None:
    consumption.assignment.unassign(None)
    consumption.assignment.assign([TopicPartition(TOPIC, 0, 0)], is_incremental=False)


def _given_up_by_assign(consumption: Consumption) -> None:
    consumption.assignment.assign([TopicPartition(TOPIC, 0, 0)], is_incremental=False)


def _given_up_by_rebalance(consumption: Consumption) -> None:
    consumption.assignment.give_up([TopicPartition(TOPIC, 0)], lambda: None, is_lost=True)
    consumption.assignment.assign([TopicPartition(TOPIC, 0, 0)], is_incremental=True)


WAYS_TO_GIVE_UP = [_given_up_by_unassign, _given_up_by_assign, _given_up_by_rebalance]


@pytest.mark.parametrize("given_up", WAYS_TO_GIVE_UP)
def test_a_partition_paused_for_memory_is_read_when_it_is_assigned_again(
    monkeypatch: pytest.MonkeyPatch, given_up: Callable[[Consumption], None]
) -> None:
    monkeypatch.setattr("blobmsg.core.debatcher._PAUSE_AT_ENTRIES", 10)
    kafka = Kafka(20)
    consumption = consumption_of(kafka)
    assert values(consumption.consume(1, 1.0)) == [0]
    assert kafka.paused == {0}

    given_up(consumption)

    assert kafka.paused == set()


@pytest.mark.parametrize("given_up", WAYS_TO_GIVE_UP)
def test_a_pause_of_the_user_outlives_the_assignment_as_in_stock(
    monkeypatch: pytest.MonkeyPatch, given_up: Callable[[Consumption], None]
) -> None:
    monkeypatch.setattr("blobmsg.core.debatcher._PAUSE_AT_ENTRIES", 10)
    kafka = Kafka(20)
    consumption = consumption_of(kafka)
    assert values(consumption.consume(1, 1.0)) == [0]
    consumption.assignment.pause([TopicPartition(TOPIC, 0)], is_paused=True)

    given_up(consumption)

    assert kafka.paused == {0}
    kafka.records.extend(Message(TOPIC, 0, offset, value=b"%d" % offset) for offset in range(3))
    assert consumption.consume(1, 0.1) == []
    consumption.assignment.pause([TopicPartition(TOPIC, 0)], is_paused=False)
    assert kafka.paused == set()
    assert values(consumption.consume(3, 1.0)) == [0, 1, 2]


# --- committed positions --------------------------------------------------------------------------


@pytest.fixture
def asks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits until it is asked for again."""
    monkeypatch.setattr("blobmsg.commits.RESOLVE_AGAIN_S", 0.0)
    monkeypatch.setattr("blobmsg.assignment.RESOLVE_AGAIN_S", 0.0)
    monkeypatch.setattr("blobmsg.commits._REFUSED_AGAIN_S", 0.0)


@pytest.mark.usefixtures("asks_at_once")
def test_a_committed_offset_that_can_not_be_read_holds_back_its_own_partition_alone() -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka, assigns=False)
    not_now = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)
    kafka.committed_answers.append(
        [answer(0, 5), answer(1, OFFSET_INVALID, error=not_now), answer(2, OFFSET_INVALID)]
    )

    consumption.assignment.assign(
        [TopicPartition(TOPIC, n) for n in range(3)], is_incremental=False
    )

    assert kafka.paused == {1}
    assert kafka.sought == []
    kafka.records.extend(Message(TOPIC, n, 5, value=b"%d" % n) for n in range(3))
    kafka.committed_answers.append([answer(1, 9, "blobmsg1:2")])
    assert values(consumption.consume(2, 1.0)) == [0, 2]  # what came of 1 was not at its position
    assert kafka.sought == [(1, 9)]
    assert kafka.paused == set()


@pytest.mark.usefixtures("asks_at_once")
@pytest.mark.parametrize(
    ("reset", "sought"),
    [("earliest", [(0, OFFSET_BEGINNING)]), ("latest", [(0, OFFSET_END)]), ("error", [])],
)
def test_no_answer_about_committed_offsets_is_asked_for_again(
    reset: str, sought: list[tuple[int, int]]
) -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka, assigns=False, **{"auto.offset.reset": reset})
    timed_out = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    kafka.committed_answers.extend([timed_out, timed_out, [answer(0, OFFSET_INVALID)]])

    consumption.assignment.assign([TopicPartition(TOPIC, 0)], is_incremental=False)
    assert kafka.paused == {0}
    consumption._service(0)
    assert kafka.paused == {0}
    consumption._service(0)

    assert kafka.paused == set()
    assert kafka.sought == sought  # nothing is committed


def test_a_client_that_begins_elsewhere_is_sent_back_and_nothing_of_there_is_handed_out() -> None:
    kafka = Kafka(3)
    consumption = consumption_of(kafka)
    assert values(consumption.consume(3, 0)) == [0, 1, 2]

    kafka.records.extend(Message(TOPIC, 0, offset, value=b"again") for offset in (0, 1))
    assert consumption.consume(10, 0) == []
    assert kafka.sought == [(0, 3)]
    kafka.records.append(Message(TOPIC, 0, 3, value=b"3"))

    assert values(consumption.consume(10, 0)) == [3]
    assert kafka.sought == [(0, 3)]


@pytest.mark.parametrize(
    ("reset", "start"), [("earliest", OFFSET_BEGINNING), ("latest", OFFSET_END)]
)
def test_when_the_position_does_not_come_back_the_policy_says_where_to_go_on(
    reset: str, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blobmsg.core.resets._PATIENCE_MS", 0)
    kafka = Kafka(0)
    consumption = consumption_of(kafka, assigns=False, **{"auto.offset.reset": reset})
    consumption.assignment.assign([TopicPartition(TOPIC, 0, 7 * FULL)], is_incremental=False)

    kafka.records.append(Message(TOPIC, 0, 0, value=b"0"))
    assert consumption.consume(10, 0) == []
    assert kafka.sought == [(0, start)]
    kafka.records.extend(Message(TOPIC, 0, offset, value=b"%d" % offset) for offset in (1, 2))

    assert values(consumption.consume(10, 0)) == [1, 2]


def test_what_could_not_be_taken_for_want_of_memory_is_taken_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka(2)
    consumption = consumption_of(kafka)
    real = consumption._core.records_received
    failures = [MemoryError()]

    def fails_once(*arguments: Any) -> bool:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(consumption._core, "records_received", fails_once)
    with pytest.raises(MemoryError):
        consumption.consume(10, 0)

    assert values(consumption.consume(2, 1.0)) == [0, 1]


def test_a_client_that_can_not_be_sent_back_now_is_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blobmsg.core.resets._AGAIN_MS", 0)
    kafka = Kafka(1)
    consumption = consumption_of(kafka)
    assert values(consumption.consume(1, 0)) == [0]
    real = kafka.seek

    def refuses_once(partition: TopicPartition) -> None:
        monkeypatch.setattr(kafka, "seek", real)
        raise KafkaException(KafkaError(KafkaError._STATE))

    monkeypatch.setattr(kafka, "seek", refuses_once)
    kafka.records.append(Message(TOPIC, 0, 0, value=b"again"))
    assert consumption.consume(10, 0) == []
    assert kafka.sought == []
    consumption._service(0)

    assert kafka.sought == [(0, 1)]


class Refusing(Kafka):
    """Takes no other assignment, and drops the one it has if it would have been replaced."""

    def assign(self, partitions: list[TopicPartition]) -> None:
        if self.is_assigned and len(partitions) > 1:
            self.is_assigned = False
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    def incremental_unassign(self, _partitions: list[TopicPartition]) -> None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))


def test_a_refused_unassign_leaves_a_pause_for_memory_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blobmsg.core.debatcher._PAUSE_AT_ENTRIES", 10)
    kafka = Refusing(20)
    consumption = consumption_of(kafka)
    assert values(consumption.consume(1, 1.0)) == [0]

    with pytest.raises(KafkaException):
        consumption.assignment.unassign([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 7)])

    assert kafka.paused == {0}
    assert values(consumption.consume(19, 1.0)) == list(range(1, 20))


def test_behind_a_refused_assign_nothing_is_handed_out_as_in_stock() -> None:
    kafka = Refusing(20)
    consumption = consumption_of(kafka)
    assert values(consumption.consume(1, 1.0)) == [0]

    with pytest.raises(KafkaException):
        consumption.assignment.assign([TopicPartition(TOPIC, 0, 0)] * 2, is_incremental=False)

    assert consumption.assignment.keys() == []
    assert consumption.consume(1, 0.1) == []


def test_what_both_have_paused_and_the_user_resumes_in_on_revoke_is_not_paused_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blobmsg.core.debatcher._PAUSE_AT_ENTRIES", 10)
    kafka = Kafka(20)
    consumption = consumption_of(kafka)
    place = [TopicPartition(TOPIC, 0)]
    assert values(consumption.consume(1, 1.0)) == [0]
    consumption.assignment.pause(place, is_paused=True)

    consumption.assignment.give_up(
        place, lambda: consumption.assignment.pause(place, is_paused=False), is_lost=False
    )

    assert kafka.paused == set()


def test_a_seek_in_on_revoke_whose_position_is_not_known_leaves_no_pause() -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka)
    kafka.committed_answers.append(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    place = TopicPartition(TOPIC, 0, OFFSET_STORED)

    consumption.assignment.give_up(
        [place], lambda: consumption.assignment.seek(place), is_lost=False
    )

    assert kafka.paused == set()


def test_a_partition_paused_until_its_position_is_known_is_read_when_it_is_assigned_again() -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka, assigns=False)
    kafka.committed_answers.append(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    consumption.assignment.assign([TopicPartition(TOPIC, 0)], is_incremental=False)
    assert kafka.paused == {0}

    _given_up_by_rebalance(consumption)

    assert kafka.paused == set()


@pytest.mark.usefixtures("asks_at_once")
def test_a_commit_of_a_later_version_is_said_and_healed_and_other_partitions_go_on() -> None:
    kafka = Kafka(1)
    consumption = consumption_of(kafka, assigns=False)
    kafka.committed_answers.append([answer(0, 0), answer(1, 9, "blobmsg2:something")])
    kafka.committed_answers.append([answer(1, 9, "blobmsg1:2")])

    consumption.assignment.assign(
        [TopicPartition(TOPIC, n) for n in range(2)], is_incremental=False
    )
    assert kafka.paused == {1}
    problem, record = consumption.consume(2, 1.0)

    assert problem.partition() == 1
    error = problem.error()
    assert error is not None
    assert error.code() == KafkaError._UNSUPPORTED_FEATURE
    assert "version 2" in error.str()
    assert record.value() == b"0"
    consumption._service(0)
    assert kafka.sought == [(1, 9)]
    assert kafka.paused == set()


@pytest.mark.parametrize("is_whole_answer", [False, True])
def test_committed_offsets_that_nobody_may_read_are_an_error_for_the_user(
    *, is_whole_answer: bool
) -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka, assigns=False)
    denied = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    kafka.committed_answers.append(
        KafkaException(denied) if is_whole_answer else [answer(0, OFFSET_INVALID, error=denied)]
    )

    consumption.assignment.assign([TopicPartition(TOPIC, 0)], is_incremental=False)

    (problem,) = consumption.consume(1, 1.0)
    error = problem.error()
    assert error is not None
    assert (problem.partition(), error.code()) == (0, KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert kafka.paused == {0}
    assert consumption.consume(1, 0.1) == []  # asked again much later


def test_an_error_of_a_partition_whose_committed_offset_is_not_known_is_handed_out() -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka, assigns=False)
    kafka.committed_answers.extend([KafkaException(KafkaError(KafkaError._TIMED_OUT))] * 20)
    consumption.assignment.assign([TopicPartition(TOPIC, 0)], is_incremental=False)
    for code in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
        kafka.records.append(Message(TOPIC, 0, 0, error=KafkaError(code)))

    problems = consumption.consume(2, 0.2)

    assert [problem.error() for problem in problems] == [KafkaError(KafkaError._AUTO_OFFSET_RESET)]


@pytest.mark.parametrize("is_whole_answer", [False, True])
def test_automatic_commits_that_fail_are_logged(
    caplog: pytest.LogCaptureFixture, *, is_whole_answer: bool
) -> None:
    kafka = Kafka(3)
    consumption = consumption_of(kafka)
    consumption.consume(3, 1.0)
    if is_whole_answer:
        kafka.failures.append(KafkaException(KafkaError(KafkaError._TRANSPORT)))
    else:
        gone = KafkaError(KafkaError.ILLEGAL_GENERATION)
        kafka.commit_answers.append([answer(0, OFFSET_INVALID, error=gone)])

    consumption.commits.commit_stored(consumption.assignment.keys(), asynchronous=False)

    (line,) = caplog.messages
    assert line.startswith("commit")
    assert ("_TRANSPORT" if is_whole_answer else "orders [0] failed") in line


@pytest.mark.usefixtures("asks_at_once")
def test_a_seek_while_the_committed_offset_is_not_known_replaces_it() -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka, assigns=False)
    kafka.committed_answers.append(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    consumption.assignment.assign([TopicPartition(TOPIC, 0)], is_incremental=False)

    consumption.assignment.seek(TopicPartition(TOPIC, 0, 3 * FULL))
    kafka.records.append(Message(TOPIC, 0, 3, value=b"3"))

    assert kafka.sought == [(0, 3)]
    assert kafka.paused == set()
    assert values(consumption.consume(1, 1.0)) == [3]


@pytest.mark.usefixtures("asks_at_once")
def test_a_seek_to_what_is_committed_waits_until_that_is_known() -> None:
    kafka = Kafka(1)
    consumption = consumption_of(kafka)
    kafka.committed_answers.append(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    kafka.committed_answers.append([answer(0, 9)])

    consumption.assignment.seek(TopicPartition(TOPIC, 0, OFFSET_STORED))
    assert kafka.paused == {0}
    assert consumption.consume(1, 0) == []  # the record from before the seek

    assert kafka.sought[-1] == (0, 9)
    assert kafka.paused == set()


# --- sequences ------------------------------------------------------------------------------------


def test_gaps_in_sequences_of_objects_and_inline_segments_are_counted() -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka)
    segment = encode_segment(Columns([None], [b"v"], [0]))
    inline_part = replace(
        part(1),
        byte_range=ByteRange(0, len(segment)),
        uncompressed_bytes=len(segment),
        checksum=crc32(segment),
    )
    inline = Notification((inline_part,), 0, PRODUCER_ID, key=None, inline=segment)
    stored = notification(part(1))
    for kafka_offset, (told, sequence) in enumerate(
        [(inline, 3), (stored, 4), (inline, 5), (stored, 7), (inline, 9)]
    ):
        kafka.records.append(
            Message(
                TOPIC,
                0,
                kafka_offset,
                value=encode_notification(replace(told, sequence=sequence)),
                headers=[(HEADER_NAME, HEADER_VALUE)],
                timestamp=(TIMESTAMP_CREATE_TIME, 0),
            )
        )

    assert consumption.consume(1, 0.2)[0].value() == b"v"

    assert consumption.stats()["sequence_gaps"] == 2


# --- failures -------------------------------------------------------------------------------------


def test_expired_objects_are_logged_once_per_partition_and_all_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = Kafka(0)
    consumption = consumption_of(kafka, assigns=False)
    consumption.assignment.assign(
        [TopicPartition(TOPIC, n, 0) for n in range(2)], is_incremental=False
    )
    expired = type(EXPIRED)(EXPIRED.kind, KafkaError(KafkaError._AUTO_OFFSET_RESET, "too late"))
    now_ms = consumption._clock.now_ms()
    for flow in consumption._core.flows.values():
        for kafka_offset in range(3):
            told = notification(part(2), key=object_key(10 * flow.key[1] + kafka_offset))
            assert consumption._core.notification_received(flow, kafka_offset, told, None)
    consumption._core.plan(now_ms)
    sections = consumption._core.plan(now_ms + 1000)
    results = [[FetchResult(section, [expired] * len(section.parts))] for section in sections]
    monkeypatch.setattr(
        consumption._fetcher, "take_results", lambda: results.pop() if results else []
    )

    with caplog.at_level(logging.WARNING, "blobmsg.consumer"):
        for _ in range(len(sections)):
            consumption._take_results()

    assert [record.getMessage() for record in caplog.records] == [
        "too late (further ones of this partition are only counted)"
    ] * 2
    assert consumption.stats()["expired_records"] == 2 * 3 * 2


# --- closing --------------------------------------------------------------------------------------


def test_close_waits_until_no_other_thread_is_in_the_inner_consumer() -> None:
    kafka = Kafka(1)
    consumption = consumption_of(kafka)
    is_inside, goes_on = threading.Event(), threading.Event()

    def stays() -> None:
        is_inside.set()
        assert goes_on.wait(10)
        assert kafka.closes == 0

    kafka.on_consume = stays
    polling = threading.Thread(target=consumption.poll, args=(1.0,))
    polling.start()
    assert is_inside.wait(10)
    closing = threading.Thread(target=consumption.close, kwargs={"commits_first": False})
    closing.start()
    closing.join(0.05)

    assert kafka.closes == 0
    goes_on.set()
    polling.join(10)
    closing.join(10)
    assert kafka.closes == 1


def test_ctrl_c_in_the_last_commit_closes_the_inner_consumer_all_the_same() -> None:
    kafka = Kafka(1)
    consumption = consumption_of(kafka)
    consumption.consume(1, 1.0)
    kafka.failures.append(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        consumption.close(commits_first=True)

    assert kafka.closes == 1
