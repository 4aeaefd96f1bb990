"""A driver or worker that forks: the child forgets its parent's clients and comes to no harm."""

from __future__ import annotations

import os

import pytest

from tests.helpers.forks import KAFKA, end_of_a_forked_child

_SESSIONS = f"""
from blobmsg_spark.read_session import sessions
conf = {{**{KAFKA}, "group.id": "g", "blobmsg.store.url": "memory://forks"}}
for session in [sessions.take(conf), sessions.take(conf)]:
    sessions.give_back(conf, session)
kept = lambda: sessions._idle
"""
_TOPICS = f"""
from blobmsg.config import parse_settings
from blobmsg_spark import sink_topics
conf = {{**{KAFKA}, "blobmsg.store.url": "memory://forks"}}
for user in "ab":
    settings, kafka_conf = parse_settings({{**conf, "client.id": user}}, {{}})
    sink_topics._of_process[user] = sink_topics.SinkTopics(settings, kafka_conf)
kept = lambda: sink_topics._of_process
"""
_TRANSACTIONS = f"""
from blobmsg_spark import sink_commit
for query in "ab":
    sink_commit._kept[query] = sink_commit.SinkTransaction({KAFKA}, query)
kept = lambda: sink_commit._kept
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    "program", [_SESSIONS, _TOPICS, _TRANSACTIONS], ids=["sessions", "topics", "transactions"]
)
def test_a_forked_child_forgets_what_its_parent_keeps_and_ends_well(program: str) -> None:
    assert end_of_a_forked_child(program) == "0 2\n"
