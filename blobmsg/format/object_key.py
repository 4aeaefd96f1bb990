"""Names of batch objects, and the hour in them after which they may be deleted.

Decides which names a reader accepts and when an object expires; never makes up an id or reads a
clock. Names are never reused; a repeated PUT uses the same name. Below the store's prefix:

    <isolation>/<shard>/<expiry hour>/<zone>/<writer id>-<number>

| element | grammar | meaning |
|---|---|---|
| isolation | `[A-Za-z0-9][A-Za-z0-9._-]{0,62}`, not `history` | IAM separates readers by it |
| shard | `[0-9a-f]` | spreads the objects over the store's partitions |
| expiry hour | `YYYYMMDDHH` in UTC, or `forever` | from its start on, the object may go |
| zone | as isolation; `none` when unset | of the writer |
| writer id | 32 hex digits, lower case | producer instance or member incarnation |
| number | `0` or digits without a leading 0, at most 18 | counts the writer's objects |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from blobmsg.format.errors import FormatError

__all__ = [
    "FOREVER",
    "MAX_OBJECT_KEY_BYTES",
    "NO_ZONE",
    "OBJECT_KEY_PATTERN",
    "RESERVED_ISOLATIONS",
    "RETENTION_CLASSES",
    "ObjectKey",
    "RetentionClass",
    "expiry_hour",
    "retention_class",
]

FOREVER = "forever"
NO_ZONE = "none"
# The prefix of objects rewritten per partition.
RESERVED_ISOLATIONS = frozenset({"history"})

# The first character rules out `.`, `..` and hidden files; none can be a separator.
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
OBJECT_KEY_PATTERN = (
    rf"(?P<isolation>{NAME_PATTERN})/(?P<shard>[0-9a-f])/(?P<expiry_hour>[0-9]{{10}}|forever)"
    rf"/(?P<zone>{NAME_PATTERN})/(?P<writer_id>[0-9a-f]{{32}})-(?P<number>0|[1-9][0-9]{{0,17}})"
)
_OBJECT_KEY = re.compile(OBJECT_KEY_PATTERN)
MAX_OBJECT_KEY_BYTES = 63 + 1 + 1 + 1 + 10 + 1 + 63 + 1 + 32 + 1 + 18

HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# The last hour that four digits of a year can name.
_LAST_HOUR_MS = (datetime(9999, 12, 31, 23, tzinfo=timezone.utc) - _EPOCH) // timedelta(
    milliseconds=1
)


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The name of a batch object below the store's prefix.

    Attributes:
        isolation: Who may read it, as IAM sees it.
        shard: One hex digit.
        expiry_hour: `YYYYMMDDHH` in UTC, or `forever`.
        zone: The writer's, `none` when unset.
        writer_id: 32 hex digits: the producer instance or member incarnation.
        number: Counts the writer's objects.

    Raises:
        FormatError: An element is not of the grammar.

    Threads: any.
    """

    isolation: str
    shard: str
    expiry_hour: str
    zone: str
    writer_id: str
    number: int

    def __post_init__(self) -> None:
        if not _OBJECT_KEY.fullmatch(self.encode()):
            raise FormatError(f"no object key: {self.encode()!r}")
        if self.isolation in RESERVED_ISOLATIONS:
            raise FormatError(f"isolation {self.isolation!r} is reserved")
        self.expiry_ms()

    def encode(self) -> str:
        """The key as text."""
        return (
            f"{self.isolation}/{self.shard}/{self.expiry_hour}/{self.zone}"
            f"/{self.writer_id}-{self.number}"
        )

    @classmethod
    def decode(cls, text: str) -> ObjectKey:
        """Read a key.

        Raises:
            FormatError: It is not of the grammar, its hour is no hour, or it is reserved.
        """
        return _decode(text)

    @property
    def writer_bytes(self) -> bytes:
        """The writer id as 16 bytes."""
        return bytes.fromhex(self.writer_id)

    def expiry_ms(self) -> int | None:
        """The instant, in ms since 1970 UTC, from which the object may go; None: never."""
        hour = self.expiry_hour
        if hour == FOREVER:
            return None
        try:
            instant = datetime(
                int(hour[:4]), int(hour[4:6]), int(hour[6:8]), int(hour[8:]), tzinfo=timezone.utc
            )
        except ValueError as error:
            raise FormatError(f"no hour: {hour!r}") from error
        return (instant - _EPOCH) // timedelta(milliseconds=1)


@lru_cache(maxsize=1024)  # an object's key comes with the notification of each of its segments
def _decode(text: str) -> ObjectKey:
    match = _OBJECT_KEY.fullmatch(text)
    if match is None:
        raise FormatError(f"no object key: {text[: 2 * MAX_OBJECT_KEY_BYTES]!r}")
    isolation, shard, hour, zone, writer_id, number = match.groups()
    return ObjectKey(isolation, shard, hour, zone, writer_id, int(number))


@dataclass(frozen=True, slots=True, order=True)
class RetentionClass:
    """How long the objects of a lane live at least; ordered by that.

    Attributes:
        duration_ms: Its length in ms; that of `forever` is beyond every other.
        name: `1h`, `6h`, `1d`, `7d`, `30d`, `1y` or `forever`.

    Threads: any.
    """

    duration_ms: int
    name: str

    @property
    def is_forever(self) -> bool:
        """Whether its objects never expire."""
        return self.name == FOREVER


RETENTION_CLASSES = (
    RetentionClass(HOUR_MS, "1h"),
    RetentionClass(6 * HOUR_MS, "6h"),
    RetentionClass(_DAY_MS, "1d"),
    RetentionClass(7 * _DAY_MS, "7d"),
    RetentionClass(30 * _DAY_MS, "30d"),
    RetentionClass(365 * _DAY_MS, "1y"),
    RetentionClass((1 << 63) - 1, FOREVER),
)


def retention_class(retention_ms: int) -> RetentionClass:
    """The smallest class that keeps a topic's records long enough.

    Args:
        retention_ms: The topic's `retention.ms`; -1 is Kafka's forever.

    Raises:
        FormatError: Below -1, which Kafka refuses as well.

    Threads: any.
    """
    if retention_ms < -1:
        raise FormatError(f"no retention: {retention_ms} ms (-1 is forever)")
    if retention_ms == -1:
        return RETENTION_CLASSES[-1]
    for candidate in RETENTION_CLASSES:
        if retention_ms <= candidate.duration_ms:
            return candidate
    return RETENTION_CLASSES[-1]


def expiry_hour(
    now_timestamp_ms: int,
    largest_record_timestamp_ms: int,
    retention: RetentionClass,
    segment_ms: int,
) -> str:
    """The expiry hour of an object's key.

    Kafka counts retention from the largest timestamp of a log segment, which it may still fill
    for `segment.ms` (at most the class, as a shorter-lived log rolls sooner); an hour is for
    Kafka's own delay and for clocks that differ. Rounded up to the hour.

    Args:
        now_timestamp_ms: Wall time.
        largest_record_timestamp_ms: The latest timestamp of the object's records.
        retention: The lane's class.
        segment_ms: The topic's `segment.ms`; the largest where topics share a lane.

    Returns:
        `YYYYMMDDHH` in UTC; `forever` for that class, and past the year 9999.

    Threads: any.
    """
    if retention.is_forever:
        return FOREVER
    expiry_ms = (
        max(now_timestamp_ms, largest_record_timestamp_ms)
        + retention.duration_ms
        + min(segment_ms, retention.duration_ms)
        + HOUR_MS
    )
    hour_ms = -(-expiry_ms // HOUR_MS) * HOUR_MS
    if hour_ms > _LAST_HOUR_MS:
        return FOREVER
    instant = _EPOCH + timedelta(milliseconds=hour_ms)
    return f"{instant.year:04}{instant.month:02}{instant.day:02}{instant.hour:02}"
