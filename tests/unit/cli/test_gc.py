from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from blobmsg.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

WRITER = "0123456789abcdef" * 2
OLD = f"default/3/2020010100/az1/{WRITER}-1"
OLDER = f"default/a/2019123123/az1/{WRITER}-2"
LIVING = f"default/3/2999010100/az1/{WRITER}-3"
FOREVER = f"default/3/forever/az1/{WRITER}-4"
FOREIGN = "default/3/2020010100/az1/readme.txt"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in (OLD, OLDER, LIVING, FOREVER, FOREIGN):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    return tmp_path


def names(store: Path) -> set[str]:
    return {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}


def test_without_delete_it_says_what_and_deletes_nothing(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(store)

    assert main(["gc", "--expired", store.as_uri()]) == 0

    assert names(store) == before
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(
        "2 expired objects, 0.000 GiB, of the hours 2019123123 to 2020010100 (UTC): "
        "nothing is deleted without --delete"
    )
    assert second == "1 other names are not blobmsg's: left alone"


def test_with_delete_what_has_expired_goes_and_nothing_else(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOBMSG_STORE_URL", store.as_uri())

    assert main(["gc", "--expired", "--delete", "--json"]) == 0

    assert names(store) == {LIVING, FOREVER, FOREIGN}
    facts = json.loads(capsys.readouterr().out)
    assert facts.pop("store")
    assert facts == {
        "is_dry_run": False,
        "objects": 2,
        "bytes": 2000,
        "first_expiry_hour": "2019123123",
        "last_expiry_hour": "2020010100",
        "foreign_keys": 1,
    }
    assert main(["gc", "--expired", "--delete"]) == 0
    assert "0 expired objects, 0.000 GiB: deleted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--expired"], "blobmsg.store.url is not set"),
        (["--delete", "file:///nowhere"], "--expired"),
        (["--expired", "--objects-per-second", "0", "file:///x"], "wants more than 0"),
        (["--expired", "ftp://x"], "unknown scheme 'ftp'"),
        (["--expired", "file:///nowhere"], "file:///nowhere is no folder that is there"),
        (["--expired", "-X", "nonsense", "file:///x"], "-X wants KEY=VALUE"),
    ],
)
def test_a_wrong_request_is_code_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BLOBMSG_STORE_URL", raising=False)
    try:
        code = main(["gc", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)

    assert code == 2
    assert words in capsys.readouterr().err
