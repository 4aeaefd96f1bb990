"""Where a demo runs: librdkafka's mock cluster and a folder, or real brokers and MinIO.

A stage is what the session needs of a place: addresses, settings, zones of the partitions, what
lies in the store. How real servers are run is `blobmsg.lab`'s business.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from blobmsg import lab
from blobmsg.config import parse_settings
from blobmsg.demo import mock_kafka
from blobmsg.demo.errors import DemoError
from blobmsg.store.open import open_store, resolve_store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from blobmsg.demo.children import Children
    from blobmsg.store.base import Store

__all__ = ["PARTITIONS", "RETENTION_MS", "ZONES", "Stage", "embedded_stage", "real_stage"]

ZONES: Final = mock_kafka.ZONES
PARTITIONS: Final = mock_kafka.PARTITIONS
#: Of the topics, so of the objects: a day, a common choice for events.
RETENTION_MS: Final = 24 * 3600 * 1000

_REPLICAS: Final = 3
# The stack that `blobmsg dev up` starts.
_DEV_STACK: Final = "dev"
_LEADERS_TIMEOUT_S: Final = 30.0
_LATE_UPLOAD_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Stage:
    """A place to run.

    Attributes:
        kafka: What it is, for the report.
        store: Likewise.
        bootstrap_servers: Of its Kafka.
        conf: Settings of blobmsg's clients beyond those of all clients.
        partition_zones: Zone in which each partition is read, by topic.
    """

    kafka: str
    store: str
    bootstrap_servers: str
    conf: dict[str, Any]
    partition_zones: dict[str, tuple[str, ...]]

    def objects(self) -> dict[str, int]:
        """Sizes of the objects in the store, by key; counted there, not by the clients."""
        with self._store() as store:
            return {entry.key: entry.size_bytes for entry in store.list_keys()}

    def remove_objects(self) -> None:
        """Empty the store's prefix, whose writers have ended.

        A store may finish an upload that it had whole when the writer was killed: it is looked
        at again until nothing new has come.
        """
        with self._store() as store:
            while True:
                time.sleep(_LATE_UPLOAD_S)
                keys = [entry.key for entry in store.list_keys()]
                if not keys:
                    return
                store.delete(keys)

    @contextlib.contextmanager
    def _store(self) -> Generator[Store]:
        settings, _ = parse_settings(self.conf, {})
        store = open_store(resolve_store_url("", settings), settings)
        try:
            yield store
        finally:
            store.close()


def embedded_stage(folder: Path, children: Children, topics: Sequence[str]) -> Stage:
    """Start a mock cluster with these topics; the store is a folder.

    Raises:
        DemoError: It does not start.
    """
    host = children.start("kafka", "blobmsg.demo.mock_kafka", topics)
    bootstrap_servers: str = children.wait("ready", [host])[host.name]["bootstrap_servers"]
    return Stage(
        kafka="librdkafka's mock cluster, 3 brokers in one process",
        store="a local folder",
        bootstrap_servers=bootstrap_servers,
        conf={
            "blobmsg.store.url": folder.as_uri(),
            # It keeps 5 MiB per partition, so plain records must not get there; and it can't say
            # what a topic's settings or the brokers' racks are.
            "blobmsg.route": "blob",
            "blobmsg.retention.ms": RETENTION_MS,
            "blobmsg.destination": f"static:{','.join(ZONES)}",
        },
        partition_zones={
            topic: tuple(ZONES[number % len(ZONES)] for number in range(PARTITIONS))
            for topic in topics
        },
    )


@contextlib.contextmanager
def real_stage(
    topics: Sequence[str], children: Children, report: Callable[[str], None]
) -> Generator[Stage]:
    """Use the running stack, else one started for the length of the block; adds topics to it.

    Args:
        topics: Made at the start and removed at the end.
        children: Ended before what they wrote is removed.
        report: Gets a line about what is done.

    Raises:
        lab.PartsMissing: A tool for starting one is not there.
        lab.LabError: It did not come up, or the topics can't be made.
        DemoError: The topics have no leaders.
    """
    with contextlib.ExitStack() as stack_of_contexts:
        stack = _running_stack()
        is_ours = stack is None
        if stack is None:
            report("starting three brokers and MinIO")
            stack = stack_of_contexts.enter_context(lab.start_stack(report=report))
        else:
            report(f"using the stack {stack.name}, which runs")
        prefix = f"demo/{uuid.uuid4().hex[:12]}"
        admin: Any = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        config = {"retention.ms": str(RETENTION_MS)}
        lab.create_topics(
            admin, [NewTopic(topic, PARTITIONS, _REPLICAS, config=config) for topic in topics]
        )
        stage = Stage(
            kafka=f"3 brokers ({stack.state.runtime}), replication factor {_REPLICAS}",
            store="MinIO",
            bootstrap_servers=stack.bootstrap_servers,
            conf={
                **{k: v for k, v in stack.conf(prefix).items() if k.startswith("blobmsg.")},
                "blobmsg.destination": "leader",
            },
            partition_zones={topic: _leader_zones(admin, topic) for topic in topics},
        )
        try:
            yield stage
        finally:
            children.end_all()  # on Ctrl-C they still write
            if not is_ours:  # leave it as it was
                stage.remove_objects()
                for future in admin.delete_topics(list(topics), operation_timeout=5).values():
                    future.exception(timeout=10)


def _running_stack() -> lab.Stack | None:
    stack = lab.stack_from_environ(os.environ) or lab.find_stack(_DEV_STACK)
    return stack if stack is not None and stack.is_running() else None


def _leader_zones(admin: Any, topic: str) -> tuple[str, ...]:
    """Rack of each partition's leader, where `blobmsg.destination=leader` sends it, too."""
    deadline = time.monotonic() + _LEADERS_TIMEOUT_S
    while time.monotonic() < deadline:
        nodes = admin.describe_cluster(request_timeout=10).result(timeout=15).nodes
        racks = {node.id: node.rack or "" for node in nodes}
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
        leaders = [partitions[number].leader for number in sorted(partitions)]
        if len(leaders) == PARTITIONS and all(leader in racks for leader in leaders):
            return tuple(racks[leader] for leader in leaders)
        time.sleep(0.1)
    raise DemoError(f"topic {topic} has no leaders after {_LEADERS_TIMEOUT_S:.0f} s")
