"""The whole demo on the mock cluster, as a user runs it."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.helpers.demo import processes_of, run_demo, start_demo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Seven processes on machines that are busy with other tests.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_every_record_of_a_short_demo_arrives(tmp_path: Path) -> None:
    code, output, figures = run_demo(tmp_path, "--records", "9000")

    assert code == 0, output
    assert figures["holds"] is True
    (run,) = figures["runs"]
    assert run["records"] == sum(zone["received"] for zone in run["zones"]) == 9000
    assert all(zone["sent"] and zone["received"] for zone in run["zones"])
    assert run["puts"] >= 9  # each zone for each zone
    assert 0 < run["producer_tx_bytes"] < run["payload_bytes"] / 50
    assert list(tmp_path.iterdir()) == [tmp_path / "figures.json"]


def test_one_record_is_a_demo_too(tmp_path: Path) -> None:
    code, output, figures = run_demo(tmp_path, "--records", "1")

    assert code == 0, output
    assert figures["runs"][0]["puts"] == 1
    assert "MORE than plain Kafka" in output  # nobody should put one record into an object


def test_a_kept_store_stays_and_nothing_else(tmp_path: Path) -> None:
    code, output, figures = run_demo(tmp_path, "--records", "600", "--keep")

    assert code == 0, output
    (store,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert str(store) in output
    objects = [path for path in store.rglob("*") if path.is_file()]
    assert len(objects) == figures["runs"][0]["batches"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(
    "phase",
    [
        lambda seen: bool(seen),
        lambda seen: any("mock_kafka" in line for line in seen),
        lambda seen: sum("worker" in line for line in seen) == 6,
    ],
    ids=["reading", "starting", "running"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing_behind(
    tmp_path: Path, phase: Callable[[list[str]], bool], number: signal.Signals
) -> None:
    process = start_demo(tmp_path, "--records", "60000", "--rate", "2000")
    try:
        # A real process has no clock to turn. Its folder tells that its handler is installed.
        while not (any(tmp_path.iterdir()) and phase(processes_of(tmp_path))):
            assert process.poll() is None
            time.sleep(0.05)

        process.send_signal(number)
        started = time.monotonic()
        output, errors = process.communicate(timeout=20)

        assert process.returncode == 130
        assert errors.endswith("blobmsg: interrupted\n")
        assert "Traceback" not in output + errors
        assert time.monotonic() - started < 5
        assert processes_of(tmp_path) == []
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.communicate()
