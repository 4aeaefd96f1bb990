"""A notification: the Kafka record that stands for one or more segments of its partition.

Decides whether a Kafka record is one, and what a reader refuses in it; never says where the
store is: bucket, endpoint and prefix come from the reader's own settings.

The Kafka record has a null key and the header `blobmsg` whose value is the version in ASCII
(`1`). Its value:

| offset | size | type | meaning |
|---|---|---|---|
| 0 | 4 | bytes | magic `B1 42 4D 4E` (0xB1, then `BMN`) |
| 4 | 1 | u8 | version, 1 |
| 5 | rest | msgpack | one map, under the extension rule (`fields.py`) |

| field | type | meaning |
|---|---|---|
| `k` | str | object key below the prefix; missing: the segments are inline, in `d` |
| `d` | bin | the stored bytes of the parts; only without `k` |
| `s` | str | store name, `[a-z0-9]{1,32}`; missing: the default store |
| `n` | uint | sequence of the partition from this producer |
| `i` | bin(16) | producer id; missing: the writer id in the object key |
| `p` | array | 1 … parts, each an array (`part.py`); nil as producer id is `i` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.fields import INT64_MAX, FieldReader, pack
from blobmsg.format.object_key import MAX_OBJECT_KEY_BYTES, ObjectKey
from blobmsg.format.part import (
    PART_ELEMENTS,
    PRODUCER_ID_BYTES,
    Limits,
    Part,
    part_elements,
    part_of,
    read_part_elements,
)
from blobmsg.format.segment import MAX_SEGMENT_RECORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "HEADER_NAME",
    "HEADER_VALUE",
    "NOTIFICATION_MAGIC",
    "Limits",
    "Notification",
    "Part",
    "decode_notification",
    "encode_notification",
    "is_notification",
]

HEADER_NAME = "blobmsg"
HEADER_VALUE = b"1"
# The first byte is no UTF-8 start byte, so no text value begins like this.
NOTIFICATION_MAGIC = b"\xb1BMN"
NOTIFICATION_VERSION = 1

_KNOWN_FIELDS = frozenset("kdsnip")
_STORE_NAME = re.compile(r"[a-z0-9]{1,32}")
_MAX_STORE_NAME_BYTES = 32


@dataclass(frozen=True, slots=True)
class Notification:
    """One or more segments of one partition, in one object or inline.

    Attributes:
        parts: At least one; record indices run through them.
        sequence: Counts the notifications of this partition from this producer; for audit.
        producer_id: 16 bytes, of the `BlobProducer` instance.
        key: Object key below the prefix; None when inline.
        store: Store name; "" is the default store.
        inline: The stored bytes of the parts when there is no object, else None.

    Raises:
        FormatError: The values contradict each other, or the key is not of the grammar.

    Threads: any.
    """

    parts: tuple[Part, ...]
    sequence: int
    producer_id: bytes
    key: str | None
    store: str = ""
    inline: bytes | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise FormatError("a notification has at least one part")
        if self.records > MAX_SEGMENT_RECORDS:
            raise FormatError(
                f"a notification has at most {MAX_SEGMENT_RECORDS} records, not {self.records}"
            )
        if not 0 <= self.sequence <= INT64_MAX:
            raise FormatError(f"no sequence: {self.sequence}")
        if len(self.producer_id) != PRODUCER_ID_BYTES:
            raise FormatError(f"a producer id has {PRODUCER_ID_BYTES} bytes")
        if self.store and not _STORE_NAME.fullmatch(self.store):
            raise FormatError(f"no store name: {self.store!r}")
        if (self.key is None) == (self.inline is None):
            raise FormatError("a notification has either an object key or inline data")
        if self.key is not None:
            ObjectKey.decode(self.key)
        if self.inline is not None:
            if self.store:
                raise FormatError("an inline notification names a store")
            if any(part.byte_range.end > len(self.inline) for part in self.parts):
                raise FormatError("a part ends after the inline data")

    @property
    def records(self) -> int:
        """Records of all parts."""
        return sum(part.records for part in self.parts)

    @property
    def last_timestamp_ms(self) -> int:
        """The latest timestamp of all records: the Kafka timestamp of the notification."""
        return max(part.last_timestamp_ms for part in self.parts)


def encode_notification(notification: Notification) -> bytes:
    """Encode the value of the Kafka record.

    Args:
        notification: It has checked itself.

    Returns:
        The bytes; under 150 for one part in an object.

    Threads: any.
    """
    fields: dict[str, Any] = {}
    default_id = None
    if notification.key is not None:
        fields["k"] = notification.key
        default_id = ObjectKey.decode(notification.key).writer_bytes
    if notification.store:
        fields["s"] = notification.store
    fields["n"] = notification.sequence
    if notification.producer_id != default_id:
        fields["i"] = notification.producer_id
    fields["p"] = [part_elements(part, notification.producer_id) for part in notification.parts]
    if notification.inline is not None:
        fields["d"] = notification.inline
    head = NOTIFICATION_MAGIC + bytes((NOTIFICATION_VERSION,))
    return head + pack(fields)


def is_notification(
    headers: Sequence[tuple[str, bytes | None]] | None, value: bytes | None
) -> bool:
    """Whether a Kafka record is a notification, of whatever version.

    Header *and* magic make one: a record of another application that happens to have either
    passes through as the plain record that it is.

    Args:
        headers: The Kafka record's, as the client gives them.
        value: The Kafka record's.

    Threads: any.
    """
    return (
        value is not None
        and headers is not None
        and value.startswith(NOTIFICATION_MAGIC)
        and any(header[0] == HEADER_NAME for header in headers)
    )


def decode_notification(value: bytes, limits: Limits) -> Notification:
    """Decode the value of a Kafka record that `is_notification`.

    Args:
        value: The Kafka record's value.
        limits: What the reader is willing to fetch and to hold.

    Returns:
        The notification; its key follows the grammar, its lengths and counts the limits.

    Raises:
        FormatError: Damaged, hostile or over a limit.
        UnsupportedFormatError: Of a version, or with a codec or critical field, that this
            version does not know.

    Threads: any.
    """
    if not value.startswith(NOTIFICATION_MAGIC) or len(value) <= len(NOTIFICATION_MAGIC):
        raise FormatError("not a notification: the magic is missing")
    version = value[len(NOTIFICATION_MAGIC)]
    if version != NOTIFICATION_VERSION:
        raise UnsupportedFormatError(f"notification version {version} is unknown: upgrade")
    reader = FieldReader(value[len(NOTIFICATION_MAGIC) + 1 :], "notification")
    key = inline = producer_id = sequence = raw_parts = None
    store = ""
    for name in reader.fields(_KNOWN_FIELDS):
        if name == "k":
            key = reader.text("object key", MAX_OBJECT_KEY_BYTES)
        elif name == "s":
            store = reader.text("store name", _MAX_STORE_NAME_BYTES)
        elif name == "n":
            sequence = reader.integer("sequence")
        elif name == "i":
            producer_id = reader.binary("producer id", PRODUCER_ID_BYTES, PRODUCER_ID_BYTES)
        elif name == "d":
            inline = reader.binary("inline data", 1, len(value))
        else:
            raw_parts = _read_parts(reader, limits)
    reader.end()
    if producer_id is None and key is not None:
        producer_id = ObjectKey.decode(key).writer_bytes
    if raw_parts is None or sequence is None or producer_id is None:
        raise FormatError("notification: field p, n or i is missing")
    # Only now: `i`, which nil in a part stands for, may come after `p`.
    parts = tuple(part_of(elements, producer_id) for elements in raw_parts)
    return Notification(parts, sequence, producer_id, key, store, inline)


def _read_parts(reader: FieldReader, limits: Limits) -> list[list[int | bytes | None]]:
    return [
        read_part_elements(reader, reader.array("part", PART_ELEMENTS, PART_ELEMENTS + 1), limits)
        for _ in range(reader.array("parts", 1, limits.max_parts))
    ]
