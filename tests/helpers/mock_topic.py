"""A Kafka in this process with a topic that has records."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from blobmsg.testing import MockKafka
from tests.helpers.records import send
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def kafka_with_records(records: int) -> Iterator[MockKafka]:
    """One broker, in zone a; topic t of two partitions, whose records are all in the first."""
    with MockKafka(["a"]) as kafka:
        kafka.create_topic("t", 2)
        with StockProducer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
            send(producer, "t", [b""] * records, partition=0)
        yield kafka
