"""The vectors decode to their values, and values encode to the vectors' bytes."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

import pytest

from blobmsg.format import (
    RETENTION_CLASSES,
    FormatError,
    Limits,
    ObjectKey,
    UnsupportedFormatError,
    crc32,
    decode_batch_object_index,
    decode_commit_metadata,
    decode_notification,
    decode_segment,
    decompress,
    encode_commit_metadata,
    encode_notification,
    encode_segment,
    expiry_hour,
    is_notification,
    retention_class,
)
from tests.helpers.format_reference import read_index, read_notification, read_segment
from tests.vectors import generate
from tests.vectors.notation import (
    Json,
    columns_of,
    entry_json,
    key_json,
    notification_json,
    to_columns,
    to_notification,
)

FOLDER = Path(__file__).parent / "v1"


def load(name: str) -> Json:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def cases(name: str) -> list[Json]:
    return [pytest.param(case, id=case["name"]) for case in load(name)["cases"]]


def assert_bytes(data: bytes, said: Json) -> None:
    if "hex" in said:
        assert data.hex() == said["hex"]
    else:
        assert len(data) == said["length"]
        assert zlib.crc32(data) == said["crc32"]
        assert hashlib.sha256(data).hexdigest() == said["sha256"]


@pytest.mark.parametrize("case", cases("segments"))
def test_segments(case: Json) -> None:
    columns = to_columns(case["records"], case["repeat"])
    if case["canonical"]:
        assert_bytes(encode_segment(columns), case["bytes"])
    # What is too long for the file is what was just compared by its digest.
    said = case["bytes"].get("hex")
    data = encode_segment(columns) if said is None else bytes.fromhex(said)

    segment = decode_segment(data, records=columns.record_count)

    assert columns_of(segment) == columns
    if said is not None:
        records = read_segment(data)
        assert [record.key for record in records] == columns.keys
        assert [record.value for record in records] == columns.values
        assert [record.timestamp_ms for record in records] == columns.timestamps_ms
        assert [record.headers for record in records] == (
            columns.headers or [None] * columns.record_count
        )


@pytest.mark.parametrize("case", cases("batch_objects"))
def test_batch_objects(case: Json) -> None:
    data = bytes.fromhex(case["bytes"]["hex"])
    if case["canonical"]:
        assert generate.encoded_object(case["segments"]) == data

    entries = decode_batch_object_index(data, len(data))

    assert [entry_json(entry) for entry in entries] == case["entries"]
    assert [row[:5] for row in read_index(data)] == [
        [e[name] for name in ("topic", "partition", "destination_zone", "start", "length")]
        for e in case["entries"]
    ]
    decoded = []
    for entry in entries:
        stored = data[entry.byte_range.start : entry.byte_range.end]
        assert crc32(stored) == entry.checksum
        raw = decompress(entry.codec, stored, entry.uncompressed_bytes)
        decoded.append(columns_of(decode_segment(raw, records=entry.records)))
    in_order = sorted(
        case["segments"], key=lambda s: (s["destination_zone"], s["topic"], s["partition"])
    )
    assert decoded == [to_columns(said["records"]) for said in in_order]


@pytest.mark.parametrize("case", cases("notifications"))
def test_notifications(case: Json) -> None:
    data = bytes.fromhex(case["bytes"]["hex"])
    if case["canonical"]:
        assert encode_notification(to_notification(case["notification"])) == data

    assert is_notification([("blobmsg", b"1")], data)
    assert notification_json(decode_notification(data, Limits())) == case["notification"]
    assert read_notification(data).get("k") == case["notification"]["key"]


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c["text"]) for c in load("object_keys")["cases"]]
)
def test_object_keys(case: Json) -> None:
    key = ObjectKey.decode(case["text"])

    assert key_json(key) == case["key"]
    assert key.encode() == case["text"]


def test_expiry_hours_and_retention_classes() -> None:
    document = load("object_keys")

    assert [c["name"] for c in document["retention_classes"]] == [c.name for c in RETENTION_CLASSES]
    for case in document["expiry_hours"]:
        retention = retention_class(case["retention_ms"])
        assert retention.name == case["retention_class"]
        hour = expiry_hour(
            case["now_timestamp_ms"],
            case["largest_record_timestamp_ms"],
            retention,
            case["segment_ms"],
        )
        assert hour == case["expiry_hour"]


def test_commit_metadata() -> None:
    for case in load("commit_metadata")["cases"]:
        values = case["remaining_records"], case["user"], case["fields"]
        assert encode_commit_metadata(*values) == case["text"]
        assert decode_commit_metadata(case["text"]) == values


def decode(what: str, data: bytes, records: int) -> None:
    if what == "segment":
        decode_segment(data, records=records)
    elif what == "batch_object":
        decode_batch_object_index(data, len(data))
    else:
        decode_notification(data, Limits())


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=f"{c['format']}: {c['name']}") for c in load("refused")["cases"]],
)
def test_refused_bytes(case: Json) -> None:
    data = bytes.fromhex(case["hex"])

    with pytest.raises(FormatError) as caught:
        decode(case["format"], data, case.get("records", 0))

    assert isinstance(caught.value, UnsupportedFormatError) == (case["error"] == "unsupported")
    assert case["names"] in str(caught.value)


def test_refused_texts() -> None:
    for case in load("refused")["texts"]:
        if case["format"] == "object_key":
            with pytest.raises(FormatError):
                ObjectKey.decode(case["text"])
        else:
            assert decode_commit_metadata(case["text"]) == (None, case["text"], {})


def test_generator_never_rewrites_a_vector(tmp_path: Path) -> None:
    kept = tmp_path / "refused.json"
    kept.write_text("kept")

    with pytest.raises(FileExistsError, match=r"refused\.json exists"):
        generate.write(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["refused.json"]
    assert kept.read_text() == "kept"


def test_generator_still_gives_the_canonical_cases() -> None:
    for name, document in generate.documents().items():
        committed = {c["name"]: c for c in load(Path(name).stem)["cases"] if c.get("canonical")}
        fresh = {c["name"]: c for c in document["cases"] if c.get("canonical")}
        assert fresh == committed
