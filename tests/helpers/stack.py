"""Real Kafka and S3 for tests: found, started, or loudly missing.

Decides where the session's stack comes from and what happens when there can be none. How servers
are run is `blobmsg.lab`'s business.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    NewTopic,
)

from blobmsg import lab
from tests.helpers.metadata import wait_until_all_know

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: In the reason of every test that is skipped because there are no servers.
NO_STACK: Final = "no real Kafka and S3"
# Thrice what servers need that were killed, when nobody else uses the cores.
_HEALING_S: Final = 60.0
# Within which a broker hands its partitions over and ends, and within which it answers again.
_RESTART_S: Final = 60.0
# Older records are deleted at a broker's next look, the first of which comes 30 s after its start.
_REFUSES_OLD: Final = {"message.timestamp.before.max.ms": str(7 * 24 * 3_600_000)}


@dataclass(frozen=True, slots=True)
class StackSource:
    """Where the session's stack will come from.

    Attributes:
        given: A stack that runs already and that the environment names; not ours to stop.
        missing: Why none can be started; "" if one can.
    """

    given: lab.Stack | None
    missing: str


def find_source(environ: Mapping[str, str]) -> StackSource:
    """Return where the session's stack will come from.

    Raises:
        lab.LabError: The environment names a stack that does not run.
    """
    given = lab.stack_from_environ(environ)
    if given is not None:
        return StackSource(given, "")
    return StackSource(None, "; ".join(lab.missing_parts()))


def without(what: str, missing: str) -> NoReturn:
    """End a test that lacks a part of the machine: skipped by name, an error in CI.

    Args:
        what: `NO_STACK` or another of the reasons that the session's end tells of.
        missing: Why.
    """
    if _is_ci(os.environ):
        pytest.fail(f"{what} in CI: {missing}", pytrace=False)
    pytest.skip(f"{what}: {missing}")


def without_servers(missing: str) -> NoReturn:
    """The same for a test that has no real servers."""
    without(NO_STACK, missing)


def _is_ci(environ: Mapping[str, str]) -> bool:
    return environ.get("CI", "").lower() in ("1", "true", "yes")


def heal(stack: lab.Stack) -> None:
    """Bring back every server that a test killed or paused."""
    dead = [node for node in stack.nodes if not node.is_running()]
    for node in stack.nodes:
        if node not in dead:
            node.resume()
    stack.start_nodes(dead)
    try:
        stack.wait_ready(_HEALING_S)
    except lab.LabError:
        # Where all brokers were killed at once, Kafka 4.1.1 may load a partition of the offsets
        # topic twice, and take no commit for it until another broker leads it (docs/results.md).
        restart_in_turn(stack.brokers)
        stack.wait_ready()


def restart_in_turn(brokers: Iterable[lab.Node]) -> None:
    """Restart one after the other, as for an upgrade: each hands its partitions over first."""
    for broker in brokers:
        broker.shut_down(_RESTART_S)
        broker.start(_RESTART_S)


def topic_factory(conf: Mapping[str, Any]) -> Callable[..., str]:
    """Return a function that makes a topic with a name of its own and returns the name.

    A topic that is made without `retention.ms` refuses records that Kafka would delete by their age
    while a test reads them: give those a time of `recent_ms`, or the topic `retention.ms`.

    Args:
        conf: How to reach the brokers.
    """
    # Quiet, because it may outlive the stack by a moment, and would complain on standard error.
    admin = AdminClient({**conf, "log_level": 0})

    def make_topic(
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        name: str = "topic",
        replicas: int = 3,
    ) -> str:
        unique = f"{name}-{uuid.uuid4().hex[:12]}"
        settings = dict(config or {})
        usual = {} if "retention.ms" in settings else _REFUSES_OLD
        topic = NewTopic(unique, partitions, replicas, config={**usual, **settings})
        lab.create_topics(admin, [topic])
        if "security.protocol" in conf:
            wait_for_leaders(admin, unique, partitions)
        else:
            wait_until_all_know(conf["bootstrap.servers"], unique, partitions)
        return unique

    return make_topic


def wait_for_leaders(client: Any, topic: str, partitions: int) -> None:
    """Return when the metadata that a client gets names a leader for every partition."""
    deadline = time.monotonic() + 30
    look_again = threading.Event()
    while True:
        found = client.list_topics(topic, timeout=10).topics[topic].partitions
        if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"topic {topic} has no leaders: {found}")
        look_again.wait(0.05)  # metadata spreads from the controller; there is no event for it
