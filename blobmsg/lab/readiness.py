"""Whether a stack really answers: three brokers in one cluster, group coordinators, a bucket.

Asks as a client would and waits until the answer is right, or a server has died, or time is up.
Never starts anything.
"""

from __future__ import annotations

import socket
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from blobmsg.lab.cache_folder import ignore
from blobmsg.lab.errors import LabError, PartsMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.lab.stack import Node, Stack

_PAUSE_SECONDS = 0.1
# One for each partition of the offsets topic, which has a coordinator each: Kafka takes a name's
# hash, to which the last letter adds itself, by `offsets.topic.num.partitions`, three.
_GROUPS: Final = ("blobmsg-lab-a", "blobmsg-lab-b", "blobmsg-lab-c")

# librdkafka writes a line per refused connection; while servers come up that is no news.
_QUIET: dict[str, Any] = {"log_level": 0, "error_cb": ignore}


def wait_ready(stack: Stack, timeout_seconds: float) -> None:
    """Return when every server of the stack that should run answers.

    Raises:
        LabError: A server died or time is up; the text has the end of its log.
    """
    deadline = time.monotonic() + timeout_seconds
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, **_QUIET})
    for node in stack.nodes:
        if node.is_wanted:
            wait_node_ready(node, deadline, admin)
    for group in _GROUPS:
        answers = partial(_coordinator_answers, stack, group)
        _wait_for(stack, "a group coordinator", deadline, answers)


def wait_node_ready(node: Node, deadline: float, admin: AdminClient | None = None) -> None:
    """Return when one server answers: a broker as a member of its cluster.

    Args:
        node: The server.
        deadline: On `time.monotonic()`.
        admin: A client of the node's cluster, if there is one already.

    Raises:
        LabError: It died or time is up; the text has the end of its log.
    """
    stack = node.stack
    if not node.is_broker:
        _wait_for(stack, f"an answer of {node.name}", deadline, lambda: _store_answers(stack))
        return
    if admin is None:
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, **_QUIET})
    # A broker killed a moment ago is still in its cluster's metadata: it must listen, too.
    _wait_for(
        stack,
        f"{node.name} as a member of its cluster",
        deadline,
        lambda: _listens(node) and node.address in _members(admin),
    )


def _wait_for(stack: Stack, what: str, deadline: float, is_there: Callable[[], bool]) -> None:
    while not is_there():
        for node in stack.nodes:
            if node.is_wanted and not node.is_running():
                raise LabError(f"{node.name} of stack {stack.name!r} died:\n{node.log_tail()}")
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {node.name}\n{node.log_tail()}" for node in stack.nodes)
            raise LabError(f"stack {stack.name!r} waited in vain for {what}:\n{logs}")
        time.sleep(_PAUSE_SECONDS)


def _listens(node: Node) -> bool:
    try:
        with socket.create_connection((node.host, node.port), timeout=1):
            return True
    except OSError:
        return False


def _members(admin: AdminClient) -> set[str]:
    """Return the addresses of the cluster's brokers; none while it has no controller."""
    untyped: Any = admin  # the stock stubs say only that a Future comes back
    try:
        cluster = untyped.describe_cluster(request_timeout=2).result(timeout=3)
    except (KafkaException, TimeoutError):
        return set()
    if cluster.controller is None:
        return set()
    return {f"{node.host}:{node.port}" for node in cluster.nodes}


def _coordinator_answers(stack: Stack, group: str) -> bool:
    """Ask for a committed offset: that makes the offsets topic, which costs a second, once."""
    consumer = Consumer({"bootstrap.servers": stack.bootstrap_servers, "group.id": group, **_QUIET})
    try:
        consumer.committed([TopicPartition("blobmsg-lab", 0)], timeout=5)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def _store_answers(stack: Stack) -> bool:
    """Write an object, read it back, and remove it."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise PartsMissing('no boto3: pip install "blobmsg[s3]"') from error
    client = stack.s3_client()
    key, token = "lab/ready", uuid.uuid4().bytes
    try:
        client.put_object(Bucket=stack.bucket, Key=key, Body=token)
        answer = client.get_object(Bucket=stack.bucket, Key=key)["Body"].read()
        client.delete_object(Bucket=stack.bucket, Key=key)
    except (BotoCoreError, ClientError):
        return False
    finally:
        client.close()
    return bool(answer == token)
