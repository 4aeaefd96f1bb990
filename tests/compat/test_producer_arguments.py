"""What a producer's calls accept and refuse, with stock's errors and texts."""

from __future__ import annotations

import enum
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tests.compat.differences import instead, says_why
from tests.helpers.records import flush, produce

if TYPE_CHECKING:
    from tests.helpers.both import Both, Side

_MAY_CHANGE = ": the record is sent later, when its buffer may have changed; pass bytes(...)"

_PRODUCE = """
    produce()
    produce(None, b"v")
    produce(5, b"v")
    produce(b"t", b"v")
    produce("a\\0b", b"v")
    produce("\\ud800", b"v")
    produce(t, 5)
    produce(t, 1.5)
    produce(t, True)
    produce(t, ["v"])
    produce(t, "\\ud800")
    produce(t, bytearray(b"v"))
    produce(t, memoryview(b"v"))
    produce(t, b"v", 5)
    produce(t, b"v", bytearray(b"k"))
    produce(t, b"v", "\\ud800")
    produce(t, b"v", partition="0")
    produce(t, b"v", partition=0.5)
    produce(t, b"v", partition=None)
    produce(t, b"v", partition=1 << 31)
    produce(t, b"v", partition=-1 << 40)
    produce(t, b"v", partition=1 << 64)
    produce(t, b"v", timestamp="now")
    produce(t, b"v", timestamp=None)
    produce(t, b"v", timestamp=1.5)
    produce(t, b"v", timestamp=1 << 63)
    produce(t, b"v", timestamp=-1 << 70)
    produce(t, b"v", b"k", timestamp=1 << 63)
    produce(t, b"v", headers=5)
    produce(t, b"v", headers="a=b")
    produce(t, b"v", headers=iter([("a", "b")]))
    produce(t, b"v", headers=(("a", "b"),))
    produce(t, b"v", headers=[("a",)])
    produce(t, b"v", headers=[("a", "b", "c")])
    produce(t, b"v", headers=["ab"])
    produce(t, b"v", headers=[["a", "b"]])
    produce(t, b"v", headers=[("a", 5)])
    produce(t, b"v", headers=[("a", bytearray(b"b"))])
    produce(t, b"v", headers={"a": 5})
    produce(t, b"v", colour="red")
    produce(t, topic=t)
    produce(t, b"v", b"k", 0, None, None, 0, None, 5)
"""


def test_wrong_arguments_of_produce(both: Both) -> None:
    def case(side: Side) -> Any:
        with side.producer() as producer:
            return side.outcomes(producer, _PRODUCE, t=side.topic())

    because = {
        'produce(t, bytearray(b"v"))': _MAY_CHANGE,
        'produce(t, memoryview(b"v"))': _MAY_CHANGE,
        'produce(t, b"v", bytearray(b"k"))': _MAY_CHANGE,
    }
    by_stock = both.agree(case, says_why(because))
    assert {what for what, _ in by_stock.values()} == {"raised"}


def test_wrong_arguments_hurt_no_other_record(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, codes = side.topic(), []
        with side.producer() as producer:
            for number in range(3):
                producer.produce(
                    topic, b"%d" % number, on_delivery=lambda error, _: codes.append(error)
                )
                side.outcomes(producer, _PRODUCE, t=topic)
            flush(producer)
        return codes

    assert both.agree(case) == [None] * 3


def test_wrong_arguments_of_the_other_calls(both: Both) -> None:
    def case(side: Side) -> Any:
        calls = """
            poll(None)
            poll("1")
            poll(0, 1)
            poll(colour=1)
            flush(None)
            flush("1")
            flush(hour)
            poll(hour)
            flush(0, 1)
            purge(colour="red")
            list_topics(5, 1)
            list_topics(t, None)
            list_topics(t, "1")
            list_topics("a\\0b", 1)
            cluster_id(None)
            cluster_id("1")
            set_sasl_credentials()
            set_sasl_credentials("user")
            set_sasl_credentials(None, None)
            set_sasl_credentials(5, 6)
            begin_transaction(5)
            nothing_of_this_name()
        """
        with side.producer() as producer:
            return side.outcomes(producer, calls, t=side.topic(), hour=timedelta(hours=1))

    by_stock = both.agree(case)
    assert {what for what, _ in by_stock.values()} == {"raised"}


def test_unusual_arguments_that_are_no_mistake(both: Both) -> None:
    def case(side: Side) -> Any:
        calls = """
            poll(0)
            poll(False)
            poll(timeout=0)
            flush()
            flush(0)
            flush(False)
            flush(half)
            poll(half)
            flush(timeout=1)
            flush(-1)
            purge(True, False, 0)
            purge(in_queue="yes", in_flight=None, blocking=[])
            set_sasl_credentials("user", "password")
            set_sasl_credentials(username="user", password="password")
            produce_batch(t, [])
            __bool__()
            __len__()
        """
        with side.producer() as producer:
            return side.outcomes(producer, calls, t=side.topic(), half=Fraction(1, 2))

    by_stock = both.agree(case)
    assert {what for what, _ in by_stock.values()} == {"returned"}


def test_a_wrong_message_of_a_batch_is_named_and_none_of_it_is_queued(both: Both) -> None:
    def case(side: Side) -> Any:
        calls = """
            produce_batch(t, [good, 5])
            produce_batch(t, [good, ("value", b"v")])
            produce_batch(t, [good, {"value": 5}])
            produce_batch(t, [good, {"value": True}])
            produce_batch(t, [good, {"value": bytearray(b"v")}])
            produce_batch(t, [good, {"value": memoryview(b"v")}])
            produce_batch(t, [good, {"key": 5}])
            produce_batch(t, [good, {"key": bytearray(b"k")}])
            produce_batch(t, [good, {"partition": "0"}])
            produce_batch(t, [good, {"partition": 0.5}])
            produce_batch(t, [good, {"headers": 5}])
            produce_batch(t, [good, {"headers": [("a", 5)]}])
            produce_batch()
            produce_batch(t)
            produce_batch(5, [])
            produce_batch(None, [])
            produce_batch("a\\0b", [good])
            produce_batch(t, None)
            produce_batch(t, (good,))
            produce_batch(t, good)
            produce_batch(t, [good], partition="0")
            produce_batch(t, [good], partition=1 << 40)
            produce_batch(t, [good], colour="red")
        """
        with side.producer() as producer:
            good = {"value": b"v", "key": b"k"}
            return side.outcomes(producer, calls, t=side.topic(), good=good), len(producer), good

    outcomes, queued, good = both.agree(case)
    assert {what for what, _ in outcomes.values()} == {"raised"}
    assert queued == 0
    assert good == {"value": b"v", "key": b"k"}


def test_numbers_of_a_batch_that_are_too_large(both: Both) -> None:
    beyond_32_bits = 'produce_batch(t, [{"value": b"v", "partition": 1 << 32}])'

    def case(side: Side) -> Any:
        with side.producer() as producer:
            return side.outcomes(producer, beyond_32_bits, t=side.topic())

    # Stock takes the lowest 32 bits, which is another partition.
    refused = "raised", ("OverflowError", "signed integer is greater than maximum")
    both.agree(case, instead({beyond_32_bits: refused}))


def test_transactions_without_an_id(both: Both) -> None:
    def case(side: Side) -> Any:
        calls = """
            init_transactions(1)
            begin_transaction()
            commit_transaction(1)
            abort_transaction(1)
        """
        with side.producer() as producer:
            return side.outcomes(producer, calls)

    by_stock = both.agree(case)
    assert {error[1] for _, error in by_stock.values()} == {"_NOT_CONFIGURED"}


def test_a_topic_whose_class_is_below_str(both: Both) -> None:
    def case(side: Side) -> Any:
        name = side.topic()
        topics = enum.Enum("topics", {"orders": name}, type=str)
        heard: list[Any] = []

        def on_delivery(error: Any, message: Any) -> None:
            heard.append((error, message.value(), side.see(message.topic()), type(message.topic())))

        with side.producer() as producer:
            for key in (b"key", None):
                producer.produce(topics.orders, b"1", key, on_delivery=on_delivery)
                flush(producer)
            messages = [{"value": b"2", "key": b"key"}, {"value": b"3"}]
            counted = producer.produce_batch(topics.orders, messages, on_delivery=on_delivery)
            flush(producer)
        return counted, heard

    counted, heard = both.agree(case)
    assert (counted, [value for _, value, *_ in heard]) == (2, [b"1", b"1", b"2", b"3"])


class _Heard(list[bytes]):
    """A callback that is false as long as it has heard nothing."""

    def __call__(self, _error: Any, message: Any) -> None:
        self.append(message.value())


def test_a_callback_that_counts_as_false(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        heard = [_Heard() for _ in range(4)]
        with side.producer() as producer:
            producer.produce(topic, b"0", callback=heard[0])
            producer.produce(topic, b"1", on_delivery=heard[1])
            producer.produce_batch(topic, [{"value": b"2"}], callback=heard[2])
            producer.produce_batch(topic, [{"value": b"3", "callback": heard[3]}])
            flush(producer)
        return heard

    assert both.agree(case) == [[b"0"], [b"1"], [b"2"], [b"3"]]


def test_no_messages_at_most_is_no_limit(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        with side.producer({"queue.buffering.max.messages": 0}) as producer:
            for number in range(20):
                producer.produce(topic, b"%d" % number)
            flush(producer)
            produce(producer, topic, b"one more")
            return producer.flush()

    assert both.agree(case) == 0
