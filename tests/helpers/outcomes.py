"""What calls of a client give, as plain values that can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

if TYPE_CHECKING:
    from collections.abc import Callable


def name_of(error: Any) -> str:
    """An error, by what a program would look at."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    if isinstance(error, KafkaError):
        return f"{error.name()}{' fatal' if error.fatal() else ''}"
    return repr(error)


def outcome_of(call: Callable[[], object]) -> str:
    """What a call gives that returns nothing: "ok", or its error."""
    try:
        call()
    except KafkaException as failure:
        return name_of(failure)
    return "ok"
