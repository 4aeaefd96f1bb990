from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from blobmsg.demo.children import Children
from blobmsg.demo.errors import DemoError
from blobmsg.demo.job import Job

if TYPE_CHECKING:
    from pathlib import Path

WORKER = "blobmsg.demo.worker"


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_that_breaks_is_told_of_with_its_log(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("broken", "blobmsg.demo.no_such_module")

        with pytest.raises(DemoError, match=r"(?s)broken ended early.*No module named"):
            children.wait("ready", [child])


def test_a_child_says_why_it_failed(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("producer", WORKER)
        conf = {"bootstrap.servers": "localhost:1", "no.such.setting": 1}
        child.say(Job("produce", "plain", conf, "t", str(tmp_path / "records")).to_json())

        with pytest.raises(DemoError, match=r"producer failed: .*no\.such\.setting"):
            children.wait("ready", [child])


def test_leaving_ends_every_child(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("kafka", "blobmsg.demo.mock_kafka", ["t"])
        children.wait("ready", [child])
        pid = child._process.pid
        assert is_there(pid)

    assert not is_there(pid)


def test_a_child_ends_when_nobody_talks_to_it_any_more(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("kafka", "blobmsg.demo.mock_kafka", ["t"])
        children.wait("ready", [child])
        pipe = child._process.stdin
        assert pipe is not None

        pipe.close()  # as when the session is killed

        assert child._process.wait(timeout=10) == 0


def test_settings_of_the_user_stay_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It would be refused: no such choice.
    monkeypatch.setenv("BLOBMSG_ROUTE", "nonsense")
    records = tmp_path / "records"
    records.write_bytes(b"")
    conf = {"bootstrap.servers": "localhost:1", "blobmsg.store.url": tmp_path.as_uri()}
    with Children(tmp_path) as children:
        child = children.start("producer", WORKER)
        child.say(Job("produce", "blobmsg", conf, "t", str(records)).to_json())

        assert children.wait("ready", [child]) == {"producer": {"kind": "ready"}}


def test_waiting_ends_though_other_children_are_done(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        first = children.start("first", "blobmsg.demo.mock_kafka", ["t"])
        children.wait("ready", [first])
        first.is_done = True
        first._process.kill()
        time.sleep(0.05)  # its end is in the inbox before the other's message, or after it
        second = children.start("second", "blobmsg.demo.mock_kafka", ["t"])

        assert set(children.wait("ready", [second])) == {"second"}
