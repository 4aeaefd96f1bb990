from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from blobmsg import lab
from blobmsg.lab import stacks as stacks_module
from blobmsg.lab.processes import ProcessId
from blobmsg.lab.state import NodeState, StackState, known_stacks, save_state

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("BLOBMSG_DEV_STACK", "BLOBMSG_DEV_BOOTSTRAP", "BLOBMSG_DEV_RUNTIME"):
        monkeypatch.delenv(name, raising=False)


def _save(name: str, process: ProcessId | None, owner: ProcessId | None = None) -> None:
    nodes = [
        NodeState(f"kafka-{n}", f"az{n}", "127.0.0.1", 9000 + n, process=process) for n in (1, 2, 3)
    ]
    nodes.append(NodeState("minio", "", "127.0.0.1", 9009, process=process))
    save_state(StackState(name, "native", "", nodes, "bucket", "region", "id", "secret", owner))


def _myself() -> ProcessId:
    process = ProcessId.of(os.getpid())
    assert process is not None
    return process


GONE = ProcessId(2**22 + 1, "long ago")


def test_settings_of_a_stack_reach_its_brokers_and_its_store() -> None:
    _save("one", _myself())
    stack = lab.find_stack("one")
    assert stack is not None

    assert stack.conf("a/b") == {
        "bootstrap.servers": "127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003",
        "blobmsg.store.url": "s3://bucket/a/b",
        "blobmsg.s3.endpoint.url": "http://127.0.0.1:9009",
        "blobmsg.s3.region": "region",
        "blobmsg.s3.access.key.id": "id",
        "blobmsg.s3.secret.access.key": "secret",
    }


def test_a_stack_is_found_again_by_its_environment() -> None:
    _save("one", _myself())
    stack = lab.find_stack("one")
    assert stack is not None
    environ = stack.environ()

    by_name = lab.stack_from_environ({"BLOBMSG_DEV_STACK": environ["BLOBMSG_DEV_STACK"]})
    by_address = lab.stack_from_environ({k: v for k, v in environ.items() if "STACK" not in k})

    assert by_name is not None
    assert by_address is not None
    assert by_name.conf() == by_address.conf() == stack.conf()


def test_open_stack_uses_the_given_one_and_leaves_it() -> None:
    _save("one", None)
    with pytest.raises(lab.LabError, match="broken"), lab.open_stack({"BLOBMSG_DEV_STACK": "one"}):
        pass

    _save("one", _myself())
    with lab.open_stack({"BLOBMSG_DEV_STACK": "one"}) as stack:
        assert stack.name == "one"

    assert known_stacks() == ["one"]


def test_a_stack_that_is_named_and_unknown_is_an_error() -> None:
    with pytest.raises(lab.LabError, match="no stack 'two'"):
        lab.stack_from_environ({"BLOBMSG_DEV_STACK": "two"})


def test_a_stack_whose_servers_died_does_not_run() -> None:
    _save("one", GONE)
    stack = lab.find_stack("one")
    assert stack is not None

    assert not stack.is_running()


def test_a_second_stack_of_a_name_is_refused() -> None:
    _save("one", _myself())

    with pytest.raises(lab.LabError, match="'one' runs already"):
        lab.start_stack("one")


def test_stacks_of_dead_owners_are_reaped_and_others_stay() -> None:
    server = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        process = ProcessId.of(server.pid)
        _save("orphan", process, owner=GONE)
        _save("owned", _myself(), owner=_myself())
        _save("free", _myself())

        assert lab.reap_orphans() == ["orphan"]

        assert known_stacks() == ["free", "owned"]
        assert process is not None
        assert not process.is_alive()
    finally:
        server.kill()
        server.returncode = 0  # reaped by is_alive


def test_the_runtime_is_docker_only_where_an_engine_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacks_module, "docker_engine", lambda: True)
    assert stacks_module.choose_runtime() == "docker"
    assert lab.missing_parts() == []
    assert stacks_module.choose_runtime("native") == "native"

    monkeypatch.setattr(stacks_module, "docker_engine", lambda: False)
    assert stacks_module.choose_runtime() == "native"


def test_the_environment_decides_the_runtime_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks_module, "docker_engine", lambda: True)
    monkeypatch.setenv("BLOBMSG_DEV_RUNTIME", "native")
    assert stacks_module.choose_runtime() == "native"

    monkeypatch.setenv("BLOBMSG_DEV_RUNTIME", "podman")
    with pytest.raises(lab.LabError, match="no runtime 'podman'"):
        stacks_module.choose_runtime()


def test_a_bare_machine_is_told_every_tool_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    missing = "; ".join(lab.missing_parts())

    assert all(f"no {tool}: install" in missing for tool in ("java", "mvn", "go"))
    with pytest.raises(lab.PartsMissing, match="no java"):
        lab.start_stack("one")
    assert known_stacks() == []
