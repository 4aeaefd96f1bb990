"""`blobmsg.patch()` and `python -m blobmsg.run`, without a cluster; in processes, for it stays."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_names_imported_later_are_ours_also_in_classes_derived_from_them(tmp_path: Path) -> None:
    code = """
import blobmsg
blobmsg.patch()
blobmsg.patch()
import confluent_kafka
from confluent_kafka import Consumer, Producer
class Mine(Producer): pass
conf = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "blobmsg.store.url": "memory://x"}
producer = Mine(conf)
assert isinstance(producer, confluent_kafka.Producer), type(producer)
assert isinstance(producer, blobmsg.BlobProducer)
assert (Producer, Consumer) == (blobmsg.BlobProducer, blobmsg.BlobConsumer)
consumer = Consumer({**conf, "group.id": "g"})
assert type(consumer._inner) is not blobmsg.BlobConsumer
assert type(producer._inner) is not blobmsg.BlobProducer
producer.close()
consumer.close()
"""
    done = run("-c", code, folder=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "imported before" not in done.stderr


def test_what_was_imported_before_is_named_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("from confluent_kafka import Producer as P, TopicPartition")

    done = run("-c", "import early, blobmsg; blobmsg.patch()", folder=tmp_path)

    assert done.returncode == 0
    assert done.stderr == (
        "early.P was imported before blobmsg.patch() and stays the stock class: patch first\n"
    )


def test_an_application_has_its_own_arguments_path_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "app.py").write_text(
        "import sys, beside, confluent_kafka\n"
        "print(beside.NAME, sys.argv, confluent_kafka.Producer.__name__)\n"
        "sys.exit(7)"
    )

    done = run(
        "-m", "blobmsg.run", str(tmp_path / "app.py"), "-m", "--help", folder=tmp_path.parent
    )

    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"beside ['{tmp_path / 'app.py'}', '-m', '--help'] BlobProducer\n"


def test_a_failing_application_shows_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise ValueError('its own')")

    done = run("-m", "blobmsg.run", "app.py", folder=tmp_path)

    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: its own\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.py"], "blobmsg.run: there is no file nowhere.py\n"),
        (["-m", "no.such"], "blobmsg.run: there is no module no.such\n"),
        ([], "application"),
    ],
)
def test_a_wrong_request_is_answered_without_a_traceback(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    done = run("-m", "blobmsg.run", *arguments, folder=tmp_path)

    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
