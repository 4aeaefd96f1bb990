from __future__ import annotations

import json
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from blobmsg.errors import BlobmsgError
from blobmsg_spark import Addition, command
from blobmsg_spark.command import main
from blobmsg_spark.history_keys import file_key, file_name
from blobmsg_spark.history_log import HistoryLog
from blobmsg_spark.history_store import history_place

if TYPE_CHECKING:
    from pathlib import Path

ARGUMENTS = [
    "reconcile", "--topics", "a,b", "--to", "memory://lake", "--conf",
    "kafka.bootstrap.servers=broker:9092", "--conf", "blobmsg.store.url=memory://payload",
]  # fmt: skip


class Spark:
    """In place of Spark's session and its builder."""

    def __init__(self) -> None:
        self.stopped = 0
        self.builder = self

    def appName(self, _name: str) -> Spark:
        return self

    def getOrCreate(self) -> Spark:
        return self

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    spark = Spark()
    monkeypatch.setattr(command, "SparkSession", spark)
    return spark


def answer(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> list[tuple[Any, Any]]:
    """Let `reconcile` give or raise this; what it was asked for."""
    asked: list[tuple[Any, Any]] = []

    def reconcile(_spark: Any, options: Any, **how: Any) -> Any:
        asked.append((options, how))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(command, "reconcile", reconcile)
    return asked


def test_arguments_become_options(monkeypatch: pytest.MonkeyPatch, spark: Spark) -> None:
    asked = answer(monkeypatch, [])

    assert main([*ARGUMENTS, "--file-bytes", "64m", "--compression", "snappy"]) == 0

    options = {
        "kafka.bootstrap.servers": "broker:9092",
        "blobmsg.store.url": "memory://payload",
        "subscribe": "a,b",
    }
    how = {"to": "memory://lake", "file_bytes": 64 << 20, "compression": "snappy"}
    assert asked == [(options, how)]
    assert spark.stopped == 1


def test_it_says_what_was_added(
    monkeypatch: pytest.MonkeyPatch, spark: Spark, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, [Addition("a", 7, 2, 12345, 3 << 20)])

    assert main(ARGUMENTS) == 0
    assert capsys.readouterr().out == "a: manifest 7, 2 files, 12,345 records, 3.0 MiB\n"
    assert main([*ARGUMENTS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "a", "manifest": 7, "files": 2, "records": 12345, "size_bytes": 3 << 20}
    ]
    answer(monkeypatch, [])
    assert main(ARGUMENTS) == 0
    assert capsys.readouterr().out == "nothing is new\n"
    assert spark.stopped == 3


def test_a_failure_is_exit_code_1_and_says_why(
    monkeypatch: pytest.MonkeyPatch, spark: Spark, capsys: pytest.CaptureFixture[str]
) -> None:
    error = BlobmsgError("another run came first")
    error.add_note("what is new of a is written")
    answer(monkeypatch, error)

    assert main(ARGUMENTS) == 1

    assert capsys.readouterr().err == (
        "blobmsg_spark: another run came first\nwhat is new of a is written\n"
    )
    assert spark.stopped == 1


def test_of_a_failed_task_only_its_own_error_is_told(
    monkeypatch: pytest.MonkeyPatch, spark: Spark, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "Job aborted\n  at line\nblobmsg.errors.ObjectMissing: object k is gone\n\nDriver trace"
    answer(monkeypatch, PySparkException(text))

    assert main(ARGUMENTS) == 1

    assert capsys.readouterr().err == "blobmsg_spark: ObjectMissing: object k is gone\n"
    answer(monkeypatch, PySparkException("no such master"))
    assert main(ARGUMENTS) == 1
    assert "no such master" in capsys.readouterr().err
    assert spark.stopped == 2


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--conf", "nothing"], "--conf wants KEY=VALUE, not 'nothing'"),
        (["--conf", "startingOffset=earliest"], 'Did you mean "startingOffsets"'),
        (["--conf", "blobmsg.store.ur=x"], 'Did you mean "blobmsg.store.url"'),
        (["--every", "5 minutes"], "needs --checkpoint"),
    ],
)
def test_a_mistake_is_exit_code_2_before_spark_starts(
    spark: Spark, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert main([*ARGUMENTS, *more]) == 2

    assert says in capsys.readouterr().err
    assert spark.stopped == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["reconcile"], "--topics"),
        ([*ARGUMENTS, "--file-bytes", "3q"], "64m"),
        ([*ARGUMENTS, "--compression", "best"], "invalid choice"),
    ],
)
def test_arguments_that_are_none_are_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("every", "trigger"),
    [([], {"availableNow": True}), (["--every", "5 minutes"], {"processingTime": "5 minutes"})],
)
def test_with_a_checkpoint_it_is_a_query_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, spark: Spark, every: list[str], trigger: dict[str, Any]
) -> None:
    events: list[Any] = []

    def reconcile_stream(_spark: Any, options: Any, **how: Any) -> Any:
        events.append((options["subscribe"], how["checkpoint"], how["trigger"]))
        return SimpleNamespace(awaitTermination=lambda: events.append("waited"))

    monkeypatch.setattr(command, "reconcile_stream", reconcile_stream)

    assert main([*ARGUMENTS, "--checkpoint", "file:///c", *every]) == 0

    assert events == [("a,b", "file:///c", trigger), "waited"]
    assert spark.stopped == 1


def test_clean_names_what_it_deletes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = ["clean", "--topics", "a", "--to", f"file://{tmp_path}"]
    assert main(clean) == 2
    assert "no history of a" in capsys.readouterr().err
    opened = history_place({"blobmsg.store.url": f"file://{tmp_path}"}).open()
    orphan = file_key("a", file_name(0, 3, 5, "ab" * 16, 0))
    opened.put(orphan, [b"x"], zlib.crc32(b"x"))
    log = HistoryLog(opened, "a")
    log.commit("cd" * 16, "id", {0: 9}, [])

    assert main([*clean, "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/{orphan}\n1 files would go\n"
    assert main([*clean, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [f"{tmp_path}/{orphan}"]
    assert main(clean) == 0
    assert capsys.readouterr().out == "0 files deleted\n"
