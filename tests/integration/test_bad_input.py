"""What is wrong gives a clear typed error, as stock's where stock has one; the rest goes on."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.errors import ConfigError
from tests.helpers.records import (
    Reports,
    flush,
    next_message,
    outcome,
    partition,
    produce,
    read,
    send,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

BOTH_PRODUCERS = pytest.mark.parametrize("client", [Producer, BlobProducer])
BOTH_CONSUMERS = pytest.mark.parametrize("client", [Consumer, BlobConsumer])


def _for(client: type, conf: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The settings that this client knows."""
    own = client in (BlobProducer, BlobConsumer)
    return {k: v for k, v in {**conf, **more}.items() if own or not k.startswith("blobmsg.")}


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [BlobProducer, BlobConsumer])
def test_an_unknown_setting_of_ours_names_the_nearest(client: Any, conf: dict[str, Any]) -> None:
    with pytest.raises(KafkaException) as caught:
        client({**conf, "group.id": "g", "blobmsg.btach.size.bytes": 1})

    assert isinstance(caught.value, ConfigError)
    assert caught.value.args[0].code() == KafkaError._INVALID_ARG
    assert 'Did you mean "blobmsg.batch.size.bytes"?' in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("blobmsg.batch.size.bytes", "many"),
        ("blobmsg.batch.size.bytes", 0),
        ("blobmsg.route", "pigeon"),
        ("blobmsg.store.url", "ftp://somewhere/else"),
        ("blobmsg.store.url", "s3://"),
        ("blobmsg.topics", "("),
        ("blobmsg.destination", "static:"),
        ("blobmsg.on.missing", "cry"),
        ("blobmsg.record.max.bytes", -1),
    ],
)
@pytest.mark.parametrize("client", [BlobProducer, BlobConsumer])
def test_a_wrong_value_of_ours_is_refused_by_name(
    client: Any, conf: dict[str, Any], key: str, value: Any
) -> None:
    with pytest.raises(ConfigError) as caught:
        client({**conf, "group.id": "g", key: value})

    assert caught.value.args[0].code() == KafkaError._INVALID_ARG
    assert key in str(caught.value)


@pytest.mark.parametrize("client", [BlobProducer, BlobConsumer])
def test_no_store_is_refused_at_once(
    client: Any, conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BLOBMSG_STORE_URL", raising=False)
    del conf["blobmsg.store.url"]

    with pytest.raises(ConfigError, match=r"blobmsg\.store\.url"):
        client({**conf, "group.id": "g"})


@pytest.mark.parametrize(
    "more",
    [
        {"no.such.setting": 1},
        {"linger.ms": "soon"},
        {"acks": "some"},
        {"enable.idempotence": True, "acks": 1},
        {"message.timeout.ms": -5},
        {"stats_cb": 5},
        {"error_cb": "call me"},
        {"compression.type": "brotli"},
        {"partitioner": "dartboard"},
    ],
    ids=lambda more: json.dumps(more),
)
def test_stock_settings_of_a_producer_are_refused_as_stock_does(
    conf: dict[str, Any], more: dict[str, Any]
) -> None:
    stock = outcome(lambda: Producer(_for(Producer, conf, **more)))

    assert stock[0] != "returned"
    assert outcome(lambda: BlobProducer(_for(BlobProducer, conf, **more))) == stock


@pytest.mark.parametrize(
    "more",
    [
        {"no.such.setting": 1},
        {"group.id": None},
        {"auto.offset.reset": "somewhere"},
        {"session.timeout.ms": "long"},
        {"partition.assignment.strategy": "hope"},
        {"enable.auto.commit": "perhaps"},
        {"max.poll.interval.ms": 10, "session.timeout.ms": 6000},
        {"on_commit": 5},
    ],
    ids=lambda more: json.dumps(more),
)
def test_stock_settings_of_a_consumer_are_refused_as_stock_does(
    conf: dict[str, Any], more: dict[str, Any]
) -> None:
    given = {"group.id": "g", **more}
    given = {key: value for key, value in given.items() if value is not None}
    stock = outcome(lambda: Consumer(_for(Consumer, conf, **given)))

    assert stock[0] != "returned"
    assert outcome(lambda: BlobConsumer(_for(BlobConsumer, conf, **given))) == stock


@pytest.mark.parametrize("arguments", [(), (None,), ("conf",), (5,)], ids=repr)
@pytest.mark.parametrize(
    ("stock", "ours"), [(Producer, BlobProducer), (Consumer, BlobConsumer)], ids=["p", "c"]
)
def test_no_settings_at_all_are_refused_as_stock_does(
    stock: Any, ours: Any, arguments: tuple[Any, ...]
) -> None:
    assert outcome(lambda: stock(*arguments))[0] == "raised"
    assert outcome(lambda: ours(*arguments)) == outcome(lambda: stock(*arguments))


@pytest.mark.parametrize("setting", ["transactional.id"])
def test_what_comes_later_is_refused_by_name(conf: dict[str, Any], setting: str) -> None:
    with pytest.raises(KafkaException, match="transactions") as caught:
        BlobProducer({**conf, setting: "mine"})
    assert caught.value.args[0].code() == KafkaError._NOT_IMPLEMENTED


# --- topics and partitions --------------------------------------------------------------------


@BOTH_PRODUCERS
def test_an_unknown_topic_fails_through_the_callback(
    client: Any, conf: dict[str, Any], store_prefix: str
) -> None:
    topic = f"none-{store_prefix[-12:]}"
    more = {"topic.metadata.propagation.max.ms": 1000, "allow.auto.create.topics": False}
    reports = Reports()
    with client(_for(client, conf, **more)) as producer:
        producer.produce(topic, b"value", b"key", on_delivery=reports)
        producer.produce(topic, b"value", partition=3, on_delivery=reports)
        assert producer.flush(60) == 0

        assert reports.codes == [KafkaError.UNKNOWN_TOPIC_OR_PART] * 2
        error, message = reports.outcomes[0]
        assert message.error() == error
        assert (message.topic(), message.key(), message.value()) == (topic, b"key", b"value")
        # Once it is known that there is none, produce says so itself.
        assert outcome(lambda: producer.produce(topic, b"value")) == (
            "KafkaException",
            KafkaError._UNKNOWN_TOPIC,
        )


@BOTH_PRODUCERS
def test_a_topic_made_after_produce_gets_its_records(
    client: Any, conf: dict[str, Any], bootstrap: str, store_prefix: str
) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
        AdminClient,
        NewTopic,
    )

    topic = f"late-{store_prefix[-12:]}"
    more = {"allow.auto.create.topics": False, "topic.metadata.refresh.interval.ms": 500}
    with client(_for(client, conf, **more)) as producer:
        reports = Reports()
        for number in range(10):
            producer.produce(topic, b"%d" % number, on_delivery=reports, partition=0)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(timeout=30)
        flush(producer)

    assert [m.value() for m in reports.messages()] == [b"%d" % number for number in range(10)]


@BOTH_PRODUCERS
def test_a_partition_out_of_range_is_refused(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2)
    early = Reports()
    with client(_for(client, conf)) as producer:
        # The topic is not known yet, so only the callback can say it …
        producer.produce(topic, b"early", partition=2, on_delivery=early)
        good = Reports()
        producer.produce(topic, b"good", partition=1, on_delivery=good)
        flush(producer)
        # … and now produce can.
        late = outcome(lambda: producer.produce(topic, b"late", partition=2))
        negative = outcome(lambda: producer.produce(topic, b"late", partition=-2))

    assert early.codes == [KafkaError._UNKNOWN_PARTITION]
    assert good.codes == [None]
    assert late == negative == ("KafkaException", KafkaError._UNKNOWN_PARTITION)


# --- records ----------------------------------------------------------------------------------


_WRONG_PRODUCER_CALLS: dict[str, Callable[[Any, str], Any]] = {
    "produce(None, b'v')": lambda p, t: p.produce(None, b"v"),
    "produce(5, b'v')": lambda p, t: p.produce(5, b"v"),
    "produce(t, 5)": lambda p, t: p.produce(t, 5),
    "produce(t, 1.5)": lambda p, t: p.produce(t, 1.5),
    "produce(t, ['v'])": lambda p, t: p.produce(t, ["v"]),
    "produce(t, bytearray(b'v'))": lambda p, t: p.produce(t, bytearray(b"v")),
    "produce(t, memoryview(b'v'))": lambda p, t: p.produce(t, memoryview(b"v")),
    "produce(t, b'v', 5)": lambda p, t: p.produce(t, b"v", 5),
    "produce(t, b'v', bytearray(b'k'))": lambda p, t: p.produce(t, b"v", bytearray(b"k")),
    "produce(t, b'v', partition='0')": lambda p, t: p.produce(t, b"v", partition="0"),
    "produce(t, b'v', partition=0.5)": lambda p, t: p.produce(t, b"v", partition=0.5),
    "produce(t, b'v', timestamp='now')": lambda p, t: p.produce(t, b"v", timestamp="now"),
    "produce(t, b'v', partition=1 << 31)": lambda p, t: p.produce(t, b"v", partition=1 << 31),
    "produce(t, b'v', partition=-1 << 40)": lambda p, t: p.produce(t, b"v", partition=-1 << 40),
    "produce(t, b'v', partition=1 << 64)": lambda p, t: p.produce(t, b"v", partition=1 << 64),
    "produce(t, b'v', timestamp=1 << 63)": lambda p, t: p.produce(t, b"v", timestamp=1 << 63),
    "produce(t, b'v', timestamp=-1 << 70)": lambda p, t: p.produce(t, b"v", timestamp=-1 << 70),
    "produce(t, b'v', b'k', timestamp=2**63)": lambda p, t: p.produce(
        t, b"v", b"k", timestamp=1 << 63
    ),
    "produce(t, b'v', headers=5)": lambda p, t: p.produce(t, b"v", headers=5),
    "produce(t, b'v', headers='a=b')": lambda p, t: p.produce(t, b"v", headers="a=b"),
    "produce(t, b'v', headers=[('a',)])": lambda p, t: p.produce(t, b"v", headers=[("a",)]),
    "produce(t, b'v', headers=[('a', 5)])": lambda p, t: p.produce(t, b"v", headers=[("a", 5)]),
    "produce(t, b'v', headers={'a': 5})": lambda p, t: p.produce(t, b"v", headers={"a": 5}),
    "produce()": lambda p, t: p.produce(),
    "produce(t, b'v', colour='red')": lambda p, t: p.produce(t, b"v", colour="red"),
    "poll(None)": lambda p, t: p.poll(None),
    "poll('1')": lambda p, t: p.poll("1"),
    "flush(None)": lambda p, t: p.flush(None),
    "flush('1')": lambda p, t: p.flush("1"),
    "produce_batch(t, None)": lambda p, t: p.produce_batch(t, None),
    "produce_batch(t, [5])": lambda p, t: p.produce_batch(t, [5]),
    "produce_batch(value=5)": lambda p, t: p.produce_batch(t, [{"value": b"v"}, {"value": 5}]),
    "produce_batch(key=5)": lambda p, t: p.produce_batch(t, [{"value": b"v"}, {"key": 5}]),
}


def test_arguments_of_wrong_types_are_refused_as_stock_does(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with Producer(_for(Producer, conf)) as stock, BlobProducer(conf) as ours:
        expected = _outcomes(_WRONG_PRODUCER_CALLS, stock, topic)
        assert [name for name, (what, _) in expected.items() if what == "returned"] == []
        assert _outcomes(_WRONG_PRODUCER_CALLS, ours, topic) == expected
        # It hurts nobody else.
        assert send(ours, topic, [b"good"]).codes == [None]


def _outcomes(
    calls: dict[str, Callable[[Any, str], Any]], client: Any, topic: str
) -> dict[str, tuple[str, Any]]:
    return {name: outcome(partial(call, client, topic)) for name, call in calls.items()}


def test_a_record_over_the_limit_is_refused_as_stock_does(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    large = bytes(100_001)
    with Producer(_for(Producer, conf, **{"message.max.bytes": 100_000})) as stock:
        expected = outcome(lambda: stock.produce(topic, large))
    assert expected == ("KafkaException", KafkaError.MSG_SIZE_TOO_LARGE)

    with BlobProducer({**conf, "blobmsg.record.max.bytes": 100_000}) as ours:
        reports = Reports()
        ours.produce(topic, b"before", on_delivery=reports)
        assert outcome(lambda: ours.produce(topic, large)) == expected
        assert outcome(lambda: ours.produce(topic, large[:50_000], large[50_000:])) == expected
        ours.produce(topic, large[:100_000], on_delivery=reports)
        flush(ours)
    assert reports.codes == [None, None]


def test_produce_refuses_the_header_that_marks_notifications(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with BlobProducer(conf) as producer:
        with pytest.raises(KafkaException, match="blobmsg") as caught:
            producer.produce(topic, b"v", headers={"blobmsg": b"1"})
        assert caught.value.args[0].code() == KafkaError._INVALID_ARG


@BOTH_PRODUCERS
def test_a_full_buffer_raises_and_drains_while_one_waits(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    more: dict[str, Any] = {"queue.buffering.max.messages": 100}
    if client is BlobProducer:
        # Nothing but the full buffer seals this batch.
        more |= {"blobmsg.route": "blob", "blobmsg.batch.interval.ms": 900_000}
        more |= {"message.timeout.ms": 86_400_000}
    else:
        more |= {"linger.ms": 100}
    reports = Reports()
    with client(_for(client, conf, **more)) as producer:
        for number in range(100):
            producer.produce(topic, b"%d" % number, on_delivery=reports)
        with pytest.raises(BufferError, match="Queue full"):
            producer.produce(topic, b"one too many", on_delivery=reports)
        assert len(producer) == 100
        wait_until(lambda: len(reports.outcomes) == 100, "drained", serve=lambda: producer.poll(1))
        producer.produce(topic, b"again", on_delivery=reports)
        flush(producer)

    values = [m.value() for m in reports.messages()]
    assert values == [*[b"%d" % number for number in range(100)], b"again"]


def test_a_buffer_full_by_bytes_raises_and_drains_too(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    more = {
        "queue.buffering.max.kbytes": 2048,
        "blobmsg.route": "blob",
        "blobmsg.batch.interval.ms": 900_000,
        "message.timeout.ms": 86_400_000,
        "message.max.bytes": 100_000,
    }
    reports = Reports()
    with BlobProducer({**conf, **more}) as producer:
        taken = 0
        while outcome(lambda: producer.produce(topic, bytes(100_000), on_delivery=reports)) == (
            "returned",
            None,
        ):
            taken += 1
            assert taken <= 20
        with pytest.raises(BufferError, match="Queue full"):
            producer.produce(topic, bytes(100_000), on_delivery=reports)
        for _ in range(40):
            produce(producer, topic, bytes(100_000), on_delivery=reports)
        flush(producer)
    assert reports.codes == [None] * (taken + 40)


# --- notifications and other records ------------------------------------------------------------


@pytest.fixture
def reader_conf(conf: dict[str, Any]) -> dict[str, Any]:
    return {**conf, "group.id": "bad-input", "enable.auto.commit": False}


_MAGIC_AND_GARBAGE = [
    pytest.param(b"\x01\xff\xff\xff not msgpack", id="garbage"),
    pytest.param(b"", id="nothing behind the magic"),
    pytest.param(b"\x01\x80", id="an empty map"),
    pytest.param(b"\x01\xdf\xff\xff\xff\xff", id="a map of 4 billion"),
]


def _bad_notification(behind_magic: bytes) -> bytes:
    from blobmsg.format.notification import NOTIFICATION_MAGIC

    return NOTIFICATION_MAGIC + behind_magic


def _plain_producer(conf: dict[str, Any]) -> Any:
    return Producer(_for(Producer, conf))


@pytest.mark.parametrize("behind_magic", _MAGIC_AND_GARBAGE)
def test_a_damaged_notification_is_reported_and_other_partitions_go_on(
    conf: dict[str, Any],
    reader_conf: dict[str, Any],
    make_topic: Callable[..., str],
    behind_magic: bytes,
) -> None:
    topic = make_topic(partitions=2)
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as ours, _plain_producer(conf) as stock:
        send(ours, topic, [b"before-0", b"before-1"], partition=0)
        send(stock, topic, [_bad_notification(behind_magic)], partition=0,
             headers=[("blobmsg", b"1")])  # fmt: skip
        send(ours, topic, [b"behind"], partition=0)
        send(ours, topic, [b"%d" % number for number in range(50)], partition=1)

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0), partition(topic, 1, 0)])
        errors, values = _read_past_errors(consumer, 52)
        assert {(m.topic(), m.partition(), m.offset()) for m in errors} == {(topic, 0, 1 << 20)}
        assert errors[0].error().code() == KafkaError._BAD_MSG
        assert topic in str(errors[0].error())
        # Its position stays where the damage is; the other partition was read to its end.
        assert consumer.position([partition(topic, 0)])[0].offset == 1 << 20
        assert values[0] == [b"before-0", b"before-1"]
        assert values[1] == [b"%d" % number for number in range(50)]

    with BlobConsumer({**reader_conf, "blobmsg.on.missing": "skip"}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        assert [m.value() for m in read(consumer, 3)] == [b"before-0", b"before-1", b"behind"]


def _read_past_errors(consumer: Any, count: int) -> tuple[list[Any], dict[int, list[bytes]]]:
    """Read until there are so many records and at least one error."""
    errors: list[Any] = []
    values: dict[int, list[bytes]] = {}
    while not errors or sum(map(len, values.values())) < count:
        message = next_message(consumer)
        if message.error() is not None:
            errors.append(message)
        else:
            values.setdefault(message.partition(), []).append(message.value())
    return errors, values


def test_a_notification_of_a_later_version_is_refused_by_name(
    conf: dict[str, Any], reader_conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with _plain_producer(conf) as stock:
        headers = [("blobmsg", b"9")]
        send(stock, topic, [_bad_notification(b"\x09\x80")], headers=headers)
        send(stock, topic, [b"behind"])

    with BlobConsumer({**reader_conf, "blobmsg.on.missing": "skip"}) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error() is not None
        # Skipping is for what is lost, not for what an upgrade can read.
        assert message.error().code() == KafkaError._UNSUPPORTED_FEATURE
        assert "version 9" in str(message.error())
        assert message.offset() == 0  # all of it, for how much it holds can't be known


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ([("blobmsg", b"1")], b"just a value"),
        ([("blobmsg", b"1")], b""),
        ([("blobmsg", b"1")], None),
        ([("blobmsg", None), ("other", b"x")], b"BM"),
        (None, "magic"),
        ([("other", b"1")], "magic"),
    ],
)
def test_header_without_magic_or_magic_without_header_is_an_ordinary_record(
    conf: dict[str, Any],
    reader_conf: dict[str, Any],
    make_topic: Callable[..., str],
    headers: Any,
    value: Any,
) -> None:
    topic = make_topic()
    if value == "magic":
        value = _bad_notification(b"\x01\x80")
    arguments = {} if headers is None else {"headers": headers}
    with _plain_producer(conf) as stock:
        stock.produce(topic, value, b"key", **arguments)
        flush(stock)

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        [message] = read(consumer, 1)
    assert (message.key(), message.value(), message.headers()) == (b"key", value, headers)


@pytest.mark.parametrize(
    "key",
    [
        "../../secret",
        "/etc/passwd",
        "shared/0/forever/none/../../../other-0",
        "s3://other/shared/0/forever/none/" + "0" * 32 + "-0",
        "history/0/forever/none/" + "0" * 32 + "-0",
        "shared/0/forever/none/" + "0" * 32 + "-0?versionId=1",
        "shared/0/forever/none/" + "0" * 32 + "-0\n",
    ],
)
def test_a_hostile_key_is_refused_and_never_asked_for(
    conf: dict[str, Any],
    reader_conf: dict[str, Any],
    make_topic: Callable[..., str],
    key: str,
) -> None:
    topic = make_topic()
    value = _hostile_notification(key=key)
    with _plain_producer(conf) as stock:
        send(stock, topic, [value], headers=[("blobmsg", b"1")])

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error().code() == KafkaError._BAD_MSG
        assert message.offset() == 0
        assert consumer.stats().get("gets", 0) == 0


@pytest.mark.parametrize(
    "part",
    [
        pytest.param({"length": 1 << 50}, id="length"),
        pytest.param({"records": 1 << 40}, id="records"),
        pytest.param({"uncompressed": 1 << 50}, id="uncompressed size"),
        pytest.param({"offset": -1}, id="negative offset"),
        pytest.param({"length": 300 << 20, "uncompressed": 300 << 20}, id="over the limit"),
    ],
)
def test_a_hostile_size_is_refused_before_anything_is_fetched(
    conf: dict[str, Any],
    reader_conf: dict[str, Any],
    make_topic: Callable[..., str],
    part: dict[str, int],
) -> None:
    topic = make_topic()
    value = _hostile_notification(key="shared/0/forever/none/" + "0" * 32 + "-0", **part)
    with _plain_producer(conf) as stock:
        send(stock, topic, [value], headers=[("blobmsg", b"1")])

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error().code() == KafkaError._BAD_MSG
        assert consumer.stats().get("gets", 0) == 0


def _hostile_notification(
    *,
    key: str,
    offset: int = 8,
    length: int = 100,
    records: int = 1,
    uncompressed: int = 100,
) -> bytes:
    import msgpack

    part = [offset, length, records, 0, uncompressed, 0, 0, 0, None]
    fields = {"k": key, "n": 0, "i": bytes(16), "p": [part]}
    return _bad_notification(b"\x01" + msgpack.packb(fields))


def test_a_wellformed_notification_of_that_make_is_asked_for(
    conf: dict[str, Any], reader_conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    # So that the hostile ones above are refused for what is hostile in them.
    topic = make_topic()
    value = _hostile_notification(key="shared/0/forever/none/" + "0" * 32 + "-0")
    with _plain_producer(conf) as stock:
        send(stock, topic, [value], headers=[("blobmsg", b"1")])

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error().code() == KafkaError._NOENT
        assert consumer.stats()["gets"] >= 1


# --- calls of a consumer ------------------------------------------------------------------------


_WRONG_CONSUMER_CALLS: dict[str, Callable[[Any, str], Any]] = {
    "subscribe(t)": lambda c, t: c.subscribe(t),
    "subscribe([])": lambda c, t: c.subscribe([]),
    "subscribe([t], on_assign=5)": lambda c, t: c.subscribe([t], on_assign=5),
    "subscribe(None)": lambda c, t: c.subscribe(None),
    "assign(t)": lambda c, t: c.assign(t),
    "assign([t])": lambda c, t: c.assign([t]),
    "assign(TopicPartition(t, 0))": lambda c, t: c.assign(TopicPartition(t, 0)),
    "assign([TopicPartition(t, 0), TopicPartition(t, 0)])": lambda c, t: c.assign(
        [TopicPartition(t, 0), TopicPartition(t, 0)]
    ),
    "incremental_unassign([TopicPartition(t, 0)])": lambda c, t: c.incremental_unassign(
        [TopicPartition(t, 0)]
    ),
    "seek(TopicPartition(t, 0, 0))": lambda c, t: c.seek(TopicPartition(t, 0, 0)),
    "seek(t)": lambda c, t: c.seek(t),
    "pause(t)": lambda c, t: c.pause(t),
    "commit()": lambda c, t: c.commit(),
    "commit(asynchronous=False)": lambda c, t: c.commit(asynchronous=False),
    "commit(message=5)": lambda c, t: c.commit(message=5),
    "commit(offsets=5)": lambda c, t: c.commit(offsets=5),
    "commit(offsets=[5])": lambda c, t: c.commit(offsets=[5]),
    "commit(message=5, offsets=[TopicPartition(t, 0, 0)])": lambda c, t: c.commit(
        message=5, offsets=[TopicPartition(t, 0, 0)]
    ),
    "store_offsets()": lambda c, t: c.store_offsets(),
    "store_offsets(offsets=[TopicPartition(t, 0, 1 << 20)])": lambda c, t: c.store_offsets(
        offsets=[TopicPartition(t, 0, 1 << 20)]
    ),
    "committed(t)": lambda c, t: c.committed(t),
    "committed([5])": lambda c, t: c.committed([5]),
    "position(t)": lambda c, t: c.position(t),
    "consume(-1)": lambda c, t: c.consume(-1),
    "consume(1_000_001)": lambda c, t: c.consume(1_000_001),
    "consume('5')": lambda c, t: c.consume("5"),
    "poll(None)": lambda c, t: c.poll(None),
    "poll('1')": lambda c, t: c.poll("1"),
    "get_watermark_offsets(t)": lambda c, t: c.get_watermark_offsets(t),
    "get_watermark_offsets(TopicPartition(t, 99), timeout=20)": lambda c, t: (
        c.get_watermark_offsets(TopicPartition(t, 99), timeout=20)
    ),
    "get_watermark_offsets(TopicPartition('none-' + t, 0), timeout=20)": lambda c, t: (
        c.get_watermark_offsets(TopicPartition("none-" + t, 0), timeout=20)
    ),
}


def test_wrong_calls_of_a_consumer_are_refused_as_stock_does(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    more = {"group.id": topic, "allow.auto.create.topics": False}
    with (
        Consumer(_for(Consumer, conf, **more)) as stock,
        BlobConsumer(_for(BlobConsumer, conf, **more)) as ours,
    ):
        expected = _outcomes(_WRONG_CONSUMER_CALLS, stock, topic)
        assert _outcomes(_WRONG_CONSUMER_CALLS, ours, topic) == expected


@BOTH_CONSUMERS
def test_an_unknown_topic_is_reported_by_poll(
    client: Any, conf: dict[str, Any], store_prefix: str
) -> None:
    topic = f"none-{store_prefix[-12:]}"
    more = {"group.id": topic, "allow.auto.create.topics": False}
    more |= {"topic.metadata.propagation.max.ms": 500}
    with client(_for(client, conf, **more)) as consumer:
        consumer.subscribe([topic])
        message = next_message(consumer)
        assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert message.topic() == topic


@BOTH_CONSUMERS
def test_an_assigned_partition_out_of_range_says_nothing_and_the_others_are_read(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=1)
    with Producer(_for(Producer, conf)) as producer:
        producer.produce(topic, b"v", partition=0)
        flush(producer)
    more = {"group.id": topic, "topic.metadata.propagation.max.ms": 500}
    with client(_for(client, conf, **more)) as consumer:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in (99, 0)])
        message = next_message(consumer)
        assert message.error() is None
        assert message.value() == b"v"
        assert consumer.poll(2.0) is None
