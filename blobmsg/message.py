"""The Message that `poll`, `consume` and delivery callbacks hand out.

One slotted class on every version of confluent-kafka (older ones have no public constructor, and
the stock constructor alone costs as much as a whole stock `consume`). Two kinds behind the same
face: `Message` holds its fields; `SegmentMessage` holds a place in a decoded segment and decodes
what is asked for. `isinstance(m, confluent_kafka.Message)` holds through `__class__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import confluent_kafka
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError

from blobmsg.native import native

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from blobmsg.cache.part_buffers import StoredPart
    from blobmsg.format.segment import Segment

    HeadersType: TypeAlias = (
        "Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]"
    )

__all__ = [
    "KafkaMessage",
    "Message",
    "PlainView",
    "RecordsView",
    "SegmentMessage",
    "make_messages",
]

_StockMessage: Final = confluent_kafka.Message
# To type checkers ours is a stock Message, so that annotated code stays as it is and they prove our
# signatures; at run time it is not: the stock class can't be extended by what we need. What C reads
# lies in classes of its own (`native/message.c`).
if TYPE_CHECKING:
    _MessageBase = confluent_kafka.Message[Any, Any]
elif native is None:

    class _MessageBase:
        __slots__ = ("_index", "_source")

else:
    _MessageBase = native.MessageFields

if TYPE_CHECKING or native is None:

    class _RecordsBase:
        __slots__ = (
            "first_virtual_offset",
            "key_of",
            "log_append_ms",
            "partition",
            "timestamp_type",
            "timestamps_ms",
            "topic",
            "value_of",
        )

else:
    _RecordsBase = native.RecordsFields

(
    _TOPIC,
    _PARTITION,
    _OFFSET,
    _KEY,
    _VALUE,
    _HEADERS,
    _ERROR,
    _TIMESTAMP,
    _LATENCY,
    _EPOCH,
    _COUNT,
) = range(11)


class Message(_MessageBase):
    """A record, or an event about a partition; the same methods as `confluent_kafka.Message`.

    All arguments are optional and mean what the methods of the same name return.

    Threads: any, but setters race like those of any object.
    """

    __slots__ = ()
    if TYPE_CHECKING:
        _index: int
        _source: Any
    # Comparable and mutable, so not hashable, like the stock class.
    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: HeadersType | None = None,
        error: KafkaError | None = None,
        timestamp: tuple[int, int] | None = None,
        latency: float | None = None,
        leader_epoch: int | None = None,
        delivery_count: int | None = None,
    ) -> None:
        self._index = 0
        self._source: Any = [
            topic,
            partition,
            offset,
            key,
            value,
            headers,
            error,
            timestamp if timestamp is not None else (TIMESTAMP_NOT_AVAILABLE, 0),
            latency,
            leader_epoch,
            delivery_count,
        ]

    @property  # type: ignore[misc]  # isinstance reads it; nobody sets it
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _StockMessage

    def _fields(self) -> list[Any]:
        fields: list[Any] = self._source
        return fields

    def topic(self) -> str | None:
        """The topic's name."""
        topic: str | None = self._fields()[_TOPIC]
        return topic

    def partition(self) -> int | None:
        """The partition's number."""
        partition: int | None = self._fields()[_PARTITION]
        return partition

    def offset(self) -> int | None:
        """The virtual offset (DESIGN.md, Offsets); `offset() + 1` is the position behind it."""
        offset: int | None = self._fields()[_OFFSET]
        return offset

    def key(self) -> Any:
        """The key; None and empty differ."""
        return self._fields()[_KEY]

    def value(self) -> Any:
        """The value, or the error's text for an error event; None and empty differ."""
        return self._fields()[_VALUE]

    deserialized_key = key
    deserialized_value = value

    def headers(self) -> Any:
        """List of (name, value) in order, or None when there are none."""
        return self._fields()[_HEADERS]

    def error(self) -> KafkaError | None:
        """None for a record, else what happened."""
        error: KafkaError | None = self._fields()[_ERROR]
        return error

    def timestamp(self) -> tuple[int, int]:
        """`(type, ms since 1970 UTC)`; the type is one of confluent_kafka's TIMESTAMP_*."""
        timestamp: tuple[int, int] = self._fields()[_TIMESTAMP]
        return timestamp

    def latency(self) -> float | None:
        """Seconds from produce to delivery, in delivery callbacks only."""
        latency: float | None = self._fields()[_LATENCY]
        return latency

    def leader_epoch(self) -> int | None:
        """Leader epoch of the record, where Kafka tells it."""
        epoch: int | None = self._fields()[_EPOCH]
        return epoch

    def delivery_count(self) -> int | None:
        """Share groups only: None here."""
        count: int | None = self._fields()[_COUNT]
        return count

    def set_topic(self, topic: str) -> None:
        """Replace the topic's name."""
        self._materialized()[_TOPIC] = topic

    def set_key(self, key: Any) -> None:
        """Replace the key, usually by what it deserializes to."""
        self._materialized()[_KEY] = key

    def set_value(self, value: Any) -> None:
        """Replace the value, usually by what it deserializes to."""
        self._materialized()[_VALUE] = value

    def set_headers(self, headers: HeadersType) -> None:
        """Replace the headers."""
        self._materialized()[_HEADERS] = headers

    def set_error(self, error: KafkaError | None) -> None:
        """Replace the error."""
        self._materialized()[_ERROR] = error

    def _materialized(self) -> list[Any]:
        return self._fields()

    def _all_fields(self) -> tuple[Any, ...]:
        return (
            self.topic(),
            self.partition(),
            self.offset(),
            self.key(),
            self.value(),
            self.headers(),
            self.error(),
            self.timestamp(),
            self.latency(),
            self.leader_epoch(),
            self.delivery_count(),
        )

    def __len__(self) -> int:
        """Bytes of the value."""
        value = self.value()
        return 0 if value is None else len(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _StockMessage):
            return NotImplemented
        mine, theirs = self._all_fields(), _fields_of(other)
        return mine[:6] + mine[7:8] == theirs[:6] + theirs[7:8] and mine[6] == theirs[6]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, self._all_fields())

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic()!r}, partition={self.partition()!r},"
            f" offset={self.offset()!r}, key={self.key()!r}, error={self.error()!r})"
        )


def _rebuild(*fields: Any) -> Message:
    return Message(*fields)


def _fields_of(message: Any) -> tuple[Any, ...]:
    return (
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.headers(),
        message.error(),
        message.timestamp(),
    )


class RecordsView(_RecordsBase):
    """A decoded segment as its messages see it: shared by all of them, one per part.

    Args:
        topic: Its topic.
        partition: Its partition.
        segment: The decoded records.
        stored: Whose bytes they are; kept, for they are used again when it is gone.
        first_virtual_offset: Of the segment's first record.
        first_record_index: Of the segment's first record in its notification.
        timestamp_type: One of confluent_kafka's TIMESTAMP_*.
        log_append_ms: The broker's time for all records on LogAppendTime topics, else None.
        leader_epoch: Of the notification.
    """

    __slots__ = ("first_record_index", "leader_epoch", "records", "segment", "stored")

    def __init__(  # pyright: ignore[reportMissingSuperCall]
        self,
        topic: str,
        partition: int,
        segment: Segment,
        stored: StoredPart,
        *,
        first_virtual_offset: int,
        first_record_index: int,
        timestamp_type: int,
        log_append_ms: int | None,
        leader_epoch: int | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.segment = segment
        self.stored = stored
        self.records = segment.records
        self.first_virtual_offset = first_virtual_offset
        self.first_record_index = first_record_index
        self.timestamp_type = timestamp_type
        self.log_append_ms = log_append_ms
        self.leader_epoch = leader_epoch
        self.timestamps_ms = segment.timestamps_ms
        self.key_of = segment.keys or _null
        self.value_of = segment.values or _null

    @property
    def message_class(self) -> type[SegmentMessage]:
        """What its records are handed out as."""
        return SegmentMessage


def _null(_index: int) -> None:
    """A cell of a column in which all are null."""


if TYPE_CHECKING or native is None:

    class _SegmentMethods:
        __slots__ = ()
        if TYPE_CHECKING:
            _index: int
            _source: RecordsView

        def topic(self) -> str:
            topic: str = self._source.topic
            return topic

        def partition(self) -> int:
            partition: int = self._source.partition
            return partition

        def offset(self) -> int:
            offset: int = self._source.first_virtual_offset + self._index
            return offset

        def key(self) -> Any:
            return self._source.key_of(self._index)

        def value(self) -> Any:
            return self._source.value_of(self._index)

        deserialized_key = key
        deserialized_value = value

        def error(self) -> None:
            return None

        def timestamp(self) -> tuple[int, int]:
            source: RecordsView = self._source
            appended = source.log_append_ms
            return (
                source.timestamp_type,
                source.timestamps_ms[self._index] if appended is None else appended,
            )

else:
    _SegmentMethods = native.SegmentMethods


class SegmentMessage(_SegmentMethods, Message):
    """A record in a decoded segment; nothing is copied out of it before it is asked for."""

    __slots__ = ()

    def __init__(self, source: RecordsView, index: int) -> None:  # pyright: ignore[reportMissingSuperCall]
        self._source = source
        self._index = index

    def headers(self) -> Any:  # noqa: D102
        return self._source.segment.headers(self._index)

    def latency(self) -> None:  # noqa: D102
        return None

    def leader_epoch(self) -> int | None:  # noqa: D102
        epoch: int | None = self._source.leader_epoch
        return epoch

    def delivery_count(self) -> None:  # noqa: D102
        return None

    def _materialized(self) -> list[Any]:
        return _turn_into_plain(self)


if TYPE_CHECKING or native is None:

    def make_messages(
        message_class: type[SegmentMessage | KafkaMessage],
        source: RecordsView | PlainView,
        start: int,
        end: int,
        /,
    ) -> list[Message]:
        """Messages of a source's records with these indices, up to `end`."""
        return [message_class(source, index) for index in range(start, end)]  # type: ignore[arg-type]

else:
    make_messages = native.make_messages


class PlainView:
    """A record that came through Kafka itself, as a run's source.

    Args:
        message: The stock client's.
        virtual_offset: Its virtual offset.
    """

    __slots__ = ("first_record_index", "message", "message_class", "records", "virtual_offset")

    def __init__(self, message: Any, virtual_offset: int) -> None:
        self.message = message
        self.virtual_offset = virtual_offset
        self.message_class = KafkaMessage
        self.records = 1
        self.first_record_index = 0


class KafkaMessage(Message):
    """A record that came through Kafka itself, under its virtual offset."""

    __slots__ = ()

    def __init__(self, source: PlainView, index: int) -> None:  # pyright: ignore[reportMissingSuperCall]
        self._source = source
        self._index = index

    def topic(self) -> Any:  # noqa: D102
        return self._source.message.topic()

    def partition(self) -> Any:  # noqa: D102
        return self._source.message.partition()

    def offset(self) -> int:  # noqa: D102
        offset: int = self._source.virtual_offset
        return offset

    def key(self) -> Any:  # noqa: D102
        return self._source.message.key()

    def value(self) -> Any:  # noqa: D102
        return self._source.message.value()

    deserialized_key = key
    deserialized_value = value

    def headers(self) -> Any:  # noqa: D102
        return self._source.message.headers()

    def error(self) -> Any:  # noqa: D102
        return self._source.message.error()

    def timestamp(self) -> Any:  # noqa: D102
        return self._source.message.timestamp()

    def latency(self) -> Any:  # noqa: D102
        return self._source.message.latency()

    def leader_epoch(self) -> Any:  # noqa: D102
        return self._source.message.leader_epoch()

    def delivery_count(self) -> None:  # noqa: D102
        return None

    def _materialized(self) -> list[Any]:
        return _turn_into_plain(self)


def _turn_into_plain(message: Any) -> list[Any]:
    """Give a message fields of its own, so that they can be replaced."""
    fields = list(message._all_fields())  # noqa: SLF001
    message._source = fields  # noqa: SLF001
    message._index = 0  # noqa: SLF001
    # `__class__` is a property here; the slot layouts are equal, so object's own setter works.
    object.__dict__["__class__"].__set__(message, Message)
    return fields
