"""`blobmsg demo` as a command: what it refuses, and its exit codes."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from blobmsg.cli import demo
from blobmsg.cli.main import main
from blobmsg.demo.errors import DemoError, DemoPartMissing
from tests.unit.demo.samples import BAD, outcome_of, run_of

if TYPE_CHECKING:
    from pathlib import Path

    from blobmsg.demo.progress import Progress
    from blobmsg.demo.session import Options, Outcome


def give(monkeypatch: pytest.MonkeyPatch, outcome: Outcome | BaseException) -> list[Options]:
    asked: list[Options] = []

    def run_demo(options: Options, _progress: Progress) -> Outcome:
        asked.append(options)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(demo, "run_demo", run_demo)
    return asked


def test_exit_code_is_0_when_every_check_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = give(monkeypatch, outcome_of())

    assert main(["demo", "--records", "5000", "--rate", "100"]) == 0
    assert "All checks hold." in capsys.readouterr().out
    assert (asked[0].records, asked[0].rate, asked[0].stack) == (5000, 100.0, "mock")


def test_exit_code_is_1_when_a_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, outcome_of(run_of(check=BAD)))

    assert main(["demo"]) == 1


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DemoError("producer-az1 ended early"), 1, "producer-az1 ended early"),
        (DemoPartMissing("pip install"), 2, "pip install"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_breaks_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    text: str,
) -> None:
    give(monkeypatch, error)

    assert main(["demo"]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--records", "0"],
        ["--records", "336777"],
        ["--rate", "0"],
        ["--rate", "nan"],
        ["--keep", "--stack", "real"],
        ["--json", "no-such-folder/report.json"],
    ],
)
def test_a_wish_that_cannot_be_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    asked = give(monkeypatch, outcome_of())

    assert main(["demo", *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err
    assert not asked


def test_the_report_is_written_for_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    give(monkeypatch, outcome_of())

    assert main(["demo", "--json", str(tmp_path / "report.json")]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["holds"] is True


def test_a_report_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    give(monkeypatch, outcome_of())

    assert main(["demo", "--json", str(tmp_path)]) == 1
    assert "--json" in capsys.readouterr().err


def test_the_price_table_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = give(monkeypatch, outcome_of())
    prices = {"as_of": "2026-01-01", "source": "mine", "put_usd": 1.0}
    (tmp_path / "prices.json").write_text(json.dumps(prices))
    monkeypatch.setenv("BLOBMSG_PRICE_TABLE", str(tmp_path / "prices.json"))

    main(["demo"])

    assert asked[0].prices.put_usd == 1.0


def test_signal_handlers_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, outcome_of())
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    main(["demo"])

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
