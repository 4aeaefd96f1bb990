"""Notifications that no producer of the system has written: what an attacker puts into a topic.

Each asks its reader for something that DESIGN.md's rules 7 and 8 forbid, or for what is not there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from blobmsg.format.fields import pack
from blobmsg.format.notification import (
    HEADER_NAME,
    HEADER_VALUE,
    NOTIFICATION_MAGIC,
    encode_notification,
)
from blobmsg.format.object_key import FOREVER, NO_ZONE, ObjectKey
from blobmsg.format.part import part_elements
from blobmsg.format.ranges import ByteRange
from blobmsg.sim.partition_log import SentMessage

if TYPE_CHECKING:
    import random

    from blobmsg.format.notification import Notification

__all__ = ["FORGERIES", "forge"]

#: Another store's name; a key that is no object's; an object that nobody wrote; bytes behind an
#: object's end; another checksum; half a notification.
FORGERIES: Final = ("elsewhere", "outside", "nowhere", "behind", "wrong", "torn")
_OUTSIDE: Final = (
    "../../secrets/1",
    "https://other.example/bucket/object",
    "s3://other-bucket/prefix/object",
    "/etc/passwd",
    f"history/0/{FOREVER}/{NO_ZONE}/{'0' * 32}-0",
)
_BEHIND_BYTES: Final = 1 << 28
_HEAD_BYTES: Final = len(NOTIFICATION_MAGIC) + 1  # and the version


def forge(kind: str, real: Notification, rng: random.Random) -> SentMessage:
    """A forged notification, as Kafka has it.

    Args:
        kind: One of `FORGERIES`.
        real: One of an object, of which it is a changed copy.
        rng: Chance.
    """
    part = real.parts[0]
    place = part.byte_range
    if kind == "elsewhere":
        real = replace(real, store="elsewhere")
    elif kind == "nowhere":
        name = ObjectKey("shared", "0", FOREVER, NO_ZONE, rng.randbytes(16).hex(), 0)
        real = replace(real, key=name.encode())
    elif kind == "behind":
        behind = ByteRange(place.start + _BEHIND_BYTES, place.length)
        real = replace(real, parts=(replace(part, byte_range=behind),))
    elif kind == "wrong":
        real = replace(real, parts=(replace(part, checksum=part.checksum ^ 1),))
    value = encode_notification(real)
    if kind == "outside":
        fields = {
            "k": rng.choice(_OUTSIDE),
            "n": 0,
            "i": real.producer_id,
            "p": [part_elements(part, real.producer_id)],
        }
        value = value[:_HEAD_BYTES] + pack(fields)
    elif kind == "torn":
        value = value[: len(value) // 2]
    return SentMessage(None, value, [(HEADER_NAME, HEADER_VALUE)], real.last_timestamp_ms)
