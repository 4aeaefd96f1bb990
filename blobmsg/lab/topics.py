"""Topics in the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["create_topics"]

_SPREADS_S: Final = 20.0
_ANSWER_S: Final = 60.0


def create_topics(admin: Any, topics: Iterable[Any]) -> None:
    """Make topics whose names nobody else uses.

    A broker hands the request to the controller, and once more to the next one when that ends
    meanwhile. If the first had made the topic, the answer is that there is one: ours.

    Args:
        admin: An AdminClient.
        topics: What to make, as `NewTopic`.

    Raises:
        LabError: A topic can't be made; others may have been.
    """
    made = admin.create_topics(
        list(topics), operation_timeout=_SPREADS_S, request_timeout=_ANSWER_S
    )
    for topic, answer in made.items():
        failure: BaseException | None = answer.exception()
        if failure is not None and not _is_there(failure):
            raise LabError(f"topic {topic} can't be made: {failure}") from failure


def _is_there(failure: BaseException) -> bool:
    return (
        isinstance(failure, KafkaException)
        and failure.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    )
