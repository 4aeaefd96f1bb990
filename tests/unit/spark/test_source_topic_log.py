"""What the driver asks Kafka: on librdkafka's mock cluster."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError

from blobmsg.errors import BlobmsgError
from blobmsg_spark import topic_log, topic_metadata
from blobmsg_spark.offset_ranges import LogBounds
from blobmsg_spark.source_options import parse_source_options
from blobmsg_spark.topic_log import TopicLog
from blobmsg_spark.topic_metadata import TopicMetadata
from tests.helpers.listing_admin import ListingAdmin
from tests.helpers.mock_topic import kafka_with_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobmsg.testing import MockKafka
    from blobmsg_spark.source_options import SourceOptions

_RECORDS = 8
_LIST_OFFSETS = 2
_ALL = {("t", 0), ("t", 1)}
_BOUNDS = {("t", 0): LogBounds(0, _RECORDS), ("t", 1): LogBounds(0, 0)}

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with kafka_with_records(_RECORDS) as kafka:
        yield kafka


def _options(kafka: MockKafka, **options: str) -> SourceOptions:
    given = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.log_level": "0",
        "blobmsg.store.url": "memory://log",
        **(options or {"subscribe": "t"}),
    }
    return parse_source_options(given, is_streaming=True)


@pytest.fixture
def log(kafka: MockKafka) -> Iterator[TopicLog]:
    with closing(TopicLog(_options(kafka))) as log:
        yield log


def test_the_ends_of_what_is_there_and_nothing_of_what_is_not(
    log: TopicLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_log, "_SHORT_LOG_S", 0.5)
    assert log.bounds_of_all(_ALL) == _BOUNDS
    assert log.bounds({*_ALL, ("t", 2)}) == _BOUNDS
    with pytest.raises(BlobmsgError, match=r"t \[2\]: Kafka has it, but does not tell"):
        log.bounds_of_all({("t", 2)})


@pytest.mark.parametrize("lost", [[0], [0, 1]])
def test_a_partition_without_a_leader_is_waited_for(
    kafka: MockKafka, log: TopicLog, lost: list[int]
) -> None:
    for partition in lost:
        kafka._lead("t", partition, -1)

    def elect() -> None:
        for partition in lost:
            kafka.elect("t", partition, "a")

    electing = threading.Timer(1, elect)
    electing.start()

    assert log.bounds(_ALL) == _BOUNDS
    electing.join()


@pytest.mark.parametrize("is_away", [True, False])
def test_a_leader_that_does_not_come_is_an_error_and_no_loss(
    kafka: MockKafka, log: TopicLog, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    log.bounds(_ALL)
    monkeypatch.setattr(topic_log, "_RETRY_UNTIL_S", 1.0)
    monkeypatch.setattr(topic_log, "_REQUEST_S", 1.0)
    monkeypatch.setattr(log._metadata, "_request_s", 1.0)
    if is_away:
        kafka.go_away()
    else:
        kafka._lead("t", 0, -1)

    text = r"Kafka at .* does not answer" if is_away else r"t \[0\]: Kafka has not told for 1 s"
    with pytest.raises(BlobmsgError, match=text):
        log.highs(_ALL, {})


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,  # the connection ends: librdkafka tells an offset of -1001
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_leader_that_has_no_answer_is_asked_again(
    kafka: MockKafka, log: TopicLog, code: int
) -> None:
    log.bounds(_ALL)
    kafka.refuse_next(_LIST_OFFSETS, code)

    assert log.highs(_ALL, {}) == {("t", 0): _RECORDS, ("t", 1): 0}


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "check the permissions"),
        (KafkaError.UNKNOWN, "see the brokers' logs"),
    ],
)
def test_a_refusal_says_what_to_do(kafka: MockKafka, log: TopicLog, code: int, advice: str) -> None:
    log.bounds(_ALL)
    kafka.refuse_next(_LIST_OFFSETS, code)

    with pytest.raises(BlobmsgError, match=rf"t \[\d\] can't be read: .*{advice}"):
        log.highs(_ALL, {})


def test_a_topic_of_a_pattern_that_this_user_may_not_see_any_more_is_not_gone(
    kafka: MockKafka,
) -> None:
    options = _options(kafka, subscribePattern="t.")
    admin = ListingAdmin(["t1", "t2"])
    with closing(TopicLog(options)) as log:
        log._metadata = TopicMetadata(admin, 10)
        known = log.partitions(options.subscription, must_exist=False)
        admin.hidden = {"t2"}

        with pytest.raises(BlobmsgError, match=r"topic t2 can't be read: .*permissions"):
            log.partitions(options.subscription, must_exist=False, known=known)


@pytest.mark.parametrize("wrong", [{}, {("t", 0): _RECORDS - 1}])
def test_what_falls_short_once_is_asked_for_again_however_late_it_was_told(
    log: TopicLog, monkeypatch: pytest.MonkeyPatch, wrong: dict[tuple[str, int], int]
) -> None:
    monkeypatch.setattr(topic_log, "_SHORT_LOG_S", 0.0)
    list_offsets = log._list_offsets
    answers = [wrong]
    monkeypatch.setattr(
        log, "_list_offsets", lambda *_: answers.pop() if answers else list_offsets(*_)
    )

    assert log.highs([("t", 0)], {("t", 0): _RECORDS}) == {("t", 0): _RECORDS}


@pytest.mark.parametrize("few", [10, 0])
def test_topics_are_asked_for_by_name_or_all_together(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(topic_metadata, "_FEW_TOPICS", few)
    options = _options(kafka, assign='{"t": [1]}')
    with closing(TopicLog(options)) as log:
        assert log.partitions(options.subscription, must_exist=True) == {("t", 1)}
        assert log.bounds(_ALL) == _BOUNDS
    options = _options(kafka, subscribe="t,tt")
    with closing(TopicLog(options)) as log:
        with pytest.raises(BlobmsgError, match=r"no topic tt, .* Did you mean t\?"):
            log.partitions(options.subscription, must_exist=True)
        assert log.partitions(options.subscription, must_exist=False) == _ALL
    options = _options(kafka, subscribePattern=".")
    with closing(TopicLog(options)) as log:
        assert log.partitions(options.subscription, must_exist=True) == _ALL
