"""Offsets and positions: exact to the record, and as in stock where stock has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.offsets import to_kafka, to_virtual
from tests.helpers.records import (
    Reports,
    flush,
    next_error,
    next_message,
    offsets_of,
    outcome,
    partition,
    produce,
    read,
    read_to_end,
    wait_until,
)
from tests.helpers.stock import StockConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

SIZES = [3, 1, 50, 7]  # records of the notifications at Kafka offsets 0, 1, 2, 3
COUNT = sum(SIZES)


@dataclass(frozen=True, slots=True)
class Filled:
    """A topic with one partition; record i has value b"i".

    Attributes:
        topic: Its name.
        offsets: The virtual offset of each record.
    """

    topic: str
    offsets: list[int]


def _fill(conf: dict[str, Any], topic: str, *, number: int = 0) -> list[int]:
    reports = Reports()
    count = 0
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for size in SIZES:
            for _ in range(size):
                produce(producer, topic, b"%d" % count, partition=number, on_delivery=reports)
                count += 1
            flush(producer)
    return [m.offset() for m in reports.messages()]


@pytest.fixture
def filled(conf: dict[str, Any], make_topic: Callable[..., str]) -> Filled:
    topic = make_topic()
    return Filled(topic, _fill(conf, topic))


@pytest.fixture
def reading(conf: dict[str, Any], store_prefix: str) -> dict[str, Any]:
    return {
        **conf,
        "group.id": store_prefix,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }


def _numbers(messages: list[Any]) -> list[int]:
    return [int(m.value()) for m in messages]


def test_offsets_count_from_the_end_of_each_notification(filled: Filled) -> None:
    expected = [
        ((kafka_offset + 1) << 20) - size + index
        for kafka_offset, size in enumerate(SIZES)
        for index in range(size)
    ]
    assert filled.offsets == expected
    assert [to_kafka(offset) for offset in filled.offsets] == [
        kafka_offset for kafka_offset, size in enumerate(SIZES) for _ in range(size)
    ]


def test_position_follows_every_record_and_ends_at_the_high_watermark(
    reading: dict[str, Any], filled: Filled
) -> None:
    with BlobConsumer(reading) as consumer:
        place = [partition(filled.topic)]
        assert offsets_of(consumer.position(place)) == [OFFSET_INVALID]
        consumer.assign([partition(filled.topic, 0, 0)])
        assert offsets_of(consumer.position(place)) == [OFFSET_INVALID]
        for offset in filled.offsets:
            [message] = read(consumer, 1)
            assert message.offset() == offset
            assert offsets_of(consumer.position(place)) == [offset + 1]

        assert consumer.get_watermark_offsets(place[0], 20) == (0, len(SIZES) << 20)
        assert offsets_of(consumer.position(place)) == [len(SIZES) << 20]
        assert read_to_end(consumer, 1).ends == {(filled.topic, 0): len(SIZES) << 20}


def test_seek_goes_to_any_record_while_others_are_read_ahead(
    reading: dict[str, Any], filled: Filled
) -> None:
    with BlobConsumer(reading) as consumer:
        consumer.assign([partition(filled.topic, 0, 0)])
        read(consumer, 5)
        for number in (0, COUNT - 1, 2, 3, 4, 30, 29, 54, 53, 1, 60):
            consumer.seek(partition(filled.topic, 0, filled.offsets[number]))
            expected = list(range(number, min(number + 3, COUNT)))
            assert _numbers(read(consumer, len(expected))) == expected
        # Offsets between notifications, as last + 1 and as Kafka's own start.
        consumer.seek(partition(filled.topic, 0, 2 << 20))
        assert _numbers(read(consumer, 1)) == [4]
        consumer.seek(partition(filled.topic, 0, filled.offsets[53] + 1))
        assert _numbers(read_to_end(consumer, 1).messages) == list(range(54, COUNT))
        consumer.seek(partition(filled.topic, 0, OFFSET_BEGINNING))
        assert _numbers(read(consumer, 2)) == [0, 1]
        consumer.seek(partition(filled.topic, 0, OFFSET_END))
        assert read_to_end(consumer, 1).messages == []


def test_seek_to_a_place_behind_the_committed_one_and_to_the_stored_one(
    reading: dict[str, Any], filled: Filled
) -> None:
    with BlobConsumer(reading) as consumer:
        consumer.assign([partition(filled.topic, 0, 0)])
        messages = read(consumer, 20)
        consumer.commit(message=messages[9], asynchronous=False)
        consumer.seek(partition(filled.topic, 0, OFFSET_STORED))
        assert _numbers(read(consumer, 3)) == [10, 11, 12]


def test_a_paused_partition_gives_nothing_until_it_is_resumed(
    conf: dict[str, Any], reading: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2)
    for number in range(2):
        _fill(conf, topic, number=number)

    with BlobConsumer(reading) as consumer:
        consumer.assign([partition(topic, 0, 0), partition(topic, 1, 0)])
        seen: dict[int, list[int]] = {0: [], 1: []}
        while not (seen[0] and seen[1]):  # both are read ahead
            message = next_message(consumer)
            if message.error() is None:
                seen[message.partition()].append(int(message.value()))
        consumer.pause([partition(topic, 0)])
        before = list(seen[0])
        while len(seen[1]) < COUNT:
            message = next_message(consumer)
            if message.error() is None:
                seen[message.partition()].append(int(message.value()))
        assert consumer.poll(0.3) is None or seen[0] == before
        assert seen[0] == before
        consumer.resume([partition(topic, 0)])
        seen[0] += _numbers(read(consumer, COUNT - len(before)))

    assert seen == {0: list(range(COUNT)), 1: list(range(COUNT))}


def test_every_form_of_commit_is_what_committed_says(
    reading: dict[str, Any], filled: Filled
) -> None:
    topic, offsets = filled.topic, filled.offsets
    place = [partition(topic)]
    heard: list[tuple[Any, list[int]]] = []
    conf = {
        **reading,
        "on_commit": lambda error, partitions: heard.append((error, offsets_of(partitions))),
    }
    with BlobConsumer(conf) as consumer:
        assert offsets_of(consumer.committed(place, 20)) == [OFFSET_INVALID]
        consumer.assign([partition(topic, 0, 0)])
        messages = read(consumer, 30)

        answers = consumer.commit(message=messages[4], asynchronous=False)
        assert offsets_of(answers) == [offsets[5]] == offsets_of(consumer.committed(place, 20))

        answers = consumer.commit(offsets=[partition(topic, 0, offsets[20])], asynchronous=False)
        assert offsets_of(answers) == [offsets[20]] == offsets_of(consumer.committed(place, 20))

        answers = consumer.commit(asynchronous=False)
        assert offsets_of(answers) == [offsets[30]] == offsets_of(consumer.committed(place, 20))

        # Back again, by which Kafka's own offset does not grow.
        answers = consumer.commit(message=messages[10], asynchronous=False)
        assert offsets_of(answers) == [offsets[11]] == offsets_of(consumer.committed(place, 20))

        heard.clear()
        assert consumer.commit(message=messages[15]) is None
        wait_until(lambda: bool(heard), "on_commit", serve=lambda: consumer.poll(0.1))
        assert heard == [(None, [offsets[16]])]
        assert offsets_of(consumer.committed(place, 20)) == [offsets[16]]


def test_metadata_of_the_user_is_kept_beside_ours(reading: dict[str, Any], filled: Filled) -> None:
    with BlobConsumer(reading) as consumer:
        mine = TopicPartition(filled.topic, 0, filled.offsets[10], "mine; blobmsg1:5")
        [answer] = consumer.commit(offsets=[mine], asynchronous=False)
        assert (answer.offset, answer.metadata) == (mine.offset, mine.metadata)
        [found] = consumer.committed([partition(filled.topic)], 20)
        assert (found.offset, found.metadata) == (mine.offset, mine.metadata)

    # Kafka itself keeps its own offset, so that other tools' views and resets work.
    stock = {k: v for k, v in reading.items() if not k.startswith("blobmsg.")}
    with StockConsumer(stock) as plain:
        [raw] = plain.committed([partition(filled.topic)], 20)
        assert raw.offset == 2
        plain.commit(offsets=[TopicPartition(filled.topic, 0, 3, "foreign")], asynchronous=False)
    with BlobConsumer(reading) as consumer:
        [found] = consumer.committed([partition(filled.topic)], 20)
        assert (found.offset, found.metadata) == (3 << 20, "foreign")
        consumer.assign([partition(filled.topic)])
        assert _numbers(read_to_end(consumer, 1).messages) == list(range(54, COUNT))


@pytest.mark.parametrize("client", [StockConsumer, BlobConsumer])
def test_a_commit_without_anything_new_is_no_offset(
    client: Any, reading: dict[str, Any], filled: Filled
) -> None:
    heard: list[int | None] = []
    conf = {k: v for k, v in reading.items() if client is BlobConsumer or "blobmsg" not in k}
    conf["on_commit"] = lambda error, _: heard.append(None if error is None else error.code())
    nothing = ("KafkaException", KafkaError._NO_OFFSET)
    with client(conf) as consumer:
        assert outcome(lambda: consumer.commit(asynchronous=False)) == nothing
        consumer.assign([partition(filled.topic, 0, 0)])
        assert outcome(lambda: consumer.commit(asynchronous=False)) == nothing
        heard.clear()
        assert consumer.commit() is None
        wait_until(lambda: bool(heard), "on_commit", serve=lambda: consumer.poll(0.1))
        assert heard == [KafkaError._NO_OFFSET]
        read(consumer, 1)
        assert outcome(lambda: consumer.commit(asynchronous=False))[0] == "returned"
        assert outcome(lambda: consumer.commit(asynchronous=False)) == nothing


def test_store_offsets_is_what_commits_then_contain(
    reading: dict[str, Any], filled: Filled
) -> None:
    topic, offsets = filled.topic, filled.offsets
    conf = {**reading, "enable.auto.offset.store": False}
    with BlobConsumer(conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        messages = read(consumer, 30)
        assert outcome(lambda: consumer.commit(asynchronous=False)) == (
            "KafkaException", KafkaError._NO_OFFSET,
        )  # fmt: skip
        consumer.store_offsets(message=messages[7])
        assert offsets_of(consumer.commit(asynchronous=False)) == [offsets[8]]
        consumer.store_offsets(offsets=[TopicPartition(topic, 0, offsets[25], "note")])
        assert offsets_of(consumer.commit(asynchronous=False)) == [offsets[25]]
        [found] = consumer.committed([partition(topic)], 20)
        assert (found.offset, found.metadata) == (offsets[25], "note")
        not_assigned = outcome(
            lambda: consumer.store_offsets(offsets=[partition(topic, 1, 1 << 20)])
        )
        assert not_assigned[0] == "KafkaException"

    with BlobConsumer(reading) as consumer:  # stores automatically
        consumer.assign([partition(topic, 0, 0)])
        assert outcome(lambda: consumer.store_offsets(offsets=[partition(topic, 0, 5 << 20)])) == (
            "KafkaException", KafkaError._INVALID_ARG,
        )  # fmt: skip


def test_a_partition_that_is_not_assigned_is_refused_by_store_offsets_as_in_stock(
    reading: dict[str, Any], filled: Filled
) -> None:
    found = []
    for client in (StockConsumer, BlobConsumer):
        conf = {k: v for k, v in reading.items() if client is BlobConsumer or "blobmsg" not in k}
        conf["enable.auto.offset.store"] = False
        with client(conf) as consumer:
            consumer.assign([partition(filled.topic, 0, 0)])
            elsewhere = [partition(filled.topic, 5, 5 << 20)]
            found.append(outcome(lambda c=consumer, e=elsewhere: c.store_offsets(offsets=e)))  # type: ignore[misc]
    assert found[0] == found[1]


@pytest.mark.parametrize("call", ["assign", "seek", "commit", "store_offsets"])
def test_a_kafka_offset_below_the_log_start_is_refused_with_the_way_to_convert_it(
    bootstrap: str, reading: dict[str, Any], filled: Filled, call: str
) -> None:
    topic = filled.topic
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deletion = admin.delete_records([partition(topic, 0, 2)])
    next(iter(deletion.values())).result(timeout=30)
    raw = partition(topic, 0, 3)  # between the watermarks 2 and 4, and 3 >> 20 is 0

    with BlobConsumer({**reading, "enable.auto.offset.store": False}) as consumer:
        if call != "assign":
            consumer.assign([partition(topic, 0, to_virtual(2))])
            assert _numbers(read(consumer, 1)) == [4]
        calls: dict[str, Callable[[], Any]] = {
            "assign": lambda: consumer.assign([raw]),
            "seek": lambda: consumer.seek(raw),
            "commit": lambda: consumer.commit(offsets=[raw], asynchronous=False),
            "store_offsets": lambda: consumer.store_offsets(offsets=[raw]),
        }
        with pytest.raises(KafkaException, match="to_virtual") as caught:
            calls[call]()
        assert caught.value.args[0].code() == KafkaError._INVALID_ARG


def test_a_kafka_offset_in_a_log_that_begins_at_0_is_reported_by_poll(
    reading: dict[str, Any], filled: Filled
) -> None:
    with BlobConsumer(reading) as consumer:
        consumer.assign([partition(filled.topic, 0, 3)])
        message = next_error(consumer)
        assert message.error().code() == KafkaError._INVALID_ARG
        assert "to_virtual" in str(message.error())
        assert offsets_of(consumer.position([partition(filled.topic)])) == [OFFSET_INVALID]
        # Said again, and nothing is delivered, until it is put right.
        assert next_error(consumer).error().code() == KafkaError._INVALID_ARG
        consumer.seek(partition(filled.topic, 0, to_virtual(3)))
        assert _numbers(read_to_end(consumer, 1).messages) == list(range(54, COUNT))


def test_without_the_check_a_kafka_offset_is_what_it_looks_like(
    reading: dict[str, Any], filled: Filled
) -> None:
    with BlobConsumer({**reading, "blobmsg.offset.check": False}) as consumer:
        consumer.assign([partition(filled.topic, 0, 3)])
        # A position that wants more records than there are means all of them.
        assert _numbers(read_to_end(consumer, 1).messages) == list(range(COUNT))


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", list(range(4, COUNT))), ("latest", [])]
)
def test_a_position_that_was_deleted_resets_as_told(
    bootstrap: str, reading: dict[str, Any], filled: Filled, reset: str, expected: list[int]
) -> None:
    with BlobConsumer(reading) as consumer:
        behind = [partition(filled.topic, 0, filled.offsets[1])]
        consumer.commit(offsets=behind, asynchronous=False)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    next(iter(admin.delete_records([partition(filled.topic, 0, 2)]).values())).result(timeout=30)

    with BlobConsumer({**reading, "auto.offset.reset": reset}) as consumer:
        consumer.assign([partition(filled.topic)])
        assert _numbers(read_to_end(consumer, 1).messages) == expected
        assert consumer.get_watermark_offsets(partition(filled.topic), 20) == (2 << 20, 4 << 20)


def test_auto_offset_reset_error_is_reported_as_in_stock(
    reading: dict[str, Any], filled: Filled
) -> None:
    codes = []
    for client in (StockConsumer, BlobConsumer):
        conf = {k: v for k, v in reading.items() if client is BlobConsumer or "blobmsg" not in k}
        conf["auto.offset.reset"] = "error"
        with client(conf) as consumer:
            consumer.assign([partition(filled.topic)])
            codes.append(next_error(consumer).error().code())
    assert codes == [KafkaError._AUTO_OFFSET_RESET] * 2
