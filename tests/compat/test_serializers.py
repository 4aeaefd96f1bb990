"""The serializing producer and the deserializing consumer."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka.serialization import (
    IntegerDeserializer,
    IntegerSerializer,
    SerializationContext,
    StringDeserializer,
    StringSerializer,
)

from tests.helpers.records import Reports, flush, next_message, recent_ms, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

_SERIALIZERS = {"key.serializer": StringSerializer(), "value.serializer": IntegerSerializer()}
_DESERIALIZERS = {
    "key.deserializer": StringDeserializer(),
    "value.deserializer": IntegerDeserializer(),
}


def _producer(side: Side, more: dict[str, Any] | None = None) -> Any:
    return side.serializing_class(side.settings(_SERIALIZERS if more is None else more))


def _consumer(side: Side, topic: str, more: dict[str, Any] | None = None) -> Any:
    settings = {
        "group.id": f"compat-{uuid.uuid4().hex}",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        **(_DESERIALIZERS if more is None else more),
    }
    consumer = side.deserializing_class(side.settings(settings))
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    return consumer


def test_objects_go_out_and_come_back(both: Both) -> None:
    stamp = recent_ms()

    def case(side: Side) -> Any:
        topic, reports = side.topic(), Reports()
        with _producer(side) as producer:
            for key, value in (("key", 1), (None, 2), ("", 3), ("none", None)):
                producer.produce(topic, key, value, on_delivery=reports)
            # Key first, unlike a Producer's; and headers, timestamps and partitions by position.
            producer.produce(topic, "last", 5, 0, reports, stamp, [("h", b"v")])
            flush(producer)
        told = [(m.key(), m.value(), m.partition()) for m in reports.messages()]
        with _consumer(side, topic) as consumer:
            messages = [next_message(consumer) for _ in range(5)]
            found = [
                (m.key(), m.value(), m.headers(), m.deserialized_key(), m.deserialized_value())
                for m in messages
            ]
            _, end = side.outcome(lambda: _until_it_ends(consumer))
        return told, found, messages[-1].timestamp(), end[:2]

    _, found, timestamp, end = both.agree(case)
    assert [(key, value) for key, value, *_ in found] == [
        ("key", 1), (None, 2), ("", 3), ("none", None), ("last", 5)
    ]  # fmt: skip
    assert timestamp == (confluent_kafka.TIMESTAMP_CREATE_TIME, stamp)
    assert end == ("KafkaException", "_PARTITION_EOF")


def _until_it_ends(consumer: Any) -> None:
    """Events come as `ConsumeError`."""
    while consumer.poll(60) is not None:
        continue


def test_calls_and_mistakes(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        producer = _producer(side)
        seen = side.outcomes(
            producer,
            """
            produce(topic, 'key', 'no number')
            produce(topic, 7, 7)
            produce(None, 'key', 7)
            produce()
            produce(topic, 'key', 7, callback=print)
            produce(topic, 'key', 7, partition=99)
            produce(topic, 'key', 7, 'nowhere')
            flush(60)
            poll(0)
            close()
            __exit__(None, None, None)
            flush()
            """,
            topic=topic,
        )
        seen["late"] = side.outcome(lambda: producer.produce(topic, "key", 7))
        return seen, len(producer)

    both.agree(case)


def test_a_serializer_that_raises_and_its_context(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        contexts: list[Any] = []

        def serialize(value: Any, context: SerializationContext) -> bytes:
            contexts.append((side.see(context.topic), context.field, context.headers))
            if value == "bad":
                raise ValueError("bad indeed")
            return b"<%s>" % value.encode()

        with _producer(
            side, {"key.serializer": serialize, "value.serializer": serialize}
        ) as client:
            seen = [
                side.outcome(lambda: client.produce(topic, "bad", "good")),
                side.outcome(lambda: client.produce(topic, "good", "bad")),
                side.outcome(lambda: client.produce(topic, "good", "good", headers={"h": b"v"})),
            ]
            flush(client)
        return seen, contexts

    seen, contexts = both.agree(case)
    assert [what for what, _ in seen] == ["raised", "raised", "returned"]
    assert len(contexts) == 5


def test_a_deserializer_that_raises(both: Both) -> None:
    def case(side: Side) -> Any:
        topic = side.topic()
        with side.producer() as producer:
            for key, value in ((b"\xff", b"\0\0\0\1"), (b"key", b"short"), (b"key", b"\0\0\0\2")):
                producer.produce(topic, value, key)
                flush(producer)  # and so each has a notification of its own
        seen: list[Any] = []
        with _consumer(side, topic) as consumer:
            for _ in range(2):
                try:
                    while consumer.poll(60) is None:
                        continue
                except confluent_kafka.KafkaException as error:
                    message = error.kafka_message  # type: ignore[attr-defined]
                    seen.append((side.see(error), message.key(), message.value(), message.offset()))
            seen[-1] = (*seen[-1][:3], side.kafka_offset(seen[-1][3]))
            seen[-2] = (*seen[-2][:3], side.kafka_offset(seen[-2][3]))
            seen.append(next_message(consumer).value())
            seen.append(side.outcome(consumer.consume))
            seen.append(side.outcome(lambda: consumer.consume(5, 1)))
        return seen

    assert both.agree(case)[2] == 2


def test_settings(both: Both) -> None:
    def case(side: Side) -> Any:
        def made(cls: Any, more: dict[str, Any]) -> Callable[[], None]:
            return lambda: cls(side.settings(more)).close()

        group = {"group.id": "compat"}
        producer, consumer = side.serializing_class, side.deserializing_class
        return {
            "nothing": side.outcome(producer),
            "no dict": side.outcome(lambda: producer(7)),
            "plain": side.outcome(made(producer, {})),
            "unknown": side.outcome(made(producer, {"no.such": 1})),
            "no group": side.outcome(made(consumer, {})),
            "group": side.outcome(made(consumer, group)),
            "generic": side.outcome(lambda: producer[str, int](side.settings({})).close()),
        }

    both.agree(case)


def test_classes(both: Both) -> None:
    def case(side: Side) -> Any:
        class Mine(side.serializing_class):  # type: ignore[misc, name-defined]
            def produce(self, topic: str, **more: Any) -> None:
                super().produce(topic, key="mine", **more)

        topic, reports = side.topic(), Reports()
        with Mine(side.settings(_SERIALIZERS)) as producer:
            producer.produce(topic, value=7, on_delivery=reports)
            flush(producer)
            is_one = [
                isinstance(producer, cls)
                for cls in (confluent_kafka.SerializingProducer, confluent_kafka.Producer)
            ]
        with _consumer(side, topic) as consumer:
            wait_until(lambda: len(consumer.assignment()) == 1, "assignment")
            is_one += [
                isinstance(consumer, cls)
                for cls in (confluent_kafka.DeserializingConsumer, confluent_kafka.Consumer)
            ]
        return is_one, [m.key() for m in reports.messages()]

    assert both.agree(case) == ([True] * 4, [b"mine"])
