"""Messages, partitions and errors as they come out of calls."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tests.helpers.records import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

    Filled = Callable[[Side], str]


def _read(side: Side, topic: str, count: int) -> list[Any]:
    with side.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return read(consumer, count)


def test_all_that_a_message_tells(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        messages = _read(side, filled(side), 4)
        names = [name for name in dir(Message) if not name.startswith("_")]
        told = [[name for name in names if callable(getattr(m, name))] for m in messages]
        # Some have been through the store and some have not.
        return [isinstance(m, Message) for m in messages], told, messages

    _, _, messages = readers.agree(case)
    assert [message["offset"] for message in messages] == [0, 1, 2, 3]
    assert messages[0]["headers"] == [("number", b"0")]


def test_a_message_compares_copies_and_pickles_and_has_no_hash(
    readers: Both, filled: Filled
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        messages, again = _read(side, topic, 2), _read(side, topic, 2)
        seen: list[Any] = []
        for message, same in zip(messages, again, strict=True):
            pickled = pickle.loads(pickle.dumps(message))  # noqa: S301
            seen += [side.see_message(pickled), pickled == message, message == same]
            seen += [message != same, message == 5, message != 5, message in messages]
            seen.append(side.outcome(lambda m=message: hash(m))[1][0])  # type: ignore[misc]
            seen.append(side.outcome(lambda m=message: m < m)[1][0])  # type: ignore[misc]
            seen += [copy.deepcopy(message) == message]
        return [*seen, messages[0] == messages[1]]

    by_stock = readers.agree(case)
    assert by_stock[1:8] == [True, True, False, False, True, True, "TypeError"]


def test_setters_change_the_message_alone(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        first, second = _read(side, filled(side), 2)
        untouched: list[Any] = [side.see_message(second)]
        for message in (first, second):
            returned = [
                message.set_key({"a": 1}),
                message.set_value([1, 2, 3]),
                message.set_headers([("b", b"2")]),
                message.set_topic("another"),
                message.set_error(KafkaError(KafkaError._TRANSPORT)),
            ]
            told = [message.key(), message.value(), message.headers(), message.topic()]
            untouched += [returned, told, side.see(message.error()), len(message)]
            message.set_error(None)
            message.set_value(None)
            untouched += [message.error(), message.value(), len(message), bool(message)]
        return untouched

    readers.agree(case)


def test_a_message_made_by_the_user_can_be_committed(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        last = side.position(4) - 1
        with side.consumer({"enable.auto.commit": False}) as consumer:
            made = Message(topic=topic, partition=0, offset=last)
            return consumer.commit(message=made, asynchronous=False)

    [place] = readers.agree(case)
    assert place["offset"] == 4


def test_errors_of_calls_compare_and_pickle_like_stock_errors(readers: Both) -> None:
    def case(side: Side) -> Any:
        with side.consumer() as consumer, side.producer() as producer:
            errors = [
                _error_of(lambda: consumer.commit(asynchronous=False)),
                _error_of(lambda: consumer.subscribe([])),
                _error_of(producer.begin_transaction),
            ]
        return [
            {
                "error": side.see(error),
                "type": type(error).__name__,
                "equal": (error == error.code(), error != error.code(), error == 5),
                "texts": (str(error), repr(error)),
                "pickled": pickle.loads(pickle.dumps(error)) == error,  # noqa: S301
            }
            for error in errors
        ]

    assert [each["pickled"] for each in readers.agree(case)] == [True] * 3


def test_an_exception_of_kafkas_pickles_only_as_ours(readers: Both) -> None:
    def case(side: Side) -> Any:
        with side.producer() as producer:
            raised = _exception_of(producer.begin_transaction)
        pickled = side.outcome(lambda: pickle.loads(pickle.dumps(raised)).args[0])  # noqa: S301
        return {"pickled": pickled[0]}

    readers.agree(case)


def _exception_of(call: Callable[[], Any]) -> KafkaException:
    with pytest.raises(KafkaException) as caught:
        call()
    return caught.value


def _error_of(call: Callable[[], Any]) -> KafkaError:
    [error] = _exception_of(call).args
    assert isinstance(error, KafkaError)
    return error
