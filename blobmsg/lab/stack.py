"""A stack of real parts: three brokers and a store, to be used, hurt, and stopped.

Decides what clients are told about it and which server is asked for what. How servers are run is a
`Runtime`'s business, which stacks there are that of `stacks`.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blobmsg.lab import guardian, readiness
from blobmsg.lab.state import NodeState, StackState, forget_state, load_state, save_state

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from types import TracebackType

    from mypy_boto3_s3 import S3Client
    from typing_extensions import Self

    from blobmsg.lab.cache_folder import Report
    from blobmsg.lab.runtime import Runtime

# A loaded machine of two cores takes about ten seconds, pulling images minutes.
DEFAULT_TIMEOUT_SECONDS = 90.0


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
        self.stack.start_nodes([self], timeout_seconds)

    def begin(self) -> None:
        """Start it again and don't wait; `Stack.start_nodes` does.

        Raises:
            LabError: It runs already.
        """
        self._state.is_wanted = True
        self.stack.runtime.start_node(self.stack.state, self._state)

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

    def environ(self, prefix: str = "dev") -> dict[str, str]:
        """Return the same as environment variables; `open_stack` reads them."""
        names = {
            f"{key.replace('.', '_').upper()}": str(value)
            for key, value in self.conf(prefix).items()
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

    def start_nodes(
        self, nodes: Iterable[Node], timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        """Start several servers again; returns when they answer.

        All begin before one is waited for: a broker alone can't elect a controller.

        Raises:
            LabError: One runs already, died, or did not answer in time.
        """
        started = list(nodes)
        for node in started:
            node.begin()
        deadline = time.monotonic() + timeout_seconds
        for node in started:
            readiness.wait_node_ready(node, deadline)

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
