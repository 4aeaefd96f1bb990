"""Code that was written for confluent_kafka: type checkers must accept it with ours in place."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from blobmsg import BlobConsumer, BlobProducer


def on_delivery(error: KafkaError | None, message: Message) -> None:
    print(error, message.topic(), message.partition(), message.offset())


def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    consumer.assign(partitions)


def send(producer: Producer) -> int:
    producer.produce("orders", value=b"v", key="k", on_delivery=on_delivery, headers={"a": "b"})
    producer.produce("orders", "text", partition=3, timestamp=1, headers=[("a", b"b"), ("a", None)])
    producer.produce_batch("orders", [{"value": b"v"}], callback=on_delivery)
    producer.poll(0.1)
    return producer.flush(10)


def read(consumer: Consumer) -> bytes | None:
    message = consumer.poll(1.0)
    if message is None or message.error():
        return None
    consumer.commit(message=message, asynchronous=False)
    consumer.store_offsets(message=message)
    for other in consumer.consume(100, 0.5):
        consumer.commit(offsets=[TopicPartition("orders", 0, (other.offset() or 0) + 1)])
    consumer.seek(TopicPartition("orders", 0, 5))
    low, high = consumer.get_watermark_offsets(TopicPartition("orders", 0))
    print(low + high)
    return message.value()


def make() -> None:
    with BlobProducer({"bootstrap.servers": "b:9092"}) as producer:
        send(producer)
    consumer = BlobConsumer({"group.id": "g"}, logger=None)
    consumer.subscribe(["orders"], on_assign=on_assign, on_revoke=on_assign, on_lost=on_assign)
    read(consumer)
    committed: list[TopicPartition] = consumer.commit(asynchronous=False)
    consumer.close()
    print(committed, producer.close())
