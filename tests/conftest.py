"""Fixtures that every kind of test may ask for; real servers start only if a test asks.

A test that asks for `stack` (directly or not) is marked `integration` and has 120 s unless it
says otherwise. Where there can be no stack it is skipped by name, in CI it is an error. With
`BLOBMSG_DEV_STACK` (see `blobmsg dev env`) the tests use a stack that runs already.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from blobmsg import lab
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.framework_environment import NO_FRAMEWORK
from tests.helpers.stack import (
    NO_STACK,
    StackSource,
    find_source,
    heal,
    topic_factory,
    without_servers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# A broker that was killed may come back only when its session ends, after 9 s.
_INTEGRATION_TIMEOUT_SECONDS = 120

# A shell that starts the tests in its background has them ignore Ctrl-C, and so would every program
# that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Brokers and Spark live for minutes here: what their second compiler and a parallel collector cost
# they never give back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

_START_SECONDS = 300
# Else the leaders that a killed broker had go back to it up to five minutes later, in the middle of
# another test, whose groups then have another coordinator.
_BROKER_OVERRIDES = {"auto.leader.rebalance.enable": "false"}

# Hypothesis' own limits are for a machine that does nothing else. In CI its examples stay the same.
hypothesis.settings.register_profile(
    "blobmsg",
    hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("blobmsg")

_source = pytest.StashKey[StackSource]()
_started = pytest.StashKey[lab.Stack]()


@pytest.hookimpl(trylast=True)  # behind pytest-randomly, which mixes the files
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Side by side, a process that gets one of these last would keep the others waiting.
    items.sort(key=lambda item: item.path.relative_to(_HERE).parts[0] not in _LONG_FOLDERS)
    for item in items:
        if _needs_stack(item):
            item.add_marker(pytest.mark.integration)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_INTEGRATION_TIMEOUT_SECONDS))


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if config.option.collectonly or not any(_needs_stack(item) for item in session.items):
        return
    try:
        source = config.stash[_source] = find_source(os.environ)
    except lab.LabError as error:
        raise pytest.UsageError(str(error)) from error
    if source.given is None and not source.missing:
        # Here and not in the fixture: the first build takes minutes, and three brokers that start
        # beside another worker's have taken 75 s, which the first test would have to pay.
        lab.install_parts(lambda text: print(f"\n{text}", flush=True))  # noqa: T201
        started = ExitStack()
        config.add_cleanup(started.close)
        config.stash[_started] = started.enter_context(
            lab.start_stack(
                f"test-{os.getpid()}",
                broker_overrides=_BROKER_OVERRIDES,
                timeout_seconds=_START_SECONDS,
            )
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    yield
    _tell_times(terminalreporter)
    # From the reports and not from the tests: those may have run in other processes (-n).
    for what in (NO_STACK, NO_FRAMEWORK):
        skipped = [
            (report.nodeid, report.longrepr[2])
            for report in terminalreporter.stats.get("skipped", ())
            if isinstance(report.longrepr, tuple) and what in report.longrepr[2]
        ]
        if not skipped:
            continue
        terminalreporter.section(f"SKIPPED: {what}", red=True, bold=True)
        for reason in {reason for _, reason in skipped}:
            terminalreporter.write_line(reason)
        for name, _ in skipped:
            terminalreporter.write_line(f"  not run: {name}")
    if stages := os.environ.get("CI_STAGES"):  # behind all else: often only the end of it is kept
        terminalreporter.section("stages of CI before these tests")
        terminalreporter.write_line(stages.rstrip())


def _tell_times(reporter: pytest.TerminalReporter) -> None:
    """How long the tests of each folder took; summed, though processes run side by side."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds["/".join(report.nodeid.split("/")[:2])] += report.duration
    if len(seconds) > 1:
        reporter.section("time of each folder")
        for folder, took in sorted(seconds.items(), key=lambda item: -item[1]):
            reporter.write_line(f"{took:7.0f} s  {folder}")


@pytest.fixture(scope="session")
def session_stack(pytestconfig: pytest.Config) -> Iterator[lab.Stack]:
    """The session's stack; tests take `stack`."""
    source = pytestconfig.stash[_source]
    if source.given is not None:
        source.given.wait_ready()
        yield source.given
        return
    yield pytestconfig.stash[_started]


@pytest.fixture
def stack(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> lab.Stack:
    """Three brokers and a store, running; shared by all tests, so leave it as it was."""
    missing = pytestconfig.stash[_source].missing
    if missing:
        without_servers(missing)
    found: lab.Stack = request.getfixturevalue("session_stack")
    return found


@pytest.fixture
def breakable_stack(stack: lab.Stack) -> Iterator[lab.Stack]:
    """The same, for a test that kills or pauses servers: all of them are back after it."""
    yield stack
    heal(stack)


@pytest.fixture
def bootstrap(stack: lab.Stack) -> str:
    """`bootstrap.servers` of the stack."""
    return stack.bootstrap_servers


@pytest.fixture
def make_topic(bootstrap: str) -> Callable[..., str]:
    """`make_topic(partitions=1, config=None, name="topic")` makes a topic, returns its name."""
    return topic_factory({"bootstrap.servers": bootstrap})


@pytest.fixture
def store_prefix() -> str:
    """A prefix of the bucket that no other test uses."""
    return f"test/{uuid.uuid4().hex}"


@pytest.fixture
def conf(stack: lab.Stack, store_prefix: str) -> dict[str, Any]:
    """Settings of a client of the stack, with a store prefix of the test's own."""
    return stack.conf(store_prefix)


@pytest.fixture
def bare_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting comes from the environment."""
    for name in [name for name in os.environ if name.startswith("BLOBMSG_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def dev_environ(
    bare_environ: None,
    stack: lab.Stack,
    store_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `blobmsg dev env` says of the stack, with a store prefix of the test's own."""
    for name, setting in stack.environ(store_prefix).items():
        monkeypatch.setenv(name, setting)


@pytest.fixture
def group_conf(conf: dict[str, Any], store_prefix: str) -> dict[str, Any]:
    """Settings of a member of a group of the test's own that commits only when told to."""
    return {
        **conf,
        "group.id": store_prefix,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    """A topic of one partition."""
    return make_topic()


_HERE = Path(__file__).parent
_LONG_FOLDERS = {"chaos", "frameworks", "spark"}


def _needs_stack(item: pytest.Item) -> bool:
    return "stack" in getattr(item, "fixturenames", ())


@pytest.fixture
def proxy(stack: lab.Stack) -> Iterator[FaultProxy]:
    """Between a client and the stack's store; lets everything pass unless it has a rule."""
    with FaultProxy(stack.minio.host, stack.minio.port) as proxy:
        yield proxy
