"""What is wrong gives a clear typed error, and the rest goes on; what stock refuses, too, is in
tests/compat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    KafkaError,
    KafkaException,
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
    recent_ms,
    send,
)
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


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


# --- records ----------------------------------------------------------------------------------


def test_key_and_value_count_together_and_a_record_at_the_limit_goes(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic, large, reports = make_topic(), bytes(100_001), Reports()
    with BlobProducer({**conf, "blobmsg.record.max.bytes": 100_000}) as producer:
        assert outcome(lambda: producer.produce(topic, large[:50_000], large[50_000:])) == (
            "KafkaException", KafkaError.MSG_SIZE_TOO_LARGE,
        )  # fmt: skip
        producer.produce(topic, large[:100_000], on_delivery=reports)
        flush(producer)
    assert reports.codes == [None]


def test_produce_refuses_the_header_that_marks_notifications(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with BlobProducer(conf) as producer:
        with pytest.raises(KafkaException, match="blobmsg") as caught:
            producer.produce(topic, b"v", headers={"blobmsg": b"1"})
        assert caught.value.args[0].code() == KafkaError._INVALID_ARG


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
    return StockProducer(_for(StockProducer, conf))


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
    topic = make_topic(partitions=2)
    if value == "magic":
        value = _bad_notification(b"\x01\x80")
    arguments = {} if headers is None else {"headers": headers}
    sent_ms = recent_ms()
    with _plain_producer(conf) as stock:
        send(stock, topic, [b"before"], partition=1)
        stock.produce(topic, value, b"key", partition=1, timestamp=sent_ms, **arguments)
        flush(stock)

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 1, 0)])
        [_, message] = read(consumer, 2)
    assert (message.key(), message.value(), message.headers()) == (b"key", value, headers)
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, sent_ms)
    assert (message.topic(), message.partition()) == (topic, 1)
    assert message.offset() == (2 << 20) - 1  # the last of what the second record may stand for


_KEY = "shared/0/forever/none/" + "0" * 32 + "-0"


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
    value = _hostile_notification(key)
    with _plain_producer(conf) as stock:
        send(stock, topic, [value], headers=[("blobmsg", b"1")])

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error().code() == KafkaError._BAD_MSG
        assert message.offset() == 0
        assert consumer.stats()["gets"] == 0


@pytest.mark.parametrize(
    "part",
    [
        pytest.param({"length": 1 << 50}, id="length"),
        pytest.param({"records": 1 << 40}, id="records"),
        pytest.param({"records": 1000}, id="more records than bytes for them"),
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
    value = _hostile_notification(_KEY, **part)
    with _plain_producer(conf) as stock:
        send(stock, topic, [value], headers=[("blobmsg", b"1")])

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error().code() == KafkaError._BAD_MSG
        assert consumer.stats()["gets"] == 0


@pytest.mark.parametrize(
    ("store", "code", "text"),
    [
        ("other", KafkaError._INVALID_ARG, "no store is named 'other'"),
        ("s3://other", KafkaError._BAD_MSG, "no store name"),
        ("../other", KafkaError._BAD_MSG, "no store name"),
    ],
    ids=["unknown", "a place", "traversal"],
)
def test_a_store_that_the_readers_settings_do_not_name_is_refused(
    conf: dict[str, Any],
    reader_conf: dict[str, Any],
    make_topic: Callable[..., str],
    store: str,
    code: int,
    text: str,
) -> None:
    topic = make_topic()
    value = _hostile_notification(_KEY, store)
    with _plain_producer(conf) as stock:
        send(stock, topic, [value], headers=[("blobmsg", b"1")])

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error().code() == code
        assert text in str(message.error())
        assert consumer.stats()["gets"] == 0


def _hostile_notification(
    key: str,
    store: str = "",
    /,
    *,
    offset: int = 8,
    length: int = 100,
    records: int = 1,
    uncompressed: int = 100,
) -> bytes:
    import msgpack

    part = [offset, length, records, 0, uncompressed, 0, 0, 0, None]
    fields = {"k": key, "n": 0, "i": bytes(16), "p": [part]}
    if store:
        fields["s"] = store
    return _bad_notification(b"\x01" + msgpack.packb(fields))


def test_a_wellformed_notification_of_that_make_is_asked_for(
    conf: dict[str, Any], reader_conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    # So that the hostile ones above are refused for what is hostile in them.
    topic = make_topic()
    value = _hostile_notification(_KEY)
    with _plain_producer(conf) as stock:
        send(stock, topic, [value], headers=[("blobmsg", b"1")])

    with BlobConsumer(reader_conf) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        message = next_message(consumer)
        assert message.error().code() == KafkaError._NOENT
        assert consumer.stats()["gets"] >= 1
