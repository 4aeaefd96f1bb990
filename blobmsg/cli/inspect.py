"""`blobmsg inspect`: a batch object or a notification, explained and checked.

Decides what the user's words name; `inspection` reads it, and this prints what it says.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from blobmsg.cli.command import FINDING, OK, Command, UserMistake
from blobmsg.cli.inspection import (
    Facts,
    inspect_notification,
    inspect_object,
    inspect_plain_record,
)
from blobmsg.cli.inspection_text import explain
from blobmsg.cli.settings_argument import add_settings_argument, read_settings, with_brokers
from blobmsg.cli.source import FileSource, Source, open_source, split_object_url
from blobmsg.core.offsets import to_kafka
from blobmsg.format import (
    NOTIFICATION_MAGIC,
    OBJECT_KEY_PATTERN,
    is_notification,
)
from blobmsg.store.open import resolve_store_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from blobmsg.format import ByteRange

    Opener = Callable[[str, str], Source]

_EPILOG = """TARGET is one of
  a path                      of a file with an object or a notification's value
  s3://bucket/prefix/key      an object (also file:///folder/key)
  a key                       an object below the configured store (BLOBMSG_STORE_URL)
  hex or base64 text          a notification's value
  -                           an object's or a notification's bytes from standard input
or nothing, with --topic, --partition and --offset: a record of Kafka.

examples:
  blobmsg inspect ./store/shared/3/2026112105/az1/0123456789abcdef0123456789abcdef-7
  blobmsg inspect s3://bucket/prefix/shared/3/2026112105/az1/0123456789abcdef0123456789abcdef-7
  blobmsg inspect --topic orders --partition 0 --offset 42 --fetch
  blobmsg inspect --topic orders --partition 0 --virtual-offset 45097156607 --records 3
  blobmsg inspect --json -X blobmsg.s3.region=eu-central-1 s3://bucket/prefix/key

Every segment that is read is checked. Settings come from -X and from the environment, as for a
consumer; with blobmsg dev env they are those of the local stack. Exit codes: 0 sound, 1 damaged
or not there, 2 a mistake in the request.
"""

_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("target", nargs="?", metavar="TARGET", help="see below")
    parser.add_argument("--topic", help="read a Kafka record: its topic")
    parser.add_argument("--partition", type=int, metavar="P", help="its partition")
    offset = parser.add_mutually_exclusive_group()
    offset.add_argument("--offset", type=int, metavar="K", help="its Kafka offset")
    offset.add_argument(
        "--virtual-offset", type=int, metavar="V", help="the offset a BlobConsumer showed"
    )
    parser.add_argument(
        "--fetch", action="store_true", help="read and check a notification's object, too"
    )
    parser.add_argument(
        "--records", type=int, default=0, metavar="N", help="show N records of every segment"
    )
    add_settings_argument(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.records < 0:
        raise UserMistake("--records wants 0 or more")
    try:
        facts = _inspect(arguments)
    except OSError as error:  # of the file that was named; stores have errors of their own
        raise UserMistake(str(error)) from error
    print(json.dumps(facts, indent=2) if arguments.json else explain(facts))
    return FINDING if facts["findings"] else OK


COMMAND = Command(
    name="inspect",
    help="explain and check a batch object or a notification",
    configure=_configure,
    run=_run,
)


def _inspect(arguments: argparse.Namespace) -> Facts:
    now_ms = time.time_ns() // 1_000_000
    settings, rest = read_settings(arguments.settings)
    with contextlib.ExitStack() as opened:

        def open_object(url: str, key: str) -> Source:
            source = open_source(url, key, settings)
            opened.callback(source.store.close)
            return source

        def open_named(store: str, key: str) -> Source:
            return open_object(resolve_store_url(store, settings), key)

        named = open_named if arguments.fetch or arguments.records else None
        if arguments.topic is not None:
            if arguments.target is not None:
                raise UserMistake("give a TARGET or --topic, not both")
            value, headers = _kafka_record(arguments, rest)
            if value is None or not is_notification(headers, value):
                return inspect_plain_record(value, headers)
            return inspect_notification(value, now_ms, arguments.records, named)
        if arguments.target is None:
            raise UserMistake("say what to inspect: a TARGET, or --topic, --partition, --offset")
        found = _resolve(arguments.target, open_object, open_named)
        if isinstance(found, bytes):
            return inspect_notification(found, now_ms, arguments.records, named)
        return inspect_object(found, now_ms, arguments.records)


def _resolve(target: str, open_object: Opener, open_named: Opener) -> Source | bytes:
    """Return the object that a target names, or a notification's value."""
    if target == "-":
        return _bytes_or_object(sys.stdin.buffer.read(), "standard input")
    # Before it is taken for a path: it is longer than a path may be.
    value = _decode_text(target)
    if value is not None:
        return value
    if target.startswith("file://"):
        target = unquote(urlsplit(target).path)
    elif "://" in target:
        url, key = split_object_url(target)
        if not key:
            raise UserMistake(f"{target} names no object, only a store")
        return open_object(url, key)
    path = Path(target)
    if path.is_dir():
        raise UserMistake(f"{target} is a folder: name one object in it")
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(len(NOTIFICATION_MAGIC))
        return path.read_bytes() if head == NOTIFICATION_MAGIC else FileSource(path)
    if re.fullmatch(OBJECT_KEY_PATTERN, target):
        return open_named("", target)
    raise UserMistake(
        f"{target[:200]!r} is no file that is there, no s3:// address, no object key, and no "
        "notification in hex or base64"
    )


def _decode_text(text: str) -> bytes | None:
    """Return a notification's value written as hex or base64; None if it is neither."""
    compact = "".join(text.split())
    try:
        if _HEX.fullmatch(compact):
            value = bytes.fromhex(compact)
        else:
            value = base64.b64decode(compact, validate=True)
    except ValueError:
        return None
    # Many a word is hex or base64; only what begins as a notification is meant as one.
    return value if value.startswith(NOTIFICATION_MAGIC) else None


class _MemorySource:
    """An object whose bytes are at hand."""

    key = None

    def __init__(self, data: bytes, place: str) -> None:
        self.place = place
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read(self, byte_range: ByteRange) -> bytes:
        return self._data[byte_range.start : byte_range.end]


def _bytes_or_object(data: bytes, place: str) -> Source | bytes:
    if data.startswith(NOTIFICATION_MAGIC):
        return data
    try:
        value = _decode_text(data.decode("ascii"))
    except UnicodeDecodeError:
        value = None
    return _MemorySource(data, place) if value is None else value


def _kafka_record(
    arguments: argparse.Namespace, rest: Mapping[str, Any]
) -> tuple[bytes | None, list[tuple[str, bytes | None]] | None]:
    from blobmsg.cli.kafka_record import read_record

    if arguments.virtual_offset is not None:
        kafka_offset = to_kafka(arguments.virtual_offset)
    else:
        kafka_offset = arguments.offset
    if arguments.partition is None or kafka_offset is None:
        raise UserMistake("--topic needs --partition and one of --offset and --virtual-offset")
    if arguments.partition < 0 or kafka_offset < 0:
        raise UserMistake("--partition and the offset are 0 or more")
    return read_record(with_brokers(rest), arguments.topic, arguments.partition, kafka_offset)
