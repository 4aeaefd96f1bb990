"""`blobmsg lag` of groups on real topics; what is expected is counted as it is sent."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.cli.main import main
from blobmsg.format import HEADER_NAME, HEADER_VALUE
from tests.helpers.records import flush, partition, produce, read, send, wait_until
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

_WAIT_S = 60
# So that each `send` is one notification for each partition.
_SEALED_BY_FLUSH = {"blobmsg.batch.interval.ms": 60_000}
_NOTIFICATION: Any = [(HEADER_NAME, HEADER_VALUE)]


@pytest.fixture(autouse=True)
def _environment(
    bare_environ: None,
    stack: lab.Stack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers, and no store: nothing may ask it."""
    monkeypatch.setenv("BLOBMSG_DEV_BOOTSTRAP", stack.bootstrap_servers)


@pytest.fixture
def group(group_conf: dict[str, Any]) -> str:
    name: str = group_conf["group.id"]
    return name


def _send(conf: dict[str, Any], route: str, topic: str, records: int, number: int = 0) -> None:
    with BlobProducer({**conf, **_SEALED_BY_FLUSH, "blobmsg.route": route}) as producer:
        send(producer, topic, [b"%d" % i for i in range(records)], partition=number)


def _send_plain(bootstrap: str, topic: str, records: int, number: int = 0, **more: Any) -> None:
    with StockProducer({"bootstrap.servers": bootstrap}) as producer:
        send(producer, topic, [b"plain"] * records, partition=number, **more)


def _commit(group_conf: dict[str, Any], topic: str, reads: dict[int, int]) -> None:
    """Read so many records of each partition, commit behind them."""
    for number, records in reads.items():
        with BlobConsumer(group_conf) as consumer:
            consumer.assign([partition(topic, number, 0)])
            consumer.commit(message=read(consumer, records)[-1], asynchronous=False)


def _wait_for_end(bootstrap: str, topic: str, kafka_offset: int) -> None:
    """A transaction has ended for its producer before its partitions have their marks."""
    conf = {"bootstrap.servers": bootstrap, "group.id": topic}
    with StockConsumer(conf) as consumer:
        wait_until(
            lambda: consumer.get_watermark_offsets(partition(topic))[1] == kafka_offset,
            f"{topic} ends at {kafka_offset}",
        )


def _lag(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["lag", "--json", *arguments]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    facts: dict[str, Any] = json.loads(output.out)
    return facts


def _row(facts: dict[str, Any], number: int = 0) -> tuple[Any, ...]:
    """Kafka offset committed, records that remain there, end, lag in Kafka records, in records."""
    found = facts["partitions"][number]
    assert found["partition"] == number
    return (
        found["committed_kafka_offset"],
        found["committed_remaining_records"],
        found["end_kafka_offset"],
        found["kafka_records"],
        found["records"],
    )


def test_records_of_every_kind_count_from_the_committed_one_on(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    group: str,
    bootstrap: str,
    make_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = make_topic(4)
    started_ms = time.time_ns() // 1_000_000
    _send_plain(bootstrap, topic, 2)
    _send(conf, "blob", topic, 10)
    _send(conf, "inline", topic, 4)
    _send_plain(bootstrap, topic, 1)
    _send(conf, "inline", topic, 6, 1)
    _send(conf, "blob", topic, 5, 2)
    _send(conf, "blob", topic, 8, 3)
    _commit(group_conf, topic, {0: 2 + 3, 1: 4, 3: 8})

    facts = _lag(capsys, "--group", group)

    assert {row["topic"] for row in facts["partitions"]} == {topic}
    assert _row(facts, 0) == (2, 7, 5, 3, 7 + 4 + 1)
    assert _row(facts, 1) == (0, 2, 1, 1, 2)
    assert _row(facts, 2) == (None, None, 1, 1, 5)
    assert _row(facts, 3) == (1, None, 1, 0, 0)
    assert (facts["kafka_records"], facts["records"]) == (5, 12 + 2 + 5)
    assert facts["isolation_level"] == "read_committed"
    for row in facts["partitions"][:3]:
        assert started_ms <= row["first_timestamp_ms"] <= time.time_ns() // 1_000_000
        assert row["first_age_ms"] >= 0
    assert facts["partitions"][3]["first_timestamp_ms"] is None


def test_a_group_without_commits_has_all_of_the_topics_that_are_named(
    conf: dict[str, Any],
    group: str,
    make_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = make_topic(1), make_topic(1)
    _send(conf, "blob", first, 10)
    _send(conf, "inline", second, 3)

    assert main(["lag", "--group", group]) == 2
    assert "has committed nothing" in capsys.readouterr().err
    facts = _lag(capsys, "--group", group, "--topic", second, "--topic", first)

    assert [row["topic"] for row in facts["partitions"]] == [second, first]
    assert [row["records"] for row in facts["partitions"]] == [3, 10]
    assert [row["committed_kafka_offset"] for row in facts["partitions"]] == [None, None]


def test_it_is_said_for_people(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    group: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _send(conf, "blob", topic, 10)
    _commit(group_conf, topic, {0: 3})

    assert main(["lag", "--group", group]) == 0

    title, _, row, total = capsys.readouterr().out.splitlines()
    assert title == f"group {group}, read_committed"
    assert row.split()[:-2] == [topic, "0", "0", "7", "1", "1", "7"]
    assert total.split() == ["total", "1", "7"]


def test_an_unknown_topic_is_a_mistake_and_is_not_created(
    group: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["lag", "--group", group, "--topic", topic, "--topic", f"{topic}-other"]

    for _ in range(2):
        assert main(arguments) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert f"topic '{topic}-other': Broker: Unknown topic" in output.err


def test_aborted_and_open_transactions_do_not_count(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    group: str,
    bootstrap: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = {**_SEALED_BY_FLUSH, "blobmsg.route": "blob", "transactional.id": topic}
    stock = {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-stock"}
    with BlobProducer({**conf, **more}) as ours, StockProducer(stock) as others:
        for producer in (ours, others):
            producer.init_transactions(_WAIT_S)
        # Offsets 0 to 7: a notification and its mark, aborted and committed; 4 records and a mark.
        for records, is_aborted in ((5, True), (10, False)):
            ours.begin_transaction()
            send(ours, topic, [b"value"] * records)
            if is_aborted:
                ours.abort_transaction(_WAIT_S)
            else:
                ours.commit_transaction(_WAIT_S)
        others.begin_transaction()
        send(others, topic, [b"aborted"] * 3)
        others.abort_transaction(_WAIT_S)
        _wait_for_end(bootstrap, topic, 8)
        _commit(group_conf, topic, {0: 4})
        before = _lag(capsys, "--group", group)
        others.begin_transaction()
        produce(others, topic, b"open")
        flush(others)
        meanwhile = _lag(capsys, "--group", group)
        uncommitted = ("-X", "isolation.level=read_uncommitted")
        with_them = _lag(capsys, "--group", group, *uncommitted)
        others.commit_transaction(_WAIT_S)
        _wait_for_end(bootstrap, topic, 10)
        after = _lag(capsys, "--group", group)

    assert _row(before) == _row(meanwhile) == (2, 6, 8, 1, 6)
    assert _row(with_them) == (2, 6, 9, 1 + 3 + 1, 6 + 3 + 1)
    assert _row(after) == (2, 6, 10, 2, 6 + 1)


def test_behind_the_last_record_marks_alone_are_no_lag(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    group: str,
    bootstrap: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _send(conf, "blob", topic, 2)
    _commit(group_conf, topic, {0: 2})
    more = {**_SEALED_BY_FLUSH, "blobmsg.route": "blob", "transactional.id": topic}
    with BlobProducer({**conf, **more}) as producer:
        producer.init_transactions(_WAIT_S)
        producer.begin_transaction()
        send(producer, topic, [b"value"] * 5)
        producer.abort_transaction(_WAIT_S)
    _wait_for_end(bootstrap, topic, 3)

    assert _row(_lag(capsys, "--group", group)) == (1, None, 3, 0, 0)


def test_a_commit_before_the_start_of_the_log_counts_from_there(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    group: str,
    bootstrap: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for records in (10, 5, 4):
        _send(conf, "blob", topic, records)
    _commit(group_conf, topic, {0: 3})
    admin: Any = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([partition(topic, 0, 2)]).values():
        deleted.result(_WAIT_S)

    assert _row(_lag(capsys, "--group", group)) == (0, 7, 3, 1, 4)


def test_a_damaged_notification_is_named_and_counts_as_one(
    conf: dict[str, Any],
    group: str,
    bootstrap: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _send(conf, "blob", topic, 10)
    with StockProducer({"bootstrap.servers": bootstrap}) as producer:
        send(producer, topic, [b"\xb1BMN\x01damaged"], headers=_NOTIFICATION)
    _send(conf, "inline", topic, 3)

    assert main(["lag", "--json", "--group", group, "--topic", topic]) == 1

    output = capsys.readouterr()
    facts = json.loads(output.out)
    assert _row(facts) == (None, None, 3, 3, 10 + 1 + 3)
    assert facts["unreadable"] == facts["partitions"][0]["unreadable"] == 1
    assert f"notification in {topic} [0] at Kafka offset 1: " in output.err


def test_a_group_at_work_is_left_alone(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    group: str,
    bootstrap: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    revoked: list[Any] = []
    _send(conf, "blob", topic, 10)
    with BlobConsumer(group_conf) as member:
        member.subscribe([topic], on_revoke=lambda _consumer, places: revoked.append(places))
        member.commit(message=read(member, 3)[-1], asynchronous=False)
        facts = _lag(capsys, "--group", group)
        rest = read(member, 7)
        member.commit(message=rest[-2], asynchronous=False)

        assert _row(facts) == (0, 7, 1, 1, 7)
        assert [message.value() for message in rest] == [b"%d" % i for i in range(3, 10)]
        assert revoked == []
    assert _row(_lag(capsys, "--group", group)) == (0, 1, 1, 1, 1)
    stock = {"bootstrap.servers": bootstrap, "group.id": group}
    with StockConsumer(stock) as reader:
        (place,) = reader.committed([partition(topic)], timeout=_WAIT_S)
    assert place.offset == 0
