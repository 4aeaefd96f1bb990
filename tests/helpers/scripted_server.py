"""An HTTP server that answers, lies, breaks off or hangs as a test's script says.

It decides nothing: request number n gets step number n of the script, over whatever connection
it comes. Plain sockets, because a real server library would not misbehave.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection_number: int


Step: TypeAlias = (
    "Callable[[socket.socket, ScriptedServer], bool]"  # whether to keep the connection
)


class ScriptedServer:
    """Serves one step per request; the last step repeats."""

    def __init__(
        self, *steps: Step, reads_body: bool = True, tls: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[Received] = []
        self.stopping = threading.Event()
        self.request_came = threading.Event()
        self._steps = list(steps)
        self._reads_body = reads_body
        self._tls = tls
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                number = len(self._connections)
                thread = threading.Thread(
                    target=self._serve, args=(connection, number), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        if self._tls is not None:
            with suppress(OSError):
                connection = self._tls.wrap_socket(connection, server_side=True)
        with connection, suppress(OSError), connection.makefile("rb") as file:
            while line := file.readline():
                method, target, _ = line.decode().split(" ", 2)
                headers = {}
                while (line := file.readline()) not in {b"\r\n", b""}:
                    name, _, value = line.decode("latin-1").partition(":")
                    headers[name.strip().lower()] = value.strip()
                body = b""
                if self._reads_body:
                    body = file.read(int(headers.get("content-length", "0")))
                with self._lock:
                    self.requests.append(Received(method, target, headers, body, number))
                    step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
                self.request_came.set()
                if not step(connection, self):
                    return


def answer(status: int = 200, body: bytes = b"", *, keep: bool = True, **headers: str) -> Step:
    """A whole answer; header names with underscores for dashes."""

    def step(connection: socket.socket, _: ScriptedServer) -> bool:
        fields = {"content-length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.sendall(_head(status, fields) + body)
        return keep

    return step


def partial(body: bytes, start: int, total: int) -> Step:
    """The answer to a ranged GET."""
    content_range = f"bytes {start}-{start + len(body) - 1}/{total}"
    return answer(206, body, content_range=content_range)


def refusal(status: int, code: str, message: str = "", **headers: str) -> Step:
    """An S3 error."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return answer(status, body.encode(), keep=True, content_type="application/xml", **headers)


def refusal_before_the_body(status: int, code: str) -> Step:
    """What a real server does with an upload it refuses: answer, linger, break the connection."""
    answered = refusal(status, code)

    def step(connection: socket.socket, server: ScriptedServer) -> bool:
        answered(connection, server)
        connection.shutdown(socket.SHUT_WR)
        server.stopping.wait(0.2)
        return False

    return step


def truncated(body: bytes, length: int, **headers: str) -> Step:
    """Fewer bytes than promised, then the end."""
    return answer(206, body, keep=False, content_length=str(length), **headers)


def raw(data: bytes) -> Step:
    """Any bytes, then the end."""

    def step(connection: socket.socket, _: ScriptedServer) -> bool:
        connection.sendall(data)
        return False

    return step


def trickle(head: bytes, piece: bytes, pause_s: float) -> Step:
    """The head, then a small piece at a time for as long as anybody listens."""

    def step(connection: socket.socket, server: ScriptedServer) -> bool:
        connection.sendall(head)
        while not server.stopping.wait(pause_s):
            connection.sendall(piece)
        return False

    return step


def reset() -> Step:
    """The connection breaks with a TCP reset."""

    def step(connection: socket.socket, _: ScriptedServer) -> bool:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        return False

    return step


def hang_up() -> Step:
    """The connection ends without an answer."""
    return raw(b"")


def hang() -> Step:
    """No answer at all."""

    def step(_: socket.socket, server: ScriptedServer) -> bool:
        server.stopping.wait()
        return False

    return step


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Something", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
