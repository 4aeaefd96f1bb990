"""Manifests of a topic's history: which files count, and up to where it is written.

Decides what a manifest says, which files may be in it together, and which manifests repeat the
files of earlier ones. Never reads or writes objects. Specified in docs/spark_history.md.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from blobmsg.format.checksum import crc32
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg_spark.history_keys import parse_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "MOST_MANIFEST_BYTES",
    "HistoryFile",
    "Manifest",
    "check_order",
    "decode_manifest",
    "encode_manifest",
    "first_of_rolled_up",
    "next_manifest",
]

_FORMAT: Final = "blobmsg-history"
_VERSION: Final = 1
# A reader refuses longer ones before it takes memory; some 800,000 files.
MOST_MANIFEST_BYTES: Final = 256 << 20
# Each 16th manifest repeats the files of 16, each 256th of 256: a reader of a year of hourly ones
# asks for 34 + 15 + 15 of 8,760, and each file is written down three times.
_ROLLED_UP: Final = (256, 16)
# As many are some 30 MB, which a writer should not repeat.
_MOST_ROLLED_UP_FILES: Final = 100_000
_MOST_OFFSET: Final = (1 << 63) - 1
_TRAILER: Final = re.compile(rb'\{"crc32":(0|[1-9][0-9]{0,9})\}\n')


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One Parquet file: consecutive records of one partition, by ascending offset.

    Attributes:
        name: Below the topic's part of the history; see `file_name`.
        partition: Its records' partition.
        first_offset: Virtual offset of the first record.
        end_offset: Virtual offset behind the last one.
        records: How many.
        size_bytes: Of the object.
        crc32: Of the object.
        min_timestamp_ms: Of its records.
        max_timestamp_ms: Of its records.

    Raises:
        FormatError: The name is none, or says something else; no records; an order is wrong.
    """

    name: str
    partition: int
    first_offset: int
    end_offset: int
    records: int
    size_bytes: int
    crc32: int
    min_timestamp_ms: int
    max_timestamp_ms: int

    def __post_init__(self) -> None:
        if parse_file_name(self.name) != (self.partition, self.first_offset, self.end_offset):
            raise FormatError(f"the name {self.name!r} does not say what is in the file")
        offsets = self.end_offset - self.first_offset
        if not 1 <= self.records <= offsets or self.end_offset > _MOST_OFFSET:
            raise FormatError(f"{self.name!r} can't have {self.records} records")
        if self.size_bytes < 1 or not 0 <= self.crc32 < 1 << 32:
            raise FormatError(f"{self.name!r}: wrong length or checksum")
        if self.min_timestamp_ms > self.max_timestamp_ms:
            raise FormatError(f"{self.name!r}: timestamps in the wrong order")

    def encode(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {
            "name": self.name,
            "records": self.records,
            "bytes": self.size_bytes,
            "crc32": self.crc32,
            "min_timestamp_ms": self.min_timestamp_ms,
            "max_timestamp_ms": self.max_timestamp_ms,
        }

    @classmethod
    def decode(cls, encoded: object) -> HistoryFile:
        """Read it out of a manifest.

        Raises:
            FormatError: It is none.
        """
        fields = _object(encoded, "a file")
        name = _text(fields, "name")
        partition, first_offset, end_offset = parse_file_name(name)
        return cls(
            name=name,
            partition=partition,
            first_offset=first_offset,
            end_offset=end_offset,
            records=_number(fields, "records"),
            size_bytes=_number(fields, "bytes"),
            crc32=_number(fields, "crc32"),
            min_timestamp_ms=_number(fields, "min_timestamp_ms"),
            max_timestamp_ms=_number(fields, "max_timestamp_ms"),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one run added to the history of a topic, and where the history ends since.

    Attributes:
        topic: Whose.
        topic_id: Kafka's id of it, which a topic that is made anew has not.
        number: 1 for the first; each one's is one more than its predecessor's.
        since: It has the files of all manifests from this number on, its own included.
        run: 32 hex digits, of who wrote it.
        timestamp_ms: When, by the writer's clock; for people.
        ends: By partition: virtual offset behind all that the history has, where the next run
            begins. Of all partitions that any run has read.
        files: Ordered by partition and offset.

    Raises:
        FormatError: Something contradicts something else.
    """

    topic: str
    topic_id: str
    number: int
    since: int
    run: str
    timestamp_ms: int
    ends: Mapping[int, int]
    files: tuple[HistoryFile, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.since <= self.number < 10**10:
            raise FormatError(f"no manifest has number {self.number} and since {self.since}")
        if not re.fullmatch("[0-9a-f]{32}", self.run):
            raise FormatError(f"no id of a run: {self.run!r}")
        for partition, end in self.ends.items():
            if partition < 0 or not 0 <= end <= _MOST_OFFSET:
                raise FormatError(f"partition {partition} can't end at {end}")
        check_order(self.files)
        for found in self.files:
            if found.end_offset > self.ends.get(found.partition, 0):
                raise FormatError(f"{found.name!r} lies behind the end of its partition")


def check_order(files: Iterable[HistoryFile]) -> None:
    """Refuse files that are not in order, or have an offset in common.

    Raises:
        FormatError: Two of them.
    """
    for one, other in pairwise(files):
        if (one.partition, one.end_offset) > (other.partition, other.first_offset):
            raise FormatError(f"{one.name!r} and {other.name!r} overlap or are in the wrong order")


def first_of_rolled_up(number: int) -> int:
    """The first of the manifests whose files the one with this number repeats, or itself."""
    width = next((width for width in _ROLLED_UP if number % width == 0), 1)
    return number - width + 1


def next_manifest(
    previous: Manifest | None,
    *,
    topic: str,
    topic_id: str,
    run: str,
    timestamp_ms: int,
    ends: Mapping[int, int],
    files: Sequence[HistoryFile],
    earlier: Sequence[HistoryFile] = (),
) -> Manifest:
    """The manifest that adds files to a history.

    Args:
        previous: The newest one; None: this is the first.
        topic: Whose.
        topic_id: Kafka's id of it.
        run: Who writes it.
        timestamp_ms: Wall time.
        ends: Of the partitions that were read, where it ends now.
        files: The new ones, in any order.
        earlier: Those of the manifests from `first_of_rolled_up` of its number on.

    Raises:
        FormatError: A new file begins before the end of what is there.
    """
    before: Mapping[int, int] = {} if previous is None else previous.ends
    number = 1 if previous is None else previous.number + 1
    for found in files:
        if found.first_offset < before.get(found.partition, 0):
            raise FormatError(
                f"{found.name!r} begins before {before[found.partition]}, up to which the history "
                f"of {topic} is written"
            )
    is_rolled_up = len(earlier) <= _MOST_ROLLED_UP_FILES
    merged = {**before}
    for partition, end in ends.items():
        merged[partition] = max(end, before.get(partition, 0))
    return Manifest(
        topic=topic,
        topic_id=topic_id,
        number=number,
        since=first_of_rolled_up(number) if is_rolled_up else number,
        run=run,
        timestamp_ms=timestamp_ms,
        ends=merged,
        files=tuple(
            sorted(
                [*(earlier if is_rolled_up else ()), *files],
                key=lambda found: (found.partition, found.first_offset),
            )
        ),
    )


# --- bytes ----------------------------------------------------------------------------------------


def encode_manifest(manifest: Manifest) -> bytes:
    """Two lines of JSON: the manifest, and the CRC-32 of its line without the line's end.

    Raises:
        FormatError: Longer than any reader takes.
    """
    body = json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "topic": manifest.topic,
            "topic_id": manifest.topic_id,
            "number": manifest.number,
            "since": manifest.since,
            "run": manifest.run,
            "timestamp_ms": manifest.timestamp_ms,
            "ends": {str(partition): end for partition, end in sorted(manifest.ends.items())},
            "files": [found.encode() for found in manifest.files],
        },
        separators=(",", ":"),
    ).encode()
    data = b'%s\n{"crc32":%d}\n' % (body, crc32(body))
    if len(data) > MOST_MANIFEST_BYTES:
        raise FormatError(
            f"a manifest of {len(manifest.files)} files is longer than {MOST_MANIFEST_BYTES} "
            "bytes: let files be larger, or runs shorter"
        )
    return data


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        UnsupportedFormatError: Of a version, or with a critical field, that is not known here.
        FormatError: It is damaged, or no manifest.
    """
    body, _, trailer = data.partition(b"\n")
    match = _TRAILER.fullmatch(trailer)
    if match is None:
        raise FormatError("it does not end with its checksum: it was cut, or is no manifest")
    if int(match[1]) != crc32(body):
        raise FormatError("its checksum is not the one it states: it is damaged")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is no JSON: {error}") from error
    fields = _object(found, "it")
    if fields.get("format") != _FORMAT:
        raise FormatError("it is no manifest of a history")
    version = _number(fields, "version")
    if version != _VERSION:
        raise UnsupportedFormatError(f"it has version {version}, known here is {_VERSION}")
    critical = sorted(name for name in fields if name.startswith("!"))
    if critical:
        raise UnsupportedFormatError(f"it has the critical field {critical[0][:64]!r}")
    files = fields.get("files")
    if not isinstance(files, list):
        raise FormatError("its files are no list")
    return Manifest(
        topic=_text(fields, "topic"),
        topic_id=_text(fields, "topic_id"),
        number=_number(fields, "number"),
        since=_number(fields, "since"),
        run=_text(fields, "run"),
        timestamp_ms=_number(fields, "timestamp_ms"),
        ends=_ends(fields.get("ends")),
        files=tuple(map(HistoryFile.decode, files)),
    )


def _ends(encoded: object) -> dict[int, int]:
    fields = _object(encoded, "ends")
    if not all(re.fullmatch("0|[1-9][0-9]{0,9}", name) for name in fields):
        raise FormatError("a partition in ends is no number")
    return {int(name): _number(fields, name) for name in fields}


def _object(found: object, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise FormatError(f"{what} is no JSON object")
    return found


def _text(fields: Mapping[str, Any], name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str):
        raise FormatError(f"{name} is missing, or no text")
    return found


def _number(fields: Mapping[str, Any], name: str) -> int:
    found = fields.get(name)
    if type(found) is not int:
        raise FormatError(f"{name} is missing, or no whole number")
    return found
