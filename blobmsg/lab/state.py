"""What is known about a running stack, as a JSON file that any process can act on.

Decides the form of that file and where it lies. Never starts or stops anything. The file is
written as soon as a process exists, before it answers, so that a crash leaves nothing unknown.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blobmsg.lab.cache_folder import cache_folder
from blobmsg.lab.errors import LabError
from blobmsg.lab.processes import ProcessId

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")  # what a Compose project may be called


@dataclass(slots=True)
class NodeState:
    """One server of a stack.

    Attributes:
        name: `kafka-1` … `kafka-3`, `minio`.
        zone: The broker's rack; "" for a server that all zones share.
        host: Where clients reach it.
        port: Where clients reach it.
        command: How to start it (natively).
        environment: Added to the environment when it is started.
        log: Path of its log (natively).
        process: The process last started; None under Docker.
        is_wanted: Whether it should run: False once it was killed or shut down on purpose.
    """

    name: str
    zone: str
    host: str
    port: int
    command: list[str] = field(default_factory=list[str])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    log: str = ""
    process: ProcessId | None = None
    is_wanted: bool = True

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


@dataclass(slots=True)
class StackState:
    """A stack: its servers and how to reach the store.

    Attributes:
        name: Unique on this machine and user.
        runtime: `native`, `docker`, or `external` for one that is not ours.
        folder: Temporary data folder, removed at the stop; "" if there is none.
        nodes: Brokers first.
        bucket: A bucket that is there.
        region: What the store calls its region.
        access_key_id: Of the store.
        secret_access_key: Of the store.
        owner: The process with which the stack ends; None if it stays until it is stopped.
    """

    name: str
    runtime: str
    folder: str
    nodes: list[NodeState]
    bucket: str
    region: str
    access_key_id: str
    secret_access_key: str
    owner: ProcessId | None = None


def check_name(name: str) -> str:
    """Return the name if a stack can have it.

    Raises:
        LabError: It cannot.
    """
    if not _NAME.fullmatch(name):
        raise LabError(
            f"{name!r} cannot be a stack's name: use 1 to 40 of a-z, 0-9 and -, "
            "not beginning with -"
        )
    return name


def state_path(name: str) -> Path:
    """Return where the state of the stack `name` is kept.

    Raises:
        LabError: The name cannot be one.
    """
    folder = cache_folder() / "stacks"
    folder.mkdir(exist_ok=True)
    return folder / f"{check_name(name)}.json"


def save_state(state: StackState) -> None:
    """Write the state, atomically and readable only by the user."""
    path = state_path(state.name)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(dataclasses.asdict(state), indent=2) + "\n")
    unfinished.replace(path)


def load_state(name: str) -> StackState | None:
    """Return the state of the stack `name`; None if there is none.

    Raises:
        LabError: The file is there and is not a state.
    """
    path = state_path(name)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        return _decode_state(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise LabError(
            f"{path} does not describe a stack ({error}); stop its processes and remove it"
        ) from error


def forget_state(name: str) -> None:
    """Remove the state of a stack that is stopped."""
    state_path(name).unlink(missing_ok=True)


def known_stacks() -> list[str]:
    """Return the names of all stacks with a state, sorted."""
    return sorted(path.stem for path in (cache_folder() / "stacks").glob("*.json"))


def _decode_state(fields: dict[str, Any]) -> StackState:
    nodes: list[NodeState] = []
    for node in fields["nodes"]:
        known = NodeState(**node)
        known.process = _decode_process(node["process"])
        nodes.append(known)
    state = StackState(**fields)
    state.nodes = nodes
    state.owner = _decode_process(fields["owner"])
    return state


def _decode_process(fields: dict[str, Any] | None) -> ProcessId | None:
    return None if fields is None else ProcessId(int(fields["pid"]), str(fields["started"]))
