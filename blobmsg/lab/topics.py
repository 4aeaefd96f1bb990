"""Topics in the stack."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["create_topics"]

_SPREADS_S: Final = 20.0
_ANSWER_S: Final = 60.0
_ASK_AGAIN_S: Final = 0.1  # no event tells that a broker takes connections again


def create_topics(admin: Any, topics: Iterable[Any]) -> None:
    """Make topics whose names nobody else uses.

    Where a request got no answer there may be a topic all the same, and it is ours: the client has
    asked again because a broker had closed the connection, as it does with one that was idle for
    ten minutes; or the broker has, because the controller ended meanwhile.

    Args:
        admin: An AdminClient.
        topics: What to make, as `NewTopic`.

    Raises:
        LabError: A topic can't be made; others may have been.
    """
    missing = {topic.topic: topic for topic in topics}
    deadline = time.monotonic() + _ANSWER_S
    while missing:
        made = admin.create_topics(
            list(missing.values()), operation_timeout=_SPREADS_S, request_timeout=_ANSWER_S
        )
        for name, answer in made.items():
            failure: BaseException | None = answer.exception()
            if failure is None or _code(failure) == KafkaError.TOPIC_ALREADY_EXISTS:
                del missing[name]
            elif _code(failure) != KafkaError._TRANSPORT or time.monotonic() >= deadline:
                raise LabError(f"topic {name} can't be made: {failure}") from failure
        if missing:
            time.sleep(_ASK_AGAIN_S)


def _code(failure: BaseException) -> int | None:
    return failure.args[0].code() if isinstance(failure, KafkaException) else None
