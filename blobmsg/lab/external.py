"""A stack that somebody else runs, known by its addresses only.

Decides how addresses in environment variables become a stack. Such a stack can be used and never
stopped, killed or paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from blobmsg.lab import minio
from blobmsg.lab.errors import LabError
from blobmsg.lab.kafka import ZONES
from blobmsg.lab.state import NodeState, StackState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.lab.cache_folder import Report


def external_state(environ: Mapping[str, str]) -> StackState:
    """Return the state of the stack that `BLOBMSG_DEV_BOOTSTRAP` and `BLOBMSG_S3_…` describe.

    Raises:
        LabError: A variable is missing or is not an address.
    """
    brokers = environ["BLOBMSG_DEV_BOOTSTRAP"].split(",")
    endpoint = environ.get("BLOBMSG_S3_ENDPOINT_URL", "")
    nodes = [
        _node(f"kafka-{number}", ZONES[(number - 1) % len(ZONES)], "//" + address.strip())
        for number, address in enumerate(brokers, start=1)
    ]
    nodes.append(_node("minio", "", endpoint))
    return StackState(
        name=environ.get("BLOBMSG_DEV_STACK") or "external",
        runtime="external",
        folder="",
        nodes=nodes,
        bucket=urlsplit(environ.get("BLOBMSG_STORE_URL", "")).hostname or minio.BUCKET,
        region=environ.get("BLOBMSG_S3_REGION") or minio.REGION,
        access_key_id=environ.get("BLOBMSG_S3_ACCESS_KEY_ID") or minio.ACCESS_KEY_ID,
        secret_access_key=environ.get("BLOBMSG_S3_SECRET_ACCESS_KEY") or minio.SECRET_ACCESS_KEY,
    )


def _node(name: str, zone: str, url: str) -> NodeState:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        variable = "BLOBMSG_S3_ENDPOINT_URL" if name == "minio" else "BLOBMSG_DEV_BOOTSTRAP"
        raise LabError(f"{variable} has no host and port for {name}: {url.removeprefix('//')!r}")
    return NodeState(name=name, zone=zone, host=host, port=port)


class ExternalRuntime:
    """Refuses to touch what is not ours; see `Runtime` for what each method means.

    Threads: any.
    """

    def install(self, report: Report) -> None:
        """Nothing to install."""

    def start(
        self,
        state: StackState,
        report: Report,
        *,
        broker_overrides: Mapping[str, str],
        heap_mebibytes: int,
    ) -> None:
        """Refuse."""
        self._refuse(state)

    def stop(self, state: StackState) -> None:
        """Leave it running: it is not ours."""

    def start_node(self, state: StackState, node: NodeState) -> None:
        """Refuse."""
        self._refuse(state, node)

    def kill_node(self, state: StackState, node: NodeState) -> None:
        """Refuse."""
        self._refuse(state, node)

    def shut_down_node(self, state: StackState, node: NodeState, timeout_seconds: float) -> None:
        """Refuse."""
        self._refuse(state, node)

    def pause_node(self, state: StackState, node: NodeState) -> None:
        """Refuse."""
        self._refuse(state, node)

    def resume_node(self, state: StackState, node: NodeState) -> None:
        """Refuse."""
        self._refuse(state, node)

    def is_running(self, state: StackState, node: NodeState) -> bool:
        """Take its word: clients find out."""
        return True

    def log_tail(self, state: StackState, node: NodeState) -> str:
        """Say where the log is not."""
        return "(its log is not here)"

    def _refuse(self, state: StackState, node: NodeState | None = None) -> NoReturn:
        what = node.name if node else "it"
        raise LabError(f"stack {state.name!r} was not started by blobmsg: {what} is not ours")
