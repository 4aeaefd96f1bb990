"""The error for a topic that is named and not there, as source and sink tell it."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from blobmsg.errors import BlobmsgError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["missing_topic"]


def missing_topic(name: str, found: Collection[str], named_by: str) -> BlobmsgError:
    """The error, with the nearest topic there is.

    Args:
        name: Of the topic.
        found: The cluster's topics.
        named_by: What the user can mend, for example "option or column topic".
    """
    nearest = difflib.get_close_matches(name, found, n=1, cutoff=0.6)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return BlobmsgError(
        f"Kafka has no topic {name}, or this user may not see it.{hint} Create it, or mend the "
        f"{named_by}",
        code=KafkaError.UNKNOWN_TOPIC_OR_PART,
        topic=name,
    )
