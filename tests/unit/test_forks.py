"""A process that forks: its child comes to no harm, whatever the parent has open."""

from __future__ import annotations

import os

import pytest

from tests.helpers.forks import KAFKA, end_of_a_forked_child

_PRODUCERS = f"""
import blobmsg
from blobmsg import producer
conf = {{**{KAFKA}, "blobmsg.store.url": "memory://forks"}}
clients = [blobmsg.BlobProducer(conf) for _ in range(2)]
kept = lambda: producer._open
"""
_CONSUMERS = f"""
import blobmsg
from blobmsg import consumer
conf = {{**{KAFKA}, "group.id": "g", "blobmsg.store.url": "memory://forks"}}
clients = [blobmsg.BlobConsumer(conf) for _ in range(2)]
kept = lambda: consumer._open
"""
_RESOURCES = f"""
from blobmsg.resources import SharedAdmin, shared
for user in "ab":
    SharedAdmin({{**{KAFKA}, "client.id": user}})
kept = lambda: shared._held
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    "program", [_PRODUCERS, _CONSUMERS, _RESOURCES], ids=["producers", "consumers", "resources"]
)
def test_a_forked_child_forgets_what_its_parent_has_and_ends_well(program: str) -> None:
    assert end_of_a_forked_child(program) == "0 2\n"
