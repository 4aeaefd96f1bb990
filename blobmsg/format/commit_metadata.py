"""What we write beside a committed offset: how many records of its notification remain.

Decides what metadata is ours; text of others stays theirs, untouched. Grammar (ABNF):

    metadata  = "blobmsg1:" remaining *( "," name "=" value ) [ ";" user ]
    remaining = "0" / ( %x31-39 0*6DIGIT )      ; 0: all, else 1 … 2^20 - 1
    name      = [ "!" ] lower *31( lower / DIGIT / "." / "-" / "_" )
    value     = 0*256( %x20-2B / %x2D-3A / %x3C-7E )    ; no "," and no ";"
    user      = *OCTET                          ; the application's own, in UTF-8

Nothing of ours is written when all records remain, unless the user's own text would be taken
for ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.segment import MAX_SEGMENT_RECORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "COMMIT_METADATA_PATTERN",
    "MAX_COMMIT_METADATA_BYTES",
    "decode_commit_metadata",
    "encode_commit_metadata",
]

# The broker's default offset.metadata.max.bytes.
MAX_COMMIT_METADATA_BYTES = 4096

_PREFIX = "blobmsg1:"
_FIELD = r"!?[a-z][a-z0-9._-]{0,31}=[ -+\--:<-~]{0,256}"
COMMIT_METADATA_PATTERN = (
    rf"blobmsg1:(?P<remaining>0|[1-9][0-9]{{0,6}})(?P<fields>(?:,{_FIELD})*)"
    r"(?:;(?P<user>(?s:.*)))?"
)
_METADATA = re.compile(COMMIT_METADATA_PATTERN)
_ONE_FIELD = re.compile(_FIELD)
_OTHER_VERSION = re.compile(r"blobmsg(?P<version>[1-9][0-9]{0,3}):")


def encode_commit_metadata(
    remaining_records: int | None, user: str | None, fields: Mapping[str, str] | None = None
) -> str | None:
    """Write the metadata of a committed offset.

    Args:
        remaining_records: Records of the notification at that offset that are not done yet,
            1 … 2^20 - 1; None: all.
        user: The application's own metadata; None: none.
        fields: Further fields of ours.

    Returns:
        The metadata, or None for none.

    Raises:
        FormatError: Out of range, not of the grammar, or over `MAX_COMMIT_METADATA_BYTES`.
            A user's own text alone is passed on whatever its length: the broker decides.

    Threads: any.
    """
    if remaining_records is not None and not 1 <= remaining_records <= MAX_SEGMENT_RECORDS:
        raise FormatError(f"no count of remaining records: {remaining_records}")
    if remaining_records is None and not fields and not _looks_like_ours(user):
        return user
    written = [f"{_PREFIX}{remaining_records or 0}"]
    for name, value in (fields or {}).items():
        field = f"{name}={value}"
        if "=" in name or not _ONE_FIELD.fullmatch(field):
            raise FormatError(f"no metadata field: {field!r}")
        written.append(field)
    text = ",".join(written) if user is None else f"{','.join(written)};{user}"
    if len(text.encode("utf-8", "surrogatepass")) > MAX_COMMIT_METADATA_BYTES:
        raise FormatError(
            f"commit metadata is over {MAX_COMMIT_METADATA_BYTES} bytes with the"
            f" {len(text) - len(user or '')} that blobmsg needs: shorten the application's own"
        )
    return text


def decode_commit_metadata(
    text: str | None, known_fields: frozenset[str] = frozenset()
) -> tuple[int | None, str | None, dict[str, str]]:
    """Read the metadata of a committed offset.

    Args:
        text: As Kafka gave it.
        known_fields: The critical fields (`!…`) that the caller obeys.

    Returns:
        Remaining records (None: all), the user's own part (None: none) and our fields. Foreign
        or malformed text is all the user's.

    Raises:
        UnsupportedFormatError: Of a later version, or with an unknown critical field. A guess
            would silently skip or repeat records.

    Threads: any.
    """
    if text is None:
        return None, None, {}
    match = _METADATA.fullmatch(text)
    if match is None:
        other = _OTHER_VERSION.match(text)
        if other is not None and other["version"] != "1":
            raise UnsupportedFormatError(
                f"commit metadata version {other['version']} is unknown: upgrade"
            )
        return None, text, {}
    remaining = int(match["remaining"])
    if remaining > MAX_SEGMENT_RECORDS:
        return None, text, {}
    fields: dict[str, str] = {}
    for field in match["fields"].split(",")[1:]:
        name, _, value = field.partition("=")
        if name.startswith("!") and name not in known_fields:
            raise UnsupportedFormatError(
                f"commit metadata: critical field {name!r} is unknown to this version: upgrade"
            )
        fields[name] = value
    return remaining or None, match["user"], fields


def _looks_like_ours(user: str | None) -> bool:
    return user is not None and _OTHER_VERSION.match(user) is not None
