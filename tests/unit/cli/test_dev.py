from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from blobmsg.cli.main import main
from blobmsg.lab.processes import ProcessId
from blobmsg.lab.state import NodeState, StackState, known_stacks, save_state

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("BLOBMSG_DEV_RUNTIME", "native")


def _save(name: str, process: ProcessId | None) -> None:
    nodes = [
        NodeState(f"kafka-{n}", f"az{n}", "127.0.0.1", 9000 + n, process=process) for n in (1, 2, 3)
    ]
    nodes.append(NodeState("minio", "", "127.0.0.1", 9009, process=process))
    save_state(StackState(name, "native", "", nodes, "bucket", "region", "id", "se'cret", None))


def _myself() -> ProcessId | None:
    return ProcessId.of(os.getpid())


def test_status_without_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "status"]) == 0
    assert capsys.readouterr().out == "no stack runs\n"


def test_status_shows_every_server(capsys: pytest.CaptureFixture[str]) -> None:
    _save("dev", _myself())

    assert main(["dev", "status"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["kafka-1", "az1", "127.0.0.1:9001", "up"],
        ["kafka-2", "az2", "127.0.0.1:9002", "up"],
        ["kafka-3", "az3", "127.0.0.1:9003", "up"],
        ["minio", "-", "127.0.0.1:9009", "up"],
    ]


def test_status_finds_a_stack_whose_servers_died(capsys: pytest.CaptureFixture[str]) -> None:
    _save("dev", ProcessId(2**22 + 1, "long ago"))

    assert main(["dev", "status", "--json"]) == 1

    (stack,) = json.loads(capsys.readouterr().out)
    assert stack["running"] is False
    assert [node["running"] for node in stack["nodes"]] == [False] * 4


def test_status_of_an_unknown_stack_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "status", "--name", "other"]) == 1
    assert capsys.readouterr().out == "no stack 'other' runs\n"


def test_env_is_what_a_shell_evaluates(capsys: pytest.CaptureFixture[str]) -> None:
    _save("dev", _myself())

    assert main(["dev", "env"]) == 0

    script = (
        capsys.readouterr().out
        + 'printf "%s %s" "$BLOBMSG_DEV_BOOTSTRAP" "$BLOBMSG_S3_SECRET_ACCESS_KEY"'
    )
    answer = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout == "127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003 se'cret"


def test_env_without_a_stack_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "env"]) == 1

    output = capsys.readouterr()
    assert output.out == ""
    assert "blobmsg dev up" in output.err


def test_up_twice_says_that_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    _save("dev", _myself())

    assert main(["dev", "up"]) == 0
    assert "runs already" in capsys.readouterr().err


def test_down_all_stops_every_stack(capsys: pytest.CaptureFixture[str]) -> None:
    servers = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    processes = [ProcessId.of(server.pid) for server in servers]
    _save("one", processes[0])
    _save("two", processes[1])

    assert main(["dev", "down", "--all"]) == 0

    assert known_stacks() == []
    assert not any(process.is_alive() for process in processes if process)
    for server in servers:
        server.returncode = -9  # reaped by is_alive
    capsys.readouterr()
    assert main(["dev", "down"]) == 0
    assert "no stack 'dev' runs" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nonsense", "=1", ""])
def test_a_broker_property_without_a_key_or_value_is_a_mistake(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", "up", "--broker-property", text]) == 2
    assert "KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["up", "down", "env", "status"])
def test_an_impossible_name_is_a_mistake(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["dev", action, "--name", "A/b"])

    assert end.value.code == 2
    assert "cannot be a stack's name" in capsys.readouterr().err


def test_install_on_a_bare_machine_names_the_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    assert main(["dev", "install"]) == 2
    assert "no java" in capsys.readouterr().err
    assert main(["dev", "install", "--if-possible"]) == 0
    assert "no java" in capsys.readouterr().err
