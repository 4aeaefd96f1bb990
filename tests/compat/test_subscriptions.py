"""Groups: subscriptions, rebalances and their callbacks, and what close does."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.helpers.records import next_message, read, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

    Filled = Callable[[Side], str]

_EARLIEST = {"auto.offset.reset": "earliest"}
_QUICK = {"heartbeat.interval.ms": 200, "session.timeout.ms": 45_000}


def _group(**more: Any) -> dict[str, Any]:
    return {**_EARLIEST, **_QUICK, "group.id": f"compat-{uuid.uuid4().hex}", **more}


class _Rebalances:
    """What the callbacks of a subscription were told, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool, list[int]]] = []
        self.consumer: Any = None

    def note(self, what: str) -> Callable[[Any, list[TopicPartition]], None]:
        def callback(consumer: Any, partitions: list[TopicPartition]) -> None:
            # The consumer is the one that the user made, not one inside of it.
            numbers = sorted(partition.partition for partition in partitions)
            self.heard.append((what, consumer is self.consumer, numbers))

        return callback

    def subscribe(self, consumer: Any, topic: str) -> None:
        self.consumer = consumer
        consumer.subscribe(
            [topic],
            on_assign=self.note("assign"),
            on_revoke=self.note("revoke"),
            on_lost=self.note("lost"),
        )


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_alone_hears_of_assignment_and_revocation(
    readers: Both, filled: Filled, strategy: str
) -> None:
    def case(side: Side) -> Any:
        rebalances, commits = _Rebalances(), []

        def on_commit(error: Any, partitions: list[TopicPartition]) -> None:
            commits.append((side.see(error), side.see(partitions)))
            rebalances.heard.append(("commit", True, []))

        group = _group(**{"partition.assignment.strategy": strategy, "on_commit": on_commit})
        consumer = side.consumer({**group, "auto.commit.interval.ms": 3_600_000})
        seen = [consumer.memberid(), consumer.assignment()]
        rebalances.subscribe(consumer, filled(side))
        values = sorted(message.value() for message in read(consumer, 20))
        assigned = sorted(place.partition for place in consumer.assignment())
        seen += [values, assigned, bool(consumer.memberid())]
        seen.append(type(consumer.consumer_group_metadata()).__name__)
        consumer.close()
        return seen, rebalances.heard, commits

    _, heard, _ = readers.agree(case)
    assert heard[:2] == [("assign", True, [0, 1]), ("revoke", True, [0, 1])]


@pytest.mark.slow
def test_a_member_that_polls_too_seldom_is_told_and_gets_its_partitions_anew(
    readers: Both, filled: Filled
) -> None:
    def case(side: Side) -> Any:
        rebalances = _Rebalances()
        errors: list[str] = []
        group = _group(
            **{"max.poll.interval.ms": 6000, "session.timeout.ms": 6000},
            **{"enable.auto.commit": False},
        )
        with side.consumer(group) as consumer:
            rebalances.subscribe(consumer, filled(side))
            values = sorted(message.value() for message in read(consumer, 20))
            time.sleep(7)  # what the test is about

            again: list[bytes] = []

            def poll() -> None:
                message = consumer.poll(0.1)
                if message is not None and message.error() is not None:
                    errors.append(message.error().name())
                    rebalances.heard.append(("error", True, []))
                elif message is not None:
                    again.append(message.value())

            wait_until(lambda: len(again) == 20, "all once more", serve=poll)
        return values == sorted(again), errors, rebalances.heard

    is_all_there, errors, heard = readers.agree(case)
    assert is_all_there
    assert errors == ["_MAX_POLL_EXCEEDED"]
    assert [what for what, _, _ in heard] == ["assign", "error", "lost", "assign", "revoke"]


def test_unsubscribe_gives_back_and_subscribe_takes_again(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic, rebalances = filled(side), _Rebalances()
        with side.consumer(_group(**{"enable.auto.commit": False})) as consumer:
            rebalances.subscribe(consumer, topic)
            read(consumer, 5)
            consumer.commit(asynchronous=False)
            seen = [consumer.unsubscribe()]
            wait_until(
                lambda: len(rebalances.heard) == 2, "revoked", serve=lambda: consumer.poll(0.1)
            )
            seen += [consumer.assignment(), consumer.poll(0.1), consumer.unsubscribe()]
            seen.append(consumer.subscribe([topic]))
            seen.append(len(read(consumer, 15)))
        return seen, rebalances.heard

    seen, heard = readers.agree(case)
    assert seen == [None, [], None, None, None, 15]
    assert heard == [("assign", True, [0, 1]), ("revoke", True, [0, 1])]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_two_members_share_and_the_one_that_stays_takes_over(
    readers: Both, filled: Filled, strategy: str
) -> None:
    def case(side: Side) -> Any:
        topic, first, second = filled(side), _Rebalances(), _Rebalances()
        group = _group(**{"partition.assignment.strategy": strategy, "enable.auto.commit": False})
        with contextlib.ExitStack() as stack:
            stays = stack.enter_context(side.consumer(group))
            leaves = stack.enter_context(side.consumer(group))

            def serve() -> None:
                stays.poll(0.05)
                leaves.poll(0.05)

            def own(count: int, other: int) -> bool:
                return (len(stays.assignment()), len(leaves.assignment())) == (count, other)

            first.subscribe(stays, topic)
            wait_until(lambda: own(2, 0), "the first has all", serve=serve)
            second.subscribe(leaves, topic)
            wait_until(lambda: own(1, 1), "both have one", serve=serve)
            # Until here what each hears is certain; who is first in the next round is not.
            heard = [list(first.heard), list(second.heard)]
            leaves.close()
            wait_until(
                lambda: len(stays.assignment()) == 2, "it took over", serve=lambda: stays.poll(0.05)
            )
            taken = sorted({number for *_, numbers in first.heard for number in numbers})
            # An eager member may hear of an empty round; that depends on the broker's timing.
            # Who gets which partition is chance, too.
            counts = [
                [(*each, len(numbers)) for *each, numbers in told if numbers] for told in heard
            ]
            return counts, taken

    (first, second), taken = readers.agree(case)
    assert first[0] == ("assign", True, 2)
    assert second == [("assign", True, 1)]
    assert taken == [0, 1]


def test_a_regular_expression_subscribes_to_what_matches(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        with side.consumer(_group()) as consumer:
            consumer.subscribe([f"^{topic[:-1]}[{topic[-1]}]$"])
            messages = read(consumer, 20)
        return {side.see(message.topic()) for message in messages}, len(messages)

    assert readers.agree(case) == ({"<topic 1>"}, 20)


def test_on_assign_may_assign_with_offsets_of_its_own(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        def on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:
            told.extend(side.see(partitions))
            for partition in partitions:
                partition.offset = side.position(7 + partition.partition)
            consumer.assign(partitions)

        told: list[Any] = []
        with side.consumer(_group()) as consumer:
            consumer.subscribe([filled(side)], on_assign=on_assign)
            values = sorted(message.value() for message in read(consumer, 5))
        return told, values

    told, values = readers.agree(case)
    assert [place["offset"] for place in told] == [-1001, -1001]
    assert values == [b"0.7", b"0.8", b"0.9", b"1.8", b"1.9"]


def test_on_revoke_may_commit_and_what_is_committed_stays(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        def on_revoke(consumer: Any, _partitions: list[TopicPartition]) -> None:
            committed.append(consumer.commit(message=messages[-1], asynchronous=False))

        topic, committed, messages = filled(side), [], []  # type: ignore[var-annotated]
        group = _group(**{"enable.auto.commit": False})
        consumer = side.consumer(group)
        consumer.subscribe([topic], on_revoke=on_revoke)
        messages += read(consumer, 5)
        consumer.close()
        # Of which partition the 5th record is, is chance.
        [[place]] = committed
        with side.consumer(group) as consumer:
            [kept] = consumer.committed([TopicPartition(topic, place.partition)], 20)
        return kept.offset == place.offset == messages[-1].offset() + 1

    assert readers.agree(case) is True


@pytest.mark.parametrize("callback", ["on_assign", "on_revoke"])
def test_an_exception_in_a_rebalance_callback_comes_out(
    readers: Both, filled: Filled, callback: str
) -> None:
    def case(side: Side) -> Any:
        def angry(_consumer: Any, _partitions: Any) -> None:
            raise LookupError("angry")

        consumer = side.consumer(_group(**{"enable.auto.commit": False}))
        consumer.subscribe([filled(side)], **{callback: angry})
        if callback == "on_revoke":
            read(consumer, 1)
            return side.outcome(consumer.close), side.outcome(consumer.close)
        raised = side.outcome(lambda: next_message(consumer))
        # It has its partitions all the same.
        has_record = read(consumer, 1)[0].error() is None
        return raised, len(consumer.assignment()), has_record, side.outcome(consumer.close)

    by_stock = readers.agree(case)
    assert by_stock[0] == ("raised", ("LookupError", "angry"))


def test_an_unknown_topic_is_reported_by_poll(readers: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.known(f"none-{uuid.uuid4().hex}")
        more = {"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 500}
        with side.consumer(_group(**more)) as consumer:
            consumer.subscribe([topic])
            return next_message(consumer)

    by_stock = readers.agree(case)
    assert by_stock["error"][0] == "UNKNOWN_TOPIC_OR_PART"
    assert by_stock["topic"] == "<topic 1>"


def test_a_partition_out_of_range_says_nothing_and_the_others_are_read(
    readers: Both, filled: Filled
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        with side.consumer({"topic.metadata.propagation.max.ms": 500}) as consumer:
            consumer.assign([TopicPartition(topic, number, -2) for number in (99, 0)])
            return len(read(consumer, 10)), consumer.poll(1.0), len(consumer.assignment())

    assert readers.agree(case) == (10, None, 2)


def test_a_closed_consumer_refuses_and_closes_again(readers: Both) -> None:
    calls = """
        poll(0)
        consume(1, 0)
        subscribe(["t"])
        unsubscribe()
        assign(place)
        unassign()
        assignment()
        incremental_assign(place)
        incremental_unassign(place)
        commit()
        commit(offsets=place, asynchronous=False)
        store_offsets(offsets=place)
        committed(place, 1)
        position(place)
        seek(place[0])
        pause(place)
        resume(place)
        get_watermark_offsets(place[0], 1)
        offsets_for_times(place, 1)
        memberid()
        consumer_group_metadata()
        list_topics(timeout=1)
        cluster_id(1)
        set_sasl_credentials("user", "password")
        __enter__() is None
        __bool__()
        close()
    """

    def case(side: Side) -> Any:
        consumer = side.consumer()
        closed = consumer.close()
        outcomes = side.outcomes(consumer, calls, place=[TopicPartition("t", 0, 0)])
        return closed, outcomes

    _, outcomes = readers.agree(case)
    assert outcomes["poll(0)"] == ("raised", ("RuntimeError", "Consumer closed"))


def test_a_subclass_whose_init_never_ran_says_so(readers: Both) -> None:
    calls = """
        poll(0)
        consume(1, 0)
        subscribe(["t"])
        unsubscribe()
        assign(place)
        incremental_assign(place)
        incremental_unassign(place)
        unassign()
        assignment()
        commit()
        committed(place, 1)
        store_offsets(offsets=place)
        position(place)
        seek(place[0])
        pause(place)
        resume(place)
        get_watermark_offsets(place[0], 1)
        offsets_for_times(place, 1)
        memberid()
        list_topics()
        cluster_id(1)
        set_sasl_credentials("user", "password")
        consumer_group_metadata()
        close()
    """

    def case(side: Side) -> Any:
        class NoInit(side.consumer_class):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                pass

        return side.outcomes(NoInit(), calls, place=[TopicPartition("t", 0, 0)])

    def says_what_to_do(seen: dict[str, Any]) -> dict[str, Any]:
        """Stock says that the consumer was closed, which it was not."""
        advice = ": it was never initialized, call super().__init__(conf)"
        return {
            call: (what, (result[0], result[1] + advice)) if what == "raised" else (what, result)
            for call, (what, result) in seen.items()
        }

    readers.agree(case, says_what_to_do)


def test_a_subclass_works(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        class Counting(side.consumer_class):  # type: ignore[misc,name-defined]
            def __init__(self, settings: dict[str, Any]) -> None:
                super().__init__({**settings, "on_commit": self._on_commit})
                self.polled = 0
                # Names that one likes to give.
                self._lock = self._settings = self._callbacks = self._inner = self._closed = None
                self._consumption = self._assign = self._positions = self._group = 1
                self._committed: list[Any] = []

            def poll(self, *args: Any, **kwargs: Any) -> Any:
                self.polled += 1
                return super().poll(*args, **kwargs)

            def _on_commit(self, error: Any, partitions: list[TopicPartition]) -> None:
                self._committed.append((error, len(partitions)))

            def _on_assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
                self._assigned = consumer is self and len(partitions)

            _on_revoked = _on_lost = _release = _check_usable = _on_assigned

        with Counting(side.settings(_group(**{"enable.auto.commit": False}))) as consumer:
            consumer.subscribe([filled(side)], on_assign=consumer._on_assigned)
            first = next_message(consumer)
            consumer.commit(first, asynchronous=False)
            polls = consumer.polled
        # Which partition comes first is chance.
        return consumer._assigned, first.value()[1:], consumer._committed, polls > 0

    assert readers.agree(case) == (2, b".0", [], True)


def test_with_closes_also_when_its_body_raises(readers: Both) -> None:
    def case(side: Side) -> Any:
        def body() -> None:
            with side.consumer() as consumer:
                made.append(consumer)
                raise LookupError("of the body")

        made: list[Any] = []
        return side.outcome(body), side.outcome(lambda: made[0].poll(0))

    raised, polled = readers.agree(case)
    assert raised == ("raised", ("LookupError", "of the body"))
    assert polled[1][0] == "RuntimeError"


def test_consumer_group_metadata_is_what_a_transaction_takes(readers: Both) -> None:
    def case(side: Side) -> Any:
        group = f"compat-{uuid.uuid4().hex}"
        with side.consumer({"group.id": group}) as consumer, side.producer() as producer:
            metadata = consumer.consumer_group_metadata()
            # It gets as far as the missing transactional.id.
            try:
                producer.send_offsets_to_transaction([], metadata, 1)
            except KafkaException as error:
                return type(metadata).__name__, error.args[0].name()
        return None

    name, error = readers.agree(case)
    assert error == "_NOT_CONFIGURED", name
