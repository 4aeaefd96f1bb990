from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.cli.main import main
from blobmsg.format import (
    Codec,
    Columns,
    EncodedSegment,
    IndexEntry,
    Notification,
    Part,
    encode_batch_object,
    encode_notification,
    encode_object_segment,
)

if TYPE_CHECKING:
    from pathlib import Path

WRITER = "0123456789abcdef0123456789abcdef"
KEY = f"default/3/2026112105/az1/{WRITER}-7"
PRODUCER_ID = bytes.fromhex(WRITER)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BLOBMSG_STORE_URL", "BLOBMSG_DEV_BOOTSTRAP", "BLOBMSG_DEV_STACK"):
        monkeypatch.delenv(name, raising=False)


def _segment(topic: str, partition: int, zone: str, codec: Codec = Codec.NONE) -> EncodedSegment:
    columns = Columns(
        keys=[b"key-0", None],
        values=[b"x" * 200, b"\xff\x00"],
        timestamps_ms=[1_700_000_000_000, 1_700_000_001_500],
        headers=[[("trace", b"1")], None],
    )
    return encode_object_segment(
        columns,
        codec,
        topic=topic,
        partition=partition,
        destination_zone=zone,
        producer_id=PRODUCER_ID,
    )


@pytest.fixture
def batch() -> tuple[bytes, list[IndexEntry]]:
    return encode_batch_object([_segment("orders", 0, "az1"), _segment("orders", 1, "az2")])


@pytest.fixture
def stored(tmp_path: Path, batch: tuple[bytes, list[IndexEntry]]) -> Path:
    """A local store with one object."""
    path = tmp_path / "store" / KEY
    path.parent.mkdir(parents=True)
    path.write_bytes(batch[0])
    return path


def _flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x40
    path.write_bytes(data)


def _notification(entries: list[IndexEntry], **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "parts": (entries[0].part,),
        "sequence": 5,
        "producer_id": PRODUCER_ID,
        "key": KEY,
        **changes,
    }
    return encode_notification(Notification(**fields))


def _facts(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_an_object_is_explained_for_people(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(stored)]) == 0

    words = capsys.readouterr().out
    assert words.startswith(f"batch object, {stored.stat().st_size:,} bytes\n")
    assert "zone az1 by " + WRITER in words
    assert "expires   2026-11-21T05:00:00.000Z" in words
    assert "2 segments, 4 records" in words
    assert words.count("sound") == 2
    assert "DAMAGED" not in words


def test_an_object_is_explained_for_programs(
    stored: Path, batch: tuple[bytes, list[IndexEntry]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--json", str(stored)]) == 0

    facts = _facts(capsys)
    assert facts["kind"] == "batch object"
    assert facts["size_bytes"] == len(batch[0])
    assert facts["key"]["text"] == KEY
    assert facts["findings"] == []
    assert [(s["topic"], s["partition"], s["destination_zone"]) for s in facts["segments"]] == [
        ("orders", 0, "az1"),
        ("orders", 1, "az2"),
    ]
    for segment, entry in zip(facts["segments"], batch[1], strict=True):
        assert segment["start"] == entry.byte_range.start
        assert segment["stored_bytes"] == entry.byte_range.length
        assert segment["checksum"] == f"{entry.checksum:08x}"
        assert segment["first_timestamp"] == "2023-11-14T22:13:20.000Z"
        assert segment["last_timestamp"] == "2023-11-14T22:13:21.500Z"


def test_records_are_shown_on_request(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", "--records", "9", str(stored)]) == 0

    first, second = _facts(capsys)["segments"][0]["preview"]
    assert first == {
        "record_index": 0,
        "timestamp": "2023-11-14T22:13:20.000Z",
        "key": "key-0",
        "value": "x" * 60 + "…",
        "value_bytes": 200,
        "headers": [["trace", "1"]],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, r"\xff\x00", [])


def test_records_are_shown_to_people_too(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--records", "1", str(stored)]) == 0

    words = capsys.readouterr().out
    assert words.count("key 'key-0'") == 2
    assert "trace='1'" in words


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_segments_are_decoded(
    codec: Codec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "object"
    path.write_bytes(encode_batch_object([_segment("orders", 0, "", codec)])[0])

    assert main(["inspect", "--json", "--records", "1", str(path)]) == 0

    (segment,) = _facts(capsys)["segments"]
    assert segment["codec"] == codec.name.lower()
    assert segment["stored_bytes"] < segment["uncompressed_bytes"]
    assert segment["preview"][0]["key"] == "key-0"


@pytest.mark.parametrize("form", ["s3-like url", "key below the store"])
def test_an_object_is_found_in_a_store(
    form: str,
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = (tmp_path / "store").as_uri()
    target = KEY
    if form == "key below the store":
        monkeypatch.setenv("BLOBMSG_STORE_URL", url)
    else:
        target = f"{url}/{KEY}"

    assert main(["inspect", "--json", target]) == 0
    assert _facts(capsys)["key"]["text"] == KEY


def test_a_flipped_bit_is_found_and_the_rest_is_explained(
    stored: Path, batch: tuple[bytes, list[IndexEntry]], capsys: pytest.CaptureFixture[str]
) -> None:
    _flip(stored, batch[1][1].byte_range.end - 1)

    assert main(["inspect", str(stored)]) == 1

    words = capsys.readouterr().out
    assert "DAMAGED\n  segment 1 (orders [1]): checksum " in words
    assert words.count("sound") == 1


@pytest.mark.parametrize("where", ["index", "trailer", "cut", "empty", "foreign"])
def test_damage_that_hides_the_index_is_a_finding(
    where: str,
    stored: Path,
    batch: tuple[bytes, list[IndexEntry]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if where == "index":
        _flip(stored, batch[1][-1].byte_range.end + 9)
    elif where == "trailer":
        _flip(stored, len(batch[0]) - 1)
    elif where == "cut":
        stored.write_bytes(batch[0][:-5])
    else:
        stored.write_bytes(b"" if where == "empty" else b"just some text, nothing of ours")

    assert main(["inspect", "--json", str(stored)]) == 1

    facts = _facts(capsys)
    assert len(facts["findings"]) == 1
    assert facts["segments"] == []


@pytest.mark.parametrize("form", ["hex", "spaced hex", "base64", "file"])
def test_a_notification_is_explained(
    form: str,
    batch: tuple[bytes, list[IndexEntry]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = _notification(batch[1])
    target = {
        "hex": value.hex(),
        "spaced hex": value.hex(" "),
        "base64": base64.b64encode(value).decode(),
        "file": str(tmp_path / "value"),
    }[form]
    (tmp_path / "value").write_bytes(value)

    assert main(["inspect", "--json", target]) == 0

    facts = _facts(capsys)
    assert facts["kind"] == "notification"
    assert facts["object"] == KEY
    assert facts["key"]["zone"] == "az1"
    assert (facts["sequence"], facts["records"], facts["producer_id"]) == (5, 2, WRITER)
    assert [part["is_checked"] for part in facts["parts"]] == [False]


def test_a_notification_comes_from_standard_input(
    batch: tuple[bytes, list[IndexEntry]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(_notification(batch[1])))
    monkeypatch.setattr("sys.stdin", stdin)

    assert main(["inspect", "-"]) == 0

    words = capsys.readouterr().out
    assert words.startswith("notification, ")
    assert "not read" in words


def test_the_object_of_a_notification_is_checked_on_request(
    stored: Path,
    tmp_path: Path,
    batch: tuple[bytes, list[IndexEntry]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BLOBMSG_STORE_URL", (tmp_path / "store").as_uri())
    target = _notification(batch[1]).hex()

    assert main(["inspect", "--fetch", "--json", target]) == 0
    assert [part["is_checked"] for part in _facts(capsys)["parts"]] == [True]

    _flip(stored, batch[1][0].byte_range.start + 40)
    assert main(["inspect", "--fetch", target]) == 1
    assert "part 0: checksum" in capsys.readouterr().out


def test_an_object_that_is_gone_is_a_finding_without_a_traceback(
    tmp_path: Path,
    batch: tuple[bytes, list[IndexEntry]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "store").mkdir()
    setting = f"blobmsg.store.url={(tmp_path / 'store').as_uri()}"

    assert main(["inspect", "--fetch", "-X", setting, _notification(batch[1]).hex()]) == 1

    output = capsys.readouterr()
    assert KEY in output.err
    assert "Traceback" not in output.err


def test_an_inline_notification_is_checked_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    object_bytes, entries = encode_batch_object([_segment("orders", 0, "")])
    place = entries[0].byte_range
    inline = object_bytes[place.start : place.end]
    part = entries[0].part
    moved = Part(
        type(place)(0, place.length),
        part.records,
        part.codec,
        part.uncompressed_bytes,
        part.checksum,
        part.first_timestamp_ms,
        part.last_timestamp_ms,
        part.producer_id,
    )
    sound = _notification(entries, parts=(moved,), key=None, inline=inline)
    damaged = _notification(entries, parts=(moved,), key=None, inline=inline[:-1] + b"\x7f")

    assert main(["inspect", sound.hex()]) == 0
    assert f"inline, {len(inline):,} bytes" in capsys.readouterr().out
    assert main(["inspect", damaged.hex()]) == 1
    assert "part 0: checksum" in capsys.readouterr().out


def test_a_damaged_notification_is_a_finding(
    batch: tuple[bytes, list[IndexEntry]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", _notification(batch[1])[:-3].hex()]) == 1
    assert "DAMAGED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say what to inspect"),
        (["no/such/file"], "is no file that is there"),
        (["."], "is a folder"),
        (["s3://bucket"], "names no object"),
        (["ftp://somewhere/else"], "unknown scheme"),
        ([KEY], "blobmsg.store.url is not set"),
        (["--topic", "t"], "needs --partition"),
        (["--topic", "t", "--partition", "0", "--offset", "0"], "no brokers"),
        (["--topic", "t", "--partition", "-1", "--offset", "0"], "0 or more"),
        (["--topic", "t", "x"], "not both"),
        (["-X", "nonsense", "x"], "KEY=VALUE"),
        (["-X", "blobmsg.stoer.url=x", "x"], "blobmsg.store.url"),
        (["--records", "-1", "x"], "0 or more"),
    ],
)
def test_a_mistake_is_code_2_and_says_what_to_do(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *arguments]) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert words in output.err
    assert "Traceback" not in output.err
