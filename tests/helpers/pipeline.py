"""A producer's pipeline with Kafka in a few lines of Python and the store in memory."""

from __future__ import annotations

import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import blobmsg.producer as producer_module
import blobmsg.resources as resources_module
from blobmsg import BlobProducer
from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.fetcher import decode_stored
from blobmsg.format.notification import Limits, decode_notification
from blobmsg.format.object_key import retention_class
from blobmsg.kafka_settings import KafkaView
from blobmsg.producer_pipeline import ProducerPipeline
from blobmsg.resources import Stores
from blobmsg.topic_directory import TopicFacts
from tests.helpers.private import private

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from confluent_kafka import KafkaError

TOPIC = "orders"
PARTITIONS = 3


class AcknowledgingKafka:
    """The inner producer: acknowledges at the next flush, keeps the notifications."""

    def __init__(self) -> None:
        self.notifications: list[tuple[int, bytes]] = []
        self._due: list[Callable[[], None]] = []
        self._pause = threading.Event()

    def produce(
        self, topic: str, *, value: bytes, partition: int, on_delivery: Any, **_: Any
    ) -> None:
        offset = len(self.notifications)
        self.notifications.append((partition, value))
        self._due.append(lambda: on_delivery(None, SimpleNamespace(offset=lambda: offset)))

    def __len__(self) -> int:
        return len(self._due)

    def list_topics(self) -> None:
        """Nobody asks: `Directory` knows all."""

    def purge(self, **_: Any) -> None:
        """It has acknowledged by then."""

    def poll(self, timeout: float) -> int:
        self._pause.wait(timeout)  # what it was given lingers
        return 0

    def flush(self, timeout: float) -> int:
        due, self._due = self._due, []
        for acknowledge in due:
            acknowledge()
        if not due:
            self._pause.wait(timeout)
        return len(due)


class Directory:
    """Every topic has a few partitions."""

    def close(self) -> None:
        """It holds nothing."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self._partitions = partitions

    def read(self, _topic: str) -> TopicFacts:
        return TopicFacts(
            destination_zones=("",) * self._partitions,
            unavailable=frozenset(),
            retention_class=retention_class(3_600_000),
            segment_ms=3_600_000,
            is_compacted=False,
            max_message_bytes=1_000_000,
            is_complete=True,
        )


def _conf(name: str, more: dict[str, Any]) -> dict[str, Any]:
    return {
        "blobmsg.store.url": f"memory://{name}",
        "blobmsg.route": "blob",
        # A store in memory hangs, too, where the garbage collector takes all of the processor.
        "blobmsg.on.store.failure": "wait",
        "blobmsg.batch.size.bytes": 65536,
        "queue.buffering.max.kbytes": 4096,
        **more,
    }


class RunningPipeline:
    """A pipeline with a store in memory."""

    def __init__(self, name: str, **more: Any) -> None:
        settings, kafka_conf = parse_settings(_conf(name, more), {})
        self.kafka = AcknowledgingKafka()
        self._stores = Stores(settings)
        self.store_errors: list[KafkaError] = []
        self.pipeline = ProducerPipeline(
            self.kafka,
            settings,
            KafkaView.parse(kafka_conf),
            directory=Directory(),  # type: ignore[arg-type]
            stores=self._stores,
            on_store_error=self.store_errors.append,
            clock=SystemClock(),
            name="test",
            producer_id=bytes(16),
        )
        self.pipeline.start()

    def produce(self, value: bytes, headers: Any = None, callback: Any = None) -> None:
        self.pipeline.record_path.append(
            TOPIC, value[:1], value, -1, 1, headers, callback, len(value) + 1
        )

    def serve(self, timeout_s: float) -> int:
        return self.pipeline.serve(timeout_s)

    def flush(self, timeout_s: float) -> int:
        return self.pipeline.flush(timeout_s)

    def stop(self) -> None:
        self.pipeline.stop(2.0)
        assert not self.pipeline.has_defect

    def arrived(self) -> list[tuple[int, bytes]]:
        """Partition and value (empty for null) of all that was notified, in order."""
        return _arrived(self.kafka, self._stores)


class RunningProducer:
    """A BlobProducer with the same Kafka and store."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        self.kafka = AcknowledgingKafka()
        monkeypatch.setattr(producer_module, "_StockProducer", lambda _conf: self.kafka)
        monkeypatch.setattr(resources_module, "AdminClient", lambda _conf: None)
        monkeypatch.setattr(producer_module, "TopicDirectory", lambda *_, **_more: Directory())
        self.producer = BlobProducer({"bootstrap.servers": "nowhere:1", **_conf(name, more)})
        self.pipeline: ProducerPipeline = private(self.producer, "pipeline")

    def produce(self, value: bytes, headers: Any = None, callback: Any = None) -> None:
        self.producer.produce(TOPIC, value, value[:1], headers=headers, on_delivery=callback)

    def serve(self, timeout_s: float) -> int:
        return self.producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        return self.producer.flush(timeout_s)

    def stop(self) -> None:
        self.producer.close()
        assert not self.pipeline.has_defect

    def arrived(self) -> list[tuple[int, bytes]]:
        """Partition and value (empty for null) of all that was notified, in order."""
        return _arrived(self.kafka, private(self.producer, "stores"))


def _arrived(kafka: AcknowledgingKafka, stores: Stores) -> list[tuple[int, bytes]]:
    store = stores.get().store
    found: list[tuple[int, bytes]] = []
    for partition, data in kafka.notifications:
        notification = decode_notification(data, Limits())
        assert notification.key is not None
        for part in notification.parts:
            stored = store.get_range(notification.key, part.byte_range, deadline_ms=1 << 40)
            segment = decode_stored(part, stored)
            found += [(partition, segment.value(i) or b"") for i in range(segment.records)]
    return found


def check_order(arrived: list[tuple[int, bytes]]) -> None:
    """The numbers of each source ascend in each partition."""
    last: dict[tuple[int, bytes], int] = defaultdict(lambda: -1)
    for partition, value in arrived:
        source, number = value[:1], int(value[1:9])
        assert number > last[partition, source]
        last[partition, source] = number
