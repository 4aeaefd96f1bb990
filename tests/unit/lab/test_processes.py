from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from blobmsg.lab.processes import ProcessId, log_tail, spawn

if TYPE_CHECKING:
    from pathlib import Path

# A server with a child of its own; both sleep.
FAMILY = """
import subprocess, time
subprocess.Popen(['sleep', '600'])
print('up', flush=True)
time.sleep(600)
"""


def _spawn(tmp_path: Path, program: str) -> ProcessId:
    return spawn([sys.executable, "-c", program], {"GREETING": "hello"}, tmp_path / "log", tmp_path)


def _wait_for_log(tmp_path: Path, text: str) -> None:
    while text not in (tmp_path / "log").read_text():
        pass


def test_a_process_is_in_a_session_of_its_own_with_its_output_in_the_log(tmp_path: Path) -> None:
    process = _spawn(
        tmp_path, "import os; print(os.environ['GREETING'], os.getsid(0), os.getcwd())"
    )
    assert process.wait_gone(10)

    assert (tmp_path / "log").read_text().split() == ["hello", str(process.pid), str(tmp_path)]


def test_killing_takes_the_children_along(tmp_path: Path) -> None:
    process = _spawn(tmp_path, FAMILY)
    _wait_for_log(tmp_path, "up")
    assert process.is_alive()

    process.kill_group()

    assert not process.is_alive()
    with pytest.raises(ProcessLookupError):
        _signal_group_until_reaped(process.pid)


def _signal_group_until_reaped(group: int) -> None:
    # The orphaned child is reaped by init at its leisure.
    while True:
        os.killpg(group, 0)


BUSY = """
import threading
def count():
    number = 0
    while True:
        number += 1
        print(number, flush=True)
for _ in range(4):
    threading.Thread(target=count).start()
"""


def test_a_paused_process_does_nothing_from_then_on(tmp_path: Path) -> None:
    process = _spawn(tmp_path, BUSY)
    try:
        for _ in range(20):
            _wait_for_log(tmp_path, "1")
            process.pause_group()
            written = (tmp_path / "log").stat().st_size
            time.sleep(0.02)
            assert (tmp_path / "log").stat().st_size == written
            process.signal_group(signal.SIGCONT)
    finally:
        process.kill_group()


def test_killing_works_on_a_paused_process(tmp_path: Path) -> None:
    process = _spawn(tmp_path, FAMILY)
    process.pause_group()

    process.kill_group()

    assert not process.is_alive()


def test_a_pid_that_belongs_to_somebody_else_now_is_left_alone() -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        recorded = ProcessId(stranger.pid, started="another moment")

        assert not recorded.is_alive()
        recorded.kill_group()

        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_that_ended_has_no_identity() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert ProcessId.of(process.pid) is None


def test_log_tail_gives_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))

    assert log_tail(log, lines=2) == "line 98\nline 99"


def test_log_tail_says_when_there_is_none(tmp_path: Path) -> None:
    assert "no log" in log_tail(tmp_path / "missing")
