"""The pipeline's threads on a Kafka that is a few lines of Python: what happens when it is away."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg import producer_setup, producer_topics, store_watch
from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.core.producer_core import CHARGE_BYTES_PER_SEGMENT
from blobmsg.core.segments import SegmentState
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD
from blobmsg.errors import StoreUnavailable
from blobmsg.kafka_settings import KafkaView
from blobmsg.producer_pipeline import ProducerPipeline
from blobmsg.resources import Stores
from blobmsg.store.memory import MemoryStore
from blobmsg.testing import ManualClock
from tests.helpers.pipeline import AcknowledgingKafka, Directory, RunningPipeline
from tests.helpers.records import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from blobmsg.topic_directory import TopicFacts

TOPIC = "orders"


class Kafka(AcknowledgingKafka):
    """The inner producer, whose queue may be full."""

    def __init__(self, *, is_full: bool) -> None:
        super().__init__()
        self.is_full = is_full

    def produce(self, topic: str, **arguments: Any) -> None:
        if self.is_full:
            raise BufferError("Local: Queue full")
        super().produce(topic, **arguments)


class SlowDirectory(Directory):
    """Every topic has one partition; it is told when `answers` is set."""

    def __init__(self, *, answers: bool = True, patience_s: float = 0.05) -> None:
        super().__init__(partitions=1)
        self.answers = threading.Event()
        self._patience_s = patience_s
        self.reads = 0
        if answers:
            self.answers.set()

    def read(self, topic: str) -> TopicFacts:
        self.reads += 1
        if not self.answers.wait(self._patience_s):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return super().read(topic)


@pytest.fixture
def start() -> Iterator[Callable[..., ProducerPipeline]]:
    made: list[ProducerPipeline] = []

    def start(
        kafka: Kafka,
        directory: SlowDirectory | None = None,
        clock: ManualClock | None = None,
        **conf: Any,
    ) -> ProducerPipeline:
        settings, kafka_conf = parse_settings(
            {"blobmsg.store.url": "memory://test-pipeline", **conf}, {}
        )
        pipeline = ProducerPipeline(
            kafka,
            settings,
            KafkaView.parse(kafka_conf),
            directory=directory or SlowDirectory(),  # type: ignore[arg-type]
            stores=Stores(settings),
            on_store_error=lambda _: None,
            clock=clock or SystemClock(),
            name="test",
            producer_id=bytes(16),
        )
        if clock is None:  # else the test does what its threads would
            pipeline.start()
            made.append(pipeline)
        return pipeline

    yield start
    for pipeline in made:
        if not pipeline._is_stopping:
            pipeline.stop(2.0)


def append(pipeline: ProducerPipeline, value: bytes, callback: Callable[..., Any] | None) -> None:
    pipeline.record_path.append(TOPIC, None, value, 0, 1, None, callback, len(value))


@pytest.mark.parametrize("route", ["inline", "plain"])
def test_what_kafkas_full_queue_keeps_waiting_times_out(
    start: Callable[..., ProducerPipeline], route: str
) -> None:
    told: list[int] = []
    pipeline = start(Kafka(is_full=True), **{"blobmsg.route": route, "message.timeout.ms": 2000})

    for _ in range(20):
        append(pipeline, b"v", lambda error, _message: told.append(error.code()))

    assert pipeline.flush(10) == 0
    assert told == [KafkaError._MSG_TIMED_OUT] * 20


def test_a_record_of_an_unknown_topic_times_out_while_the_cluster_is_asked(
    start: Callable[..., ProducerPipeline],
) -> None:
    told: list[int] = []
    directory = SlowDirectory(answers=False, patience_s=20)
    pipeline = start(Kafka(is_full=False), directory, **{"message.timeout.ms": 200})

    append(pipeline, b"v", lambda error, _message: told.append(error.code()))

    assert pipeline.flush(10) == 0  # before the cluster answers
    assert told == [KafkaError._MSG_TIMED_OUT]
    directory.answers.set()


def test_a_topic_that_records_wait_for_is_asked_about_each_second_however_long_kafka_was_away(
    start: Callable[..., ProducerPipeline],
) -> None:
    clock = ManualClock()
    directory = SlowDirectory(answers=False, patience_s=0)
    pipeline = start(Kafka(is_full=False), directory, clock, **{"message.timeout.ms": 2000})

    def reads_in(seconds: int) -> list[int]:
        """When the topic is read, in ms from now on."""
        begun_ms, found = clock.now_ms(), []
        while (passed_ms := clock.now_ms() - begun_ms) < seconds * 1000:
            reads = directory.reads
            pipeline.read_topics()
            if directory.reads > reads:
                found.append(passed_ms)
            pipeline.notifier_thread.do_round()
            clock.advance(100)
        return found

    append(pipeline, b"early", None)
    assert reads_in(2) == [0, 300, 800, 1800]
    assert len(reads_in(20)) == 4  # nothing waits any more

    append(pipeline, b"late", None)
    assert reads_in(2) == [0, 1000]


def test_records_that_time_out_together_are_reported_in_order_and_free_their_memory(
    start: Callable[..., ProducerPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_topics, "_FAILED_BYTES", 1000)
    monkeypatch.setattr(producer_topics, "_FAILED_AT_ONCE", 7)
    told: list[tuple[int, int | None, bytes]] = []

    def heard(error: KafkaError, message: Any) -> None:
        told.append((error.code(), message.partition(), message.value()))

    directory = SlowDirectory(answers=False, patience_s=20)
    pipeline = start(Kafka(is_full=False), directory, **{"message.timeout.ms": 300})
    places = [-1] * 20 + [3] * 5 + [-1, 4] * 3
    for number, place in enumerate(places):
        value = b"%d" % number
        pipeline.record_path.append(TOPIC, None, value, place, 1, None, heard, len(value))

    assert pipeline.flush(10) == 0  # before the cluster answers
    assert told == [
        (KafkaError._MSG_TIMED_OUT, None if place < 0 else place, b"%d" % number)
        for number, place in enumerate(places)
    ]
    assert pipeline._memory.held_bytes == 0
    directory.answers.set()


def test_inline_bytes_that_kafka_does_not_take_are_bounded(
    start: Callable[..., ProducerPipeline],
) -> None:
    kafka = Kafka(is_full=True)
    # Small enough to be inline: larger ones would go to the store and leave the buffer.
    batches = {"blobmsg.route": "inline", "blobmsg.batch.size.bytes": 65_536}
    pipeline = start(kafka, **batches, **{"queue.buffering.max.kbytes": 8192})
    value = bytes(10_000)

    def fill() -> None:
        for _ in range(20_000):  # 200 MB
            append(pipeline, value, None)

    with pytest.raises(BufferError):
        fill()

    last_bytes = len(value) + CHARGE_BYTES_PER_RECORD + CHARGE_BYTES_PER_SEGMENT
    assert pipeline._memory.held_bytes <= 8192 * 1024 + last_bytes
    kafka.is_full = False
    assert pipeline.flush(10) == 0
    assert pipeline._memory.held_bytes == 0


def test_a_flush_seals_once_and_leaves_what_is_produced_after_it_alone(
    start: Callable[..., ProducerPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"blobmsg.route": "blob", "blobmsg.batch.interval.ms": 60_000}
    pipeline = start(Kafka(is_full=False), **more)

    seals: list[int] = []
    seal_all = pipeline._seal_all

    def count_and_seal() -> None:
        seals.append(1)
        seal_all()

    monkeypatch.setattr(pipeline, "_seal_all", count_and_seal)

    def heard(_error: Any, _message: Any) -> None:
        """So that there is a report to serve."""

    for number in range(1, 201):
        for _ in range(20):
            append(pipeline, b"v", heard)
        assert pipeline.flush(10) == 0
        assert pipeline.counters["notifications"] == number
    assert len(seals) == 200


def test_a_callback_may_flush_what_it_produces(start: Callable[..., ProducerPipeline]) -> None:
    told: list[bytes] = []
    pipeline = start(Kafka(is_full=False), **{"blobmsg.route": "blob"})
    remaining: list[int] = []

    def heard(error: KafkaError | None, message: Any) -> None:
        assert error is None
        told.append(message.value())
        if message.value() == b"0":
            append(pipeline, b"again", heard)
            remaining.append(pipeline.flush(10))

    for number in range(3):
        append(pipeline, b"%d" % number, heard)

    assert pipeline.flush(10) == 0
    assert remaining == [0]
    assert told == [b"0", b"1", b"2", b"again"]


def test_a_segment_that_has_failed_is_not_encoded_any_more(
    start: Callable[..., ProducerPipeline],
) -> None:
    pipeline = start(Kafka(is_full=False))
    action: Any = SimpleNamespace(segment=SimpleNamespace(state=SegmentState.FAILED))

    assert pipeline.upload_results.begin_inline(action) is None


def test_a_defect_in_a_thread_stops_the_producer_from_taking_more(
    start: Callable[..., ProducerPipeline],
) -> None:
    pipeline = start(Kafka(is_full=False))

    pipeline.thread_failed(ValueError("a defect"))

    with pytest.raises(Exception, match="a defect") as caught:
        append(pipeline, b"v", None)
    assert caught.value.args[0].fatal()


@pytest.mark.parametrize(("wait", "result"), [("serve", 0), ("flush", 1)])
def test_who_waits_without_a_limit_waits_no_more_when_another_thread_stops_the_pipeline(
    start: Callable[..., ProducerPipeline], wait: str, result: int
) -> None:
    pipeline = start(Kafka(is_full=True), **{"blobmsg.route": "plain", "message.timeout.ms": 0})
    append(pipeline, b"v", None)
    results: list[int] = []

    def waits() -> None:
        results.append(getattr(pipeline, wait)(-1))

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    wait_until(lambda: bool(pipeline._news._listening), "it waits")
    pipeline.stop(2.0)
    thread.join(10)

    assert results == [result]


# --- a topic that is not known yet ----------------------------------------------------------------

NEVER_BY_AGE = {"blobmsg.route": "blob", "blobmsg.batch.interval.ms": 900_000,
                "message.timeout.ms": 86_400_000}  # fmt: skip


def test_an_urgent_record_seals_its_lane_once_its_topic_is_known(
    start: Callable[..., ProducerPipeline],
) -> None:
    directory = SlowDirectory(answers=False)
    pipeline = start(Kafka(is_full=False), directory, **NEVER_BY_AGE)
    told: list[bytes] = []

    def heard(_error: KafkaError | None, message: Any) -> None:
        told.append(message.value())

    append(pipeline, b"before", heard)
    pipeline.record_path.append(TOPIC, None, b"urgent", 0, 1, None, heard, 6, is_urgent=True)
    directory.answers.set()

    while len(told) < 2:
        assert pipeline.serve(10) > 0
    assert told == [b"before", b"urgent"]


def test_a_flush_seals_what_waited_for_its_topic(start: Callable[..., ProducerPipeline]) -> None:
    directory = SlowDirectory(answers=False)
    pipeline = start(Kafka(is_full=False), directory, **NEVER_BY_AGE)
    append(pipeline, b"v", None)
    threading.Timer(0.2, directory.answers.set).start()

    assert pipeline.flush(10) == 0


# --- Kafka away, the store there ------------------------------------------------------------------


def test_nothing_is_stored_while_kafka_is_away_and_all_goes_when_it_is_back(
    start: Callable[..., ProducerPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_setup, "AWAY_AFTER_MS", 100)
    monkeypatch.setattr(producer_topics, "_PROBE_EVERY_MS", 20)
    directory = SlowDirectory()
    pipeline = start(Kafka(is_full=False), directory, **{"blobmsg.route": "blob", "linger.ms": 0})
    append(pipeline, b"first", None)
    assert pipeline.flush(10) == 0
    stored = pipeline.counters["object_bytes"]

    directory.answers.clear()
    pipeline.all_brokers_down()
    clock = SystemClock()
    wait_until(lambda: pipeline._core.presence.is_away(clock.now_ms()), "Kafka is away")
    append(pipeline, b"second", None)
    assert pipeline.flush(0.5) == 1
    assert pipeline.counters["object_bytes"] == stored

    directory.answers.set()
    assert pipeline.flush(10) == 0
    assert pipeline.counters["object_bytes"] > stored


def test_a_store_that_does_not_answer_is_told_of_before_records_time_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = MemoryStore.put
    is_away = True

    def answer(store: MemoryStore, key: str, data: Any, **more: Any) -> None:
        if is_away:
            raise StoreUnavailable("nothing listens at 127.0.0.1:1")
        put(store, key, data, **more)

    monkeypatch.setattr(MemoryStore, "put", answer)
    monkeypatch.setattr(store_watch, "_STORE_AWAY_MS", 300)
    running = RunningPipeline("away")
    running.produce(b"v" * 100)

    assert running.flush(0) == 1
    wait_until(lambda: bool(running.store_errors), "it is told of")
    assert running.flush(0.5) == 1
    is_away = False

    assert running.flush(20) == 0
    (error,) = running.store_errors
    assert error.code() == KafkaError._TRANSPORT
    assert "nothing listens at 127.0.0.1:1" in error.str()
    said = [r.getMessage() for r in caplog.records if "does not answer" in r.getMessage()]
    assert said == ["test: the store does not answer, it is asked on: " + error.str()]
    running.stop()
