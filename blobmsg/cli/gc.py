"""`blobmsg gc`: delete objects that are past the expiry hour in their name.

Says what it would do unless told to do it. What has expired is decided by `collector`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from blobmsg.cli.command import OK, Command, UserMistake
from blobmsg.cli.settings_argument import add_settings_argument, read_settings
from blobmsg.clock import SystemClock
from blobmsg.collector import ExpiredObjects, delete_paced
from blobmsg.format.object_key import ObjectKey
from blobmsg.store.open import open_store, resolve_store_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from blobmsg.store.base import ObjectInfo, Store

_EPILOG = """examples:
  blobmsg gc --expired                         say what has expired; deletes nothing
  blobmsg gc --expired --delete                delete it
  blobmsg gc --expired --delete --objects-per-second 200 s3://bucket/prefix

An object's name says when it expires: the retention class of its topics (at least `retention.ms`)
and `segment.ms` after it was written, and an hour. Kafka has deleted its notifications by then,
unless the topic's retention was made longer meanwhile. Nothing is read and Kafka is not asked;
names that are not blobmsg's are left alone. Run it every hour or every day, once for each store;
two at a time do no harm.
The hour is judged by this machine's clock, which S3 refuses when it is 15 minutes off.
The credentials need s3:ListBucket and s3:DeleteObject, which no producer and no consumer needs.

Settings come from -X and from the environment, as for a consumer. Exit codes: 0 done, 1 the store
refused or did not answer, 2 a mistake in the request.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "store",
        nargs="?",
        metavar="STORE",
        help="s3://bucket/prefix or file:///folder; blobmsg.store.url by default",
    )
    parser.add_argument(
        "--expired", action="store_true", required=True, help="what is past its expiry hour"
    )
    parser.add_argument("--delete", action="store_true", help="delete it; else only say what")
    parser.add_argument(
        "--objects-per-second",
        type=float,
        default=1000.0,
        metavar="N",
        help="most objects to delete in a second (1000)",
    )
    add_settings_argument(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.objects_per_second > 0:
        raise UserMistake("--objects-per-second wants more than 0")
    settings, _ = read_settings(arguments.settings)
    url = arguments.store or resolve_store_url("", settings)
    store = open_store(url, settings)
    try:
        parts = urlsplit(url)
        if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
            # A producer makes it; here it would look like a store in which nothing has expired.
            raise UserMistake(f"{url} is no folder that is there")
        _collect(store, arguments)
    finally:
        store.close()
    return OK


def _collect(store: Store, arguments: argparse.Namespace) -> None:
    clock = SystemClock()
    expired = ExpiredObjects(store, clock.timestamp_ms())
    batches: Iterable[Iterable[ObjectInfo]] = [expired]
    if arguments.delete:
        batches = delete_paced(store, expired, clock, arguments.objects_per_second)
    totals = _Totals()
    try:
        for batch in batches:
            for found in batch:
                totals.add(found)
    finally:  # Ctrl-C and a store that fails come too late for these
        facts = {
            "store": store.describe(),
            "is_dry_run": not arguments.delete,
            **totals.facts(),
            "foreign_keys": expired.foreign_keys,
        }
        print(json.dumps(facts, indent=2) if arguments.json else _text(facts))


class _Totals:
    """Objects, bytes and expiry hours."""

    def __init__(self) -> None:
        self._objects = 0
        self._size_bytes = 0
        self._hours: set[str] = set()

    def add(self, found: ObjectInfo) -> None:
        self._objects += 1
        self._size_bytes += found.size_bytes
        self._hours.add(ObjectKey.decode(found.key).expiry_hour)

    def facts(self) -> dict[str, Any]:
        return {
            "objects": self._objects,
            "bytes": self._size_bytes,
            "first_expiry_hour": min(self._hours, default=None),
            "last_expiry_hour": max(self._hours, default=None),
        }


def _text(facts: dict[str, Any]) -> str:
    what = f"{facts['objects']:,} expired objects, {facts['bytes'] / (1 << 30):,.3f} GiB"
    if facts["objects"]:
        what += f", of the hours {facts['first_expiry_hour']} to {facts['last_expiry_hour']} (UTC)"
    done = "nothing is deleted without --delete" if facts["is_dry_run"] else "deleted"
    lines = [f"{facts['store']}: {what}: {done}"]
    if facts["foreign_keys"]:
        lines.append(f"{facts['foreign_keys']:,} other names are not blobmsg's: left alone")
    return "\n".join(lines)


COMMAND = Command(
    name="gc",
    help="delete what is past its expiry hour",
    configure=_configure,
    run=_run,
)
