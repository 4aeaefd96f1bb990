"""The stack as plain processes of this machine: prepared, started, signalled, ended.

Decides the order in which processes come and go. What they run is said by `kafka` and `minio`;
whether they answer is asked by `readiness`.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from blobmsg.lab import kafka, minio
from blobmsg.lab.cache_folder import Report, is_built
from blobmsg.lab.errors import LabError, PartsMissing
from blobmsg.lab.ports import free_ports
from blobmsg.lab.processes import ProcessId, log_tail, spawn
from blobmsg.lab.state import NodeState, StackState, save_state

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST = "127.0.0.1"  # not localhost: that may be IPv6 first, where nothing listens


def missing_tools() -> list[str]:
    """Return what a start needs and this machine lacks: each tool with what it is for."""
    missing: list[str] = []
    try:
        kafka.java_command()
    except PartsMissing as error:
        missing.append(str(error))
    if shutil.which("mvn") is None and not is_built(kafka.KAFKA_PART):
        missing.append("no mvn: install Maven (it brings Kafka's jars), or start Docker")
    if shutil.which("go") is None and not is_built(minio.MINIO_PART):
        missing.append("no go: install Go (MinIO is built with it), or start Docker")
    return missing


class NativeRuntime:
    """Servers as processes; see `Runtime` for what each method means.

    Threads: any, one at a time per stack.
    """

    def install(self, report: Report) -> None:
        """Get Kafka's jars and build MinIO, each once per user."""
        kafka.install_kafka(report)
        minio.install_minio(report)

    def start(
        self,
        state: StackState,
        report: Report,
        *,
        broker_overrides: Mapping[str, str],
        heap_mebibytes: int,
    ) -> None:
        """Prepare all folders, then start all processes."""
        installation = kafka.install_kafka(report)
        program = minio.install_minio(report)
        folder = Path(tempfile.mkdtemp(prefix=f"blobmsg-{state.name}-"))
        state.folder = str(folder)
        numbers = range(1, len(kafka.ZONES) + 1)
        taken = free_ports(2 * len(numbers) + 1, _HOST)
        ports = list(zip(taken[0:-1:2], taken[1:-1:2], strict=True))
        cluster_id = kafka.new_cluster_id()
        for number in numbers:
            home = folder / f"kafka-{number}"
            kafka.prepare_broker(
                installation,
                home,
                node_id=number,
                cluster_id=cluster_id,
                host=_HOST,
                ports=ports,
                overrides=broker_overrides,
            )
            command = kafka.broker_command(installation, home, heap_mebibytes)
            state.nodes.append(
                NodeState(
                    name=home.name,
                    zone=kafka.ZONES[number - 1],
                    host=_HOST,
                    port=ports[number - 1][0],
                    command=command,
                    log=str(home / "log.txt"),
                )
            )
        home = folder / "minio"
        home.mkdir()
        drives = minio.drives(home)
        for drive in drives:
            # A folder is a bucket: the store has it before it first answers.
            (drive / state.bucket).mkdir(parents=True)
        state.nodes.append(
            NodeState(
                name=home.name,
                zone="",
                host=_HOST,
                port=taken[-1],
                command=minio.minio_command(program, drives, f"{_HOST}:{taken[-1]}"),
                environment=dict(minio.minio_environment()),
                log=str(home / "log.txt"),
            )
        )
        for node in state.nodes:
            self.start_node(state, node)

    def stop(self, state: StackState) -> None:
        """Kill all processes and remove the data."""
        # The data goes as well, so nothing is gained by a controlled shutdown (whose last
        # broker would wait in vain for a quorum). All at once, then wait.
        processes = [node.process for node in state.nodes if node.process is not None]
        for process in processes:
            process.signal_group(signal.SIGKILL)
        for process in processes:
            if not process.wait_gone(10):
                raise LabError(f"process {process.pid} of stack {state.name!r} does not end")
        if state.folder:
            shutil.rmtree(state.folder, ignore_errors=True)

    def start_node(self, state: StackState, node: NodeState) -> None:
        """Start its process."""
        if self.is_running(state, node):
            raise LabError(f"{node.name} of stack {state.name!r} runs already")
        log = Path(node.log)
        node.process = spawn(node.command, node.environment, log, log.parent)
        save_state(state)

    def kill_node(self, state: StackState, node: NodeState) -> None:
        """Send its process SIGKILL."""
        self._process(state, node).signal_group(signal.SIGKILL)
        self._wait_gone(state, node, 10)

    def shut_down_node(self, state: StackState, node: NodeState, timeout_seconds: float) -> None:
        """Send its process SIGTERM."""
        self._process(state, node).signal_group(signal.SIGTERM)
        self._wait_gone(state, node, timeout_seconds)

    def pause_node(self, state: StackState, node: NodeState) -> None:
        """Send its process SIGSTOP."""
        self._process(state, node).pause_group()

    def resume_node(self, state: StackState, node: NodeState) -> None:
        """Send its process SIGCONT."""
        self._process(state, node).signal_group(signal.SIGCONT)

    def _wait_gone(self, state: StackState, node: NodeState, timeout_seconds: float) -> None:
        if not self._process(state, node).wait_gone(timeout_seconds):
            raise LabError(
                f"{node.name} of stack {state.name!r} did not end within {timeout_seconds} s:\n"
                + self.log_tail(state, node)
            )

    def is_running(self, state: StackState, node: NodeState) -> bool:
        """Whether its process is there."""
        return node.process is not None and node.process.is_alive()

    def log_tail(self, state: StackState, node: NodeState) -> str:
        """Return the end of its log file."""
        return log_tail(Path(node.log))

    def _process(self, state: StackState, node: NodeState) -> ProcessId:
        if node.process is None:
            raise LabError(f"{node.name} of stack {state.name!r} was never started")
        return node.process
