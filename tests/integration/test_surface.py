"""The stock client's surface on the same broker: same results, same errors, same life."""

from __future__ import annotations

import os
import pickle
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import (
    Reports,
    flush,
    next_message,
    outcome,
    partition,
    read,
    read_to_end,
    send,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PRODUCERS = pytest.mark.parametrize("client", [Producer, BlobProducer])
CONSUMERS = pytest.mark.parametrize("client", [Consumer, BlobConsumer])


def _for(client: type, conf: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The settings that this client knows."""
    own = client in (BlobProducer, BlobConsumer)
    if client in (Consumer, BlobConsumer):
        more = {"group.id": "surface", **more}
    return {k: v for k, v in {**conf, **more}.items() if own or not k.startswith("blobmsg.")}


def _outcomes(calls: dict[str, Callable[[], Any]]) -> dict[str, tuple[str, Any]]:
    return {name: outcome(call) for name, call in calls.items()}


# --- life ---------------------------------------------------------------------------------------


def test_isinstance_with_the_stock_classes_holds(conf: dict[str, Any]) -> None:
    with (
        BlobProducer(conf) as producer,
        BlobConsumer(_for(BlobConsumer, conf)) as consumer,
    ):
        assert isinstance(producer, confluent_kafka.Producer)
        assert isinstance(consumer, confluent_kafka.Consumer)
        assert isinstance(producer, BlobProducer)
        assert isinstance(consumer, BlobConsumer)


@pytest.mark.parametrize("form", ["dict", "keywords", "both"])
def test_settings_come_as_dict_keywords_or_both(conf: dict[str, Any], form: str) -> None:
    own = _for(BlobConsumer, conf)
    made: Callable[[Any, dict[str, Any]], Any] = {
        "dict": lambda cls, settings: cls(settings),
        "keywords": lambda cls, settings: cls(**settings),
        "both": lambda cls, settings: cls({"bootstrap.servers": "nowhere:1"}, **settings),
    }[form]
    before = dict(own)
    with made(BlobProducer, conf) as producer:
        assert producer.list_topics(timeout=20).brokers
    with made(BlobConsumer, own) as consumer:
        assert consumer.list_topics(timeout=20).brokers
    assert own == before


@PRODUCERS
def test_a_closed_producer_refuses_and_closes_again(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    producer = client(_for(client, conf))
    reports = Reports()
    producer.produce(topic, b"left in the buffer", on_delivery=reports)
    assert producer.close() is True
    assert reports.codes == [None]  # close delivers what is buffered

    assert producer.close() is True
    assert len(producer) == 0
    assert bool(producer) is True
    refused = ("raised", RuntimeError)
    calls = {
        "produce": lambda: producer.produce(topic, b"v"),
        "poll": lambda: producer.poll(0),
        "flush": lambda: producer.flush(0),
        "list_topics": lambda: producer.list_topics(timeout=1),
        "begin_transaction": producer.begin_transaction,
    }
    assert _outcomes(calls) == dict.fromkeys(calls, refused)
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce(topic, b"v")


@CONSUMERS
def test_a_closed_consumer_refuses_and_closes_again(client: Any, conf: dict[str, Any]) -> None:
    consumer = client(_for(client, conf))
    assert consumer.close() is None
    assert consumer.close() is None
    place = [TopicPartition("t", 0, 0)]
    calls = {
        "poll": lambda: consumer.poll(0),
        "consume": lambda: consumer.consume(1, 0),
        "subscribe": lambda: consumer.subscribe(["t"]),
        "unsubscribe": consumer.unsubscribe,
        "assign": lambda: consumer.assign(place),
        "unassign": consumer.unassign,
        "assignment": consumer.assignment,
        "incremental_assign": lambda: consumer.incremental_assign(place),
        "incremental_unassign": lambda: consumer.incremental_unassign(place),
        "commit": consumer.commit,
        "store_offsets": lambda: consumer.store_offsets(offsets=place),
        "committed": lambda: consumer.committed(place, 1),
        "position": lambda: consumer.position(place),
        "seek": lambda: consumer.seek(place[0]),
        "pause": lambda: consumer.pause(place),
        "resume": lambda: consumer.resume(place),
        "get_watermark_offsets": lambda: consumer.get_watermark_offsets(place[0], 1),
        "memberid": consumer.memberid,
        "consumer_group_metadata": consumer.consumer_group_metadata,
        "list_topics": lambda: consumer.list_topics(timeout=1),
    }
    assert _outcomes(calls) == dict.fromkeys(calls, ("raised", RuntimeError))
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)


def test_a_subclass_whose_init_never_ran_says_so() -> None:
    class NoInitProducer(BlobProducer):
        def __init__(self) -> None:
            pass

    class NoInitConsumer(BlobConsumer):
        def __init__(self) -> None:
            pass

    producer: Any = NoInitProducer()
    consumer: Any = NoInitConsumer()
    place = [TopicPartition("t", 0, 0)]
    calls = {
        "produce": lambda: producer.produce("t", b"v"),
        "producer.poll": lambda: producer.poll(0),
        "flush": lambda: producer.flush(0),
        "len": lambda: len(producer),
        "producer.close": producer.close,
        "producer.list_topics": lambda: producer.list_topics(timeout=1),
        "consumer.poll": lambda: consumer.poll(0),
        "consume": lambda: consumer.consume(1, 0),
        "subscribe": lambda: consumer.subscribe(["t"]),
        "assign": lambda: consumer.assign(place),
        "commit": consumer.commit,
        "position": lambda: consumer.position(place),
        "consumer.close": consumer.close,
    }
    assert _outcomes(calls) == dict.fromkeys(calls, ("raised", RuntimeError))


def test_a_subclass_works(conf: dict[str, Any], make_topic: Callable[..., str]) -> None:
    class Counting(BlobProducer):
        def __init__(self, settings: dict[str, Any]) -> None:
            super().__init__(settings)
            self.count = 0

        def produce(self, *args: Any, **kwargs: Any) -> None:
            self.count += 1
            super().produce(*args, **kwargs)

    with Counting(conf) as producer:
        reports = send(producer, make_topic(), [b"a", b"b"])
        assert producer.count == 2
    assert reports.codes == [None, None]


def test_after_fork_the_child_is_refused_and_the_parent_goes_on(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with (
        BlobProducer({**conf, "blobmsg.route": "blob"}) as producer,
        BlobConsumer(_for(BlobConsumer, conf)) as consumer,
    ):
        before = send(producer, topic, [b"before"])
        consumer.assign([partition(topic, 0, 0)])
        read(consumer, 1)
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            found = [
                outcome(lambda: producer.produce(topic, b"from the child")),
                outcome(lambda: producer.flush(1)),
                outcome(lambda: consumer.poll(0)),
                outcome(lambda: consumer.commit(asynchronous=False)),
                outcome(consumer.close),
            ]
            refused = all(kind is RuntimeError for _, kind in found)
            os.write(writable, b"refused" if refused else repr(found).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writable)
        with os.fdopen(readable, "rb") as output:
            assert output.read() == b"refused"
        after = send(producer, topic, [b"after"])
        assert [m.value() for m in read(consumer, 1)] == [b"after"]
    assert before.codes == after.codes == [None]


# --- producer -----------------------------------------------------------------------------------


@PRODUCERS
def test_poll_and_flush_count_and_serve_callbacks(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with client(_for(client, conf)) as producer:
        assert producer.poll(0) == 0
        assert producer.flush(0) == 0
        reports = Reports()
        for number in range(5):
            assert producer.produce(topic, b"%d" % number, on_delivery=reports) is None
        assert len(producer) == 5
        served = producer.poll(60)
        assert served >= 1  # stock counts reports that came together as one
        wait_until(lambda: len(reports.outcomes) == 5, "5", serve=lambda: producer.poll(0.1))
        assert len(producer) == 0
        assert producer.flush() == 0


@PRODUCERS
def test_callback_wins_over_on_delivery_which_wins_over_the_setting(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    setting, by_callback, by_on_delivery = Reports(), Reports(), Reports()
    with client(_for(client, conf, on_delivery=setting)) as producer:
        producer.produce(topic, b"1", callback=by_callback, on_delivery=by_on_delivery)
        producer.produce(topic, b"2", on_delivery=by_on_delivery)
        producer.produce(topic, b"3")
        flush(producer)
    heard = [[m.value() for m in r.messages()] for r in (by_callback, by_on_delivery, setting)]
    assert heard == [[b"1"], [b"2"], [b"3"]]


@PRODUCERS
def test_delivery_report_only_error_holds_back_successes(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with client(_for(client, conf, **{"delivery.report.only.error": True})) as producer:
        good, bad = Reports(), Reports()
        producer.produce(topic, b"bad", partition=9, on_delivery=bad)
        producer.produce(topic, b"good", on_delivery=good)
        flush(producer)
    assert good.outcomes == []
    assert bad.codes == [KafkaError._UNKNOWN_PARTITION]


@PRODUCERS
def test_produce_flush_and_poll_are_legal_inside_callbacks(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    reports = Reports()

    def again(error: Any, message: Any) -> None:
        reports(error, message)
        if len(reports.outcomes) < 5:
            producer.produce(topic, b"%d" % len(reports.outcomes), on_delivery=again)

    with client(_for(client, conf)) as producer:
        producer.produce(topic, b"0", on_delivery=again)
        wait_until(lambda: len(reports.outcomes) == 5, "5", serve=lambda: producer.flush(5))
    assert [m.value() for m in reports.messages()] == [b"%d" % number for number in range(5)]


def test_an_exception_in_a_callback_comes_out_after_the_others_ran(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    reports = Reports()

    def angry(_error: Any, _message: Any) -> None:
        raise LookupError("angry")

    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        producer.produce(topic, b"0", partition=0, on_delivery=reports)
        producer.produce(topic, b"1", partition=0, on_delivery=angry)
        producer.produce(topic, b"2", partition=0, on_delivery=reports)
        with pytest.raises(LookupError, match="angry"):
            producer.flush(60)
        flush(producer)
    assert [m.value() for m in reports.messages()] == [b"0", b"2"]


@PRODUCERS
def test_produce_batch_counts_and_marks_what_failed(
    client: Any, conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2)
    reports = Reports()
    large = {"message.max.bytes": 10_000}
    if client is BlobProducer:
        large = {"blobmsg.record.max.bytes": 10_000}
    with client(_for(client, conf, **large)) as producer:
        send(producer, topic, [b"so that the topic is known"])
        messages: list[dict[str, Any]] = [
            {"value": b"a", "key": b"k", "partition": 1},
            {"value": bytes(20_000)},
            {"value": b"b", "callback": reports},
            {"value": "c"},
        ]
        queued = producer.produce_batch(topic, messages, partition=0, on_delivery=reports)
        flush(producer)

    assert queued == 3
    assert [m.get("_error") and m["_error"].code() for m in messages] == [
        None, KafkaError.MSG_SIZE_TOO_LARGE, None, None,
    ]  # fmt: skip
    assert sorted(m.value() for m in reports.messages()) == [b"a", b"b", b"c"]


def test_reports_carry_the_record_as_stock_does_and_headers_besides(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    found = []
    stamp = int(time.time() * 1000) - 5000  # Kafka refuses what is far from now
    for client in (Producer, BlobProducer):
        reports = Reports()
        with client(_for(client, conf)) as producer:
            producer.produce(
                topic, "värde", "nyckel", 0, reports, timestamp=stamp,
                headers={"h": "v"},
            )  # fmt: skip
            flush(producer)
        [message] = reports.messages()
        assert isinstance(message, Message)
        assert message.latency() is not None
        assert (message.latency() or 0) > 0
        assert message.leader_epoch() is None
        assert (message.offset() or 0) >= 0
        found.append(
            (
                message.topic(), message.partition(), message.key(), message.value(),
                message.timestamp(), message.error(), len(message),
            )
        )  # fmt: skip
    assert found[0] == found[1]
    assert message.headers() == [("h", b"v")]


@PRODUCERS
def test_transactions_without_an_id_are_not_configured(client: Any, conf: dict[str, Any]) -> None:
    with client(_for(client, conf)) as producer:
        calls = {
            "init": lambda: producer.init_transactions(1),
            "begin": producer.begin_transaction,
            "commit": lambda: producer.commit_transaction(1),
            "abort": lambda: producer.abort_transaction(1),
        }
        expected = ("KafkaException", KafkaError._NOT_CONFIGURED)
        assert _outcomes(calls) == dict.fromkeys(calls, expected)


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_the_cluster_looks_the_same(
    conf: dict[str, Any], make_topic: Callable[..., str], kind: str
) -> None:
    topic = make_topic(partitions=3)
    clients = (Producer, BlobProducer) if kind == "producer" else (Consumer, BlobConsumer)
    found = []
    for client in clients:
        with client(_for(client, conf)) as one:
            topics = one.list_topics(topic, timeout=20)
            found.append(
                (
                    sorted(topics.brokers),
                    {n: p.leader for n, p in topics.topics[topic].partitions.items()},
                    one.cluster_id(20) if hasattr(one, "cluster_id") else None,
                    topic in one.list_topics(timeout=20).topics,
                    one.set_sasl_credentials("user", "password"),
                )
            )
    assert found[0] == found[1]


@PRODUCERS
def test_stats_cb_and_error_cb_run_in_poll(client: Any, conf: dict[str, Any]) -> None:
    heard: list[str] = []
    errors: list[KafkaError] = []
    more = {
        "stats_cb": heard.append,
        "statistics.interval.ms": 100,
        "error_cb": errors.append,
        "bootstrap.servers": "127.0.0.1:1",  # nobody listens there
    }
    with client(_for(client, conf, **more)) as producer:
        wait_until(lambda: bool(heard and errors), "both", serve=lambda: producer.poll(0.2))
    assert '"client_id"' in heard[0]
    assert all(isinstance(error, KafkaError) for error in errors)


# --- consumer -----------------------------------------------------------------------------------


@pytest.fixture
def topic(conf: dict[str, Any], make_topic: Callable[..., str]) -> str:
    """Two partitions with ten plain records each: the same for both clients."""
    topic = make_topic(partitions=2)
    with Producer(_for(Producer, conf)) as producer:
        for number in range(2):
            send(producer, topic, [b"%d" % i for i in range(10)], partition=number, key=b"k")
    return topic


def _offset(client: type, kafka_offset: int) -> int:
    """A plain record's offset as this client names it."""
    return kafka_offset if client is Consumer else ((kafka_offset + 1) << 20) - 1


def _position(client: type, kafka_offset: int) -> int:
    return kafka_offset if client is Consumer else kafka_offset << 20


@CONSUMERS
def test_poll_and_consume_give_messages_of_the_stock_class(
    client: Any, conf: dict[str, Any], topic: str
) -> None:
    with client(_for(client, conf, **{"auto.offset.reset": "earliest"})) as consumer:
        assert consumer.poll(0) is None
        assert consumer.consume(5, 0) == []
        assert consumer.consume(0, 1) == []
        consumer.assign([partition(topic, 0)])
        first = next_message(consumer)
        rest = consumer.consume(9, 60)
    assert isinstance(first, Message)
    assert [int(m.value()) for m in [first, *rest]] == list(range(10))
    assert [m.offset() for m in rest] == [_offset(client, k) for k in range(1, 10)]
    assert (first.topic(), first.partition(), first.key()) == (topic, 0, b"k")
    assert (first.error(), first.headers(), len(first)) == (None, None, 1)
    assert first.latency() is None
    assert first.leader_epoch() is not None
    copy = pickle.loads(pickle.dumps(first))  # noqa: S301
    assert (copy.value(), copy.offset()) == (first.value(), first.offset())


@CONSUMERS
def test_end_of_partition_comes_behind_its_records(
    client: Any, conf: dict[str, Any], topic: str
) -> None:
    with client(_for(client, conf, **{"enable.partition.eof": True})) as consumer:
        consumer.assign([partition(topic, 0, 0), partition(topic, 1, 0)])
        ending = read_to_end(consumer, 2)
    assert len(ending.messages) == 20
    assert ending.ends == {(topic, number): _position(client, 10) for number in range(2)}


@CONSUMERS
def test_callbacks_of_a_subscription_get_the_outer_consumer(
    client: Any, conf: dict[str, Any], topic: str
) -> None:
    calls: list[tuple[str, Any, list[int]]] = []

    def note(name: str) -> Callable[[Any, list[TopicPartition]], None]:
        return lambda who, partitions: calls.append(
            (name, who, sorted(p.partition for p in partitions))
        )

    heard: list[str] = []
    more = {
        "group.id": topic + client.__name__,
        "auto.offset.reset": "earliest",
        "on_commit": lambda *_: heard.append("commit"),
    }
    consumer = client(_for(client, conf, **more))
    assert not consumer.memberid()
    consumer.subscribe([topic], on_assign=note("assign"), on_revoke=note("revoke"))
    read(consumer, 20)
    assert consumer.memberid()
    assert consumer.consumer_group_metadata() is not None
    assert sorted(p.partition for p in consumer.assignment()) == [0, 1]
    consumer.close()
    assert calls == [("assign", consumer, [0, 1]), ("revoke", consumer, [0, 1])]


@CONSUMERS
def test_unsubscribe_gives_partitions_back_and_subscribe_takes_them_again(
    client: Any, conf: dict[str, Any], topic: str
) -> None:
    more = {
        "group.id": topic + client.__name__,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    with client(_for(client, conf, **more)) as consumer:
        consumer.subscribe([topic])
        read(consumer, 5)
        consumer.commit(asynchronous=False)
        consumer.unsubscribe()
        wait_until(
            lambda: not consumer.assignment(), "given back", serve=lambda: consumer.poll(0.2)
        )
        assert consumer.poll(0.2) is None
        consumer.subscribe([topic])
        assert len(read(consumer, 15)) == 15


@CONSUMERS
def test_positions_watermarks_and_commits_of_plain_records(
    client: Any, conf: dict[str, Any], topic: str
) -> None:
    more = {"group.id": topic + client.__name__, "enable.auto.commit": False}
    place = [partition(topic, 0)]
    with client(_for(client, conf, **more)) as consumer:
        assert consumer.get_watermark_offsets(place[0], cached=True) == (
            OFFSET_INVALID, OFFSET_INVALID,
        )  # fmt: skip
        assert consumer.get_watermark_offsets(place[0], 20) == (0, _position(client, 10))
        assert consumer.position(place)[0].offset == OFFSET_INVALID
        assert consumer.committed(place, 20)[0].offset == OFFSET_INVALID
        consumer.assign([partition(topic, 0, 0)])
        messages = read(consumer, 4)
        assert consumer.position(place)[0].offset == _position(client, 4)
        assert messages[3].offset() + 1 == _position(client, 4)
        [answer] = consumer.commit(message=messages[3], asynchronous=False)
        assert (answer.topic, answer.partition, answer.error) == (topic, 0, None)
        assert answer.offset == consumer.committed(place, 20)[0].offset == _position(client, 4)
        consumer.seek(partition(topic, 0, messages[1].offset()))
        assert [int(m.value()) for m in read(consumer, 2)] == [1, 2]
        consumer.pause(place)
        assert consumer.poll(0.3) is None
        consumer.resume(place)
        assert [int(m.value()) for m in read(consumer, 1)] == [3]


@pytest.mark.parametrize("call", ["pause", "resume"])
def test_pausing_what_is_not_assigned_is_as_in_stock(
    conf: dict[str, Any], topic: str, call: str
) -> None:
    found = []
    for client in (Consumer, BlobConsumer):
        with client(_for(client, conf)) as consumer:
            consumer.assign([partition(topic, 0, 0)])
            elsewhere = [partition(topic, 7)]
            found.append(outcome(lambda c=consumer, e=elsewhere: getattr(c, call)(e)))  # type: ignore[misc]
    assert found[0] == found[1]


def test_metadata_of_topic_partitions_is_kept_as_in_stock(conf: dict[str, Any], topic: str) -> None:
    found = []
    for client in (Consumer, BlobConsumer):
        more = {"group.id": topic + client.__name__, "enable.auto.commit": False}
        with client(_for(client, conf, **more)) as consumer:
            offset = _position(client, 5)
            noted = TopicPartition(topic, 0, offset, "a note")
            [answer] = consumer.commit(offsets=[noted], asynchronous=False)
            [kept] = consumer.committed([partition(topic)], 20)
            found.append((answer.metadata, kept.metadata, kept.offset == offset))
    assert found[0] == found[1] == ("a note", "a note", True)
