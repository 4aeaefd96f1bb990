"""Transactions: in every state what each call does, what readers see, what reports tell."""

from __future__ import annotations

import uuid
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.compat.differences import instead, says_why
from tests.helpers.records import Reports, flush, read, read_to_end, wait_until

if TYPE_CHECKING:
    from tests.helpers.both import Both, Side

_WAIT_S = 60
_NOTHING = ("returned", None)


def _transactional(side: Side, more: dict[str, Any] | None = None) -> Any:
    return side.producer({"transactional.id": f"compat-{uuid.uuid4().hex}", **(more or {})})


def _committed_values(
    side: Side, topic: str, partitions: int = 1, *, is_open: bool = False
) -> list[bytes]:
    """What a reader of committed records finds, to the end.

    Args:
        side: Whose reader.
        topic: Which.
        partitions: How many it has.
        is_open: Whether a transaction is open. Else the end is waited for: a commit returns before
            its marker is in the log (seen to lag by 0.83 s).
    """
    if not is_open:
        wait_until(lambda: _is_settled(side, topic, partitions), "markers are in the log")
    more = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
    with side.consumer({**more, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        return [m.value() for m in read_to_end(consumer, partitions).messages]


def _is_settled(side: Side, topic: str, partitions: int) -> bool:
    """Whether readers of committed records may read as far as all others."""
    ends: list[list[int]] = []
    for level in ("read_committed", "read_uncommitted"):
        with side.consumer({"isolation.level": level}) as consumer:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            ends.append([consumer.get_watermark_offsets(place, 20)[1] for place in places])
    return ends[0] == ends[1]


def _failure(producer: Any) -> tuple[str, bool] | None:
    """Why a commit fails; stock's text tells of requests and numbers that nobody can expect."""
    try:
        producer.commit_transaction(_WAIT_S)
    except KafkaException as failure:
        error = failure.args[0]
        return error.name(), error.txn_requires_abort()
    return None


def test_each_call_in_each_state(both: Both) -> None:
    calls = """
        begin_transaction()
        commit_transaction(5)
        abort_transaction(5)
        produce(topic, b'early')
        send_offsets_to_transaction([], group)
        init_transactions(60)
        init_transactions(5)
    """
    closed = """
        commit_transaction(5)
        abort_transaction(5)
        send_offsets_to_transaction([TopicPartition(topic, 0, 0)], group, 5)
        produce(topic, b'outside')
        produce_batch(topic, [{'value': b'outside'}])
        flush(5)
        poll(0)
        begin_transaction()
    """
    opened = """
        init_transactions(5)
        begin_transaction()
        produce(topic, b'inside')
        produce_batch(topic, [{'value': b'in a batch'}])
        flush(60)
    """

    def case(side: Side) -> Any:
        topic = side.topic()
        with side.consumer() as consumer, _transactional(side) as producer:
            group = consumer.consumer_group_metadata()
            seen = [
                side.outcomes(producer, text, topic=topic, group=group)
                for text in (calls, closed, opened)
            ]
            seen.append(side.outcomes(producer, "commit_transaction(60)"))
            seen.append(side.outcomes(producer, closed, topic=topic, group=group))
            seen.append(side.outcomes(producer, opened, topic=topic, group=group))
            seen.append(side.outcomes(producer, "abort_transaction(60)"))
            seen.append(side.outcomes(producer, closed, topic=topic, group=group))
            producer.abort_transaction()
        return seen, _committed_values(side, topic)

    (seen, values) = both.agree(case)
    assert values == [b"inside", b"in a batch"]
    assert seen[1]["produce(topic, b'outside')"][1][1] == "_STATE"


def test_wrong_arguments(both: Both) -> None:
    def case(side: Side) -> Any:
        with side.consumer() as consumer, _transactional(side) as producer:
            group = consumer.consumer_group_metadata()
            producer.init_transactions(_WAIT_S)
            producer.begin_transaction()
            return side.outcomes(
                producer,
                """
                send_offsets_to_transaction(None, group)
                send_offsets_to_transaction([1], group)
                send_offsets_to_transaction((), group)
                send_offsets_to_transaction([], None)
                send_offsets_to_transaction([], 'group')
                send_offsets_to_transaction([])
                send_offsets_to_transaction([], group, 'long')
                send_offsets_to_transaction([], group, 60)
                send_offsets_to_transaction(positions=[], group_metadata=group, timeout=60)
                send_offsets_to_transaction([TopicPartition('t', 0)], group, 60)
                init_transactions('long')
                begin_transaction(1)
                commit_transaction('long')
                commit_transaction(None)
                abort_transaction('long')
                abort_transaction(timeout=60)
                """,
                group=group,
            )

    # The types that stock comes with say that they may be given by name.
    by_name = {
        "send_offsets_to_transaction(positions=[], group_metadata=group, timeout=60)": _NOTHING,
        "abort_transaction(timeout=60)": _NOTHING,
    }
    both.agree(case, instead(by_name))


def test_what_is_committed_is_read_and_what_is_aborted_is_not(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        told: list[Any] = []
        with _transactional(side) as producer:
            producer.init_transactions(_WAIT_S)
            for number in range(6):
                reports = Reports()
                producer.begin_transaction()
                for place in range(3):
                    value = b"%d.%d" % (number, place)
                    producer.produce(topic, value, b"key", on_delivery=reports)
                if number % 2:
                    producer.abort_transaction(_WAIT_S)
                else:
                    producer.commit_transaction(_WAIT_S)
                values = [message.value() for _, message in reports.outcomes]
                told.append((values, side.see([error for error, _ in reports.outcomes])))
        return told, _committed_values(side, topic)

    told, values = both.agree(case)
    assert values == [b"%d.%d" % (n, p) for n in (0, 2, 4) for p in range(3)]
    assert told[0] == ([b"0.0", b"0.1", b"0.2"], [None] * 3)
    assert [error[0] for error in told[1][1]] == ["_PURGE_QUEUE"] * 3


def test_a_flushed_record_is_delivered_and_still_not_committed(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        with _transactional(side) as producer:
            producer.init_transactions(_WAIT_S)
            producer.begin_transaction()
            producer.produce(topic, b"aborted", on_delivery=reports)
            left = producer.flush(_WAIT_S)
            delivered = reports.codes
            before = _committed_values(side, topic, is_open=True)
            producer.abort_transaction(_WAIT_S)
            producer.begin_transaction()
            producer.produce(topic, b"committed", on_delivery=reports)
            producer.commit_transaction(_WAIT_S)
        return left, delivered, before, reports.codes, _committed_values(side, topic)

    assert both.agree(case) == (0, [None], [], [None, None], [b"committed"])


def test_a_reader_stands_behind_the_end_of_a_transaction_and_commits_that(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        place = TopicPartition(topic, 0)
        group = {"group.id": f"compat-{uuid.uuid4().hex}", "auto.offset.reset": "earliest"}
        with _transactional(side) as producer:
            producer.init_transactions()
            for number in range(3):
                producer.begin_transaction()
                producer.produce(topic, b"%d" % number)
                flush(producer)
                if number == 1:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        with side.consumer({**group, "enable.auto.commit": False}) as consumer:
            consumer.assign([place])
            values = [message.value() for message in read(consumer, 2)]
            # Only now: a commit returns before its marker is in the log.
            _, end = consumer.get_watermark_offsets(place, 20)

            def is_at_end() -> bool:
                return bool(consumer.position([place])[0].offset == end)

            wait_until(is_at_end, "all is read", serve=lambda: consumer.poll(0.1))
            [committed] = consumer.commit(asynchronous=False)
            # Nothing but what nobody sees is behind it.
            consumer.seek(TopicPartition(topic, 0, end - side.position(1)))
            before = consumer.position([place])[0].offset
            wait_until(is_at_end, "all is passed", serve=lambda: consumer.poll(0.1))
        return values, committed.offset == end, before

    assert both.agree(case) == ([b"0", b"2"], True, -1001)


def test_positions_go_with_the_transaction(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic(2)
        group = {"group.id": f"compat-{uuid.uuid4().hex}", "auto.offset.reset": "earliest"}
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        seen: list[Any] = []
        with side.consumer(group) as consumer, _transactional(side) as producer:
            consumer.subscribe([topic])
            wait_until(
                lambda: len(consumer.assignment()) == 2,
                "partitions",
                serve=lambda: consumer.poll(0.1),
            )
            producer.init_transactions(_WAIT_S)
            for ends in ("abort_transaction", "commit_transaction"):
                producer.begin_transaction()
                positions = [
                    TopicPartition(topic, 0, side.position(7)),
                    TopicPartition(topic, 1, side.position(3), "of the user"),
                ]
                producer.send_offsets_to_transaction(
                    positions, consumer.consumer_group_metadata(), _WAIT_S
                )
                getattr(producer, ends)(_WAIT_S)
                seen.append(consumer.committed(partitions, _WAIT_S))
        return seen

    seen = both.agree(case)
    assert [p["offset"] for p in seen[1]] == [7, 3]
    assert seen[1][1]["metadata"] == "of the user"


def _one_text(seen: Any) -> Any:
    """With one of the two texts that librdkafka, under stock too, gives a fenced commit."""
    if isinstance(seen, str):
        return seen.replace("EndTxn commit failed: ", "Failed to end transaction: ")
    if isinstance(seen, dict):
        return {key: _one_text(value) for key, value in seen.items()}
    if isinstance(seen, (list, tuple)):
        return type(seen)(_one_text(value) for value in seen)
    return seen


def test_a_fenced_producer(both: Both) -> None:
    calls = """
        poll(1)
        produce(topic, b'late')
        produce_batch(topic, [{'value': b'late'}])
        flush(5)
        poll(0)
        begin_transaction()
        send_offsets_to_transaction([TopicPartition(topic, 0, 0)], group, 5)
        commit_transaction(5)
        abort_transaction(5)
        init_transactions(5)
        purge()
        close()
    """

    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        errors: list[Any] = []
        name = {"transactional.id": f"compat-{uuid.uuid4().hex}", "error_cb": errors.append}
        with side.consumer() as consumer:
            group = consumer.consumer_group_metadata()
        producer = side.producer(name)
        producer.init_transactions(_WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"of the zombie", on_delivery=reports)
        flush(producer)
        with side.producer(name) as successor:
            successor.init_transactions(_WAIT_S)
            successor.begin_transaction()
            successor.produce(topic, b"of its successor")
            fenced = side.outcome(lambda: producer.commit_transaction(_WAIT_S))
            with warnings.catch_warnings():  # stock's: that it can't abort what it has open
                warnings.simplefilter("ignore")
                seen = side.outcomes(producer, calls, topic=topic, group=group)
            successor.commit_transaction(_WAIT_S)
        failed = [(error and error.name(), message.value()) for error, message in reports.outcomes]
        told = _one_text(side.see((fenced, seen, errors)))
        return *told, failed, _committed_values(side, topic)

    fenced, _, _, failed, values = both.agree(case, in_turn=True)
    assert fenced[1][0] == "KafkaException"
    assert values == [b"of its successor"]
    assert failed == [(None, b"of the zombie")]


def test_a_record_that_fails_makes_the_commit_ask_for_an_abort(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(config={"max.message.bytes": "5000"}), Reports()
        more = {"blobmsg.route": "plain"}  # an object would take it
        with _transactional(side, more) as producer:
            producer.init_transactions(_WAIT_S)
            producer.begin_transaction()
            producer.produce(topic, b"small", on_delivery=reports)
            flush(producer)
            producer.produce(topic, bytes(20_000), on_delivery=reports)
            failures = [_failure(producer), _failure(producer)]
            late = side.outcome(lambda: producer.produce(topic, b"late"))
            aborted = side.outcome(lambda: producer.abort_transaction(_WAIT_S))
            codes = reports.codes
            # Kafka has no record for the number that the failed one had, so the next may fail, too.
            attempts = 0
            failure = failures[0]
            while failure is not None:
                attempts += 1
                producer.begin_transaction()
                producer.produce(topic, b"new", on_delivery=Reports())
                failure = _failure(producer)
                if failure is not None:
                    producer.abort_transaction(_WAIT_S)
        return failures, late, aborted, codes, attempts, _committed_values(side, topic)

    failures, _, aborted, codes, attempts, values = both.agree(case)
    assert failures == [("MSG_SIZE_TOO_LARGE", True)] * 2
    assert (aborted, codes) == (_NOTHING, [None, KafkaError.MSG_SIZE_TOO_LARGE])
    assert (attempts, values) == (2, [b"new"])


def test_without_a_broker(both: Both) -> None:
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": lambda _: None}

    def case(side: Side) -> Any:
        producer = _transactional(side, nowhere)
        timed_out = side.outcome(lambda: producer.init_transactions(2))
        with warnings.catch_warnings():  # stock's: that it can't abort what is not begun
            warnings.simplefilter("ignore")
            return timed_out, side.outcome(producer.close)

    timed_out, _ = both.agree(case, in_turn=True)
    assert "retriable" in timed_out[1][3]


def test_purged_records_and_the_commit(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        with _transactional(side, {"linger.ms": 5000, "blobmsg.batch.interval.ms": 5000}) as client:
            client.init_transactions(_WAIT_S)
            client.begin_transaction()
            client.produce(topic, b"purged", on_delivery=reports)
            client.purge()
            wait_until(lambda: bool(reports.outcomes), "report", serve=lambda: client.poll(0.1))
            seen = side.outcomes(client, "commit_transaction(60)")
            client.abort_transaction(_WAIT_S)
        assert reports.codes == [KafkaError._PURGE_QUEUE]
        return seen

    seen = both.agree(case, says_why({"commit_transaction(60)": ": Local: Purged in queue"}))
    assert seen["commit_transaction(60)"][0] == "raised"


def test_calls_inside_of_a_call(both: Both) -> None:
    calls = """
        begin_transaction()
        abort_transaction(5)
        commit_transaction(5)
        send_offsets_to_transaction([TopicPartition(topic, 0, 0)], group, 5)
        init_transactions(5)
    """

    def case(side: Side) -> Any:
        topic = side.topic()
        inside: list[Any] = []
        with side.consumer() as consumer, _transactional(side) as producer:
            group = consumer.consumer_group_metadata()

            def on_delivery(*_: object) -> None:
                inside.append(side.outcomes(producer, calls, topic=topic, group=group))

            producer.init_transactions(_WAIT_S)
            producer.begin_transaction()
            producer.produce(topic, b"v", on_delivery=on_delivery)
            committed = side.outcome(lambda: producer.commit_transaction(_WAIT_S))
        return inside, committed, _committed_values(side, topic)

    inside, committed, values = both.agree(case)
    assert (len(inside), committed, values) == (1, _NOTHING, [b"v"])


def test_a_refused_record_among_others(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(config={"max.message.bytes": "5000"}), Reports()
        more = {"blobmsg.route": "plain", "linger.ms": 200}  # one batch
        with _transactional(side, more) as producer:
            producer.init_transactions(_WAIT_S)
            producer.begin_transaction()
            for size in (10, 20_000, 20):
                producer.produce(topic, bytes(size), on_delivery=reports)
            failure = _failure(producer)
            producer.abort_transaction(_WAIT_S)
        return failure, reports.codes

    failure, codes = both.agree(case)
    assert failure == ("MSG_SIZE_TOO_LARGE", True)
    assert codes == [KafkaError.MSG_SIZE_TOO_LARGE] * 3


def test_timeouts_that_contradict_each_other(both: Both) -> None:
    def case(side: Side) -> Any:
        more = {"transaction.timeout.ms": 10_000, "message.timeout.ms": 20_000}
        return side.outcome(lambda: _transactional(side, more))

    assert both.agree(case)[0] == "raised"


def test_other_settings_beside_it(both: Both) -> None:
    settings: list[dict[str, Any]] = [
        {"enable.idempotence": False},
        {"acks": 1},
        {"transactional.id": ""},
        {"transactional.id": None},
        {"transaction.timeout.ms": 999},
    ]

    def case(side: Side) -> Any:
        def use(more: dict[str, Any]) -> None:
            with _transactional(side, more) as producer:
                producer.init_transactions(_WAIT_S)

        return [side.outcome(partial(use, more)) for more in settings]

    both.agree(case)


def test_a_topic_outside_of_the_store_in_the_same_transaction(both: Both) -> None:
    def case(side: Side) -> Any:
        stored, plain = side.topic(), side.topic()
        reports = Reports()
        with _transactional(side, {"blobmsg.topics": f"^{stored}$"}) as producer:
            producer.init_transactions(_WAIT_S)
            for number, ends in enumerate(("commit", "abort", "commit")):
                producer.begin_transaction()
                for topic in (stored, plain):
                    headers = [("blobmsg", b"of the user")] if topic == plain else None
                    value = b"%d" % number
                    producer.produce(topic, value, b"key", headers=headers, on_delivery=reports)
                getattr(producer, f"{ends}_transaction")(_WAIT_S)
        told = sorted((side.see(m.topic()), m.value(), e and e.name()) for e, m in reports.outcomes)
        values = [_committed_values(side, topic) for topic in (stored, plain)]
        with side.consumer({"auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([TopicPartition(plain, 0, 0)])
            found = read(consumer, 1)[0]
        return told, values, found.headers()

    _, values, headers = both.agree(case)
    assert values == [[b"0", b"2"], [b"0", b"2"]]
    assert headers == [("blobmsg", b"of the user")]


def test_an_open_transaction_and_close(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        name = {"transactional.id": f"compat-{uuid.uuid4().hex}"}
        producer = side.producer(name)
        producer.init_transactions(_WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"left open")
        closed = side.outcome(producer.close)
        with side.producer(name) as successor:
            successor.init_transactions(_WAIT_S)
            successor.begin_transaction()
            successor.produce(topic, b"later")
            successor.commit_transaction(_WAIT_S)
        return closed, _committed_values(side, topic)

    assert both.agree(case) == (("returned", True), [b"later"])
