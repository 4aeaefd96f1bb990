from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg_spark.history_keys import (
    file_key,
    file_name,
    manifest_key,
    manifest_number,
    parse_file_name,
)
from blobmsg_spark.history_manifest import (
    HistoryFile,
    Manifest,
    check_order,
    decode_manifest,
    encode_manifest,
    first_of_rolled_up,
    next_manifest,
)

RUN = "0123456789abcdef" * 2


def file(partition: int, first_offset: int, end_offset: int, records: int = 1) -> HistoryFile:
    return HistoryFile(
        name=file_name(partition, first_offset, end_offset, RUN, 7),
        partition=partition,
        first_offset=first_offset,
        end_offset=end_offset,
        records=records,
        size_bytes=100,
        crc32=4_000_000_000,
        min_timestamp_ms=-5,
        max_timestamp_ms=1_700_000_000_000,
    )


def following(
    previous: Manifest | None, ends: dict[int, int], *files: HistoryFile, **more: Any
) -> Manifest:
    return next_manifest(
        previous,
        topic="orders",
        topic_id="id",
        run=RUN,
        timestamp_ms=1,
        ends=ends,
        files=files,
        **more,
    )


def signed(body: bytes) -> bytes:
    """A manifest with any line of JSON, and the checksum that it needs."""
    return body + b'\n{"crc32":%d}\n' % zlib.crc32(body)


# As docs/spark_history.md has it, written by hand.
EXAMPLE = signed(
    b'{"format":"blobmsg-history","version":1,"topic":"orders","topic_id":"AbC","number":2,'
    b'"since":2,"run":"0123456789abcdef0123456789abcdef","timestamp_ms":1700000000000,'
    b'"ends":{"0":5242880,"1":1048576},"files":[{"name":"data/0/0000000000003145726-'
    b'0000000000004194304-0123456789abcdef0123456789abcdef-7.parquet","records":3,"bytes":1234,'
    b'"crc32":305419896,"min_timestamp_ms":1699999999000,"max_timestamp_ms":1700000000000}]}'
)


def test_the_example_of_the_specification_is_read_and_written() -> None:
    found = decode_manifest(EXAMPLE)

    assert (found.topic, found.topic_id, found.number, found.since) == ("orders", "AbC", 2, 2)
    assert found.ends == {0: 5 << 20, 1: 1 << 20}
    (only,) = found.files
    assert (only.partition, only.first_offset, only.end_offset) == (0, (3 << 20) - 2, 4 << 20)
    assert (only.records, only.size_bytes, only.crc32) == (3, 1234, 0x12345678)
    assert (only.min_timestamp_ms, only.max_timestamp_ms) == (1699999999000, 1700000000000)
    assert encode_manifest(found) == EXAMPLE


@pytest.mark.parametrize("place", [0, 50, 200, -60, -3])
def test_a_flipped_bit_is_found(place: int) -> None:
    damaged = bytearray(EXAMPLE)
    damaged[place] ^= 1

    with pytest.raises(FormatError):
        decode_manifest(bytes(damaged))


@pytest.mark.parametrize("length", [0, 1, 100, len(EXAMPLE) - 20, len(EXAMPLE) - 1])
def test_a_cut_manifest_is_refused(length: int) -> None:
    with pytest.raises(FormatError, match="cut"):
        decode_manifest(EXAMPLE[:length])


def test_unknown_fields_are_ignored_and_critical_ones_refused() -> None:
    body = EXAMPLE.partition(b"\n")[0]

    assert decode_manifest(signed(body[:-1] + b',"more":[1]}')) == decode_manifest(EXAMPLE)
    with pytest.raises(UnsupportedFormatError, match="!sealed"):
        decode_manifest(signed(body[:-1] + b',"!sealed":1}'))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (b'"version":1', b'"version":2', UnsupportedFormatError),
        (b'"version":1', b'"version":true', FormatError),
        (b"blobmsg-history", b"other", FormatError),
        (b'"number":2', b'"number":0', FormatError),
        (b'"number":2', b'"number":2.0', FormatError),
        (b'"number":2', b'"numbr":2', FormatError),
        (b'"since":2', b'"since":3', FormatError),
        (b'"topic":"orders"', b'"topic":3', FormatError),
        (b'"0":5242880', b'"00":5242880', FormatError),
        (b'"0":5242880', b'"0":-1', FormatError),
        (b'"0":5242880', b'"0":4194303', FormatError),  # a file lies behind it
        (b'"0":5242880,', b"", FormatError),
        (b"data/0/", b"../0/", FormatError),
        (b"data/0/", b"data/00/", FormatError),
        (b'"records":3', b'"records":0', FormatError),
        (b'"records":3', b'"records":1048579', FormatError),
        (b'"bytes":1234', b'"bytes":0', FormatError),
        (b'"crc32":305419896', b'"crc32":4294967296', FormatError),
        (b'"min_timestamp_ms":1699999999000', b'"min_timestamp_ms":1800000000000', FormatError),
        (b'"files":[', b'"files":[1,', FormatError),
        (b'"run":"0', b'"run":"', FormatError),
    ],
)
def test_what_contradicts_itself_is_refused(old: bytes, new: bytes, error: type[Exception]) -> None:
    body = EXAMPLE.partition(b"\n")[0]
    assert body.count(old) >= 1

    with pytest.raises(error):
        decode_manifest(signed(body.replace(old, new, 1)))


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000, b'{"format":1}'])
def test_what_is_no_manifest_is_refused(body: bytes) -> None:
    with pytest.raises(FormatError):
        decode_manifest(signed(body))


def test_keys_of_manifests_are_in_the_order_of_their_numbers() -> None:
    keys = [manifest_key("t", number) for number in (1, 9, 10, 99, 100, 12345)]

    assert keys == sorted(keys)
    assert [manifest_number("t", key) for key in keys] == [1, 9, 10, 99, 100, 12345]
    assert keys[0] == "history/t/manifest/0000000001.json"
    assert manifest_number("t", "history/t/manifest/0000000001.json.bak") is None
    assert manifest_number("t", "history/t2/manifest/0000000001.json") is None


def test_a_files_name_says_what_is_in_it() -> None:
    name = file_name(3, 1 << 40, (1 << 40) + 5, RUN, 9)

    assert parse_file_name(name) == (3, 1 << 40, (1 << 40) + 5)
    assert file_key("t", name).startswith("history/t/data/3/0000001099511627776-")
    with pytest.raises(FormatError, match="does not say"):
        replace(file(0, 1, 2), partition=1)


def test_the_first_manifest_has_number_1() -> None:
    found = following(None, {0: 10, 1: 0}, file(0, 5, 10))

    assert (found.number, found.since, found.ends) == (1, 1, {0: 10, 1: 0})


def test_a_manifest_adds_to_the_one_before() -> None:
    one = following(None, {0: 10, 1: 20}, file(1, 5, 20), file(0, 5, 10))
    two = following(one, {0: 30, 2: 4}, file(0, 10, 30), file(2, 0, 4))

    assert [found.partition for found in one.files] == [0, 1]
    assert (two.number, two.ends) == (2, {0: 30, 1: 20, 2: 4})
    assert [found.partition for found in two.files] == [0, 2]


def test_a_file_before_the_end_of_its_partition_is_refused() -> None:
    one = following(None, {0: 10}, file(0, 5, 10))

    with pytest.raises(FormatError, match="begins before 10"):
        following(one, {0: 20}, file(0, 9, 20))


def test_files_with_an_offset_in_common_are_refused() -> None:
    check_order([file(0, 1, 5), file(0, 5, 6), file(1, 0, 3)])

    with pytest.raises(FormatError, match="overlap"):
        following(None, {0: 10}, file(0, 5, 10), file(0, 9, 10))
    with pytest.raises(FormatError, match="order"):
        check_order([file(1, 1, 5), file(0, 5, 6)])


def test_all_files_are_in_a_few_manifests() -> None:
    manifests: dict[int, Manifest] = {}
    for number in range(1, 600):
        earlier = [
            found
            for before in range(first_of_rolled_up(number), number)
            for found in manifests[before].files
            if found.first_offset == before - 1
        ]
        manifests[number] = following(
            manifests.get(number - 1),
            {0: number},
            file(0, number - 1, number),
            earlier=earlier,
        )

    read = 0
    found: list[HistoryFile] = []
    number = 599
    while number:
        read += 1
        found += manifests[number].files
        number = manifests[number].since - 1

    assert sorted(each.first_offset for each in found) == list(range(599))
    assert read == 2 + 5 + 7  # 2 * 256 + 5 * 16 + 7 = 599


def test_too_many_files_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobmsg_spark.history_manifest._MOST_ROLLED_UP_FILES", 1)
    previous = replace(following(None, {0: 10}, file(0, 5, 10)), number=15, since=15)

    found = following(previous, {0: 30}, file(0, 20, 30), earlier=[file(0, 1, 2), file(0, 5, 10)])

    assert (found.number, found.since) == (16, 16)
    assert [each.first_offset for each in found.files] == [20]


def test_a_manifest_that_no_reader_takes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobmsg_spark.history_manifest.MOST_MANIFEST_BYTES", 100)

    with pytest.raises(FormatError, match="let files be larger"):
        encode_manifest(decode_manifest(EXAMPLE))


def test_a_manifest_is_json_that_any_program_reads() -> None:
    body, trailer = EXAMPLE.splitlines()

    assert json.loads(body)["files"][0]["records"] == 3
    assert json.loads(trailer)["crc32"] == zlib.crc32(body)
