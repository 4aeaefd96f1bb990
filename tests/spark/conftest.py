"""A Spark of its own for each test process; needs a Java of 17 or newer, else skipped by name."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from blobmsg_spark import register_source
from tests.helpers.records import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_SECONDS = 180
_CONNECT_PORT = 15002
# A worker of Spark that is forked, and one that is left at the end.
_IGNORED_WARNINGS = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS))
        for ignored in _IGNORED_WARNINGS:
            item.add_marker(pytest.mark.filterwarnings(ignored))
        if not has_java() and "CI" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="Spark needs Java 17: none was found"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    handler = signal.getsignal(signal.SIGINT)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("blobmsg tests")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    signal.signal(signal.SIGINT, handler)  # Spark's own would stay for the tests behind these
    session.sparkContext.setLogLevel("OFF")
    register_source(session)
    yield session
    session.stop()


@pytest.fixture
def connect_port() -> Iterator[None]:
    """For a program with a local Spark Connect, whose port is always the same: one at a time."""
    with (Path(tempfile.gettempdir()) / "blobmsg-tests-connect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_until(_is_connect_port_free, "Spark Connect's port is free")
        yield


def _is_connect_port_free() -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", _CONNECT_PORT))
        except OSError:  # the JVM of the program before is about to end
            return False
    return True


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def source_options(conf: dict[str, Any]) -> dict[str, str]:
    """Options with which a source reaches the stack."""
    return {
        key if key.startswith("blobmsg.") else f"kafka.{key}": str(value)
        for key, value in conf.items()
    }
