"""Events that wait to be served: what counts them, which call and which thread serves them."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.helpers.records import Reports, partition, read, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

_NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
_OFTEN = {"statistics.interval.ms": 100}


def test_statistics_and_errors_that_wait_are_counted_and_served_by_one_poll(both: Both) -> None:
    def case(side: Side) -> Any:
        texts: list[str] = []
        errors: list[Any] = []
        callbacks = {"stats_cb": texts.append, "error_cb": errors.append}
        with side.producer({**_NOWHERE, **_OFTEN, **callbacks}) as producer:
            wait_until(lambda: len(producer) >= 5, "events")  # nobody serves them
            unserved, heard_before = len(producer), len(texts) + len(errors)
            served = producer.poll(0)
            heard = len(texts) + len(errors)
            # One may come between; none is left out and none is counted twice.
            return heard_before, served >= unserved, served == heard, bool(texts and errors)

    assert both.agree(case) == (0, True, True, True)


def test_records_that_are_acknowledged_and_not_served_are_counted(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        with side.producer() as producer:
            for number in range(3):
                producer.produce(topic, b"%d" % number, on_delivery=reports)
            with side.consumer() as consumer:
                consumer.assign([partition(topic, 0, 0)])
                read(consumer, 3)
            # Stock counts the brokers' answer beside its records, too.
            unserved, heard_before = len(producer) >= 3, len(reports.outcomes)
            wait_until(
                lambda: len(reports.outcomes) == 3, "reports", serve=lambda: producer.poll(0.1)
            )
            return unserved, heard_before, len(producer)

    assert both.agree(case) == (True, 0, 0)


class _Threads:
    """Callbacks that note on which threads they ran."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {}

    def noting(self, callback: str) -> Callable[..., None]:
        def ran(*_: Any) -> None:
            self.names.setdefault(callback, set()).add(threading.current_thread().name)

        return ran

    def served_by(self, call: Callable[[], Any], wanted: set[str]) -> Any:
        """What ran while nobody served, and what another thread's calls ran until all had."""
        time.sleep(0.3)  # events come, and nobody serves them
        unserved = dict(self.names)

        def serve() -> None:
            while wanted - self.names.keys():
                call()

        server = threading.Thread(target=serve, name="the one that calls")
        server.start()
        server.join(60)
        is_over = not server.is_alive()
        return unserved, is_over, {name: sorted(self.names[name]) for name in wanted}


def test_callbacks_of_a_producer_run_on_the_thread_that_calls(readers: Both) -> None:
    def case(side: Side) -> Any:
        threads = _Threads()
        callbacks = {"stats_cb": threads.noting("statistics"), "error_cb": threads.noting("error")}
        producer = side.producer({**_NOWHERE, **_OFTEN, **callbacks})
        producer.produce("nowhere", b"v", on_delivery=threads.noting("delivery"))
        served = threads.served_by(lambda: producer.flush(0.1), {"statistics", "error"})
        producer.purge()
        producer.flush(10)
        return served, sorted(threads.names["delivery"])

    served, delivered_on = readers.agree(case, in_turn=True)
    on_it = ["the one that calls"]
    assert served == ({}, True, {"statistics": on_it, "error": on_it})
    assert delivered_on == ["MainThread"]


@pytest.mark.parametrize("call", ["poll", "consume"])
def test_callbacks_of_a_consumer_run_on_the_thread_that_calls(
    readers: Both, filled: Callable[[Side], str], call: str
) -> None:
    def case(side: Side) -> Any:
        threads = _Threads()
        more = {"auto.commit.interval.ms": 100, "auto.offset.reset": "earliest"}
        callbacks = {
            "stats_cb": threads.noting("statistics"),
            "on_commit": threads.noting("commit"),
        }
        consumer = side.consumer({**_OFTEN, **more, **callbacks})
        consumer.subscribe([filled(side)], threads.noting("assign"), threads.noting("revoke"))
        calls = {"poll": lambda: consumer.poll(0.1), "consume": lambda: consumer.consume(10, 0.1)}
        served = threads.served_by(calls[call], {"statistics", "commit", "assign"})
        consumer.close()
        return served, sorted(threads.names["revoke"])

    served, revoked_on = readers.agree(case, in_turn=True)
    on_it = ["the one that calls"]
    assert served == ({}, True, {"statistics": on_it, "commit": on_it, "assign": on_it})
    assert revoked_on == ["MainThread"]


@pytest.mark.parametrize("callback", ["on_commit", "on_lost"])
def test_an_exception_of_a_consumers_callback_comes_out_of_poll(
    readers: Both, filled: Callable[[Side], str], callback: str
) -> None:
    def case(side: Side) -> Any:
        def angry(*_: Any) -> None:
            raise LookupError("angry")

        group = f"angry-{uuid.uuid4().hex}"
        more: dict[str, Any] = {"group.id": group, "auto.offset.reset": "earliest"}
        more |= {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000}
        if callback == "on_commit":
            more |= {"on_commit": angry, "enable.auto.commit": False}
        consumer = side.consumer(more)
        raised: list[Any] = []

        def poll() -> None:
            what, result = side.outcome(lambda: consumer.poll(0.2))
            if what == "raised":
                raised.append(result)

        if callback == "on_commit":
            consumer.commit(offsets=[TopicPartition(filled(side), 1, side.position(3))])
        else:
            consumer.subscribe([filled(side)], on_lost=angry)
            wait_until(lambda: bool(consumer.assignment()), "assigned", serve=poll)
            time.sleep(8)  # longer than it may be silent
        wait_until(lambda: bool(raised), "raised", serve=poll)
        side.outcome(consumer.close)
        return raised[0]

    assert readers.agree(case) == ("LookupError", "angry")
