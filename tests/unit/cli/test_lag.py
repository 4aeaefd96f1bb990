"""`blobmsg lag` on a client that answers what it is told; counting is `test_partition_lag`'s."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from blobmsg.cli import lag
from blobmsg.cli.main import main
from blobmsg.format import HEADER_NAME
from blobmsg.testing import MockKafka
from tests.helpers.stock import StockConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

_OFFSET_FETCH, _FIND_COORDINATOR = 9, 10

BROKERS = ["-X", "bootstrap.servers=127.0.0.1:9"]


class FakeMessage:
    """A Kafka record, or an error."""

    def __init__(
        self,
        offset: int,
        value: bytes | None = b"plain",
        *,
        topic: str | None = "orders",
        error: KafkaError | None = None,
        timestamp: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, 0),
    ) -> None:
        self.topic = lambda: topic
        self.partition = lambda: 0
        self.offset = lambda: offset
        self.value = lambda: value
        self.headers = lambda: [(HEADER_NAME, b"1")]
        self.error = lambda: error
        self.timestamp = lambda: timestamp


class FakeKafka:
    """Both clients: one topic of one partition, and what comes of it."""

    def __init__(self) -> None:
        self.end = 0
        self.messages: list[FakeMessage] = []
        self.commits: list[TopicPartition] = []
        self.confs: list[dict[str, Any]] = []
        self.assigned: list[TopicPartition] = []
        self.paused: list[TopicPartition] = []
        self.broken_topics: list[str] = []
        self.is_closed = False
        self.on_poll: Callable[[], object] = lambda: None

    def consumer(self, conf: dict[str, Any]) -> FakeKafka:
        self.confs.append(conf)
        return self

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0
        found = {(place.topic, place.partition): place for place in self.commits}
        return [found.get((place.topic, place.partition), place) for place in places]

    def list_topics(self, topic: str | None, timeout: float) -> Any:
        assert timeout > 0
        there = SimpleNamespace(error=None, partitions={0: None})
        gone = SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
        names = ["orders", *self.broken_topics] if topic is None else [topic]
        return SimpleNamespace(topics={name: there if name == "orders" else gone for name in names})

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        return 0, self.end

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = places

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused += places

    def poll(self, _timeout: float) -> FakeMessage | None:
        self.on_poll()
        return self.messages.pop(0) if self.messages else None

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    kafka = FakeKafka()
    monkeypatch.setattr(lag, "Consumer", kafka.consumer)
    return kafka


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOBMSG_DEV_BOOTSTRAP", raising=False)


def test_it_is_said_for_people(kafka: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    kafka.end = 1236
    kafka.commits = [TopicPartition("orders", 0, 2, "blobmsg1:7")]
    kafka.messages = [FakeMessage(offset) for offset in range(2, 1236)]

    assert main(["lag", "--group", "billing", *BROKERS]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "group billing, read_committed",
        "topic   partition  committed  remaining   end  Kafka records  records  age",
        "orders          0          2          7  1236          1,234    1,234",
        "total                                                  1,234    1,234",
    ]
    assert [(p.topic, p.partition, p.offset) for p in kafka.assigned] == [("orders", 0, 2)]
    assert kafka.paused == [TopicPartition("orders", 0)]
    assert kafka.is_closed


def test_without_a_commit_a_dash_is_shown_and_all_counts(
    kafka: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.end = 1
    kafka.messages = [FakeMessage(0, timestamp=(TIMESTAMP_CREATE_TIME, 1_700_000_000_000))]

    assert main(["lag", "--group", "billing", "--topic", "orders", *BROKERS]) == 0

    row = capsys.readouterr().out.splitlines()[2].split()
    assert row[:6] == ["orders", "0", "-", "1", "1", "1"]
    assert row[-1] == "s"
    assert float(row[-2].replace(",", "")) > 90_000_000


def test_nothing_can_make_it_a_member_or_a_committer(kafka: FakeKafka) -> None:
    kafka.commits = [TopicPartition("orders", 0, 0)]
    settings = ["group.id=other", "enable.auto.commit=true", "isolation.level=read_uncommitted"]
    options = [word for setting in settings for word in ("-X", setting)]

    assert main(["lag", "--group", "billing", *options, *BROKERS]) == 0

    reader, asker = kafka.confs
    assert reader["group.id"] == asker["group.id"] == "billing"
    assert reader["enable.auto.commit"] is False
    assert reader["isolation.level"] == "read_uncommitted"


def test_where_nothing_is_to_be_read_nothing_is(kafka: FakeKafka) -> None:
    kafka.end = 5
    kafka.commits = [TopicPartition("orders", 0, 5)]
    kafka.on_poll = lambda: pytest.fail("it was read")

    assert main(["lag", "--group", "billing", *BROKERS]) == 0


def test_a_kafka_that_gives_nothing_more_is_a_finding(
    kafka: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.end = 5
    kafka.messages = [FakeMessage(0), FakeMessage(1)]
    kafka.on_poll = lambda: kafka.confs[0]["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))
    options = ["--topic", "orders", "--timeout", "0.1"]

    assert main(["lag", "--group", "billing", *options, *BROKERS]) == 1

    output = capsys.readouterr()
    assert output.out == ""
    assert "Kafka did not give all of orders [0] within 0.1 s: 2 records" in output.err
    assert "all broker connections are down" in output.err.lower()
    assert kafka.is_closed


def test_an_error_of_a_partition_is_a_finding_and_one_of_the_client_is_not(
    kafka: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.end = 5
    transport = KafkaError(KafkaError._TRANSPORT)
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    kafka.messages = [
        FakeMessage(0, topic=None, error=transport),
        FakeMessage(0),
        FakeMessage(0, error=denied),
    ]

    assert main(["lag", "--group", "billing", "--topic", "orders", *BROKERS]) == 1
    assert "orders [0]: Broker: Topic authorization failed" in capsys.readouterr().err


def test_what_cannot_be_read_is_named_but_not_without_end(
    kafka: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.end = 1000
    kafka.messages = [FakeMessage(offset, b"\xb1BMN\x07") for offset in range(1000)]

    assert main(["lag", "--group", "billing", "--topic", "orders", "--json", *BROKERS]) == 1

    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == 101
    assert lines[0].startswith("blobmsg lag: notification in orders [0] at Kafka offset 0: ")
    assert lines[-1] == "blobmsg lag: and 900 more like these"
    facts = json.loads(output.out)
    assert (facts["records"], facts["unreadable"], len(facts["findings"])) == (1000, 1000, 100)


def test_others_topics_that_kafka_tells_nothing_of_do_not_matter(
    kafka: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.end = 1
    kafka.broken_topics = ["broken"]
    kafka.commits = [TopicPartition("orders", 0, 0)]
    kafka.messages = [FakeMessage(0)]

    assert main(["lag", "--group", "billing", "--json", *BROKERS]) == 0

    assert json.loads(capsys.readouterr().out)["records"] == 1


def test_the_commits_are_found_though_their_coordinator_moves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with MockKafka(["a"]) as kafka:
        kafka.create_topic("orders")
        conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"}
        with StockConsumer(conf) as consumer:
            consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        moved = KafkaError.NOT_COORDINATOR
        kafka.refuse_next(_OFFSET_FETCH, moved, moved, moved)
        brokers = f"bootstrap.servers={kafka.bootstrap_servers}"

        assert main(["lag", "--group", "billing", "-X", brokers]) == 0

    assert capsys.readouterr().out.splitlines()[2].split()[:3] == ["orders", "0", "0"]


def test_a_group_that_may_not_be_read_is_a_mistake_that_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with MockKafka(["a"]) as kafka:
        kafka.create_topic("orders")
        kafka.refuse_next(_FIND_COORDINATOR, *[KafkaError.GROUP_AUTHORIZATION_FAILED] * 1000)
        brokers = f"bootstrap.servers={kafka.bootstrap_servers}"

        assert main(["lag", "--group", "billing", "-X", brokers]) == 2

    assert "Group authorization failed" in capsys.readouterr().err


def test_kafkas_refusal_is_a_mistake_without_a_traceback(
    kafka: FakeKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    monkeypatch.setattr(kafka, "committed", refuse)

    assert main(["lag", "--group", "billing", *BROKERS]) == 2
    assert capsys.readouterr().err == "blobmsg: Kafka: Broker: Group authorization failed\n"
    assert kafka.is_closed


def test_brokers_that_are_not_there_are_a_mistake_within_the_timeout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Nothing listens on the discard port of the loopback interface.
    assert main(["lag", "--group", "billing", "--timeout", "1", *BROKERS]) == 2

    errors = capsys.readouterr().err
    assert errors.startswith("blobmsg: Kafka: ")
    assert "127.0.0.1:9" in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--group"),
        (["--group", "g"], "no brokers"),
        (["--group", "g", "--timeout", "0", *BROKERS], "--timeout wants more than 0"),
        (["--group", "g", "--timeout", "nan", *BROKERS], "--timeout wants more than 0"),
        (["--group", "g", "-X", "nonsense"], "-X wants KEY=VALUE"),
        (["--group", "g", "-X", "blobmsg.nonsense=1", *BROKERS], "blobmsg.nonsense"),
        (["--group", "g", "-X", "nonsense=1", *BROKERS], "are no consumer's"),
    ],
)
def test_a_wrong_request_is_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["lag", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)

    assert code == 2
    assert words in capsys.readouterr().err


def test_a_group_without_commits_needs_topics(
    kafka: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kafka.commits == []

    assert main(["lag", "--group", "billing", *BROKERS]) == 2
    assert "group 'billing' has committed nothing" in capsys.readouterr().err
