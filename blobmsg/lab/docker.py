"""The stack in containers: `docker compose` over the `compose.yaml` beside this file.

Decides which command does what. The stack's form (images, listeners, health) is in the file; this
adds free ports and, if asked, broker properties.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from blobmsg.lab.errors import LabError
from blobmsg.lab.kafka import ZONES
from blobmsg.lab.ports import free_ports
from blobmsg.lab.state import NodeState, StackState, save_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.lab.cache_folder import Report

COMPOSE_FILE = Path(__file__).with_name("compose.yaml")

_HOST = "127.0.0.1"
# An engine that hangs is as good as none; one that works answers at once.
_ENGINE_TIMEOUT_SECONDS = 5
_COMMAND_TIMEOUT_SECONDS = 600  # images may have to come first


def docker_engine() -> bool:
    """Whether an engine answers and `docker compose` is there (the client alone is not enough)."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    questions = (["version", "--format", "{{.Server.Version}}"], ["compose", "version"])
    try:
        return all(
            subprocess.run(  # noqa: S603  (fixed arguments)
                [docker, *question],
                capture_output=True,
                timeout=_ENGINE_TIMEOUT_SECONDS,
                check=False,
            ).returncode
            == 0
            for question in questions
        )
    except subprocess.TimeoutExpired:
        return False


class DockerRuntime:
    """Servers as containers of one Compose project; see `Runtime` for what each method means.

    Threads: any, one at a time per stack.
    """

    def install(self, report: Report) -> None:
        """Pull the images."""
        report("pulling the images of Kafka and MinIO")
        _run([*_docker("compose"), "-f", str(COMPOSE_FILE), "pull", "--quiet"])

    def start(
        self,
        state: StackState,
        report: Report,
        *,
        broker_overrides: Mapping[str, str],
        heap_mebibytes: int,
    ) -> None:
        """Start all containers; `readiness` asks them afterwards."""
        folder = Path(tempfile.mkdtemp(prefix=f"blobmsg-{state.name}-"))
        state.folder = str(folder)
        ports = free_ports(len(ZONES) + 1, _HOST)
        variables = {"BLOBMSG_KAFKA_HEAP_MEBIBYTES": str(heap_mebibytes)}
        for number, (zone, port) in enumerate(zip(ZONES, ports[:-1], strict=True), start=1):
            variables[f"BLOBMSG_KAFKA_{number}_PORT"] = str(port)
            state.nodes.append(NodeState(name=f"kafka-{number}", zone=zone, host=_HOST, port=port))
        variables["BLOBMSG_MINIO_PORT"] = str(ports[-1])
        state.nodes.append(NodeState(name="minio", zone="", host=_HOST, port=ports[-1]))
        (folder / "stack.env").write_text("".join(f"{k}={v}\n" for k, v in variables.items()))
        environment = {container_variable(k): v for k, v in broker_overrides.items()}
        (folder / "overrides.yaml").write_text(  # JSON is YAML
            json.dumps(
                {
                    "services": {
                        node.name: {"environment": environment}
                        for node in state.nodes
                        if node.name.startswith("kafka")
                    }
                }
                if environment
                else {}
            )
        )
        save_state(state)
        report("starting the containers")
        self._compose(state, "up", "--detach", "--quiet-pull")

    def stop(self, state: StackState) -> None:
        """Remove the containers and their volumes."""
        if state.folder:
            self._compose(state, "down", "--volumes", "--remove-orphans", "--timeout", "0")
            shutil.rmtree(state.folder, ignore_errors=True)

    def start_node(self, state: StackState, node: NodeState) -> None:
        """Start its container again."""
        self._compose(state, "start", node.name)

    def kill_node(self, state: StackState, node: NodeState) -> None:
        """Send its container SIGKILL."""
        self._compose(state, "kill", "--signal", "SIGKILL", node.name)

    def shut_down_node(self, state: StackState, node: NodeState, timeout_seconds: float) -> None:
        """Stop its container."""
        self._compose(state, "stop", "--timeout", str(int(timeout_seconds)), node.name)

    def pause_node(self, state: StackState, node: NodeState) -> None:
        """Freeze its container."""
        self._compose(state, "pause", node.name)

    def resume_node(self, state: StackState, node: NodeState) -> None:
        """Thaw its container."""
        self._compose(state, "unpause", node.name)

    def is_running(self, state: StackState, node: NodeState) -> bool:
        """Whether its container is up."""
        statuses = ("--status", "running", "--status", "paused")
        return node.name in self._compose(state, "ps", "--services", *statuses).split()

    def log_tail(self, state: StackState, node: NodeState) -> str:
        """Return the end of its container's log."""
        return self._compose(state, "logs", "--no-color", "--tail", "25", node.name)

    def _compose(self, state: StackState, *arguments: str) -> str:
        folder = Path(state.folder)
        return _run(
            [
                *_docker("compose"),
                "--project-name",
                f"blobmsg-{state.name}",
                "--env-file",
                str(folder / "stack.env"),
                "-f",
                str(COMPOSE_FILE),
                "-f",
                str(folder / "overrides.yaml"),
                *arguments,
            ]
        )


def container_variable(broker_property: str) -> str:
    """Return the environment variable that sets a broker property in Kafka's image."""
    return "KAFKA_" + broker_property.replace("_", "__").replace(".", "_").upper()


def _docker(*arguments: str) -> list[str]:
    docker = shutil.which("docker")
    if docker is None:
        raise LabError("docker is gone from the path, and this stack runs in it")
    return [docker, *arguments]


def _run(command: list[str]) -> str:
    try:
        answer = subprocess.run(  # noqa: S603  (commands are ours, no shell)
            command,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(command)} did not end in {error.timeout:.0f} s") from error
    if answer.returncode != 0:
        raise LabError(f"{' '.join(command)} failed:\n{answer.stderr.strip()[-2000:]}")
    return answer.stdout
