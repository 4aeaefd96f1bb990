"""An HTTP proxy between a store client and the store that does harm on request.

A rule looks at each request and names a fault or none; everything else passes byte for byte, the
`Host` header too, so that signatures stay valid. Decides nothing by itself and knows no S3 beyond
the form of an error answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from typing_extensions import Self

_END_OF_HEAD = b"\r\n\r\n"
_UPSTREAM_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came.

    Attributes:
        number: Counts all requests from 0.
        method: HTTP method.
        path: Encoded path and query.
        attempt: How many requests with this method and path came before, from 0.
        identity: The access key id that signed it; empty if none did.
    """

    number: int
    method: str
    path: str
    attempt: int
    identity: str

    @property
    def object_number(self) -> int:
        """The last element of an object key: the writer's count of its objects."""
        return int(self.path.rpartition("-")[2])


class Fault:
    """What is done to a request; the subclasses say what."""


@dataclass(frozen=True, slots=True)
class Delay(Fault):
    """Forward it, answer later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold(Fault):
    """Forward it only when `released` is set."""

    released: threading.Event


@dataclass(frozen=True, slots=True)
class Answer(Fault):
    """Answer with an S3 error; the store never hears of it."""

    status: int
    code: str


class Reset(Fault):
    """Reset the connection; the store never hears of it."""


class LoseAnswer(Fault):
    """Forward it, then reset the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Truncate(Fault):
    """Forward it, end the answer's body after so many bytes."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class FlipBit(Fault):
    """Flip the lowest bit of one byte of the answer's body; of an empty one nothing.

    Attributes:
        byte_index: Counted round the body, however long that is.
    """

    byte_index: int


@dataclass(frozen=True, slots=True)
class FlipRequestBit(Fault):
    """Flip the lowest bit of one byte of the request's body; see `FlipBit`."""

    byte_index: int


if TYPE_CHECKING:
    Rule: TypeAlias = Callable[[Request], Fault | None]


def by_chance(rule: Rule, probability: float, rng: random.Random) -> Rule:
    """Ask a rule only for this share of the requests."""
    return lambda request: rule(request) if rng.random() < probability else None


def puts(fault: Fault | None) -> Rule:
    """This fault for every PUT; all else passes."""
    return lambda request: fault if request.method == "PUT" else None


class FaultProxy:
    """The proxy; a context manager.

    Args:
        host: Of the store.
        port: Of the store.
        listen_port: Of the proxy; 0: a free one.

    Attributes:
        rule: Asked for each request; None: no faults.

    Threads: any; the lock of `_changed` guards the counts.
    """

    def __init__(self, host: str, port: int, *, listen_port: int = 0) -> None:
        self.rule: Rule | None = None
        self._upstream = (host, port)
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._done: list[Request] = []  # in the order in which their answers were sent
        self._faults: Counter[str] = Counter()
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._in_flight = 0
        self._most_in_flight = 0
        self._is_closed = False
        self._connections: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", listen_port), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="fault-proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and break all connections."""
        with self._changed:
            self._is_closed = True
            connections = list(self._connections)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def requests(self) -> list[Request]:
        """All requests so far, in the order they came."""
        with self._changed:
            return list(self._requests)

    @property
    def finished(self) -> list[Request]:
        """The requests that were answered, in that order."""
        with self._changed:
            return list(self._done)

    @property
    def faults(self) -> Counter[str]:
        """How often each kind of fault was done."""
        with self._changed:
            return self._faults.copy()

    @property
    def most_in_flight(self) -> int:
        """The most requests under way at one moment."""
        with self._changed:
            return self._most_in_flight

    def wait_for(self, is_so: Callable[[Sequence[Request]], bool], timeout_s: float = 60.0) -> None:
        """Wait until the requests so far satisfy a condition."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_so(self._requests), timeout_s):
                raise AssertionError(f"not within {timeout_s} s; requests: {self._requests}")

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection,), name="fault-proxy-client", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        with self._changed:
            if self._is_closed:
                client.close()
                return
            self._connections.add(client)
        try:
            with client, contextlib.suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while self._exchange(client):
                    pass
        finally:
            with self._changed:
                self._connections.discard(client)

    def _exchange(self, client: socket.socket) -> bool:
        """One request and its answer; whether the connection lives on."""
        message = _read_message(client)
        if message is None:
            return False
        head, body = message
        method, path = head.split(b" ", 2)[:2]
        request, fault = self._received(method.decode(), path.decode(), _identity(head))
        try:
            return self._answer(client, request, fault, head, body)
        finally:
            with self._changed:
                self._in_flight -= 1
                self._done.append(request)
                self._changed.notify_all()

    def _received(self, method: str, path: str, identity: str) -> tuple[Request, Fault | None]:
        with self._changed:
            attempt = self._attempts[method, path]
            self._attempts[method, path] += 1
            request = Request(len(self._requests), method, path, attempt, identity)
            self._requests.append(request)
            self._in_flight += 1
            self._most_in_flight = max(self._most_in_flight, self._in_flight)
            self._changed.notify_all()
        fault = None if self.rule is None else self.rule(request)
        if fault is not None:
            with self._changed:
                self._faults[type(fault).__name__] += 1
        return request, fault

    def _answer(
        self,
        client: socket.socket,
        request: Request,
        fault: Fault | None,
        head: bytes,
        body: bytes,
    ) -> bool:
        if isinstance(fault, Answer):
            client.sendall(_error_answer(fault))
            return True
        if isinstance(fault, Reset):
            _reset(client)
            return False
        if isinstance(fault, Hold):
            fault.released.wait(_UPSTREAM_TIMEOUT_S)
        if isinstance(fault, FlipRequestBit):
            body = _flipped(body, fault.byte_index)
        answer_head, answer_body = self._forward(request.method, head, body)
        if isinstance(fault, Delay):
            time.sleep(fault.seconds)  # the fault itself
        if isinstance(fault, LoseAnswer):
            _reset(client)
            return False
        if isinstance(fault, Truncate):
            client.sendall(answer_head + answer_body[: fault.after_bytes])
            return False
        if isinstance(fault, FlipBit):
            answer_body = _flipped(answer_body, fault.byte_index)
        client.sendall(answer_head + answer_body)
        return True

    def _forward(self, method: str, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        with socket.create_connection(self._upstream, _UPSTREAM_TIMEOUT_S) as upstream:
            upstream.sendall(head)
            upstream.sendall(body)
            answer = _read_message(upstream, has_body=method != "HEAD")
        if answer is None:
            raise ConnectionResetError("the store closed the connection")
        return answer


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _read_message(peer: socket.socket, *, has_body: bool = True) -> tuple[bytes, bytes] | None:
    """Head (with its empty line) and body of one HTTP message; None at the end."""
    data = bytearray()
    while (end := data.find(_END_OF_HEAD)) < 0:
        received = peer.recv(65536)
        if not received:
            return None
        data += received
    end += len(_END_OF_HEAD)
    head, body = bytes(data[:end]), data[end:]
    length = _content_length(head) if has_body else 0
    while len(body) < length:
        received = peer.recv(min(1 << 20, length - len(body)))
        if not received:
            return None
        body += received
    return head, bytes(body)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _identity(head: bytes) -> str:
    _, _, signed_by = head.partition(b" Credential=")
    return signed_by.partition(b"/")[0].decode() if signed_by else ""


def _error_answer(fault: Answer) -> bytes:
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{fault.code}</Code><Message>by the fault proxy</Message></Error>"
    ).encode()
    head = (
        f"HTTP/1.1 {fault.status} {fault.code}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def _flipped(data: bytes, byte_index: int) -> bytes:
    if not data:
        return data
    flipped = bytearray(data)
    flipped[byte_index % len(data)] ^= 1
    return bytes(flipped)
