"""The headers column of a segment: every record's headers in one flat msgpack array.

Decides nothing; absent when no record has headers. Elements, record after record:

| element | type | meaning |
|---|---|---|
| count | uint | headers of this record; 0: none |
| name, value | str, bin or nil | `count` times; order and repeated names are kept |

Flat instead of an array per record, because a decoder can then refuse every nested container
and so bound its memory by the bytes that are there.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from blobmsg.format.errors import FormatError
from blobmsg.format.fields import UnpackException, open_unpacker, pack

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Header", "Headers", "decode_headers", "encode_headers"]

Header: TypeAlias = "tuple[str, bytes | None]"
Headers: TypeAlias = "list[Header]"


def encode_headers(column: Sequence[Headers | None]) -> bytes:
    """Encode the headers of all records of a segment.

    Args:
        column: One entry per record; None and an empty list both mean no headers, as in Kafka.

    Returns:
        The column, or `b""` when no record has headers.

    Raises:
        FormatError: A name that is no str or not UTF-8, a value that is neither bytes nor None.

    Threads: any.
    """
    if not any(column):
        return b""
    flat: list[int | str | bytes | None] = []
    for headers in column:
        if not headers:
            flat.append(0)
            continue
        flat.append(len(headers))
        # Checked, because a wrong type would pass msgpack and fail every reader.
        for name, value in cast("list[tuple[object, object]]", headers):
            if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
                raise FormatError(
                    f"header {name!r}: the name must be str, the value bytes or None,"
                    f" not {type(value).__name__}"
                )
            flat += (name, value)
    return pack(flat)


def decode_headers(data: bytes, records: int) -> list[Headers | None]:
    """Decode the headers of all records of a segment.

    Args:
        data: The column; not empty.
        records: How many records the segment has.

    Returns:
        One entry per record, None where it has no headers.

    Raises:
        FormatError: Damaged. Memory is bounded by the length of `data`: nothing is allocated
            for what a length field claims.

    Threads: any.
    """
    unpacker = open_unpacker(data)
    try:
        count = unpacker.read_array_header()
        # Not beyond `count`: an iterator would swallow a value that is cut off at the end.
        flat: list[Any] = list(islice(unpacker, count))
    except (ValueError, UnpackException) as error:
        raise FormatError(
            f"damaged headers column: {str(error) or type(error).__name__}"
        ) from error
    if len(flat) != count or unpacker.tell() != len(data):
        raise FormatError(f"headers column states {count} elements, has others")
    column = _cut(flat, records)
    if column is None:
        raise FormatError(f"headers column does not fit {records} records")
    return column


def _cut(flat: list[Any], records: int) -> list[Headers | None] | None:
    """Cut the flat elements into records; None when they don't fit or have a wrong type."""
    column: list[Headers | None] = []
    place = 0
    for _ in range(records):
        if place >= len(flat):
            return None
        count = flat[place]
        if type(count) is not int or not 0 <= count <= len(flat) - place:
            return None
        end = place + 1 + 2 * count
        if not count:
            column.append(None)
            place = end
            continue
        names, values = flat[place + 1 : end : 2], flat[place + 2 : end : 2]
        if len(names) != count or len(values) != count:
            return None
        if not all(type(name) is str for name in names):
            return None
        if not all(value is None or type(value) is bytes for value in values):
            return None
        column.append(list(zip(names, values, strict=True)))
        place = end
    return column if place == len(flat) else None
