"""What is asked of `docker`; a script that notes its arguments stands for it.

Whether an engine does it is not shown here: where one answers, every integration test runs on it.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from blobmsg.lab.docker import COMPOSE_FILE, DockerRuntime, container_variable, docker_engine
from blobmsg.lab.errors import LabError
from blobmsg.lab.state import StackState, load_state

FAKE_DOCKER = """#!/bin/sh
echo "$@" >> {folder}/calls
cat {folder}/answer 2>/dev/null
exit $(cat {folder}/code 2>/dev/null || echo 0)
"""


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    program = tmp_path / "docker"
    program.write_text(FAKE_DOCKER.format(folder=shlex.quote(str(tmp_path))))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def _calls(docker: Path) -> list[list[str]]:
    calls = [line.split() for line in (docker / "calls").read_text().splitlines()]
    (docker / "calls").unlink()
    return calls


def _started(overrides: dict[str, str]) -> StackState:
    state = StackState("one", "docker", "", [], "bucket", "region", "id", "secret")
    DockerRuntime().start(state, lambda text: None, broker_overrides=overrides, heap_mebibytes=256)
    return state


def test_the_client_without_an_engine_is_no_docker(docker: Path) -> None:
    assert docker_engine()
    assert _calls(docker)[0][0] == "version"

    (docker / "code").write_text("1")
    assert not docker_engine()


def test_start_gives_compose_free_ports_and_notes_them_first(docker: Path) -> None:
    state = _started({})

    folder = Path(state.folder)
    variables = dict(line.split("=") for line in (folder / "stack.env").read_text().splitlines())
    assert [node.port for node in state.nodes] == [
        int(variables[name])
        for name in (
            "BLOBMSG_KAFKA_1_PORT",
            "BLOBMSG_KAFKA_2_PORT",
            "BLOBMSG_KAFKA_3_PORT",
            "BLOBMSG_MINIO_PORT",
        )
    ]
    assert variables["BLOBMSG_KAFKA_HEAP_MEBIBYTES"] == "256"
    assert load_state("one") == state
    (call,) = _calls(docker)
    assert call[:3] == ["compose", "--project-name", "blobmsg-one"]
    assert str(COMPOSE_FILE) in call
    assert "up" in call
    DockerRuntime().stop(state)


def test_broker_properties_become_variables_of_every_broker(docker: Path) -> None:
    state = _started({"auto.create.topics.enable": "false"})

    overrides = json.loads((Path(state.folder) / "overrides.yaml").read_text())
    assert overrides == {
        "services": {
            f"kafka-{n}": {"environment": {"KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false"}}
            for n in (1, 2, 3)
        }
    }
    DockerRuntime().stop(state)


def test_variables_follow_the_rule_of_the_image() -> None:
    assert container_variable("a.b_c.d") == "KAFKA_A_B__C_D"


def test_faults_are_commands_on_one_container(docker: Path) -> None:
    state = _started({})
    runtime, node = DockerRuntime(), state.nodes[1]
    _calls(docker)

    runtime.kill_node(state, node)
    runtime.start_node(state, node)
    runtime.pause_node(state, node)
    runtime.resume_node(state, node)
    runtime.shut_down_node(state, node, 7.5)

    ends = [
        call[call.index(str(Path(state.folder) / "overrides.yaml")) + 1 :]
        for call in _calls(docker)
    ]
    assert ends == [
        ["kill", "--signal", "SIGKILL", "kafka-2"],
        ["start", "kafka-2"],
        ["pause", "kafka-2"],
        ["unpause", "kafka-2"],
        ["stop", "--timeout", "7", "kafka-2"],
    ]
    runtime.stop(state)


def test_a_container_runs_if_compose_lists_it(docker: Path) -> None:
    state = _started({})
    (docker / "answer").write_text("kafka-1\nminio\n")

    running = [node.name for node in state.nodes if DockerRuntime().is_running(state, node)]

    assert running == ["kafka-1", "minio"]
    DockerRuntime().stop(state)


def test_stop_removes_containers_volumes_and_the_folder(docker: Path) -> None:
    state = _started({})
    _calls(docker)

    DockerRuntime().stop(state)

    assert _calls(docker)[0][-5:] == ["down", "--volumes", "--remove-orphans", "--timeout", "0"]
    assert not Path(state.folder).exists()


def test_a_refusal_of_docker_is_shown(docker: Path) -> None:
    (docker / "docker").write_text("#!/bin/sh\necho 'no such image' >&2; exit 3\n")

    with pytest.raises(LabError, match="no such image"):
        DockerRuntime().install(lambda text: None)
