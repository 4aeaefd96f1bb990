"""The cluster under test: topics and objects made for one piece and gone after it.

Starts the stack of `blobmsg.lab` unless the environment names one, runs pieces in processes of
their own, and leaves nothing behind, also on Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blobmsg.lab import create_topics, stack_from_environ, start_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobmsg.lab import Stack

__all__ = ["Cluster", "PieceFailed", "open_cluster"]

REPLICATION_FACTOR = 3
# Stock may try batches of 4 MiB; the broker's own limit is 1 MiB.
_MAX_MESSAGE_BYTES = 8 << 20
_ROOT = Path(__file__).resolve().parents[1]
# Deleted topics leave the disk at once instead of after a minute: at 3 replicas they add up.
_BROKER_OVERRIDES = {"log.segment.delete.delay.ms": "1000"}


class PieceFailed(Exception):
    """A measured process ended with an error; its words are on stderr already."""


class Cluster:
    """Topics, objects and processes of one bench.

    Args:
        stack: Brokers and store.

    Threads: one.
    """

    def __init__(self, stack: Stack) -> None:
        from confluent_kafka.admin import AdminClient

        self._stack = stack
        self._admin = AdminClient(
            # It outlives the servers by a moment and would say so.
            {"bootstrap.servers": stack.bootstrap_servers, "log_level": 0}
        )
        self._topics: set[str] = set()
        self._prefix = f"bench-{uuid.uuid4().hex[:8]}"

    def conf(self, client: str, area: str = "data") -> dict[str, Any]:
        """Settings with which a client reaches the cluster, and no others.

        Args:
            client: `stock` or `blobmsg`.
            area: Part of the object prefix, so that it can be deleted alone.
        """
        if client == "stock":
            return {"bootstrap.servers": self._stack.bootstrap_servers}
        return {**self._stack.conf(f"{self._prefix}/{area}"), "blobmsg.zone": "az1"}

    @property
    def store_address(self) -> tuple[str, int]:
        """Host and port of the store."""
        return self._stack.minio.host, self._stack.minio.port

    @property
    def servers(self) -> dict[str, list[int]]:
        """Processes of `brokers` and `store`; none where Linux does not tell their CPU."""
        pids: dict[str, list[int]] = {}
        for node in self._stack.nodes:
            if node.pid is not None and Path(f"/proc/{node.pid}/stat").exists():
                pids.setdefault("brokers" if node.is_broker else "store", []).append(node.pid)
        return pids

    def create_topic(self, name: str, partitions: int) -> str:
        """Make a topic and return its full name; returns when it has leaders."""
        # The stock stubs forget to export it.
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        topic = f"{self._prefix}-{name}-{uuid.uuid4().hex[:6]}"
        config = {"max.message.bytes": str(_MAX_MESSAGE_BYTES)}
        create_topics(self._admin, [NewTopic(topic, partitions, REPLICATION_FACTOR, config=config)])
        self._topics.add(topic)
        return topic

    def delete_topic(self, topic: str) -> None:
        """Remove a topic."""
        self._admin.delete_topics([topic])[topic].result(60)
        self._topics.discard(topic)

    def delete_objects(self, area: str = "") -> None:
        """Remove the objects of an area, or all."""
        client = self._stack.s3_client()
        try:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self._stack.bucket, Prefix=f"{self._prefix}/{area}"
            )
            for page in pages:
                keys = [{"Key": item["Key"]} for item in page.get("Contents", ())]
                if keys:
                    client.delete_objects(
                        Bucket=self._stack.bucket,
                        Delete={"Objects": keys, "Quiet": True},  # type: ignore[typeddict-item]
                    )
        finally:
            client.close()

    def run(self, task: str, **arguments: Any) -> dict[str, Any]:
        """Run one piece in a fresh interpreter and return its figures.

        Raises:
            PieceFailed: It ended with an error.
        """
        os.sync()  # what the piece before left for the disk is not this one's to pay
        process = subprocess.Popen(
            [sys.executable, "-m", "bench._piece"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            output, _ = process.communicate(json.dumps({"task": task, **arguments}))
        except BaseException:  # Ctrl-C as well
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            raise PieceFailed(f"{task} ended with exit code {process.returncode}: {arguments}")
        figures: dict[str, Any] = json.loads(output.splitlines()[-1])
        return figures

    def clean_up(self) -> None:
        """Remove all topics and objects of this bench."""
        for topic in list(self._topics):
            self.delete_topic(topic)
        self.delete_objects()


@contextlib.contextmanager
def open_cluster() -> Iterator[Cluster]:
    """The cluster that the environment names, else one started for the length of the block."""
    given = stack_from_environ(os.environ)
    with contextlib.ExitStack() as exits:
        stack = given or exits.enter_context(
            start_stack(broker_overrides=_BROKER_OVERRIDES, report=print)
        )
        cluster = Cluster(stack)
        try:
            yield cluster
        finally:
            if given is not None:  # one of our own takes everything along when it stops
                cluster.clean_up()
