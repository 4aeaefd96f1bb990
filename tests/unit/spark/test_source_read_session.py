from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from blobmsg.errors import ConfigError
from blobmsg.resources import Stores
from blobmsg_spark.read_session import Sessions, open_consumer

if TYPE_CHECKING:
    from collections.abc import Iterator

CONF = {
    "bootstrap.servers": "127.0.0.1:9",
    "group.id": "g",
    "log_level": "0",
    "blobmsg.store.url": "memory://sessions",
}


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    sessions = Sessions()
    yield sessions
    sessions.close()


def test_the_next_task_with_the_same_settings_gets_the_same_clients(sessions: Sessions) -> None:
    first = sessions.take(CONF)
    sessions.give_back(CONF, first)

    assert sessions.take(dict(CONF)) is first
    first.close()


def test_tasks_at_the_same_time_have_clients_of_their_own(sessions: Sessions) -> None:
    first, second = sessions.take(CONF), sessions.take(CONF)

    assert first.consumer is not second.consumer
    sessions.give_back(CONF, first)
    sessions.give_back(CONF, second)


def test_other_settings_have_other_clients(sessions: Sessions) -> None:
    first = sessions.take(CONF)
    sessions.give_back(CONF, first)
    other = sessions.take({**CONF, "blobmsg.fetch.threads": "1"})

    assert other is not first
    other.close()


def test_what_librdkafka_refuses_is_an_error_of_the_option() -> None:
    with pytest.raises(ConfigError, match=r"an option kafka\.\*: .*bootstrap\.server"):
        open_consumer({"bootstrap.server": "x", "group.id": "g"}, 1 << 20)


def test_what_was_opened_before_a_refusal_is_closed(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Stores] = []

    def close(stores: Stores) -> None:
        closed.append(stores)

    monkeypatch.setattr(Stores, "close", close)

    with pytest.raises(ConfigError):
        sessions.take({**CONF, "bootstrap.server": "x"})

    assert len(closed) == 1


def test_the_users_own_aliases_do_not_undo_what_the_source_needs() -> None:
    conf = {"group.id": "g", "topic.auto.offset.reset": "earliest", "log_level": "0"}

    open_consumer(conf, 1 << 20).close()
