"""What tasks of the sink stored becomes visible, all or nothing, on real Kafka; without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from blobmsg.core.partitioner import PARTITIONER_NAMES
from blobmsg.errors import BlobmsgError, ConfigError, StoreDenied
from blobmsg_spark.sink_commit import SinkTransaction, commit_micro_batch
from blobmsg_spark.sink_options import parse_sink_options
from blobmsg_spark.sink_task import write_rows
from tests.helpers.records import flush, produce, values_by_partition
from tests.helpers.sink import read_topic
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blobmsg_spark.sink_message import SinkNotification
    from blobmsg_spark.sink_options import SinkOptions

pytestmark = pytest.mark.timeout(180)


class Sink:
    """A sink without Spark: tasks run here, and the driver's commit does."""

    def __init__(self, options: dict[str, str], name: str) -> None:
        self._options = options
        self.name = name

    def options(self, **more: str) -> SinkOptions:
        return parse_sink_options({**self._options, **more})

    def store(self, topic: str, values: Sequence[bytes], **more: Any) -> Sequence[SinkNotification]:
        """Run a task; nobody sees its records yet."""
        columns = {"value": pa.array(values, pa.binary()), **more}
        batch = pa.RecordBatch.from_pydict(columns)
        return write_rows(self.options(topic=topic), None, iter([batch])).notifications

    def transaction(self, **more: str) -> SinkTransaction:
        return SinkTransaction(self.options(**more).settings()[1], self.name)

    def commit_kept(self, notifications: Sequence[SinkNotification], batch_id: int) -> bool:
        """As a worker of Spark does, which keeps its client."""
        return commit_micro_batch(self.options().settings()[1], self.name, notifications, batch_id)

    def commit(self, notifications: Sequence[SinkNotification], batch_id: int | None) -> bool:
        return self.transaction().commit(notifications, batch_id)


@pytest.fixture
def sink(source_options: dict[str, str], store_prefix: str) -> Sink:
    return Sink(source_options, f"sink-{store_prefix}")


@pytest.fixture
def values(group_conf: dict[str, Any], topic: str) -> Callable[[], list[bytes]]:
    """What a consumer reads from the topic now."""

    def read() -> list[bytes]:
        return values_by_partition(read_topic(group_conf, topic)).get(0, [])

    return read


def _set(bootstrap: str, topic: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def test_a_micro_batch_is_written_once(
    sink: Sink, topic: str, values: Callable[[], list[bytes]]
) -> None:
    for batch_id in (0, 1):
        assert sink.commit(sink.store(topic, [b"%d" % batch_id]), batch_id)
    for batch_id in (1, 0):
        assert not sink.commit(sink.store(topic, [b"again"]), batch_id)
    assert sink.commit(sink.store(topic, [b"2"]), 2)

    assert values() == [b"0", b"1", b"2"]


def test_a_kept_client_goes_on_also_when_another_worker_has_committed_meanwhile(
    sink: Sink, topic: str, values: Callable[[], list[bytes]]
) -> None:
    assert sink.commit_kept(sink.store(topic, [b"0"]), 0)
    assert sink.commit_kept(sink.store(topic, [b"1"]), 1)
    assert not sink.commit_kept(sink.store(topic, [b"again"]), 1)

    assert sink.commit(sink.store(topic, [b"2"]), 2)  # fences the kept one

    assert not sink.commit_kept(sink.store(topic, [b"again"]), 2)
    assert sink.commit_kept(sink.store(topic, [b"3"]), 3)
    assert values() == [b"0", b"1", b"2", b"3"]


def test_a_batch_write_is_written_as_often_as_it_is_asked_for(
    sink: Sink, topic: str, values: Callable[[], list[bytes]]
) -> None:
    for _ in range(2):
        assert sink.commit(sink.store(topic, [b"a"]), None)

    assert values() == [b"a", b"a"]


def test_the_marker_is_found_whatever_topics_a_batch_goes_to(
    sink: Sink, make_topic: Callable[..., str], topic: str, values: Callable[[], list[bytes]]
) -> None:
    other = make_topic()
    assert sink.commit(sink.store(topic, [b"0"]), 0)
    assert sink.commit(sink.store(other, [b"1"]), 1)

    assert not sink.commit(sink.store(topic, [b"again"]), 1)
    assert values() == [b"0"]


def test_a_run_that_was_left_in_the_middle_is_fenced_and_its_records_never_appear(
    sink: Sink, topic: str, values: Callable[[], list[bytes]]
) -> None:
    stored = sink.store(topic, [b"once"])
    left = sink.transaction()
    left._producer.init_transactions(60)
    left._producer.begin_transaction()
    left._produce(stored)
    left._mark({topic}, 0)

    assert sink.commit(stored, 0)

    with pytest.raises(BlobmsgError, match="another run of this query has taken over"):
        left._do("commit", left._producer.commit_transaction)
    assert values() == [b"once"]


def test_a_topic_made_compacted_meanwhile_takes_nothing_and_names_the_remedy(
    sink: Sink, topic: str, bootstrap: str, values: Callable[[], list[bytes]]
) -> None:
    stored = sink.store(topic, [b"a"])
    _set(bootstrap, topic, "cleanup.policy", "compact")

    with pytest.raises(BlobmsgError, match=r"cleanup.policy to delete") as raised:
        sink.commit(stored, 0)

    assert raised.value.kafka_error.code() == KafkaError.INVALID_RECORD
    assert values() == []


def test_a_notification_over_the_topics_limit_is_named(
    sink: Sink, topic: str, bootstrap: str, values: Callable[[], list[bytes]]
) -> None:
    stored = sink.store(topic, [b"x" * 50_000])  # inline: an object would be dearer
    _set(bootstrap, topic, "max.message.bytes", "10000")

    with pytest.raises(BlobmsgError, match=r"raise max.message.bytes") as raised:
        sink.commit(stored, 0)

    assert raised.value.kafka_error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert raised.value.topic == topic
    assert values() == []


def test_one_refused_notification_keeps_all_back(
    sink: Sink, topic: str, values: Callable[[], list[bytes]]
) -> None:
    far = pa.array([4_102_444_800_000_000], pa.timestamp("us", tz="UTC"))  # 2100
    stored = [*sink.store(topic, [b"a"]), *sink.store(topic, [b"b"], timestamp=far)]

    with pytest.raises(BlobmsgError, match=r"message.timestamp.after.max.ms"):
        sink.commit(stored, 0)

    assert values() == []
    assert sink.commit(stored[:1], 0)
    assert values() == [b"a"]


def test_more_notifications_than_the_clients_queue_holds(
    sink: Sink, topic: str, values: Callable[[], list[bytes]]
) -> None:
    stored = sink.store(topic, [b"0"])
    transaction = sink.transaction(**{"kafka.queue.buffering.max.messages": "50"})

    assert transaction.commit([*stored] * 1000, 0)

    assert values() == [b"0"] * 1000


def test_partitions_that_come_between_writing_and_committing_change_nothing(
    sink: Sink, topic: str, bootstrap: str, group_conf: dict[str, Any]
) -> None:
    stored = sink.store(topic, [b"a", b"b"], key=pa.array([b"1", b"2"]))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)

    assert sink.commit(stored, 0)

    assert values_by_partition(read_topic(group_conf, topic, 4)) == {0: [b"a", b"b"]}


def test_a_topic_that_is_deleted_meanwhile_is_named(sink: Sink, topic: str, bootstrap: str) -> None:
    stored = sink.store(topic, [b"a"])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    transaction = sink.transaction(
        **{"kafka.message.timeout.ms": "3000", "kafka.topic.metadata.propagation.max.ms": "1000"}
    )

    with pytest.raises(BlobmsgError, match=r"the topic was deleted while the job ran"):
        transaction.commit(stored, 0)


def test_a_task_refuses_topics_that_it_can_not_write(
    sink: Sink, make_topic: Callable[..., str]
) -> None:
    compacted = make_topic(1, {"cleanup.policy": "compact"})
    with pytest.raises(ConfigError, match=rf"topic {compacted} is compacted.*spark-sql-kafka"):
        sink.store(compacted, [b"a"])

    with pytest.raises(BlobmsgError, match=rf"no topic {compacted}x.* Did you mean {compacted}"):
        sink.store(compacted + "x", [b"a"])


@pytest.mark.parametrize("name", [name for name in PARTITIONER_NAMES if name != "random"])
def test_keys_go_where_the_stock_producer_sends_them(
    name: str,
    sink: Sink,
    bootstrap: str,
    group_conf: dict[str, Any],
    make_topic: Callable[..., str],
) -> None:
    ours, stock = make_topic(7, replicas=1), make_topic(7, replicas=1)
    keys: list[bytes | None] = [f"key-{number}".encode() for number in range(40)]
    if name != "consistent_random":  # there chance decides, as for null with the other random ones
        keys += [b""] if name.endswith("_random") else [b"", None]
    values = [repr(key).encode() for key in keys]
    producer = StockProducer({"bootstrap.servers": bootstrap, "partitioner": name})
    for key, value in zip(keys, values, strict=True):
        produce(producer, stock, value, key=key)
    flush(producer)

    batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": values})
    options = sink.options(topic=ours, **{"kafka.partitioner": name})
    assert sink.commit(write_rows(options, None, iter([batch])).notifications, None)

    found, expected = (
        {message.value(): message.partition() for message in read_topic(group_conf, topic, 7)}
        for topic in (ours, stock)
    )
    assert found == expected
    assert len(found) == len(keys)


def test_a_store_that_refuses_fails_the_task(sink: Sink, topic: str) -> None:
    options = sink.options(
        topic=topic, **{"blobmsg.s3.secret.access.key": "wrong", "blobmsg.route": "blob"}
    )
    batch = pa.RecordBatch.from_pydict({"value": [b"a"]})

    with pytest.raises(StoreDenied):
        write_rows(options, None, iter([batch]))
