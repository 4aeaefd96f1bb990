"""What a group has committed, asked with a consumer.

Not with an admin client: one whose group has moved to another coordinator ends the process
(librdkafka issue 5040, a null pointer; seen with 2.16.0), or asks the former coordinator for ever.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

__all__ = ["committed", "find_commits"]

# librdkafka looks every partition of an answer up in the list of all that it has asked for, so what
# an answer takes grows with the square of this.
_AT_ONCE: Final = 1000


def committed(
    consumer: Any, places: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """As `Consumer.committed`, of a consumer that reads nothing; says why Kafka does not answer.

    A broker that refuses to name the group's coordinator is a message of the consumer's, while the
    call waits for its whole time.

    Raises:
        KafkaException: Also with the broker's refusal, where stock's says `_TIMED_OUT`.
    """
    try:
        found: list[TopicPartition] = consumer.committed(places, timeout=timeout_s)
    except KafkaException as failure:
        message = consumer.poll(0) if failure.args[0].code() == KafkaError._TIMED_OUT else None
        refusal = None if message is None else message.error()
        if refusal is None or refusal.code() <= 0:  # what is only the client's says no more
            raise
        raise KafkaException(refusal) from failure
    return found


def find_commits(
    ask: Callable[[list[TopicPartition]], list[TopicPartition]],
    partitions: Iterable[tuple[str, int]],
) -> Generator[TopicPartition]:
    """Give the place and metadata of each partition in which the group has committed.

    Args:
        ask: `committed` of a client with the group's name; called several times.
        partitions: Topic and partition of what to ask for.

    Raises:
        KafkaException: The error of a partition; also what `ask` raises.
    """
    rest = iter(partitions)
    while places := [TopicPartition(*place) for place in islice(rest, _AT_ONCE)]:
        for place in ask(places):
            if place.error is not None:  # else it would look as if nothing were committed
                raise KafkaException(place.error)
            if place.offset >= 0:
                yield place
