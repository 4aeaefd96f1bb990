"""Quotas of a client, set with Kafka's own tool: no admin client for Python can."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

from blobmsg.lab import PartsMissing
from blobmsg.lab.kafka import install_kafka, java_command
from tests.helpers.stack import without_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

_RATES = ("producer_byte_rate", "consumer_byte_rate")


@contextlib.contextmanager
def slow_client(bootstrap_servers: str, client_id: str, bytes_per_second: int) -> Iterator[None]:
    """Have the brokers throttle a client for the length of the block.

    Args:
        bootstrap_servers: Of the cluster.
        client_id: `client.id`.
        bytes_per_second: What it may send, and what it may read.
    """
    rates = ",".join(f"{rate}={bytes_per_second}" for rate in _RATES)
    _alter(bootstrap_servers, client_id, "--add-config", rates)
    try:
        yield
    finally:
        _alter(bootstrap_servers, client_id, "--delete-config", ",".join(_RATES))


def _alter(bootstrap_servers: str, client_id: str, *change: str) -> None:
    try:
        jars = install_kafka(lambda _text: None) / "libs" / "*"
        tool = [java_command(), "-cp", str(jars), "kafka.admin.ConfigCommand"]
    except PartsMissing as error:  # servers in Docker, or somebody else's
        without_servers(f"no tool to set a quota with: {error}")
    entity = ("--entity-type", "clients", "--entity-name", client_id)
    answer = subprocess.run(
        [*tool, "--bootstrap-server", bootstrap_servers, "--alter", *entity, *change],
        check=False,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
