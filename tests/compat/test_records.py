"""What of a record arrives, and in which partition: produced and read by each side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.records import Reports, flush, partition, read, recent_ms

if TYPE_CHECKING:
    from tests.helpers.both import Both, Side

_KEYS_AND_VALUES = [None, b"", "", b"\x00", "text: ä", b"\xff\xfe"]
_HEADERS: list[Any] = [
    None,
    [],
    {},
    [("a", b"1"), ("a", None), ("a", b"")],
    {"t": "text ä", "n": None, "b": b"\xff"},
    [("", b"empty name"), ("z", "last"), ("a", "first")],
    [(5, "a number")],
    {5: "a number"},
    [(None, "nothing")],
    [(b"a", "bytes")],
]


def test_keys_values_headers_and_timestamps_arrive_as_they_were_given(by_every_route: Both) -> None:
    stamp = recent_ms()
    records: list[dict[str, Any]] = [
        {"value": value, "key": key} for value in _KEYS_AND_VALUES for key in _KEYS_AND_VALUES
    ]
    records += [{"value": b"v"}, {"key": b"k"}, {}]
    records += [{"value": b"v", "headers": headers} for headers in _HEADERS]
    records += [{"value": b"v", "timestamp": stamp + number} for number in (5, 3, -100_000)]

    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        with side.producer() as producer:
            for record in records:
                given = {"timestamp": stamp, **record}
                producer.produce(topic, partition=0, on_delivery=reports, **given)
            flush(producer)
        with side.consumer() as consumer:
            consumer.assign([partition(topic, 0, 0)])
            messages = read(consumer, len(reports.messages()))
        return [(m.key(), m.value(), m.headers(), m.timestamp()) for m in messages]

    by_stock = by_every_route.agree(case)
    assert len(by_stock) == len(records)
    assert by_stock[0] == (None, None, None, (1, stamp))
    assert by_stock[1] == (b"", None, None, (1, stamp))


def test_a_null_in_a_headers_name_is_kept_in_the_store_and_ends_the_name_elsewhere(
    both: Both,
) -> None:
    def names(side: Side) -> list[str]:
        topic = side.topic()
        with side.producer() as producer:
            producer.produce(topic, b"v", headers=[("before\0behind", b"1")])
            flush(producer)
        with side.consumer() as consumer:
            consumer.assign([partition(topic, 0, 0)])
            return [name for name, _ in read(consumer, 1)[0].headers()]

    blob, plain = both.ours
    assert names(both.stock) == names(plain) == ["before"]
    assert names(blob) == ["before\0behind"]


def test_a_record_without_a_timestamp_has_the_time_of_produce(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        before = recent_ms()
        with side.producer() as producer:
            for timestamp in ({}, {"timestamp": 0}):
                producer.produce(topic, b"v", on_delivery=reports, **timestamp)
            flush(producer)
        after = recent_ms()
        times = [message.timestamp() for message in reports.messages()]
        return [(kind, before <= ms - 3_600_000 <= after) for kind, ms in times]

    assert both.agree(case) == [(1, True), (1, True)]


def test_on_a_log_append_time_topic_messages_have_the_brokers_time(both: Both) -> None:
    stamp = recent_ms()

    def case(side: Side) -> Any:
        topic = side.topic(config={"message.timestamp.type": "LogAppendTime"})
        with side.producer() as producer:
            producer.produce(topic, b"v", timestamp=stamp)
            flush(producer)
        with side.consumer() as consumer:
            consumer.assign([partition(topic, 0, 0)])
            [message] = read(consumer, 1)
        kind, ms = message.timestamp()
        return kind, ms > stamp + 1_800_000

    assert both.agree(case) == (2, True)


@pytest.mark.parametrize(
    "partitioner",
    [
        None,
        "consistent",
        "consistent_random",
        "murmur2",
        "murmur2_random",
        "fnv1a",
        "fnv1a_random",
    ],
)
def test_keys_go_to_the_partitions_that_stock_takes(both: Both, partitioner: str | None) -> None:
    is_random = partitioner is None or partitioner.endswith("_random")
    more = {} if partitioner is None else {"partitioner": partitioner}
    keys = [b"key-%d" % number for number in range(100)] + ["ключ", b"\x00", b"k" * 1000]
    # Hashed as well where nothing is spread at random.
    keys += [] if is_random else [b""]

    def case(side: Side) -> Any:
        topic, reports = side.topic(7), Reports()
        with side.producer(more) as producer:
            for key in keys:
                producer.produce(topic, b"v", key, on_delivery=reports)
            flush(producer)
        return {message.key(): message.partition() for message in reports.messages()}

    by_stock = both.agree(case)
    assert set(by_stock.values()) == set(range(7))


@pytest.mark.parametrize("key", [None, b""])
def test_without_a_key_or_with_an_empty_one_records_are_spread(
    both: Both, key: bytes | None
) -> None:
    more = {"partitioner": "consistent_random", "sticky.partitioning.linger.ms": 0}

    def case(side: Side) -> Any:
        topic, reports = side.topic(3), Reports()
        with side.producer(more) as producer:
            for _ in range(200):
                producer.produce(topic, b"v", key, on_delivery=reports)
            flush(producer)
        partitions = {message.partition() for message in reports.messages()}
        return partitions, {message.key() for message in reports.messages()}

    assert both.agree(case) == ({0, 1, 2}, {key})


def test_the_random_partitioner_spreads_one_key_too(both: Both) -> None:
    more = {"partitioner": "random", "sticky.partitioning.linger.ms": 0}

    def case(side: Side) -> Any:
        topic, reports = side.topic(3), Reports()
        with side.producer(more) as producer:
            for _ in range(200):
                producer.produce(topic, b"v", b"always the same", on_delivery=reports)
            flush(producer)
        return {message.partition() for message in reports.messages()}

    assert both.agree(case) == {0, 1, 2}


def test_a_compacted_topic_takes_records_with_keys_and_refuses_those_without(
    by_every_route: Both,
) -> None:
    stamp = recent_ms()

    def case(side: Side) -> Any:
        topic, reports = side.topic(config={"cleanup.policy": "compact"}), Reports()
        with side.producer() as producer:
            for key, value in ((b"a", b"1"), (b"b", None), (None, b"no key"), (b"", b"3")):
                producer.produce(topic, value, key, on_delivery=reports, timestamp=stamp)
                flush(producer)
        with side.consumer() as consumer:
            consumer.assign([partition(topic, 0, 0)])
            messages = read(consumer, len(reports.outcomes) - len(reports.errors))
        return (
            [side.see(error) for error in reports.errors],
            [(side.see(m.error()), m.key(), m.value()) for _, m in reports.outcomes],
            [(m.key(), m.value(), side.kafka_offset(m.offset()), m.timestamp()) for m in messages],
        )

    errors, _, messages = by_every_route.agree(case)
    assert [error[0] for error in errors] == ["INVALID_RECORD"]
    expected = [(b"a", b"1"), (b"b", None), (b"", b"3")]
    assert messages == [(*record, n, (1, stamp)) for n, record in enumerate(expected)]


def test_records_without_a_key_stay_together_for_a_while(both: Both) -> None:
    def case(side: Side) -> Any:
        topic, reports = side.topic(7), Reports()
        more = {"sticky.partitioning.linger.ms": 60_000}
        with side.producer(more) as producer:
            producer.produce(topic, b"so that the topic is known")
            flush(producer)
            for number in range(200):
                producer.produce(topic, b"%d" % number, on_delivery=reports)
            flush(producer)
        return len({message.partition() for message in reports.messages()})

    assert both.agree(case) == 1
