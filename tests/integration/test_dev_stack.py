"""The stack that all integration tests stand on does what it says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    ConfigResource,
    ResourceType,
)

from blobmsg import lab
from blobmsg.lab.processes import ProcessId
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_three_brokers_answer_with_a_rack_each(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    cluster = admin.describe_cluster().result(timeout=20)

    assert sorted((node.id, node.rack) for node in cluster.nodes) == [
        (1, "az1"),
        (2, "az2"),
        (3, "az3"),
    ]


def test_topics_have_a_replica_in_every_zone_and_need_two(
    bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=4)

    admin = AdminClient({"bootstrap.servers": bootstrap})
    metadata = admin.list_topics(topic, timeout=20).topics[topic]
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(timeout=20)

    assert [sorted(p.replicas) for p in metadata.partitions.values()] == [[1, 2, 3]] * 4
    assert config["min.insync.replicas"].value == "2"


def test_records_and_transactions_go_through(
    bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    producer = StockProducer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"value", b"key")
    producer.commit_transaction(30)

    consumer = StockConsumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        assert (message.key(), message.value()) == (b"key", b"value")
        consumer.commit(message=message, asynchronous=False)
        committed = consumer.committed([TopicPartition(topic, 0)], timeout=20)
        assert [partition.offset for partition in committed] == [1]
    finally:
        consumer.close()


def test_the_bucket_takes_and_gives_objects(stack: lab.Stack, store_prefix: str) -> None:
    client = stack.s3_client()
    key = f"{store_prefix}/object"
    try:
        client.put_object(Bucket=stack.bucket, Key=key, Body=b"0123456789")
        answer = client.get_object(Bucket=stack.bucket, Key=key, Range="bytes=2-4")
        assert answer["Body"].read() == b"234"
        listing = client.list_objects_v2(Bucket=stack.bucket, Prefix=store_prefix)
        assert [entry["Key"] for entry in listing["Contents"]] == [key]
    finally:
        client.close()


@pytest.mark.chaos
def test_a_killed_broker_comes_back_with_its_data_on_its_port(
    breakable_stack: lab.Stack, make_topic: Callable[..., str]
) -> None:
    stack = breakable_stack
    topic = make_topic()
    producer = StockProducer({"bootstrap.servers": stack.bootstrap_servers})
    producer.produce(topic, b"before")
    assert producer.flush(30) == 0
    broker, address, pid = stack.broker(2), stack.broker(2).address, stack.broker(2).pid

    broker.kill()
    assert not broker.is_running()
    producer.produce(topic, b"without it")
    assert producer.flush(60) == 0  # two replicas are left
    broker.start()

    assert broker.address == address
    assert broker.pid != pid
    consumer = StockConsumer({"bootstrap.servers": address, "group.id": topic})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = [consumer.poll(30) for _ in range(2)]
        assert [m.value() for m in messages if m is not None] == [b"before", b"without it"]
    finally:
        consumer.close()


@pytest.mark.chaos
def test_a_paused_store_takes_connections_and_answers_only_afterwards(
    breakable_stack: lab.Stack,
) -> None:
    store = breakable_stack.minio
    with store.paused(), socket.create_connection((store.host, store.port), 5) as connection:
        connection.sendall(b"GET /minio/health/live HTTP/1.0\r\n\r\n")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)

        store.resume()

        connection.settimeout(20)
        assert connection.recv(1) == b"H"


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stack_ends_with_the_program_that_started_it(
    stack: lab.Stack, tmp_path: Path, number: signal.Signals
) -> None:
    if stack.state.runtime != "native":
        pytest.skip("containers are the engine's children; their end is not seen as a process's")
    name = f"owned-{os.getpid()}-{number.value}"
    ready = tmp_path / "ready"
    program = (
        "import sys, time, pathlib\n"
        "from blobmsg.lab import start_stack\n"
        "stack = start_stack(sys.argv[1], heap_mebibytes=256)\n"
        "pathlib.Path(sys.argv[2]).touch()\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, name, str(ready)], stderr=subprocess.DEVNULL
    )
    try:
        _wait_until(lambda: ready.exists() or owner.poll() is not None, 200)
        owned = lab.find_stack(name)
        assert owned is not None
        processes = [ProcessId.of(node.pid) for node in owned.nodes if node.pid]
        assert len([process for process in processes if process]) == 4

        owner.send_signal(number)
        owner.wait(20)

        _wait_until(lambda: lab.find_stack(name) is None, 30)
        assert not any(process.is_alive() for process in processes if process)
    finally:
        owner.kill()
        owner.wait()
        left = lab.find_stack(name)
        if left is not None:
            left.stop()


@pytest.mark.slow
def test_ctrl_c_while_starting_leaves_nothing(stack: lab.Stack) -> None:
    if stack.state.runtime != "native":
        pytest.skip("containers are the engine's children; their end is not seen as a process's")
    name = f"broken-off-{os.getpid()}"
    program = (
        "import sys\n"
        "from blobmsg.cli.main import main\n"
        "from blobmsg.lab import readiness\n"
        # It must not be there before we look: then there is nothing left to interrupt.
        "readiness._coordinator_answers = lambda _stack: False\n"
        "sys.exit(main(['dev', 'up', *sys.argv[1:]]))\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, "--name", name, "--heap-mebibytes", "256"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def processes() -> list[ProcessId]:
        found = lab.find_stack(name)
        nodes = found.nodes if found is not None else []
        return [p for node in nodes if node.pid and (p := ProcessId.of(node.pid)) is not None]

    try:
        _wait_until(lambda: len(processes()) == 4 or owner.poll() is not None, 60)
        started = processes()
        assert len(started) == 4

        owner.send_signal(signal.SIGINT)
        output, errors = owner.communicate(timeout=30)

        assert owner.returncode == 130
        assert "Traceback" not in output + errors
        assert lab.find_stack(name) is None
        assert not any(process.is_alive() for process in started)
    finally:
        owner.kill()
        owner.communicate()


def _wait_until(is_so: Callable[[], bool], timeout_seconds: float) -> None:
    # Real processes have no clock to turn.
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_seconds} s"
        time.sleep(0.05)
