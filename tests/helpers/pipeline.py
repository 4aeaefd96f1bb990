"""A producer's pipeline with Kafka in a few lines of Python and the store in memory."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.fetcher import decode_stored
from blobmsg.format.notification import Limits, decode_notification
from blobmsg.format.object_key import retention_class
from blobmsg.kafka_settings import KafkaView
from blobmsg.producer_pipeline import ProducerPipeline
from blobmsg.resources import Stores
from blobmsg.topic_directory import TopicFacts

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "orders"
PARTITIONS = 3


class AcknowledgingKafka:
    """The inner producer: acknowledges at the next poll, keeps the notifications."""

    def __init__(self) -> None:
        self.notifications: list[tuple[int, bytes]] = []
        self._due: list[Callable[[], None]] = []
        self._pause = threading.Event()

    def produce(
        self, _topic: str, *, value: bytes, partition: int, on_delivery: Any, **_: Any
    ) -> None:
        offset = len(self.notifications)
        self.notifications.append((partition, value))
        self._due.append(lambda: on_delivery(None, SimpleNamespace(offset=lambda: offset)))

    def poll(self, timeout: float) -> int:
        due, self._due = self._due, []
        for acknowledge in due:
            acknowledge()
        if not due:
            self._pause.wait(timeout)
        return len(due)


class Directory:
    """Every topic has a few partitions."""

    def read(self, _topic: str) -> TopicFacts:
        return TopicFacts(
            destination_zones=("",) * PARTITIONS,
            unavailable=frozenset(),
            retention_class=retention_class(3_600_000),
            segment_ms=3_600_000,
            is_compacted=False,
            max_message_bytes=1_000_000,
            is_complete=True,
        )


class RunningPipeline:
    """A pipeline with a store in memory."""

    def __init__(self, name: str, **more: Any) -> None:
        conf: dict[str, Any] = {
            "blobmsg.store.url": f"memory://{name}",
            "blobmsg.route": "blob",
            "blobmsg.batch.size.bytes": 65536,
            "queue.buffering.max.kbytes": 4096,
            **more,
        }
        settings, kafka_conf = parse_settings(conf, {})
        self.kafka = AcknowledgingKafka()
        self._stores = Stores(settings)
        self.pipeline = ProducerPipeline(
            self.kafka,
            settings,
            KafkaView.parse(kafka_conf),
            directory=Directory(),  # type: ignore[arg-type]
            stores=self._stores,
            clock=SystemClock(),
            name="test",
            producer_id=bytes(16),
        )
        self.pipeline.start()

    def produce(self, value: bytes, headers: Any = None, callback: Any = None) -> None:
        self.pipeline.append(TOPIC, value[:1], value, -1, 1, headers, callback, len(value) + 1)

    def arrived(self) -> list[tuple[int, bytes]]:
        """Partition and value (empty for null) of all that was notified, in order."""
        store = self._stores.get().store
        found: list[tuple[int, bytes]] = []
        for partition, data in self.kafka.notifications:
            notification = decode_notification(data, Limits())
            assert notification.key is not None
            for part in notification.parts:
                stored = store.get_range(notification.key, part.byte_range, deadline_ms=1 << 40)
                segment = decode_stored(part, stored)
                found += [(partition, segment.value(i) or b"") for i in range(segment.records)]
        return found
