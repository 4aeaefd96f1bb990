"""What a producer does with its calls, and what its life and end are like."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import KafkaError

from tests.compat.differences import instead
from tests.helpers.living_clients import living_clients, needs_living_clients
from tests.helpers.records import Reports, flush, read, recent_ms, wait_until

if TYPE_CHECKING:
    import pytest

    from tests.helpers.both import Both, Side

_NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": lambda _: None}


def test_poll_flush_and_len_count_records_and_serve_callbacks(both: Both) -> None:
    def case(side: Side) -> Any:
        reports, topic = Reports(), side.topic()
        with side.producer() as producer:
            seen = [producer.poll(0), producer.flush(0), producer.flush(), len(producer)]
            for number in range(3):
                seen.append(producer.produce(topic, b"%d" % number, on_delivery=reports))
                seen.append(len(producer))
            served = producer.poll(60)
            wait_until(
                lambda: len(reports.outcomes) == 3, "reports", serve=lambda: producer.poll(0.1)
            )
            seen += [served >= 1, len(producer), bool(producer), producer.flush()]
        return seen, len(producer), bool(producer)

    seen, *_ = both.agree(case)
    assert seen == [0, 0, 0, 0, None, 1, None, 2, None, 3, True, 0, True, 0]


def test_what_is_left_is_counted_inside_of_callbacks_too(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        heard: list[int] = []
        with side.producer({"linger.ms": 100}) as producer:
            for _ in range(3):
                producer.produce(topic, b"v", on_delivery=lambda *_: heard.append(len(producer)))
            flush(producer)
        return heard

    heard = both.agree(case)
    assert len(heard) == 3


def test_a_flush_that_ends_too_early_says_what_is_left(both: Both) -> None:
    def case(side: Side) -> Any:
        producer = side.producer({**_NOWHERE, "error_cb": lambda _: None})
        reports = Reports()
        for _ in range(3):
            producer.produce("nowhere", b"v", on_delivery=reports)
        # Stock counts events of the connection, too; none is there at once.
        left, served = producer.flush(0.2) >= 3, len(reports.outcomes)
        producer.purge()
        flush(producer)
        return left, served, side.see(reports.errors), producer.close()

    left, served, errors, closed = both.agree(case)
    assert (left, served, closed) == (True, 0, True)
    assert [name for name, *_ in errors] == ["_PURGE_QUEUE"] * 3


def test_callback_wins_over_on_delivery_which_wins_over_the_setting(both: Both) -> None:
    def case(side: Side) -> Any:
        heard: list[tuple[str, bytes]] = []
        topic = side.topic()

        def by(name: str) -> Any:
            return lambda _error, message: heard.append((name, message.value()))

        with side.producer({"on_delivery": by("setting")}) as producer:
            producer.produce(topic, b"0", callback=by("callback"), on_delivery=by("on_delivery"))
            producer.produce(topic, b"1", on_delivery=by("on_delivery"))
            producer.produce(topic, b"2")
            producer.produce(topic, b"3", None, -1, by("5th"), by("6th"))
            flush(producer)
            batch = [{"value": b"5"}, {"value": b"6", "callback": by("own")}]
            batch += [{"value": b"7", "on_delivery": by("no such field")}]
            producer.produce_batch(topic, batch)
            producer.produce_batch(topic, batch, callback=by("callback"))
            producer.produce_batch(topic, batch, on_delivery=by("on_delivery"))
            producer.produce_batch(
                topic, batch, callback=by("callback"), on_delivery=by("on_delivery")
            )
            flush(producer)
        return heard

    assert len(both.agree(case)) == 16


def test_an_explicit_none_for_callback_hides_on_delivery_only_in_stock(both: Both) -> None:
    def case(side: Side) -> Any:
        with side.producer() as producer:
            by_callback, topic = Reports(), side.topic()
            producer.produce(topic, b"v", callback=None, on_delivery=by_callback)
            flush(producer)
            return {"heard": by_callback.codes}

    both.agree(case, instead({"heard": [None]}))


def test_produce_batch_counts_what_it_queued_and_marks_what_it_refused(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(2), Reports()
        limit = {"message.max.bytes": 10_000, "blobmsg.record.max.bytes": 10_000}
        with side.producer(limit) as producer:
            # So that the topic is known.
            producer.produce(topic, b"first", partition=0)
            flush(producer)
            messages: list[Any] = [
                {"value": b"a", "key": b"k"},
                {"value": bytes(20_000)},
                {"value": b"b", "partition": None},
                {"value": "c", "key": "schlüssel", "unknown": "field"},
                {},
                {"value": None, "key": b""},
            ]
            elsewhere = [[{"value": b"d"}, {"value": b"e", "key": b"k"}] for _ in range(2)]
            counts = [
                producer.produce_batch(topic, []),
                producer.produce_batch(topic, messages, 1, reports),
                producer.produce_batch(topic, elsewhere[0], partition=7, on_delivery=reports),
                producer.produce_batch(topic, elsewhere[1], partition=-2, on_delivery=reports),
            ]
            flush(producer)
        errors = [side.see(m.get("_error")) for m in (*messages, *elsewhere[0], *elsewhere[1])]
        heard = [(m.partition(), m.key(), m.value()) for m in reports.messages()]
        return {"counts": counts, "errors": errors, "heard": heard}

    by_stock = both.agree(case, _too_large_names_the_limit)
    assert by_stock["counts"] == [0, 5, 0, 0]


def test_behind_a_message_of_a_batch_that_finds_the_queue_full_none_is_queued(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        with side.producer({"queue.buffering.max.kbytes": 900}) as producer:
            messages: list[dict[str, Any]] = [{"value": bytes(300_000)}, {"value": bytes(700_000)}]
            messages += [{"value": b"b"}, {"value": b"c"}]  # for which there would be room
            counts = []
            while messages:  # as one does
                counts.append(producer.produce_batch(topic, messages, on_delivery=reports))
                messages = [message for message in messages if message.pop("_error", None)]
                flush(producer)
        return counts[0], [len(message.value()) for message in reports.messages()]

    assert both.agree(case) == (1, [300_000, 700_000, 1, 1])


def test_a_message_of_a_batch_goes_to_its_own_partition_only_here(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(3), Reports()
        with side.producer() as producer:
            messages = [{"value": b"v", "partition": 1}, {"value": b"v", "partition": 2}]
            producer.produce_batch(topic, messages, partition=0, on_delivery=reports)
            flush(producer)
        return {"partitions": sorted(message.partition() for message in reports.messages())}

    # As stock's documentation has it; the partitions that it took are those of the call.
    both.agree(case, instead({"partitions": [1, 2]}))


def _too_large_names_the_limit(seen: dict[str, Any]) -> dict[str, Any]:
    """Large records are a feature, with a setting of their own, which the text names."""
    errors = list(seen["errors"])
    name, text, flags = errors[1]
    reason = ": a record of 20000 bytes is larger than blobmsg.record.max.bytes (10000)"
    errors[1] = (name, text + reason, flags)
    return {**seen, "errors": errors}


def test_a_full_queue_raises_and_drains(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        more: dict[str, Any] = {"queue.buffering.max.messages": 100, "linger.ms": 100}
        # Nothing but the full queue seals this batch.
        more |= {"blobmsg.batch.interval.ms": 900_000, "message.timeout.ms": 86_400_000}
        with side.producer(more) as producer:
            for number in range(100):
                producer.produce(topic, b"%d" % number, on_delivery=reports)
            seen = [len(producer), side.outcome(lambda: producer.produce(topic, b"too many"))]
            batch = [{"value": b"too many"}, {"value": b"as well", "key": b"k"}]
            seen += [producer.produce_batch(topic, batch), side.see(batch)]
            wait_until(
                lambda: len(reports.outcomes) == 100, "drained", serve=lambda: producer.poll(1)
            )
            producer.produce(topic, b"again", on_delivery=reports)
            flush(producer)
        return seen, [message.value() for message in reports.messages()]

    (length, refused, *_), values = both.agree(case)
    assert length == 100
    assert refused[1][0] == "BufferError"
    assert values == [*(b"%d" % number for number in range(100)), b"again"]


def test_a_record_over_the_limit_is_refused(both: Both) -> None:
    def case(side: Side) -> Any:
        limit = {"message.max.bytes": 100_000, "blobmsg.record.max.bytes": 100_000}
        with side.producer(limit) as producer:
            return {"large": side.outcome(lambda: producer.produce("t", bytes(100_001)))}

    reason = ": a record of 100001 bytes is larger than blobmsg.record.max.bytes (100000)"

    def names_the_limit(seen: dict[str, Any]) -> dict[str, Any]:
        what, (kind, name, text, flags) = seen["large"]
        return {"large": (what, (kind, name, text + reason, flags))}

    by_stock = both.agree(case, names_the_limit)
    assert by_stock["large"][1][1] == "MSG_SIZE_TOO_LARGE"


def test_purge_drops_what_waits_for_its_topic(both: Both) -> None:
    def case(side: Side) -> Any:
        producer, reports = side.producer(_NOWHERE), Reports()
        for number in range(3):
            producer.produce("nowhere", b"%d" % number, b"k", on_delivery=reports)
        seen = [producer.purge(in_queue=False), producer.poll(0) >= 0, len(reports.outcomes)]
        seen += [producer.purge(in_flight=False, blocking=False)]
        flush(producer)
        seen += [(side.see(error), message.value()) for error, message in reports.outcomes]
        return seen, producer.close()

    (*_, last), _ = both.agree(case)
    assert last == (("_PURGE_QUEUE", "Local: Purged in queue", []), b"2")


def test_a_closed_producer_refuses_and_closes_again(both: Both) -> None:
    def case(side: Side) -> Any:
        calls = """
            produce(t, b"v")
            produce(5)
            produce_batch(t, [{"value": b"v"}])
            poll(0)
            poll(None)
            flush(0)
            purge()
            list_topics(timeout=1)
            cluster_id(1)
            set_sasl_credentials("user", "password")
            init_transactions(1)
            begin_transaction()
            commit_transaction(1)
            abort_transaction(1)
            __enter__() is None
            __len__()
            __bool__()
            close()
        """
        topic, reports = side.topic(), Reports()
        producer = side.producer()
        producer.produce(topic, b"left in the buffer", on_delivery=reports)
        closed = producer.close()
        return closed, side.see(reports.errors), side.outcomes(producer, calls, t=topic)

    def looks_first_whether_it_is_closed(seen: Any) -> Any:
        """Stock looks at arguments before that; it refuses either way."""
        closed, errors, outcomes = seen
        refused = "raised", ("RuntimeError", "Producer has been closed")
        return closed, errors, instead({"produce(5)": refused, "poll(None)": refused})(outcomes)

    closed, errors, outcomes = both.agree(case, looks_first_whether_it_is_closed)
    assert (closed, errors) == (True, [])
    assert ("raised", ("RuntimeError", "Producer has been closed")) in outcomes.values()


def test_with_closes_and_flushes_also_when_its_body_raises(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()

        def body() -> None:
            with side.producer() as producer:
                made.append(producer)
                producer.produce(topic, b"v", on_delivery=reports)
                raise LookupError("of the body")

        made: list[Any] = []
        outcome = side.outcome(body)
        return outcome, len(reports.messages()), side.outcome(lambda: made[0].poll(0))

    outcome, delivered, polled = both.agree(case)
    assert (outcome[1], delivered, polled[1][0]) == (
        ("LookupError", "of the body"), 1, "RuntimeError",
    )  # fmt: skip


def test_a_subclass_whose_init_never_ran_says_so(both: Both) -> None:
    def case(side: Side) -> Any:
        class NoInit(side.producer_class):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                pass

        calls = """
            produce("t", b"v")
            produce_batch("t", [{"value": b"v"}])
            poll(0)
            flush(0)
            purge()
            list_topics(timeout=1)
            cluster_id(1)
            set_sasl_credentials("user", "password")
            init_transactions(1)
            begin_transaction()
            send_offsets_to_transaction([], None, 1)
            commit_transaction(1)
            abort_transaction(1)
            __enter__() is None
            __bool__()
            __len__()
            close()
        """
        return side.outcomes(NoInit(), calls)

    def says_what_to_do(seen: dict[str, Any]) -> dict[str, Any]:
        """Stock says that the producer was closed, which it was not."""
        advice = ": it was never initialized, call super().__init__(conf)"
        return {
            call: (what, (result[0], result[1] + advice)) if what == "raised" else (what, result)
            for call, (what, result) in seen.items()
        }

    by_stock = both.agree(case, says_what_to_do)
    assert {error[0] for what, error in by_stock.values() if what == "raised"} == {"RuntimeError"}


def test_a_subclass_works(both: Both) -> None:
    def case(side: Side) -> Any:
        class Counting(side.producer_class):  # type: ignore[misc,name-defined]
            def __init__(self, settings: dict[str, Any]) -> None:
                super().__init__({**settings, "stats_cb": self._on_statistics})
                self.produced = 0
                # Names that one likes to give.
                self._lock = self._settings = self._callbacks = self._inner = self._closed = None
                self._pipeline = self._directory = self._statistics = self._name = self._topics = 1

            def produce(self, *args: Any, **kwargs: Any) -> None:
                self.produced += 1
                super().produce(*args, **kwargs)

            def _on_statistics(self, statistics: str) -> None:
                self._statistics = len(statistics)

            def _flush(self) -> None:
                flush(self)

            _produce = _on_error = _release = _check_usable = _flush

        topic, reports = side.topic(), Reports()
        with Counting({**side.settings(), "statistics.interval.ms": 100}) as producer:
            producer.produce(topic, b"a", on_delivery=reports)
            producer.produce_batch(topic, [{"value": b"b"}], on_delivery=reports)
            producer._flush()
            wait_until(
                lambda: producer._statistics > 1, "statistics", serve=lambda: producer.poll(0.1)
            )
        return producer.produced, [m.value() for m in reports.messages()]

    assert both.agree(case) == (1, [b"a", b"b"])


def test_a_poll_without_a_limit_ends_when_another_thread_closes_the_producer(both: Both) -> None:
    def case(side: Side) -> Any:
        producer = side.producer()
        served: list[int] = []
        thread = threading.Thread(target=lambda: served.append(producer.poll(-1)), daemon=True)
        thread.start()
        thread.join(0.3)
        is_waiting = thread.is_alive()
        producer.close()
        thread.join(10)
        return is_waiting, served

    assert both.agree(case) == (True, [0])


@needs_living_clients
def test_close_ends_threads_and_connections_though_the_producer_lives_on(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        of_others = living_clients()  # an earlier test's may end meanwhile
        producer = side.producer()
        producer.produce(topic, b"v")
        flush(producer)
        its_own = living_clients() - of_others
        producer.close()
        wait_until(lambda: not its_own & living_clients(), "its clients have ended")
        return bool(its_own), len(producer)

    assert both.agree(case, in_turn=True) == (True, 0)


def test_a_producer_that_is_garbage_warns_and_calls_nobody_back(
    both: Both, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def case(side: Side) -> Any:
        capfd.readouterr()
        caplog.clear()
        reports = Reports()
        producer = side.producer({"bootstrap.servers": "127.0.0.1:1"})
        producer.produce("nowhere", b"lost", on_delivery=reports)
        del producer
        gc.collect()
        said = capfd.readouterr().err + caplog.text
        return reports.outcomes, "flush()" in said

    assert both.agree(case, in_turn=True) == ([], True)


def test_a_process_whose_confluent_kafka_is_patched_finds_the_stock_class_underneath(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        monkeypatch.setattr(confluent_kafka, "Producer", side.producer_class)
        monkeypatch.setattr(confluent_kafka, "Consumer", side.consumer_class)
        monkeypatch.setattr(confluent_kafka, "Message", type(None))
        application = confluent_kafka
        with application.Producer(side.settings()) as producer:
            producer.produce(topic, b"v", on_delivery=reports)
            flush(producer)
            is_one = isinstance(producer, confluent_kafka.cimpl.Producer)
        with application.Consumer(side.settings({"group.id": topic})) as consumer:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            values = [message.value() for message in read(consumer, 1)]
        monkeypatch.undo()
        return reports.codes, is_one, values

    assert both.agree(case, in_turn=True) == ([None], True, [b"v"])


def test_calls_from_many_threads_deliver_every_record(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        callback_threads = set()

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            callback_threads.add(threading.current_thread())
            reports(error, message)

        with side.producer() as producer:
            workers = [
                threading.Thread(
                    target=lambda name=name: [
                        producer.produce(topic, b"%d %d" % (name, number), on_delivery=on_delivery)
                        for number in range(50)
                    ]
                )
                for name in range(3)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(60)
            # Only who polls, flushes or closes runs callbacks.
            before = len(callback_threads)
            flush(producer)
        by_worker = [
            [m.value() for m in reports.messages() if m.value().startswith(b"%d " % name)]
            for name in range(3)
        ]
        return before, callback_threads == {threading.current_thread()}, by_worker

    before, only_here, by_worker = both.agree(case)
    assert (before, only_here) == (0, True)
    assert by_worker[2] == [b"2 %d" % number for number in range(50)]


def test_a_message_of_a_batch_keeps_its_timestamp_and_headers_only_here(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        calls = """
            produce_batch(t, [{"value": b"v", "timestamp": now_ms}])
            produce_batch(t, [{"value": b"v", "headers": [("a", b"1")]}])
        """
        reports = Reports()
        with side.producer({"on_delivery": reports}) as producer:
            outcomes = side.outcomes(producer, calls, t=topic, now_ms=recent_ms())
            flush(producer)
        with side.consumer() as consumer:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            messages = read(consumer, len(reports.messages()))
        outcomes["headers"] = [message.headers() for message in messages]
        return outcomes

    stamped = 'produce_batch(t, [{"value": b"v", "timestamp": now_ms}])'
    kept = instead({stamped: ("returned", 1), "headers": [None, [("a", b"1")]]})
    assert both.agree(case, kept)[stamped][1][0] == "NotImplementedError"
