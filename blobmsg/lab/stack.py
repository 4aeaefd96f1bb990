"""A stack of real parts: three brokers and a store, to be used, hurt, and stopped.

Decides when a stack exists, to whom it belongs and what clients are told about it. How servers are
run is a `Runtime`'s business.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from blobmsg.lab import guardian, minio, readiness
from blobmsg.lab.cache_folder import Report, ignore, locked
from blobmsg.lab.docker import DockerRuntime, docker_engine
from blobmsg.lab.errors import LabError
from blobmsg.lab.external import ExternalRuntime, external_state
from blobmsg.lab.native import NativeRuntime, missing_tools
from blobmsg.lab.processes import ProcessId
from blobmsg.lab.state import (
    NodeState,
    StackState,
    forget_state,
    known_stacks,
    load_state,
    save_state,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import TracebackType

    from mypy_boto3_s3 import S3Client
    from typing_extensions import Self

DEFAULT_HEAP_MEBIBYTES = 512
# A loaded machine of two cores takes about ten seconds, pulling images minutes.
DEFAULT_TIMEOUT_SECONDS = 90.0


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


_RUNTIMES: Mapping[str, Runtime] = {
    "native": NativeRuntime(),
    "docker": DockerRuntime(),
    "external": ExternalRuntime(),
}


@dataclass(frozen=True, slots=True)
class S3Access:
    """How to reach the stack's store.

    Attributes:
        endpoint_url: With scheme and port.
        region: What it calls its region.
        access_key_id: Of a user who may do everything.
        secret_access_key: Of the same.
        bucket: One that is there.
    """

    endpoint_url: str
    region: str
    access_key_id: str
    secret_access_key: str
    bucket: str


class Node:
    """One server of a running stack: a broker or the store.

    Threads: any, one at a time per stack.
    """

    __slots__ = ("_state", "stack")

    def __init__(self, stack: Stack, state: NodeState) -> None:
        self.stack: Stack = stack
        self._state = state

    @property
    def name(self) -> str:
        """`kafka-1` … `kafka-3` or `minio`."""
        return self._state.name

    @property
    def zone(self) -> str:
        """The broker's rack; "" for the store."""
        return self._state.zone

    @property
    def host(self) -> str:
        """Where clients reach it."""
        return self._state.host

    @property
    def port(self) -> int:
        """Where clients reach it."""
        return self._state.port

    @property
    def address(self) -> str:
        """`host:port`."""
        return self._state.address

    @property
    def pid(self) -> int | None:
        """The process last started; None under Docker."""
        return self._state.process.pid if self._state.process else None

    @property
    def is_broker(self) -> bool:
        """Whether it is one of the brokers."""
        return self._state.name.startswith("kafka")

    @property
    def is_wanted(self) -> bool:
        """Whether it should run: False once it was killed or shut down on purpose."""
        return self._state.is_wanted

    def is_running(self) -> bool:
        """Whether it is there; a paused one is."""
        return self.stack.runtime.is_running(self.stack.state, self._state)

    def log_tail(self) -> str:
        """Return the last lines that it wrote."""
        return self.stack.runtime.log_tail(self.stack.state, self._state)

    def kill(self) -> None:
        """End it as `kill -9` does; returns when it is gone. Its data stays."""
        self._not_wanted()
        self.stack.runtime.kill_node(self.stack.state, self._state)

    def shut_down(self, timeout_seconds: float = 30) -> None:
        """Ask it to end (a broker hands over its partitions) and wait for it.

        Raises:
            LabError: It has not ended in time.
        """
        self._not_wanted()
        self.stack.runtime.shut_down_node(self.stack.state, self._state, timeout_seconds)

    def pause(self) -> None:
        """Stop its clock: connections stay open and nothing answers."""
        self.stack.runtime.pause_node(self.stack.state, self._state)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self.stack.runtime.resume_node(self.stack.state, self._state)

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Pause it for the length of a `with` block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def start(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Start it again on its port, with its data; returns when it answers.

        Raises:
            LabError: It runs already, died, or did not answer in time.
        """
        self._state.is_wanted = True
        self.stack.runtime.start_node(self.stack.state, self._state)
        self.wait_ready(timeout_seconds)

    def wait_ready(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Return when it answers.

        Raises:
            LabError: It died, or did not answer in time.
        """
        readiness.wait_node_ready(self, time.monotonic() + timeout_seconds)

    def _not_wanted(self) -> None:
        self._state.is_wanted = False
        save_state(self.stack.state)


class Stack:
    """Three brokers and a store, running.

    As a context manager it stops itself. Attributes tell clients what they need; `conf()` has all
    of it as settings.

    Args:
        state: What is known about it.
        runtime: Runs its servers.

    Threads: any, one at a time.
    """

    def __init__(self, state: StackState, runtime: Runtime) -> None:
        self.state = state
        self.runtime = runtime
        self.nodes: list[Node] = [Node(self, node) for node in state.nodes]
        self._guardian: guardian.Guardian | None = None

    @property
    def name(self) -> str:
        """Unique on this machine."""
        return self.state.name

    @property
    def brokers(self) -> list[Node]:
        """The brokers, in the order of their zones."""
        return [node for node in self.nodes if node.is_broker]

    @property
    def minio(self) -> Node:
        """The store."""
        return next(node for node in self.nodes if not node.is_broker)

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, as `bootstrap.servers` wants them."""
        return ",".join(node.address for node in self.brokers)

    @property
    def bucket(self) -> str:
        """A bucket that is there."""
        return self.state.bucket

    @property
    def s3(self) -> S3Access:
        """How to reach the store."""
        return S3Access(
            endpoint_url=f"http://{self.minio.address}",
            region=self.state.region,
            access_key_id=self.state.access_key_id,
            secret_access_key=self.state.secret_access_key,
            bucket=self.bucket,
        )

    def store_url(self, prefix: str = "dev") -> str:
        """Return `blobmsg.store.url` for a prefix of the bucket."""
        return f"s3://{self.bucket}/{prefix}"

    def conf(self, prefix: str = "dev") -> dict[str, Any]:
        """Return the settings with which a `BlobProducer` or `BlobConsumer` reaches the stack."""
        s3 = self.s3
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "blobmsg.store.url": self.store_url(prefix),
            "blobmsg.s3.endpoint.url": s3.endpoint_url,
            "blobmsg.s3.region": s3.region,
            "blobmsg.s3.access.key.id": s3.access_key_id,
            "blobmsg.s3.secret.access.key": s3.secret_access_key,
        }

    def environ(self) -> dict[str, str]:
        """Return the same as environment variables; `open_stack` reads them."""
        names = {
            f"{key.replace('.', '_').upper()}": str(value)
            for key, value in self.conf().items()
            if key.startswith("blobmsg.")
        }
        return {
            "BLOBMSG_DEV_STACK": self.name,
            "BLOBMSG_DEV_BOOTSTRAP": self.bootstrap_servers,
            **names,
        }

    def s3_client(self) -> S3Client:
        """Return a plain boto3 client of the store, for looking at it and breaking it.

        Close it after use.
        """
        import boto3
        from botocore.config import Config

        s3 = self.s3
        sdk: Any = boto3  # its stubs have one overload per service of the cloud
        client: S3Client = sdk.client(
            "s3",
            endpoint_url=s3.endpoint_url,
            region_name=s3.region,
            aws_access_key_id=s3.access_key_id,
            aws_secret_access_key=s3.secret_access_key,
            config=Config(
                connect_timeout=2,
                read_timeout=10,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )
        return client

    def broker(self, number: int) -> Node:
        """Return the broker with this node id, from 1."""
        return self.brokers[number - 1]

    def is_running(self) -> bool:
        """Whether every server that should run is there."""
        return all(node.is_running() for node in self.nodes if node.is_wanted)

    def wait_ready(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Return when every server that should run answers.

        Raises:
            LabError: A server died or time is up; the text has the end of its log.
        """
        readiness.wait_ready(self, timeout_seconds)

    def stop(self) -> None:
        """End all servers and remove their data. A second call does nothing."""
        # The guardian goes last: while it is there, a failure here leaves nothing behind.
        if load_state(self.name) is not None:
            self.runtime.stop(self.state)
            forget_state(self.name)
        self.release()

    def release(self) -> None:
        """Let the stack live on after this process."""
        if self.state.owner is not None:
            self.state.owner = None
            if load_state(self.name) is not None:
                save_state(self.state)
        if self._guardian is not None:
            self._guardian.dismiss()
            self._guardian = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def begin(
        self,
        report: Report,
        *,
        broker_overrides: Mapping[str, str],
        heap_mebibytes: int,
        timeout_seconds: float,
    ) -> None:
        """Start all servers under a guardian and wait for them; leaves nothing on failure."""
        save_state(self.state)
        self._guardian = guardian.Guardian(self.name)
        try:
            self.runtime.start(
                self.state,
                report,
                broker_overrides=broker_overrides,
                heap_mebibytes=heap_mebibytes,
            )
            self.nodes = [Node(self, node) for node in self.state.nodes]
            report("waiting until brokers and store answer")
            self.wait_ready(timeout_seconds)
        except BaseException:  # Ctrl-C as well
            self.stop()
            raise


def start_stack(
    name: str | None = None,
    *,
    runtime: str = "auto",
    broker_overrides: Mapping[str, str] | None = None,
    heap_mebibytes: int = DEFAULT_HEAP_MEBIBYTES,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    report: Report = ignore,
) -> Stack:
    """Start three brokers and a store and return when they answer.

    The stack ends with this process, however that ends, unless `Stack.release` is called.

    Args:
        name: For finding it again; made up if not given.
        runtime: `native`, `docker`, or `auto`: Docker when an engine answers, else native.
        broker_overrides: Broker properties that differ from the lab's.
        heap_mebibytes: Of each broker.
        timeout_seconds: For the answers, not for getting parts the first time.
        report: Told what takes long.

    Raises:
        PartsMissing: A tool is not there.
        LabError: The name is taken, or a server did not come up.
    """
    name = name or f"stack-{os.getpid()}-{os.urandom(3).hex()}"
    with locked(f"stack-{name}", report):
        reap_orphans()
        known = find_stack(name)
        if known is not None:
            if known.is_running():
                raise LabError(f"stack {name!r} runs already")
            known.stop()  # the rest of one that broke
        chosen = choose_runtime(runtime)
        state = StackState(
            name=name,
            runtime=chosen,
            folder="",
            nodes=[],
            bucket=minio.BUCKET,
            region=minio.REGION,
            access_key_id=minio.ACCESS_KEY_ID,
            secret_access_key=minio.SECRET_ACCESS_KEY,
            owner=ProcessId.of(os.getpid()),
        )
        stack = Stack(state, _RUNTIMES[chosen])
        stack.begin(
            report,
            broker_overrides=broker_overrides or {},
            heap_mebibytes=heap_mebibytes,
            timeout_seconds=timeout_seconds,
        )
        return stack


def find_stack(name: str) -> Stack | None:
    """Return the stack of this name, running or broken; None if there is none."""
    state = load_state(name)
    return None if state is None else Stack(state, _RUNTIMES[state.runtime])


@contextlib.contextmanager
def open_stack(
    environ: Mapping[str, str] | None = None,
    report: Report = ignore,
    *,
    heap_mebibytes: int = DEFAULT_HEAP_MEBIBYTES,
) -> Generator[Stack, None, None]:
    """Use the stack that the environment names, else one started for the length of the block.

    Args:
        environ: `os.environ` if not given. `BLOBMSG_DEV_STACK` names a stack of this machine;
            `BLOBMSG_DEV_BOOTSTRAP` and `BLOBMSG_S3_…` describe any (its servers cannot be
            killed). That is what `blobmsg dev env` prints.
        report: Told what takes long.
        heap_mebibytes: Of each broker, if one is started.

    Raises:
        PartsMissing: A tool is not there.
        LabError: The named stack does not run, or a new one did not come up.
    """
    given = stack_from_environ(os.environ if environ is None else environ)
    if given is not None:
        yield given
    else:
        with start_stack(heap_mebibytes=heap_mebibytes, report=report) as stack:
            yield stack


def stack_from_environ(environ: Mapping[str, str]) -> Stack | None:
    """Return the stack that the environment names; None if it names none.

    Raises:
        LabError: The named stack does not run.
    """
    name = environ.get("BLOBMSG_DEV_STACK")
    if name:
        stack = find_stack(name)
        if stack is not None:
            if not stack.is_running():
                raise LabError(f"stack {name!r} (BLOBMSG_DEV_STACK) is broken: blobmsg dev status")
            return stack
        if not environ.get("BLOBMSG_DEV_BOOTSTRAP"):
            raise LabError(f"no stack {name!r} (BLOBMSG_DEV_STACK) runs: blobmsg dev up")
    if not environ.get("BLOBMSG_DEV_BOOTSTRAP"):
        return None
    return Stack(external_state(environ), _RUNTIMES["external"])


def reap_orphans() -> list[str]:
    """Stop the stacks whose owners ended without stopping them; return their names.

    Guardians do this at once; this is for the case that one was killed, too.
    """
    reaped: list[str] = []
    for name in known_stacks():
        stack = find_stack(name)
        if stack is not None and stack.state.owner and not stack.state.owner.is_alive():
            stack.stop()
            reaped.append(name)
    return reaped


def missing_parts(runtime: str = "auto") -> list[str]:
    """Return the tools that this machine lacks to start a stack; none if it can."""
    return [] if choose_runtime(runtime) == "docker" else missing_tools()


def install_parts(report: Report, runtime: str = "auto") -> None:
    """Get and build now what a start would get and build.

    Raises:
        PartsMissing: A tool is not there.
        LabError: A step failed.
    """
    _RUNTIMES[choose_runtime(runtime)].install(report)


def choose_runtime(runtime: str = "auto") -> str:
    """Return `docker` or `native` for `auto`: Docker when an engine answers."""
    if runtime == "auto":
        runtime = os.environ.get("BLOBMSG_DEV_RUNTIME") or "auto"
    if runtime == "auto":
        return "docker" if docker_engine() else "native"
    if runtime not in ("docker", "native"):
        raise LabError(f"no runtime {runtime!r}: use auto, native or docker")
    return runtime
