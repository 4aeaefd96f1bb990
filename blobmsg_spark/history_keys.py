"""Names of the objects of a history; one grammar, below the prefix that object keys leave to it.

Decides what an object is called; never what is in it. Specified in docs/spark_history.md.
"""

from __future__ import annotations

import re
from typing import Final

from blobmsg.format.errors import FormatError

__all__ = [
    "file_key",
    "file_name",
    "files_prefix",
    "manifest_key",
    "manifest_number",
    "manifests_prefix",
    "name_of_file",
    "parse_file_name",
]

_NAME: Final = re.compile(
    r"data/(?P<partition>0|[1-9][0-9]{0,9})/(?P<first>[0-9]{19})-(?P<end>[0-9]{19})"
    r"-(?P<run>[0-9a-f]{32})-(?P<attempt>0|[1-9][0-9]{0,18})\.parquet"
)
_MANIFEST: Final = re.compile(r"[0-9]{10}\.json")


def _root(topic: str) -> str:
    return f"history/{topic}/"


def manifests_prefix(topic: str) -> str:
    """What the keys of a topic's manifests begin with."""
    return f"{_root(topic)}manifest/"


def files_prefix(topic: str) -> str:
    """What the keys of a topic's files begin with, those that no manifest names included."""
    return f"{_root(topic)}data/"


def manifest_key(topic: str, number: int) -> str:
    """The key of a manifest; in the order of numbers, for listings."""
    return f"{manifests_prefix(topic)}{number:010}.json"


def manifest_number(topic: str, key: str) -> int | None:
    """The number of the manifest with this key; None if it is none."""
    name = key.removeprefix(manifests_prefix(topic))
    return int(name[:10]) if _MANIFEST.fullmatch(name) else None


def file_name(partition: int, first_offset: int, end_offset: int, run: str, attempt: int) -> str:
    """The name of a file below the topic's part of the history.

    Args:
        partition: Its records' partition.
        first_offset: Virtual offset of the first record.
        end_offset: Virtual offset behind the last one.
        run: 32 hex digits, of the run that wrote it; so no two ever write the same name.
        attempt: Of the run's task.
    """
    return f"data/{partition}/{first_offset:019}-{end_offset:019}-{run}-{attempt}.parquet"


def file_key(topic: str, name: str) -> str:
    """The key of a file of this name."""
    return f"{_root(topic)}{name}"


def name_of_file(topic: str, key: str) -> str:
    """The name of a file below the topic's part of the history, by its key."""
    return key.removeprefix(_root(topic))


def parse_file_name(name: str) -> tuple[int, int, int]:
    """Partition, first offset and end offset.

    Raises:
        FormatError: It is no name of a file.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise FormatError(f"no file of a history: {name[:200]!r}")
    return int(match["partition"]), int(match["first"]), int(match["end"])
