"""Questions to Kafka that the C client waits for, and Ctrl-C meanwhile.

While C waits no signal handler of Python's runs. So a question that may be repeated is asked with
growing patience: between two attempts an interrupt comes through, after at most as long again as
has been waited already.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ask", "insist"]

_T = TypeVar("_T")

# As a rule the answer comes within it, and nothing is asked twice.
_FIRST_S: Final = 0.5
_NO_ANSWER: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
# The group's coordinator or a partition's leader has moved. The C client looks for the new one, and
# raises all the same.
_MOVED: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
_LOOKS_FOR_IT_S: Final = 0.1


def ask(question: Callable[[float], _T], timeout_s: float) -> _T:
    """Ask until there is an answer, or the time is over.

    Args:
        question: Takes seconds to wait at most, negative: no limit; raises what tells that there
            was no answer. May be asked again.
        timeout_s: Seconds in all; negative: no limit.

    Raises:
        KafkaException: What the last attempt has raised.

    Threads: any; only on the main thread, which alone has interrupts, there is more than one
    attempt.
    """
    # Else it is stock's to refuse.
    is_number = isinstance(timeout_s, (int, float))  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_number or threading.current_thread() is not threading.main_thread():
        return question(timeout_s)
    return insist(
        question,
        timeout_s,
        lambda error: error.code() in _NO_ANSWER,
        passing=_MOVED,
        monotonic_s=time.monotonic,
    )


def insist(
    question: Callable[[float], _T],
    timeout_s: float,
    is_no_answer: Callable[[KafkaError], bool],
    most_s: float = math.inf,
    *,
    passing: frozenset[int] = frozenset(),
    monotonic_s: Callable[[], float],
) -> _T:
    """Ask with growing patience until there is an answer, or the time is over.

    Args:
        question: As of `ask`.
        timeout_s: As of `ask`.
        is_no_answer: Whether an error that took its time is worth another attempt.
        most_s: The longest attempt.
        passing: Codes of errors that come at once and pass soon.
        monotonic_s: Time.

    Raises:
        KafkaException: What the last attempt has raised.
    """
    started = monotonic_s()
    while True:
        began = monotonic_s()
        patience_s = min(most_s, max(_FIRST_S, began - started))
        if 0 <= timeout_s <= began - started + patience_s:
            return question(max(0.0, timeout_s - (began - started)))
        try:
            return question(patience_s)
        except KafkaException as failure:
            if failure.args[0].code() in passing:
                time.sleep(_LOOKS_FOR_IT_S)
                continue
            # One that comes before its time is no matter of patience.
            waited_s = monotonic_s() - began
            if not is_no_answer(failure.args[0]) or waited_s < patience_s / 2:
                raise
