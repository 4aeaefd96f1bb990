from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, not re-exported

from blobmsg.lab import LabError, create_topics


class FakeAdmin:
    """Answers for each topic with the error of its name, if it is one's; the first time."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def create_topics(self, topics: list[NewTopic], **_limits: float) -> dict[str, Future[None]]:
        return {topic.topic: self._answer(topic.topic) for topic in topics}

    def _answer(self, name: str) -> Future[None]:
        future: Future[Any] = Future()
        code = None if name in self.asked else getattr(KafkaError, name, None)
        self.asked.append(name)
        if code is None:
            future.set_result(None)
        else:
            future.set_exception(KafkaException(KafkaError(code)))
        return future


def test_topics_that_a_repeated_request_finds_are_made() -> None:
    topics = [NewTopic(name, 1) for name in ("new", "TOPIC_ALREADY_EXISTS")]

    create_topics(FakeAdmin(), topics)


def test_a_topic_is_asked_for_again_where_the_connection_was_closed() -> None:
    admin = FakeAdmin()

    create_topics(admin, [NewTopic(name, 1) for name in ("new", "_TRANSPORT")])

    assert admin.asked == ["new", "_TRANSPORT", "_TRANSPORT"]


def test_a_topic_that_cannot_be_made_is_named() -> None:
    topics = [NewTopic(name, 1) for name in ("new", "INVALID_REPLICATION_FACTOR")]

    with pytest.raises(LabError, match="topic INVALID_REPLICATION_FACTOR can't be made"):
        create_topics(FakeAdmin(), topics)
