"""Messages beside the stock class, which is the oracle wherever it can be built."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
)

from blobmsg.format import Columns
from blobmsg.format.segment import decode_segment, encode_segment
from blobmsg.message import (
    KafkaMessage,
    Message,
    PlainView,
    RecordsView,
    SegmentMessage,
    make_messages,
)
from blobmsg.native import native

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.format.segment import Headers

FIELDS: dict[str, Any] = {
    "topic": "flights",
    "partition": 3,
    "offset": 8_388_600,
    "key": b"N14228",
    "value": b"EWR",
    "headers": [("trace", b"1"), ("trace", None)],
    "timestamp": (TIMESTAMP_CREATE_TIME, 1_700_000_000_123),
}
GETTERS = ("topic", "partition", "offset", "key", "value", "headers", "error", "timestamp",
           "latency", "leader_epoch", "delivery_count")  # fmt: skip


def _stock_can_be_built() -> bool:
    try:
        confluent_kafka.Message(topic="flights")
    except (TypeError, RuntimeError):
        return False
    return True


with_stock = pytest.mark.skipif(
    not _stock_can_be_built(), reason="this confluent-kafka can't build a Message"
)


def stock(**fields: Any) -> Any:
    return confluent_kafka.Message(**fields)


def view(
    keys: list[bytes | None],
    values: list[bytes | None],
    headers: list[Headers | None] | None = None,
    **options: Any,
) -> RecordsView:
    """Records at the end of the notification at Kafka offset 7, decoded."""
    columns = Columns(keys, values, [1000 + index for index in range(len(keys))])
    columns.headers = headers
    data = encode_segment(columns)
    segment = decode_segment(data, records=len(keys))
    settings: dict[str, Any] = {
        "first_virtual_offset": 8 * 1_048_576 - len(keys),
        "first_record_index": 0,
        "timestamp_type": TIMESTAMP_CREATE_TIME,
        "log_append_ms": None,
        "leader_epoch": 5,
    }
    return RecordsView("flights", 3, segment, data, **{**settings, **options})


def segment_message() -> Message:
    return SegmentMessage(view([b"k0", b"k1"], [b"v0", b"v1"], [None, [("trace", b"1")]]), 1)


class FromKafka:
    """What the stock client's poll gives, as far as it is read."""

    def topic(self) -> str:
        return "flights"

    def partition(self) -> int:
        return 3

    def key(self) -> bytes:
        return b"k1"

    def value(self) -> bytes:
        return b"v1"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("trace", b"1")]

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (TIMESTAMP_CREATE_TIME, 1001)

    def latency(self) -> None:
        return None

    def leader_epoch(self) -> int:
        return 5


def kafka_message() -> Message:
    return KafkaMessage(PlainView(FromKafka(), 8 * 1_048_576 - 1), 0)


def plain_message() -> Message:
    return Message(
        topic="flights",
        partition=3,
        offset=8 * 1_048_576 - 1,
        key=b"k1",
        value=b"v1",
        headers=[("trace", b"1")],
        timestamp=(TIMESTAMP_CREATE_TIME, 1001),
        leader_epoch=5,
    )


every_kind = pytest.mark.parametrize("make", [plain_message, segment_message, kafka_message])


def all_of(message: Any) -> list[Any]:
    return [getattr(message, name)() for name in GETTERS]


@every_kind
def test_all_kinds_show_the_same_record(make: Callable[[], Message]) -> None:
    message = make()

    assert message.topic() == "flights"
    assert message.partition() == 3
    assert message.offset() == 8 * 1_048_576 - 1
    assert message.key() == message.deserialized_key() == b"k1"
    assert message.value() == message.deserialized_value() == b"v1"
    assert message.headers() == [("trace", b"1")]
    assert message.error() is None
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, 1001)
    assert message.latency() is None
    assert message.leader_epoch() == 5
    assert message.delivery_count() is None


@every_kind
def test_frameworks_take_it_for_a_stock_message(make: Callable[[], Message]) -> None:
    message = make()

    assert isinstance(message, confluent_kafka.Message)
    assert message.__class__ is confluent_kafka.Message
    assert isinstance(message, Message)


@every_kind
def test_a_message_survives_pickling(make: Callable[[], Message]) -> None:
    message = make()

    again = pickle.loads(pickle.dumps(message))  # noqa: S301

    assert type(again) is Message
    assert all_of(again) == all_of(message)
    assert again == message


@every_kind
def test_a_copy_is_a_message_of_its_own(make: Callable[[], Message]) -> None:
    message = make()

    again = copy.copy(message)
    again.set_key(b"other")

    assert message.key() == b"k1"
    assert again != message


@every_kind
def test_a_message_is_not_hashable(make: Callable[[], Message]) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(make())


@every_kind
def test_kinds_are_equal_when_their_records_are(make: Callable[[], Message]) -> None:
    assert make() == plain_message()
    assert plain_message() == make()


@every_kind
def test_setters_replace_what_deserializers_read(make: Callable[[], Message]) -> None:
    message, untouched = make(), make()
    error = KafkaError(KafkaError._VALUE_DESERIALIZATION)

    message.set_topic("renamed")
    message.set_key({"tail": "N14228"})
    message.set_value(42)
    message.set_headers([("other", b"2")])
    message.set_error(error)

    assert message.topic() == "renamed"
    assert message.key() == message.deserialized_key() == {"tail": "N14228"}
    assert message.value() == message.deserialized_value() == 42
    assert message.headers() == [("other", b"2")]
    assert message.error() is error
    assert (message.partition(), message.offset()) == (3, 8 * 1_048_576 - 1)
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, 1001)
    assert message.leader_epoch() == 5
    assert untouched.key() == b"k1"


def test_setting_one_record_of_a_segment_leaves_its_neighbours_alone() -> None:
    source = view([b"k0", b"k1"], [b"v0", b"v1"])
    first, second = SegmentMessage(source, 0), SegmentMessage(source, 1)

    first.set_value("changed")

    assert (first.key(), second.value()) == (b"k0", b"v1")


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"", None), (None, None), (b"", b""), (b"k", b"v")]
)
def test_none_and_empty_differ(key: bytes | None, value: bytes | None) -> None:
    source = view([key, b"k"], [value, b"v"])
    messages = [source.message_class(source, 0), Message(key=key, value=value)]

    for message in messages:
        assert (message.key(), message.value()) == (key, value)
        assert (message.deserialized_key(), message.deserialized_value()) == (key, value)
        assert len(message) == len(value or b"")


def test_records_without_headers_have_none() -> None:
    assert SegmentMessage(view([b"k"], [b"v"]), 0).headers() is None
    assert Message().headers() is None


def test_a_log_append_topics_records_have_the_brokers_time() -> None:
    source = view([b"k"], [b"v"], timestamp_type=TIMESTAMP_LOG_APPEND_TIME, log_append_ms=1234)

    assert SegmentMessage(source, 0).timestamp() == (TIMESTAMP_LOG_APPEND_TIME, 1234)


def test_offsets_count_to_the_end_of_the_notification() -> None:
    source = view([b"k"] * 3, [b"v"] * 3)

    offsets = [SegmentMessage(source, index).offset() for index in range(3)]

    assert offsets == [8 * 1_048_576 - 3, 8 * 1_048_576 - 2, 8 * 1_048_576 - 1]


def test_a_representation_names_the_record() -> None:
    assert "topic='flights', partition=3, offset=8388607" in repr(segment_message())


def test_a_message_is_equal_to_nothing_else() -> None:
    assert plain_message() != "flights"
    assert plain_message() != None  # noqa: E711


# --- beside the stock class -----------------------------------------------------------------------


@with_stock
def test_an_empty_message_is_like_the_stock_one() -> None:
    mine, theirs = Message(), stock()

    assert mine.timestamp() == (TIMESTAMP_NOT_AVAILABLE, 0)
    for name in GETTERS:
        if hasattr(theirs, name):
            assert getattr(mine, name)() == getattr(theirs, name)()
    assert len(mine) == len(theirs) == 0


@with_stock
@pytest.mark.parametrize("name", sorted(FIELDS))
def test_equality_looks_at_what_the_stock_class_looks_at(name: str) -> None:
    changed = {field: value for field, value in FIELDS.items() if field != name}

    assert stock(**FIELDS) != stock(**changed)
    assert Message(**FIELDS) != Message(**changed)
    assert Message(**FIELDS) != stock(**changed)
    assert Message(**FIELDS) == stock(**FIELDS)


@with_stock
def test_latency_makes_no_difference() -> None:
    assert stock(**FIELDS, latency=0.1) == stock(**FIELDS, latency=0.2)
    assert Message(**FIELDS, latency=0.1) == Message(**FIELDS, latency=0.2)


@with_stock
def test_ours_has_every_method_of_the_stock_class() -> None:
    public = {name for name in dir(confluent_kafka.Message) if not name.startswith("_")}

    assert public <= set(dir(Message))
    assert public <= set(dir(SegmentMessage))


@with_stock
def test_an_error_event_has_the_length_of_its_text() -> None:
    error = KafkaError(KafkaError._PARTITION_EOF)

    assert len(Message(value=b"end", error=error)) == len(stock(value=b"end", error=error)) == 3


def test_messages_made_at_once_are_those_made_one_by_one() -> None:
    source = view([b"k0", None, b"k2"], [b"v0", b"v1", None])

    made = make_messages(SegmentMessage, source, 1, 3)

    assert [type(message) for message in made] == [SegmentMessage] * 2
    assert made == [SegmentMessage(source, 1), SegmentMessage(source, 2)]
    assert [(message.key(), message.value()) for message in made] == [(None, b"v1"), (b"k2", None)]
    assert make_messages(SegmentMessage, source, 2, 2) == []


def test_a_message_that_was_changed_is_in_no_segment_any_more() -> None:
    message = SegmentMessage(view([b"k"], [b"v"]), 0)
    message.set_key("changed")

    assert (message.key(), message.value()) == ("changed", b"v")
    with pytest.raises((TypeError, AttributeError)):
        SegmentMessage.key(message)


@pytest.mark.skipif(native is None, reason="no compiler built blobmsg.native here")
def test_only_messages_can_be_made() -> None:
    assert native is not None
    for wrong in (int, "no class"):
        with pytest.raises(TypeError):
            native.make_messages(wrong, None, 0, 1)


def test_a_message_holds_its_source_and_a_cycle_through_it_is_collected() -> None:
    source = view([b"k"], [b"v"])
    before = sys.getrefcount(source)
    messages = make_messages(SegmentMessage, source, 0, 1)
    assert sys.getrefcount(source) == before + 1
    del messages
    assert sys.getrefcount(source) == before

    class Listener:
        message: Message

    listener = Listener()
    listener.message = Message(value=listener)  # type: ignore[arg-type]
    gone = weakref.ref(listener)
    del listener
    gc.collect()
    assert gone() is None
