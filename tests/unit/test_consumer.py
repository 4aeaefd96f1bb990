"""BlobConsumer without a broker: what its own decisions are, on an inner client that records."""

from __future__ import annotations

import signal
import threading
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg import BlobConsumer, offset_check
from blobmsg.errors import UnsupportedFormat
from blobmsg.message import Message
from tests.helpers.private import private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobmsg.core.positions import CommitEntry

TOPIC = "orders"


def unconnected(**more: Any) -> BlobConsumer:
    return BlobConsumer(
        {
            "bootstrap.servers": "127.0.0.1:1",  # nobody answers, and nothing here asks
            "group.id": "g",
            "blobmsg.store.url": "memory://test-consumer",
            "log_level": 0,
            **more,
        }
    )


@pytest.fixture
def consumer() -> Iterator[BlobConsumer]:
    consumer = unconnected()
    yield consumer
    consumer.close()


def committed_by(consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch) -> list[CommitEntry]:
    """Records what the consumer commits; assigns one partition with one record handed out."""
    consumption: Any = private(consumer, "consumption")
    committed: list[CommitEntry] = []

    def commit(entries: list[CommitEntry], *, asynchronous: bool) -> None:
        assert not asynchronous
        committed.extend(entries)

    monkeypatch.setattr(consumption.commits, "commit", commit)
    flow = consumption._core.assigned((TOPIC, 0), None)
    flow.settled_position = 5 << 20
    return committed


def test_revoked_partitions_are_committed_and_forgotten(
    consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = committed_by(consumer, monkeypatch)

    private(consumer, "on_revoked")(None, [TopicPartition(TOPIC, 0)])

    assert [(entry.partition, entry.kafka_offset) for entry in committed] == [(0, 5)]
    assert private(consumer, "consumption").assignment.keys() == []


def test_lost_partitions_are_forgotten_but_not_committed(
    consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = committed_by(consumer, monkeypatch)

    private(consumer, "on_lost")(None, [TopicPartition(TOPIC, 0)])

    assert committed == []
    assert private(consumer, "consumption").assignment.keys() == []


def test_a_timeout_of_none_is_refused_even_while_a_record_is_ready(
    consumer: BlobConsumer,
) -> None:
    private(consumer, "consumption")._handout.add_errors([Message(TOPIC, 0, 1)])

    with pytest.raises(TypeError, match="must be real number"):
        consumer.poll(None)  # type: ignore[arg-type]


def test_committed_offsets_with_an_error_keep_it(
    consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = SimpleNamespace(
        topic=TOPIC,
        partition=1,
        offset=-1001,
        metadata=None,
        error=KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT),
    )
    inner = SimpleNamespace(
        committed=lambda *_: [TopicPartition(TOPIC, 0, 7, "blobmsg1:2;mine"), failed]
    )
    with monkeypatch.context() as patch:
        patch.setattr(consumer, "_BlobConsumer__inner", inner)
        good, bad = consumer.committed([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])

    assert (good.offset, good.metadata, good.error) == ((8 << 20) - 2, "mine", None)
    assert bad.offset == -1001
    assert bad.error is not None
    assert bad.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT


def test_a_committed_offset_of_a_later_version_is_refused_by_name(
    consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [TopicPartition(TOPIC, 3, 7, "blobmsg2:2")]
    with monkeypatch.context() as patch:
        patch.setattr(
            consumer, "_BlobConsumer__inner", SimpleNamespace(committed=lambda *_: answers)
        )
        with pytest.raises(UnsupportedFormat, match=r"orders \[3\].*version 2"):
            consumer.committed([TopicPartition(TOPIC, 3)])


def test_the_check_of_offsets_has_one_deadline_for_all_partitions(
    consumer: BlobConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    timeouts: list[float] = []

    def watermarks(
        _partition: TopicPartition, timeout: float = -1, *, cached: bool = False
    ) -> tuple[int, int]:
        nonlocal now
        if cached:
            return -1001, -1001
        timeouts.append(timeout)
        now += timeout * 0.75
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with monkeypatch.context() as patch:
        patch.setattr(
            consumer, "_BlobConsumer__inner", SimpleNamespace(get_watermark_offsets=watermarks)
        )
        patch.setattr(offset_check, "time", SimpleNamespace(monotonic=lambda: now))
        private(consumer, "check_offsets")([TopicPartition(TOPIC, n, 5 << 20) for n in range(50)])

    assert sum(timeouts) * 0.75 <= 1.0


def test_close_from_a_second_thread_returns_and_closes_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = unconnected()
    closes: list[bool] = []
    is_closing, goes_on = threading.Event(), threading.Event()
    original = private(consumer, "consumption").close

    def close(*, commits_first: bool) -> None:
        closes.append(commits_first)
        is_closing.set()
        assert goes_on.wait(10)
        original(commits_first=commits_first)

    monkeypatch.setattr(private(consumer, "consumption"), "close", close)
    first = threading.Thread(target=consumer.close)
    first.start()
    assert is_closing.wait(10)
    consumer.close()
    goes_on.set()
    first.join(10)

    assert closes == [True]
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)


def test_ctrl_c_at_the_beginning_of_close_closes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = unconnected()

    class Closing:
        def acquire(self, *, blocking: bool) -> bool:
            assert not blocking
            signal.raise_signal(signal.SIGINT)
            return True

    monkeypatch.setattr(consumer, "_BlobConsumer__closing", Closing())

    with pytest.raises(KeyboardInterrupt):
        consumer.close()

    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)


@pytest.mark.parametrize("timeout", [None, "1", [], object()])
def test_a_timeout_that_is_no_number_is_refused_whether_or_not_a_record_is_there(
    consumer: BlobConsumer, timeout: Any
) -> None:
    consumption: Any = private(consumer, "consumption")
    consumption._next_service = float("inf")
    consumption._undelivered.messages += [Message(TOPIC, 0, 5)]

    with pytest.raises(TypeError, match=f"must be real number, not {type(timeout).__name__}"):
        consumer.poll(timeout)

    polled = consumer.poll(Fraction(1))  # type: ignore[arg-type]  # stock takes it
    assert polled is not None
    assert polled.offset() == 5
    assert consumer.poll(Decimal(0)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (None, 0),
        (KafkaError(KafkaError._NO_OFFSET), 0),
        (KafkaError(KafkaError._TRANSPORT), 1),
    ],
)
@pytest.mark.parametrize("hears", [False, True])
def test_automatic_commits_that_fail_later_are_logged_unless_the_user_hears_of_them(
    caplog: pytest.LogCaptureFixture, error: KafkaError | None, lines: int, *, hears: bool
) -> None:
    heard: list[Any] = []
    conf: dict[str, Any] = {"on_commit": lambda *arguments: heard.append(arguments)}
    consumer = unconnected(**(conf if hears else {}))

    private(consumer, "events").on_commit(error, [])

    consumer.close()
    assert heard == ([(error, [])] if hears else [])
    assert sum("commit failed" in line for line in caplog.messages) == (0 if hears else lines)
