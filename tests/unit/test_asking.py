from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg.asking import ask


class Clock:
    """Time that passes only while somebody is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(
            "blobmsg.asking.time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        )

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def failure(code: int = KafkaError._TIMED_OUT) -> KafkaException:
    return KafkaException(KafkaError(code))


class Question:
    """Takes all of the time it is given, so many times; then it is answered."""

    def __init__(self, clock: Clock, attempts: int, code: int = KafkaError._TIMED_OUT) -> None:
        self._clock = clock
        self._attempts = attempts
        self._code = code
        self.patience_s: list[float] = []

    def __call__(self, timeout_s: float) -> str:
        self.patience_s.append(timeout_s)
        if len(self.patience_s) > self._attempts:
            return "answer"
        self._clock.now_s += timeout_s
        raise failure(self._code)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    ],
)
def test_patience_grows_with_what_was_waited(clock: Clock, code: int) -> None:
    question = Question(clock, 4, code)

    assert ask(question, -1) == "answer"
    assert question.patience_s == [0.5, 0.5, 1.0, 2.0, 4.0]


def test_the_attempts_together_take_no_longer_than_they_may(clock: Clock) -> None:
    question = Question(clock, 100)

    with pytest.raises(KafkaException):
        ask(question, 3.0)
    assert question.patience_s == [0.5, 0.5, 1.0, 1.0]


def test_a_refusal_is_no_matter_of_patience(clock: Clock) -> None:
    question = Question(clock, 100, KafkaError.TOPIC_AUTHORIZATION_FAILED)

    with pytest.raises(KafkaException):
        ask(question, -1)
    assert len(question.patience_s) == 1


def test_nor_is_what_fails_at_once() -> None:
    asked: list[float] = []

    def question(timeout_s: float) -> None:
        asked.append(timeout_s)
        raise failure()

    with pytest.raises(KafkaException):
        ask(question, -1)
    assert len(asked) == 1


@pytest.mark.parametrize("timeout", [None, "5"])
def test_what_is_no_time_is_for_stock_to_refuse(timeout: Any) -> None:
    assert ask(lambda given: given, timeout) is timeout


def test_other_threads_have_no_interrupts_and_ask_once() -> None:
    asked: list[float] = []
    thread = threading.Thread(target=lambda: ask(asked.append, -1))
    thread.start()
    thread.join(10)

    assert asked == [-1]


def test_a_coordinator_that_has_moved_is_looked_for(clock: Clock) -> None:
    moves = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]
    answers = iter([*moves, KafkaError.NOT_LEADER_FOR_PARTITION, None])

    def question(_timeout_s: float) -> str:
        code = next(answers)
        if code is not None:
            raise failure(code)
        return "answer"

    assert ask(question, 10) == "answer"
    assert clock.now_s < 101


def test_a_coordinator_that_keeps_moving_is_an_error_in_the_end(clock: Clock) -> None:
    def question(_timeout_s: float) -> str:
        raise failure(KafkaError.NOT_COORDINATOR)

    with pytest.raises(KafkaException) as raised:
        ask(question, 3)

    assert raised.value.args[0].code() == KafkaError.NOT_COORDINATOR
    assert clock.now_s <= 103
