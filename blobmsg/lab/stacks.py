"""Which stacks there are: started, found again, given by the environment, left by dead owners.

Decides when a stack comes into being, on which runtime, and to whom it belongs. What one can do
with it is said by `stack`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from blobmsg.lab import minio
from blobmsg.lab.cache_folder import Report, ignore, locked
from blobmsg.lab.docker import DockerRuntime, docker_engine
from blobmsg.lab.errors import LabError
from blobmsg.lab.external import ExternalRuntime, external_state
from blobmsg.lab.native import NativeRuntime, missing_tools
from blobmsg.lab.processes import ProcessId
from blobmsg.lab.stack import DEFAULT_TIMEOUT_SECONDS, Stack
from blobmsg.lab.state import StackState, known_stacks, load_state

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from blobmsg.lab.runtime import Runtime

DEFAULT_HEAP_MEBIBYTES = 512

_RUNTIMES: Mapping[str, Runtime] = {
    "native": NativeRuntime(),
    "docker": DockerRuntime(),
    "external": ExternalRuntime(),
}


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
