"""Applications that know confluent_kafka only, patched: as users run them, in processes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobProducer
from tests.helpers.records import send

if TYPE_CHECKING:
    from pathlib import Path

    from blobmsg import lab

_APPLICATION = """
import os
import sys
from confluent_kafka import Consumer, Producer, TopicPartition

topic = sys.argv[1]
conf = {"bootstrap.servers": os.environ["KAFKA"]}
producer = Producer(conf)
for number in range(int(sys.argv[2])):
    producer.produce(topic, b"from the application %d" % number)
assert producer.flush(60) == 0
consumer = Consumer({**conf, "group.id": topic, "enable.partition.eof": True})
consumer.assign([TopicPartition(topic, 0, 0)])
while True:
    message = consumer.poll(60)
    if message.error():
        break
    print(message.value().decode())
consumer.close()
print(type(producer).__name__, __name__, sys.argv[1:])
"""


def _run(
    *arguments: str, folder: Path, environ: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def environ(stack: lab.Stack, store_prefix: str) -> dict[str, str]:
    ours = stack.environ(store_prefix)
    return {**ours, "BLOBMSG_ROUTE": "blob", "KAFKA": stack.bootstrap_servers}


@pytest.mark.parametrize("way", ["run", "patch"])
def test_an_application_runs_unchanged_and_its_records_go_through_the_store(
    conf: dict[str, Any],
    environ: dict[str, str],
    stack: lab.Stack,
    topic: str,
    tmp_path: Path,
    way: str,
) -> None:
    patched = "import blobmsg\nblobmsg.patch()\n" if way == "patch" else ""
    (tmp_path / "app.py").write_text(patched + _APPLICATION)
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        send(producer, topic, [b"from elsewhere"])

    runner = ("-m", "blobmsg.run") if way == "run" else ()
    done = _run(*runner, "app.py", topic, "3", folder=tmp_path, environ=environ)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "from elsewhere",
        *(f"from the application {number}" for number in range(3)),
        f"BlobProducer __main__ ['{topic}', '3']",
    ]
    client = stack.s3_client()
    prefix = conf["blobmsg.store.url"].partition(stack.bucket + "/")[2]
    assert client.list_objects_v2(Bucket=stack.bucket, Prefix=prefix)["KeyCount"] == 2
    client.close()


def test_a_module_runs_as_well(environ: dict[str, str], topic: str, tmp_path: Path) -> None:
    package = tmp_path / "service"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_APPLICATION)

    done = _run("-m", "blobmsg.run", "-m", "service", topic, "1", folder=tmp_path, environ=environ)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "from the application 0",
        f"BlobProducer __main__ ['{topic}', '1']",
    ]
