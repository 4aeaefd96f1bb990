"""What a group has committed, asked with a consumer.

Not with an admin client: one whose group has moved to another coordinator ends the process
(librdkafka issue 5040, a null pointer; seen with 2.16.0), or asks the former coordinator for ever.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

__all__ = ["find_commits"]

# librdkafka looks every partition of an answer up in the list of all that it has asked for.
_AT_ONCE: Final = 1000


def find_commits(
    committed: Callable[[list[TopicPartition]], list[TopicPartition]],
    partitions: Iterable[tuple[str, int]],
) -> Generator[TopicPartition]:
    """Give the place and metadata of each partition in which the group has committed.

    Args:
        committed: `Consumer.committed` of a client with the group's name; called several times.
        partitions: Topic and partition of what to ask for.

    Raises:
        KafkaException: The error of a partition; also what `committed` raises.
    """
    rest = iter(partitions)
    while places := [TopicPartition(*place) for place in islice(rest, _AT_ONCE)]:
        for place in committed(places):
            if place.error is not None:  # else it would look as if nothing were committed
                raise KafkaException(place.error)
            if place.offset >= 0:
                yield place
