"""What runs a stack's servers: processes (`native`), containers (`docker`), others (`external`).

Decides nothing; `Stack` and `Node` say what they want through this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.lab.cache_folder import Report
    from blobmsg.lab.state import NodeState, StackState


class Runtime(Protocol):
    """Runs the servers of a stack: as processes or in containers."""

    def install(self, report: Report) -> None:
        """Get and build what a start needs, so that the start is quick."""

    def start(
        self,
        state: StackState,
        report: Report,
        *,
        broker_overrides: Mapping[str, str],
        heap_mebibytes: int,
    ) -> None:
        """Start all servers and note them in `state` (saved), without waiting for answers."""

    def stop(self, state: StackState) -> None:
        """End all servers and remove their data."""

    def start_node(self, state: StackState, node: NodeState) -> None:
        """Start one server again, with its data, where it was."""

    def kill_node(self, state: StackState, node: NodeState) -> None:
        """End one server as `kill -9` does; returns when it is gone."""

    def shut_down_node(self, state: StackState, node: NodeState, timeout_seconds: float) -> None:
        """Ask one server to end and wait for it."""

    def pause_node(self, state: StackState, node: NodeState) -> None:
        """Stop one server's clock: its connections stay open and nothing answers."""

    def resume_node(self, state: StackState, node: NodeState) -> None:
        """Let a paused server go on."""

    def is_running(self, state: StackState, node: NodeState) -> bool:
        """Whether the server is there; a paused one is."""
        ...

    def log_tail(self, state: StackState, node: NodeState) -> str:
        """Return the last lines that the server wrote."""
        ...
