"""For tests that run once on the stock client and once on ours: clients, what brokers hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import DEADLINE_S, partition, read_to_end
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from blobmsg import lab


@dataclass(frozen=True, slots=True)
class Either:
    """The stock client, the control of an experiment, or ours.

    Attributes:
        is_ours: Which of them.
        stack: Brokers and store.
        store_prefix: Of the store, for ours.
    """

    is_ours: bool
    stack: lab.Stack
    store_prefix: str

    @property
    def conf(self) -> dict[str, Any]:
        """Settings of its clients; with ours everything goes through the store."""
        if self.is_ours:
            more = {"blobmsg.route": "blob", "blobmsg.batch.interval.ms": 50}
            return {**self.stack.conf(self.store_prefix), **more}
        return {"bootstrap.servers": self.stack.bootstrap_servers}

    def producer(self, **more: Any) -> Any:
        """A producer."""
        return (BlobProducer if self.is_ours else StockProducer)({**self.conf, **more})

    def consumer(self, **more: Any) -> Any:
        """A consumer that reads from the start and says where a partition ends."""
        own = {
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        return (BlobConsumer if self.is_ours else StockConsumer)({**self.conf, **own, **more})

    def records(self, topic: str, partitions: int, **more: Any) -> list[Any]:
        """All that there is now in a topic, in order within each partition."""
        with self.consumer(**more) as consumer:
            consumer.assign([partition(topic, number, 0) for number in range(partitions)])
            return read_to_end(consumer, partitions, batch=500).messages

    def committed(self, group: str, topic: str, partitions: int) -> list[int]:
        """How many records are behind each position that a group has committed."""
        with self.consumer(**{"group.id": group}) as consumer:
            answers = consumer.committed(_all_of(topic, partitions), DEADLINE_S)
            for answer in answers:
                assert answer.error is None
                answer.offset = max(answer.offset, 0)  # negative: nothing is committed yet
            consumer.assign(answers)
            rest = read_to_end(consumer, partitions, batch=500).messages
        counts = [0] * partitions
        for message in rest:
            counts[message.partition()] += 1
        return counts

    # --- what a client that does not know of the store sees -------------------------------------

    def kafka_records(self, topic: str, partitions: int, **more: Any) -> list[Any]:
        """The brokers' own records."""
        stock = Either(False, self.stack, "")
        return stock.records(topic, partitions, **more)

    def stored_objects(self) -> int:
        """How many objects there are below the prefix."""
        client = self.stack.s3_client()
        try:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.stack.bucket, Prefix=self.store_prefix + "/"
            )
            return sum(page["KeyCount"] for page in pages)
        finally:
            client.close()

    def check_route(self, topic: str, partitions: int, payload: bytes) -> None:
        """The control's payload is in Kafka; ours is in the store, and Kafka has notifications.

        Args:
            topic: A topic that has records.
            partitions: How many it has.
            payload: What is part of every record.
        """
        found = self.kafka_records(topic, partitions)
        assert found
        if not self.is_ours:
            assert all(payload in message.value() for message in found)
            return
        for message in found:
            assert [name for name, _ in message.headers()] == ["blobmsg"]
            assert message.key() is None
            assert payload not in message.value()
        assert self.stored_objects() > 0


def _all_of(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(partitions)]
