"""Kept-alive HTTP/1.1 connections to one endpoint, for bodies of many MiB at little CPU.

Decides which connection a request goes over and how long each wait on a socket may take; the
request's deadline bounds every single one, so a peer that trickles can't hold a thread. A body
goes from the caller's buffer to the socket and from the socket into the result without another
copy; botocore's transport sends in blocks of 16 KiB and joins what it reads. Not an HTTP client
for everyone: no redirects, cookies or compression, and it judges no status. A request that died
on a kept-alive connection before any answer is sent once more on a new one, as every client does
(the server closes idle connections when it likes); there are no other retries here.
"""

from __future__ import annotations

import base64
import io
import os
import select
import socket
import ssl
import struct
import threading
from collections import deque
from contextlib import contextmanager, suppress
from http.client import HTTPException
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from blobmsg.store.http_response import Response

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from blobmsg.clock import Clock

    Pieces: TypeAlias = Sequence[memoryview]

__all__ = ["ConnectionPool"]

CONNECT_TIMEOUT_MS = 5_000  # a lost SYN is repeated after 1 and 3 s; after 5 s the host is away
JOINED_BYTES = 65_536  # smaller requests go in one packet and one system call
SEND_BYTES = 4 << 20
SEND_PIECES = 1024  # IOV_MAX: what one call takes
READ_BUFFER_BYTES = 65_536
# The kernel's own time-outs (SO_SNDTIMEO, SO_RCVTIMEO) take a timeval; Windows' take another type.
_HAS_KERNEL_TIMEOUTS = os.name == "posix"
_TIMEVAL = struct.Struct("@ll")


class ConnectionPool:
    """Connections to one endpoint.

    Args:
        endpoint_url: `http://host:port` or `https://host`; a path in it is ignored.
        max_idle: Connections kept open while nobody uses them.
        clock: Measures deadlines.
        ca_file: Certificates to trust for https; the system's when None.
        use_environment_proxy: Go through `HTTPS_PROXY` or `HTTP_PROXY` unless `NO_PROXY` names
            the host.

    Threads: any. `_lock` guards `_idle`, `_busy` and `_is_closed`; nothing waits under it.
    """

    def __init__(
        self,
        endpoint_url: str,
        *,
        max_idle: int,
        clock: Clock,
        ca_file: str | None = None,
        use_environment_proxy: bool = True,
    ) -> None:
        parts = urlsplit(endpoint_url)
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_tls else 80)
        self.host_header = parts.netloc.rpartition("@")[2]
        self.endpoint = f"{parts.scheme}://{self.host_header}"
        self._max_idle = max_idle
        self._clock = clock
        self._tls = ssl.create_default_context(cafile=ca_file) if self._is_tls else None
        self._proxy = _proxy_for(parts.scheme, self._host) if use_environment_proxy else None
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []  # last in, first out: the rest age and are dropped
        self._busy: set[socket.socket] = set()
        self._is_closed = False

    @contextmanager
    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Pieces | None = None,
        *,
        deadline_ms: int,
    ) -> Generator[Response, None, None]:
        """Send a request and give its answer, whatever its status.

        Args:
            method: HTTP method.
            target: Encoded path and query.
            headers: As to be sent, `host` among them; `content-length` is added to a body.
            body: In pieces of single bytes, none of them empty; sent as it is, not changed
                meanwhile.
            deadline_ms: Monotonic; every wait on the socket ends there.

        Yields:
            The answer, with its body unread.

        Raises:
            TimeoutError: The deadline came.
            OSError: No connection, or it broke.
            HTTPException: The peer does not speak HTTP, or stopped in the middle.
        """
        head = self._head(method, target, headers, body)
        sock, response = self._first_answer(method, head, body, deadline_ms)
        is_reusable = False
        try:
            yield response
            is_reusable = response.is_reusable()
        finally:
            self._give_back(sock, is_reusable=is_reusable)

    def close(self) -> None:
        """Close idle connections and break those in use, so that no thread goes on waiting."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for sock in idle:
            sock.close()
        for sock in busy:
            with suppress(OSError):
                # Wakes the thread that waits on it. Not SSLSocket's own shutdown: that drops the
                # cipher, and the other thread would read what is left as plain text.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _head(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Pieces | None,
    ) -> bytes:
        if self._proxy is not None and not self._is_tls:
            target = self.endpoint + target
        lines = [f"{method} {target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"content-length: {sum(map(len, body))}")
        if self._proxy is not None and not self._is_tls and self._proxy.authorization:
            lines.append(f"proxy-authorization: {self._proxy.authorization}")
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header or path of an S3 request has a line break in it")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _first_answer(
        self, method: str, head: bytes, body: Pieces | None, deadline_ms: int
    ) -> tuple[socket.socket, Response]:
        """Send until something is answered: over a kept-alive connection, else over a new one."""
        kept = self._take_idle()
        if kept is not None:
            try:
                return kept, self._send(kept, method, head, body, deadline_ms)
            except TimeoutError:
                self._give_back(kept, is_reusable=False)
                raise
            except OSError:
                self._give_back(kept, is_reusable=False)
            except BaseException:
                self._give_back(kept, is_reusable=False)
                raise
        fresh = self._connect(deadline_ms)
        try:
            return fresh, self._send(fresh, method, head, body, deadline_ms)
        except BaseException:
            self._give_back(fresh, is_reusable=False)
            raise

    def _send(
        self,
        sock: socket.socket,
        method: str,
        head: bytes,
        body: Pieces | None,
        deadline_ms: int,
    ) -> Response:
        broken: OSError | None = None
        try:
            pieces = [memoryview(head), *(body or ())]
            if sum(map(len, pieces)) <= JOINED_BYTES:
                pieces = [memoryview(b"".join(pieces))]
            self._send_all(sock, pieces, deadline_ms)
        except TimeoutError:
            raise
        except OSError as error:
            # A server that refuses a large upload answers and hangs up before it has read all:
            # its answer waits in our buffer and is the better error.
            broken = error
        reader = _TimedReader(sock, self._clock, deadline_ms)
        try:
            return Response(io.BufferedReader(reader, READ_BUFFER_BYTES), method)
        except (OSError, HTTPException):
            if broken is not None:
                raise broken from None
            raise

    def _send_all(
        self, sock: socket.socket, pieces: Iterable[memoryview], deadline_ms: int
    ) -> None:
        rest = deque(pieces)
        while rest:
            _limit_wait(sock, socket.SO_SNDTIMEO, _remaining_s(self._clock, deadline_ms))
            with _kernel_timeouts():
                sent = _send_some(sock, rest)
            while rest and sent >= len(rest[0]):
                sent -= len(rest.popleft())
            if sent:
                rest[0] = rest[0][sent:]

    def _take_idle(self) -> socket.socket | None:
        while True:
            with self._lock:
                self._check_open()
                if not self._idle:
                    return None
                sock = self._idle.pop()
                self._busy.add(sock)
            # Something to read on an idle connection is its end (or nonsense): not usable.
            poller = select.poll()
            poller.register(sock, select.POLLIN)
            if not poller.poll(0):
                return sock
            self._give_back(sock, is_reusable=False)

    def _connect(self, deadline_ms: int) -> socket.socket:
        timeout_s = min(_remaining_s(self._clock, deadline_ms), CONNECT_TIMEOUT_MS / 1000)
        proxy = self._proxy
        address = (self._host, self._port) if proxy is None else (proxy.host, proxy.port)
        sock = socket.create_connection(address, timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                if proxy is not None:
                    self._open_tunnel(sock, proxy, deadline_ms)
                sock.settimeout(_remaining_s(self._clock, deadline_ms))
                sock = self._tls.wrap_socket(sock, server_hostname=self._host)
            elif _HAS_KERNEL_TIMEOUTS:
                sock.settimeout(None)  # see `_limit_wait`
            with self._lock:
                self._check_open()
                self._busy.add(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    def _open_tunnel(self, sock: socket.socket, proxy: _Proxy, deadline_ms: int) -> None:
        authority = f"{self._host}:{self._port}"
        head = f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n"
        if proxy.authorization:
            head += f"proxy-authorization: {proxy.authorization}\r\n"
        self._send_all(sock, [memoryview(f"{head}\r\n".encode("latin-1"))], deadline_ms)
        # A buffer of one byte, else the reader could swallow the first bytes of TLS.
        reader = _TimedReader(sock, self._clock, deadline_ms)
        response = Response(io.BufferedReader(reader, 1), "CONNECT")
        if response.status != 200:
            raise OSError(
                f"proxy {proxy.host}:{proxy.port} refused a tunnel to {authority}: "
                f"{response.status} {response.reason}"
            )

    def _give_back(self, sock: socket.socket, *, is_reusable: bool) -> None:
        with self._lock:
            self._busy.discard(sock)
            if is_reusable and not self._is_closed and len(self._idle) < self._max_idle:
                self._idle.append(sock)
                return
        sock.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionAbortedError("the store has been closed")


class _TimedReader(io.RawIOBase):
    """Reads a socket; no read waits past the deadline. Threads: one."""

    def __init__(self, sock: socket.socket, clock: Clock, deadline_ms: int) -> None:
        super().__init__()
        self._sock = sock
        self._clock = clock
        self._deadline_ms = deadline_ms

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # BufferedReader's only call
        sock = self._sock
        _limit_wait(sock, socket.SO_RCVTIMEO, _remaining_s(self._clock, self._deadline_ms))
        # More than the reader's own buffer is asked for only within a body of known length.
        waits_for_all = sock.gettimeout() is None and len(buffer) > READ_BUFFER_BYTES
        with _kernel_timeouts():
            return sock.recv_into(buffer, 0, socket.MSG_WAITALL if waits_for_all else 0)


class _Proxy:
    """An HTTP proxy from the environment."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        self.host = parts.hostname or ""
        self.port = parts.port or 80
        self.authorization = ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.authorization = "Basic " + base64.b64encode(pair.encode()).decode()


def _proxy_for(scheme: str, host: str) -> _Proxy | None:
    url = getproxies().get(scheme)
    return _Proxy(url) if url and not proxy_bypass(host) else None


def _limit_wait(sock: socket.socket, option: int, timeout_s: float) -> None:
    """Bound the next call on a socket.

    A plain socket blocks in the kernel, so that one call moves megabytes: Python's own time-outs
    come back for every few hundred KiB, and each time the thread waits for the GIL again, 5 ms
    while the application computes. TLS works by records of 16 KiB anyway and keeps Python's.
    """
    if sock.gettimeout() is None:
        seconds, rest_s = divmod(max(timeout_s, 0.001), 1.0)
        sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(seconds), int(rest_s * 1e6)))
    else:
        sock.settimeout(timeout_s)


@contextmanager
def _kernel_timeouts() -> Generator[None, None, None]:
    """What the kernel says when its time-out is over, as Python says it."""
    try:
        yield
    except BlockingIOError as error:
        raise TimeoutError("timed out") from error


def _send_some(sock: socket.socket, pieces: Iterable[memoryview]) -> int:
    """Send from the beginning of these pieces; how many bytes."""
    # TLS, and systems without time-outs in the kernel, take one buffer: small pieces are joined.
    takes_several = sock.gettimeout() is None
    several: list[memoryview] = []
    room = SEND_BYTES
    for piece in islice(pieces, SEND_PIECES):
        if several and not takes_several:
            room = min(room, JOINED_BYTES - sum(map(len, several)))
        if room <= 0:
            break
        several.append(piece[:room])
        room -= len(several[-1])
    if takes_several:
        return sock.sendmsg(several)
    return sock.send(several[0] if len(several) == 1 else b"".join(several))


def _remaining_s(clock: Clock, deadline_ms: int) -> float:
    remaining_ms = deadline_ms - clock.now_ms()
    if remaining_ms <= 0:
        raise TimeoutError("the deadline came")
    return remaining_ms / 1000
