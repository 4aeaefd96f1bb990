"""The final read of a topic: our consumer's of its records, a stock one's of what was promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
from confluent_kafka import Consumer

from blobmsg import BlobConsumer
from tests.chaos.history import Log
from tests.chaos.record import decode_record
from tests.chaos.runs import RunBuilder
from tests.helpers.records import partition, read_to_end

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S = 600.0
_BATCH = 2000
# docs/format.md: the magic and a version before the fields; the third value of a part.
_FIELDS_BEGIN = 5
_PARTS = "p"
_RECORDS_OF_PART = 2


def read_log(
    conf: Mapping[str, Any], topic: str, partitions: int, *, is_stock: bool, isolation: str
) -> Log:
    """Read a topic to its end.

    Args:
        conf: How to reach Kafka and the store.
        topic: Nobody writes to it any more.
        partitions: Of the topic.
        is_stock: With the stock client: what lies there was written by one.
        isolation: `isolation.level`.
    """
    reader = {
        **conf,
        "group.id": f"{topic}-final",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "isolation.level": isolation,
    }
    log = Log()
    builders = {number: RunBuilder() for number in range(partitions)}
    for message in _read(Consumer if is_stock else BlobConsumer, reader, topic, partitions):
        identity = decode_record(message.value())
        if identity is None:
            log.corrupt.append(f"[{message.partition()}] at {message.offset()}")
            continue
        builders[message.partition()].add(
            identity.transaction, identity.instance, identity.number, message.offset()
        )
    log.runs = {number: builder.runs for number, builder in builders.items()}
    if not is_stock:
        kafka_only = {k: v for k, v in reader.items() if not k.startswith("blobmsg.")}
        for message in _read(Consumer, kafka_only, topic, partitions):
            promised = log.raw.setdefault(message.partition(), {})
            promised[message.offset()] = _records(message)
    return log


def _read(client: Any, conf: dict[str, Any], topic: str, partitions: int) -> list[Any]:
    consumer = client(conf)
    try:
        consumer.assign([partition(topic, number, 0) for number in range(partitions)])
        return read_to_end(consumer, partitions, timeout_s=_TIMEOUT_S, batch=_BATCH).messages
    finally:
        consumer.close()


def _records(message: Any) -> int:
    """How many records a Kafka record stands for, read with docs/format.md and nothing of ours."""
    if not any(name == "blobmsg" for name, _ in message.headers() or ()):
        return 1
    fields = msgpack.unpackb(message.value()[_FIELDS_BEGIN:])
    return sum(part[_RECORDS_OF_PART] for part in fields[_PARTS])
