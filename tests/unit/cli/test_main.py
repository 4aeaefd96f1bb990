from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg.cli import main as main_module
from blobmsg.cli.command import Command, Finding, UserMistake
from blobmsg.cli.main import main
from blobmsg.lab import LabError, PartsMissing

if TYPE_CHECKING:
    import argparse


def test_version_names_the_client_below(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])

    assert end.value.code == 0
    words = capsys.readouterr().out
    assert words.startswith("blobmsg 0.")
    assert "librdkafka" in words


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])

    assert end.value.code == 0
    words = capsys.readouterr().out
    assert all(f"\n    {command.name} " in words for command in main_module.COMMANDS)
    assert "Exit codes" in words


@pytest.mark.parametrize("name", [command.name for command in main_module.COMMANDS])
def test_help_of_every_command_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])

    assert end.value.code == 0
    assert f"examples:\n  blobmsg {name}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["dev"], ["dev", "up", "--nonsense"]])
def test_a_wrong_command_line_is_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)

    assert end.value.code == 2
    assert "usage: blobmsg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserMistake("what happened"), 2),
        (PartsMissing("what happened"), 2),
        (Finding("what happened"), 1),
        (LabError("what happened"), 1),
        (KafkaException(KafkaError(KafkaError._TRANSPORT, "what happened")), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_errors_become_a_line_and_an_exit_code(
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(arguments: argparse.Namespace) -> int:
        raise error

    command = Command("broken", "always fails", lambda parser: None, run)
    monkeypatch.setattr(main_module, "COMMANDS", (command,))

    assert main(["broken"]) == code

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("blobmsg: ")
    assert "what happened" in output.err
    assert "Traceback" not in output.err


def test_ctrl_c_is_code_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    command = Command("broken", "always fails", lambda parser: None, run)
    monkeypatch.setattr(main_module, "COMMANDS", (command,))

    assert main(["broken"]) == 130
    assert capsys.readouterr().err == "blobmsg: interrupted\n"


def test_a_reader_that_leaves_is_no_traceback() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "blobmsg", "dev", "status", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()

    errors = program.stderr.read()
    program.stderr.close()

    assert program.wait(20) in (0, 1)
    assert errors == b""
