"""The end of a producer while calls of its threads hang or fail: its time, and what is left."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from blobmsg import BlobProducer
from blobmsg.format.rows import drop_unused
from blobmsg.notifier_thread import NotifierThread
from blobmsg.producer import pipeline_of
from blobmsg.producer_events import ProducerEvents
from blobmsg.producer_pipeline import ProducerPipeline
from blobmsg.producer_topics import ProducerTopics
from blobmsg.resources import shared
from blobmsg.testing import Fault, FaultStore, MockKafka
from blobmsg.topic_directory import TopicDirectory
from tests.helpers.living_clients import living_clients, needs_living_clients
from tests.helpers.records import Reports, flush, partition, produce, wait_until
from tests.helpers.stock import StockConsumer, StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from blobmsg.outbox import Outbox
    from blobmsg.passthrough import Passthrough

MESSAGE_TIMEOUT_S = 2
# As Kafka's protocol numbers its requests.
_PRODUCE = 0
_INIT_PRODUCER_ID = 22
_ADD_OFFSETS_TO_TXN = 25

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as kafka:
        kafka.create_topic("t")
        yield kafka


@pytest.fixture
def store() -> Iterator[FaultStore]:
    store = FaultStore()
    yield store
    store.close()


@pytest.fixture
def conf(kafka: MockKafka, store: FaultStore) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "log_level": 0,
        "message.timeout.ms": MESSAGE_TIMEOUT_S * 1000,
        "blobmsg.store.url": store.url,
        "blobmsg.route": "blob",
        "blobmsg.retention.ms": 3_600_000,
    }


@pytest.fixture
def its_clients(kafka: MockKafka) -> Callable[[], set[str]]:
    """Which of librdkafka's clients live that were made in this test, but for Kafka itself."""
    del kafka  # it is one of those before
    gc.collect()
    before = living_clients()
    return lambda: living_clients() - before


def _close(producer: BlobProducer) -> float:
    started = time.monotonic()
    producer.close()
    return time.monotonic() - started


def _close_and_see_its_clients_end(
    producer: BlobProducer, its_clients: Callable[[], set[str]]
) -> None:
    assert its_clients()
    producer.close()
    _see_its_clients_end(producer, its_clients)


def _see_its_clients_end(producer: BlobProducer, its_clients: Callable[[], set[str]]) -> None:
    """Though the producer lives on."""
    wait_until(lambda: not its_clients(), "its clients have ended")
    assert len(producer) == 0


def test_it_ends_in_time_though_the_topic_is_asked_for_where_no_broker_answers(
    conf: dict[str, Any], kafka: MockKafka
) -> None:
    kafka.go_away()
    reports = Reports()
    producer = BlobProducer(conf)
    produce(producer, "t", b"v", on_delivery=reports)

    took_s = _close(producer)

    assert took_s < MESSAGE_TIMEOUT_S + 1
    assert reports.codes == [KafkaError._MSG_TIMED_OUT]


def test_it_ends_in_time_though_kafka_is_away_and_uploads_hang(
    conf: dict[str, Any], kafka: MockKafka, store: FaultStore
) -> None:
    never = threading.Event()
    reports = Reports()
    producer = BlobProducer({**conf, "blobmsg.batch.interval.ms": 10})
    callback_s = 0.0

    def produce_again(*_report: object) -> None:
        """While it closes: uploads that begin so late are still wanted at its end."""
        nonlocal callback_s
        started = time.monotonic()
        for _ in range(20):
            producer.produce("t", b"too late")
            producer.poll(0.05)
        callback_s = time.monotonic() - started

    produce(producer, "t", b"stored", on_delivery=reports)
    flush(producer)
    store.add(Fault("put", times=None, gate=never))
    kafka.go_away()
    produce(producer, "t", b"v", on_delivery=produce_again)
    try:
        took_s = _close(producer)
    finally:
        never.set()

    assert took_s - callback_s < MESSAGE_TIMEOUT_S + 1  # what a callback takes is its own
    assert reports.codes == [None]


def test_who_presses_ctrl_c_while_threads_end_leaves_nothing_that_clients_share(
    conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = set(shared._held)
    producer = BlobProducer(conf)
    its_own = set(shared._held) - held

    stop = ProducerPipeline.stop

    def stop_interrupted(pipeline: ProducerPipeline, timeout_s: float) -> None:
        signal.raise_signal(signal.SIGINT)
        stop(pipeline, timeout_s)

    monkeypatch.setattr(ProducerPipeline, "stop", stop_interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.close()

    assert its_own
    assert not its_own & set(shared._held)


def test_who_presses_ctrl_c_twice_is_told_what_is_lost(
    conf: dict[str, Any],
    kafka: MockKafka,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka.go_away()
    producer = BlobProducer(conf)
    produce(producer, "t", b"v")
    stop = ProducerPipeline.stop

    def flush_interrupted(_pipeline: ProducerPipeline, _timeout_s: float) -> None:
        signal.raise_signal(signal.SIGINT)

    def stop_interrupted(pipeline: ProducerPipeline, timeout_s: float) -> None:
        signal.raise_signal(signal.SIGINT)
        stop(pipeline, timeout_s)

    monkeypatch.setattr(ProducerPipeline, "flush", flush_interrupted)
    monkeypatch.setattr(ProducerPipeline, "stop", stop_interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.close()

    assert "closed with 1 records undelivered" in caplog.text


def test_it_keeps_no_memory_for_rows_to_come(conf: dict[str, Any]) -> None:
    producer = BlobProducer(conf)
    for _ in range(2):  # so that the second time finds what the first has left
        for _ in range(10_000):
            produce(producer, "t", b"v" * 1000)
        flush(producer)
    producer.close()
    del producer
    gc.collect()

    kept = drop_unused() + drop_unused()
    assert kept < 10_000 * 8  # its own would be more; a producer of another test may end meanwhile


class Ends:
    """The ends of a producer's clients, each of which waits for an answer of a name server, say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer = threading.Event()
        self.by: list[threading.Thread] = []
        end = self._end

        class Producer(StockProducer):
            def __del__(self) -> None:
                end()

        class Admin(AdminClient):
            def __del__(self) -> None:
                end()

        monkeypatch.setattr("blobmsg.producer._StockProducer", Producer)
        monkeypatch.setattr("blobmsg.resources.AdminClient", Admin)

    def _end(self) -> None:
        self.answer.wait()
        self.by.append(threading.current_thread())

    def wait_for(self, count: int) -> None:
        """Wait for so many; none is on this thread."""
        wait_until(lambda: len(self.by) == count, "its clients have ended")
        assert threading.current_thread() not in self.by


@pytest.mark.parametrize(
    ("end", "takes_s"), [(BlobProducer.close, MESSAGE_TIMEOUT_S), (BlobProducer.__del__, 0)]
)
def test_it_ends_in_time_though_the_end_of_its_clients_hangs(
    conf: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[BlobProducer], object],
    takes_s: float,
) -> None:
    ends = Ends(monkeypatch)
    producer = BlobProducer({**conf, "blobmsg.topics": "t"})
    produce(producer, "t", b"v")
    produce(producer, "plain", b"v")
    flush(producer)
    started = time.monotonic()
    try:
        end(producer)
    finally:
        took_s = time.monotonic() - started
        ends.answer.set()

    assert took_s < takes_s + 1
    ends.wait_for(3)


def test_nor_does_it_wait_for_them_where_a_defect_has_ended_the_thread_that_had_them(
    conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(monkeypatch)
    producer = BlobProducer(conf)
    pipeline = pipeline_of(producer)
    monkeypatch.setattr(NotifierThread, "do_round", _fail_by_a_defect)
    pipeline._wake.set()
    wait_until(lambda: pipeline.has_defect, "its thread has ended")
    try:
        with pytest.raises(KafkaException, match="a defect"):
            producer.close()
    finally:
        ends.answer.set()

    ends.wait_for(2)


def test_its_clients_have_ended_when_it_returns(
    conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blobmsg.producer._STOP_TIMEOUT_S", 60)
    ends = Ends(monkeypatch)
    producer = BlobProducer({**conf, "blobmsg.topics": "t", "message.timeout.ms": 60_000})
    produce(producer, "t", b"v")
    produce(producer, "plain", b"v")
    flush(producer)
    threading.Timer(0.2, ends.answer.set).start()

    producer.close()

    assert len(ends.by) == 3


@pytest.mark.parametrize("call", ["list_topics", "cluster_id"])
def test_a_failure_that_is_kept_keeps_no_client(
    conf: dict[str, Any], kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    if not hasattr(StockProducer, call):
        pytest.skip("this confluent-kafka can't be asked for it")
    ends = Ends(monkeypatch)
    ends.answer.set()
    kafka.go_away()
    producer = BlobProducer(conf)
    with pytest.raises(KafkaException) as raised:
        getattr(producer, call)(timeout=0.1)
    producer.close()

    ends.wait_for(2)
    assert raised.value.args[0].code() in {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}


@pytest.mark.parametrize(
    ("call", "arguments"),
    [("list_topics", ()), ("cluster_id", ()), ("set_sasl_credentials", ("user", "password"))],
)
def test_a_question_beside_it_is_refused(
    conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch, call: str, arguments: tuple[str, ...]
) -> None:
    producer = BlobProducer(conf)
    check = "_BlobProducer__check_handle"

    def close_meanwhile(_producer: BlobProducer) -> None:
        thread = threading.Thread(target=producer.close)
        thread.start()
        thread.join()

    monkeypatch.setattr(BlobProducer, check, close_meanwhile)
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        getattr(producer, call)(*arguments)


def test_a_record_that_another_thread_adds_meanwhile_is_not_lost_in_silence(
    conf: dict[str, Any],
    kafka: MockKafka,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop = ProducerPipeline.stop
    producer = BlobProducer({**conf, "blobmsg.topics": "t"})
    passthrough: Passthrough = vars(producer)["_BlobProducer__passthrough"]
    disconnect = ProducerEvents.disconnect

    def disconnect_late(events: ProducerEvents) -> None:
        """As if another thread had looked just before whether the producer is closed."""
        kafka.answer_after(60_000)
        for _ in range(2):
            passthrough.produce("plain", b"late", None, -1, None, 0, None)
        disconnect(events)

    def stop_late(pipeline: ProducerPipeline, timeout_s: float) -> None:
        """Likewise, for a record of the other kind."""
        pipeline.record_path.append("t", None, b"late", 0, 1, None, None, 4, False)
        with pytest.raises(RuntimeError, match="closed"):
            passthrough.produce("plain", b"too late", None, -1, None, 0, None)
        stop(pipeline, timeout_s)

    produce(producer, "t", b"v")
    produce(producer, "plain", b"v")
    flush(producer)
    monkeypatch.setattr(ProducerEvents, "disconnect", disconnect_late)
    monkeypatch.setattr(ProducerPipeline, "stop", stop_late)
    producer.close()

    assert "closed with 3 records undelivered" in caplog.text


def test_what_waits_for_poll_and_is_no_record_is_not_counted_as_one(
    conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop = ProducerPipeline.stop

    def stop_and_fail(pipeline: ProducerPipeline, timeout_s: float) -> None:
        time.sleep(0.3)  # a plain topic's client would have statistics by then
        stop(pipeline, timeout_s)
        pipeline.log_failed(ValueError("the user's log handler has raised"))

    producer = BlobProducer({**conf, "blobmsg.topics": "t", "statistics.interval.ms": 50})
    produce(producer, "t", b"v")
    produce(producer, "plain", b"v")
    flush(producer)
    monkeypatch.setattr(ProducerPipeline, "stop", stop_and_fail)
    producer.close()

    assert "undelivered" not in caplog.text


def test_a_record_whose_callback_closes_is_not_counted_as_lost(
    conf: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[bool] = []
    producer = BlobProducer(conf)
    produce(producer, "t", b"v", on_delivery=lambda *_report: closed.append(producer.close()))
    producer.flush(30)

    assert closed == [True]
    assert "undelivered" not in caplog.text


def test_it_raises_what_a_callback_raises_while_the_open_transaction_is_aborted(
    conf: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_report: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FAIL, "the user's"))

    producer = BlobProducer({**conf, "transactional.id": "x"})
    producer.init_transactions(30)
    producer.begin_transaction()
    produce(producer, "t", b"v", on_delivery=fail)
    with pytest.raises(KafkaException, match="the user's"):
        producer.close()

    assert "open transaction, which is aborted" in caplog.text
    assert "could not be ended" not in caplog.text


@needs_living_clients
@pytest.mark.parametrize("call", ["poll", "flush", "close"])
def test_a_plain_topics_client_ends_though_its_callback_has_raised(
    conf: dict[str, Any], its_clients: Callable[[], set[str]], call: str
) -> None:
    def fail(*_report: object) -> None:
        raise ValueError("the user's")

    producer = BlobProducer({**conf, "blobmsg.topics": "t"})
    produce(producer, "plain", b"v", on_delivery=fail)
    with pytest.raises(ValueError, match="the user's"):
        wait_until(lambda: False, "the callback has raised", serve=getattr(producer, call))
    producer.close()  # which may be the second time
    _see_its_clients_end(producer, its_clients)


@needs_living_clients
def test_a_plain_topics_client_that_is_made_meanwhile_ends(
    conf: dict[str, Any], its_clients: Callable[[], set[str]]
) -> None:
    making, is_closed = threading.Event(), threading.Event()
    refusals: list[RuntimeError] = []
    producer = BlobProducer({**conf, "blobmsg.topics": "t"})
    passthrough: Passthrough = vars(producer)["_BlobProducer__passthrough"]
    make = passthrough._make

    def make_late() -> StockProducer:
        making.set()
        is_closed.wait()
        return make()

    def produce_too_late() -> None:
        try:
            producer.produce("plain", b"v")
        except RuntimeError as refusal:
            refusals.append(refusal)

    passthrough._make = make_late
    thread = threading.Thread(target=produce_too_late)
    thread.start()
    try:
        assert making.wait(30)
        producer.close()
    finally:
        is_closed.set()
        thread.join(30)

    assert [str(refusal) for refusal in refusals] == ["Producer has been closed"]
    _see_its_clients_end(producer, its_clients)


def test_an_upload_thread_that_is_being_replaced_is_no_hindrance(
    conf: dict[str, Any], store: FaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    never, replacing, is_closed = threading.Event(), threading.Event(), threading.Event()
    producer = BlobProducer({**conf, "blobmsg.batch.interval.ms": 10})
    store.add(Fault("put", times=None, gate=never))
    produce(producer, "t", b"v")
    assert store.arrived.wait(30)
    start = threading.Thread.start

    def start_late(thread: threading.Thread) -> None:
        if "-upload-" in thread.name:
            replacing.set()
            is_closed.wait()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    producer.purge(blocking=False)
    try:
        assert replacing.wait(30)
        producer.close()
    finally:
        is_closed.set()
        never.set()

    wait_until(lambda: set(threading.enumerate()) <= threads, "its threads have ended")


def test_a_purge_does_without_substitutes_where_no_thread_can_be_started(
    conf: dict[str, Any], store: FaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the user's handler of that warning raises."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "substitute" in record.getMessage():
                raise ValueError("the user's")

    handlers = logging.getLogger("blobmsg").handlers
    monkeypatch.setattr(logging.getLogger("blobmsg"), "handlers", [*handlers, Handler()])
    answer = threading.Event()
    reports = Reports()
    producer = BlobProducer({**conf, "blobmsg.batch.interval.ms": 10})
    store.add(Fault("put", gate=answer))
    produce(producer, "t", b"v", on_delivery=reports)
    assert store.arrived.wait(30)

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            producer.purge()
        with pytest.raises(ValueError, match="the user's"):
            wait_until(lambda: False, "the handler's failure is told", serve=producer.poll)
        produce(producer, "t", b"v", on_delivery=reports)
        flush(producer)
    finally:
        answer.set()
        producer.close()

    assert reports.codes == [KafkaError._PURGE_QUEUE, None]


def test_topics_are_asked_for_no_more(
    conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    all_wait, is_asking, answers = threading.Event(), threading.Event(), threading.Event()

    def read(_self: TopicDirectory, topic: str) -> Any:
        asked.append(topic)
        if topic == "first":
            all_wait.wait()
        else:
            is_asking.set()
            answers.wait()
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(TopicDirectory, "read", read)
    producer = BlobProducer({**conf, "message.timeout.ms": 300})
    for topic in ("first", "second", "third", "fourth"):
        produce(producer, topic, b"v")
    all_wait.set()
    assert is_asking.wait(30)
    thread = pipeline_of(producer)._producer_topics._thread
    producer.close()
    answers.set()
    thread.join(30)

    assert not thread.is_alive()
    assert set(asked) == {"first", "second"}


@needs_living_clients
def test_what_hangs_lets_go_of_kafka_when_it_ends_though_the_producer_lives_on(
    conf: dict[str, Any], kafka: MockKafka, its_clients: Callable[[], set[str]]
) -> None:
    kafka.go_away()
    producer = BlobProducer(conf)
    produce(producer, "t", b"v")
    producer.close()
    assert its_clients()

    kafka.come_back()
    _see_its_clients_end(producer, its_clients)


@needs_living_clients
@pytest.mark.parametrize(
    ("thread", "step"), [(NotifierThread, "do_round"), (ProducerTopics, "read_due")]
)
def test_a_thread_that_a_defect_has_ended_has_let_go_of_kafka(
    conf: dict[str, Any],
    thread: type,
    step: str,
    its_clients: Callable[[], set[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = BlobProducer(conf)
    assert its_clients()
    pipeline = pipeline_of(producer)
    monkeypatch.setattr(thread, step, _fail_by_a_defect)
    pipeline._wake.set()
    pipeline._producer_topics._wake.set()
    wait_until(lambda: pipeline.has_defect, "its thread has ended")

    with pytest.raises(KafkaException, match="a defect"):
        producer.close()
    _see_its_clients_end(producer, its_clients)


@needs_living_clients
def test_a_transactional_producer_lets_go_of_kafka_though_it_lives_on(
    conf: dict[str, Any], its_clients: Callable[[], set[str]]
) -> None:
    producer = BlobProducer({**conf, "transactional.id": "x"})
    producer.init_transactions(30)

    _close_and_see_its_clients_end(producer, its_clients)


@needs_living_clients
def test_so_does_one_whose_offsets_were_refused(
    conf: dict[str, Any], kafka: MockKafka, its_clients: Callable[[], set[str]]
) -> None:
    with StockConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}) as reader:
        group = reader.consumer_group_metadata()
    del reader
    producer = BlobProducer({**conf, "transactional.id": "x"})
    producer.init_transactions(30)
    producer.begin_transaction()
    kafka.refuse_next(_ADD_OFFSETS_TO_TXN, KafkaError.PRODUCER_FENCED)
    with pytest.raises(KafkaException, match="fenced"):
        producer.send_offsets_to_transaction([partition("t", 0, 1 << 20)], group, 30)

    _close_and_see_its_clients_end(producer, its_clients)


@needs_living_clients
def test_so_does_one_that_can_not_be_used_any_more(
    conf: dict[str, Any], kafka: MockKafka, its_clients: Callable[[], set[str]]
) -> None:
    kafka.refuse_next(_INIT_PRODUCER_ID, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    producer = BlobProducer({**conf, "transactional.id": "x"})
    with pytest.raises(KafkaException, match="authorization failed"):
        producer.init_transactions(30)

    with pytest.raises(KafkaException, match="authorization failed"):  # which `poll` would raise
        producer.close()
    _see_its_clients_end(producer, its_clients)


@needs_living_clients
def test_so_does_one_that_fails_for_good_while_it_delivers(
    conf: dict[str, Any], kafka: MockKafka, its_clients: Callable[[], set[str]]
) -> None:
    producer = BlobProducer(conf)
    kafka.refuse_next(_PRODUCE, *[KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER] * 3)
    produce(producer, "t", b"v")
    with pytest.raises(KafkaException) as raised:
        flush(producer)

    _close_and_see_its_clients_end(producer, its_clients)
    assert raised.value.args[0].fatal()  # kept until here, with its traceback


@needs_living_clients
def test_a_producer_whose_threads_can_not_be_started_leaves_nothing(
    conf: dict[str, Any], its_clients: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_self: ProducerTopics) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ProducerTopics, "start", start)
    threads = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="start new thread"):
        BlobProducer(conf)

    def is_nothing_left() -> bool:
        gc.collect()
        return not its_clients() and set(threading.enumerate()) <= threads

    wait_until(is_nothing_left, "threads and clients have ended")


def test_one_that_nobody_has_closed_is_collected_though_kafka_has_not_answered(
    conf: dict[str, Any], kafka: MockKafka
) -> None:
    producer = _with_one_in_flight(conf, kafka)
    of_it = weakref.ref(pipeline_of(producer)._outbox)
    del producer

    _wait_until_it_is_collected(of_it)


def test_one_that_a_defect_has_ended_is_collected_though_kafka_has_not_answered(
    conf: dict[str, Any], kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = _with_one_in_flight(conf, kafka)
    of_it = weakref.ref(pipeline_of(producer)._outbox)

    # pytest would keep the traceback.
    monkeypatch.setattr(logging.getLogger("blobmsg.producer"), "disabled", True)
    monkeypatch.setattr(NotifierThread, "do_round", _fail_by_a_defect)
    wait_until(partial(getattr, pipeline_of(producer), "has_defect"), "its thread has ended")
    with pytest.raises(KafkaException, match="a defect"):
        producer.close()
    del producer

    _wait_until_it_is_collected(of_it)


def _fail_by_a_defect(_of_ours: object) -> None:
    raise AssertionError("a defect")


def _with_one_in_flight(conf: dict[str, Any], kafka: MockKafka) -> BlobProducer:
    """A producer that has sent a notification which Kafka does not answer."""
    producer = BlobProducer({**conf, "blobmsg.batch.interval.ms": 10, "message.timeout.ms": 60_000})
    produce(producer, "t", b"v")
    flush(producer)
    kafka.go_away()
    produce(producer, "t", b"v")
    outbox = pipeline_of(producer)._outbox
    wait_until(lambda: outbox.in_flight == 1, "its notification is sent")
    return producer


def _wait_until_it_is_collected(of_it: weakref.ref[Outbox]) -> None:
    def is_collected() -> bool:
        gc.collect()
        return of_it() is None

    wait_until(is_collected, "it is collected")
