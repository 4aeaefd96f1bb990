"""Threads, finalizers and seals meet in the step in which a record joins: none is lost."""

from __future__ import annotations

import gc
import itertools
import queue
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg import BlobProducer
from blobmsg.core.segments import OpenSegment
from blobmsg.format.rows import NARROW
from blobmsg.uploader import Uploader
from tests.helpers.pipeline import TOPIC, RunningProducer, check_order
from tests.helpers.records import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from blobmsg.core.segments import Batch
    from blobmsg.format.batch_object import BatchObject

RUN_S = 3.0
THREADS = 4


@pytest.fixture
def running(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningProducer]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    name = f"path-{abs(hash(request.node.name))}"
    made = RunningProducer(name, monkeypatch, **getattr(request, "param", {}))
    yield made
    sys.setswitchinterval(interval_s)
    made.stop()


class Told:
    """A delivery callback of its own for each record: counts."""

    def __init__(self) -> None:
        self.values: Counter[bytes] = Counter()

    def hear(self, error: object, message: Any) -> None:
        assert error is None
        self.values[message.value()] += 1


class Producing(threading.Thread):
    """Produces in all ways until the time is over."""

    def __init__(self, running: RunningProducer, source: int) -> None:
        super().__init__()
        self._running = running
        self._source = source
        self._end = time.monotonic() + RUN_S
        self._numbers = itertools.count()
        self.produced: list[bytes] = []
        self.told = Told()
        self.listened = 0

    def _value(self, first: bytes) -> bytes:
        return first + b"%08d" % next(self._numbers) + bytes(50)

    def run(self) -> None:
        for turn in itertools.cycle(range(40)):
            if time.monotonic() > self._end:
                return
            if turn == 0:
                self._batch()
                continue
            value = self._value(b"%d" % self._source)
            callback = self.told.hear if turn % 3 == 0 and self._source % 2 else None
            headers = [("n", b"1")] if turn == 20 and self._source == 3 else None
            self._until_there_is_room(value, headers, callback)
            self.produced.append(value)
            self.listened += callback is not None

    def _until_there_is_room(self, value: bytes, headers: Any, callback: Any) -> None:
        while True:
            with suppress(BufferError):
                self._running.produce(value, headers, callback)
                return
            self._running.serve(0.01)

    def _batch(self) -> None:
        # One that is refused comes behind later ones for which there was room.
        messages: list[dict[str, Any]] = [
            {"key": b"%d" % self._source, "value": self._value(b"b")} for _ in range(60)
        ]
        while messages:
            self._running.producer.produce_batch(TOPIC, messages)
            self.produced += [m["value"] for m in messages if "_error" not in m]
            messages = [{"key": m["key"], "value": m["value"]} for m in messages if "_error" in m]
            if messages:
                self._running.serve(0.01)


class Garbage:
    """A cycle whose finalizer produces: the collector runs it wherever an object is made.

    Thousands may be collected at once, on a thread that others wait for: it must be quick.
    """

    def __init__(
        self, running: RunningProducer, number: int, produced: set[bytes], living: set[int]
    ) -> None:
        self._myself = self
        self._running = running
        self._number = number
        self._produced = produced
        self._living = living
        living.add(number)

    def __del__(self) -> None:
        value = b"9%08d" % self._number + bytes(50)
        with suppress(BufferError):
            self._running.produce(value)
            self._produced.add(value)
        self._living.remove(self._number)


def test_threads_and_finalizers_produce_at_once(running: RunningProducer) -> None:
    threads = [Producing(running, source) for source in range(THREADS)]
    of_finalizers: set[bytes] = set()
    living: set[int] = set()
    numbers = itertools.count()
    thresholds = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for _ in range(20):
                Garbage(running, next(numbers), of_finalizers, living)
            running.serve(0.0005)
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*thresholds)
    # It does nothing while another thread is at it, whose finalizers may still run.
    wait_until(lambda: gc.collect() >= 0 and not living, "all finalizers have run")

    assert running.flush(20) == 0
    produced = Counter(of_finalizers)
    for thread in threads:
        produced.update(thread.produced)
    assert len(of_finalizers) > 20
    arrived = running.arrived()
    assert Counter(value for _, value in arrived) == produced
    for thread in threads:
        assert sum(thread.told.values.values()) == thread.listened
    assert running.pipeline._memory.held_bytes == 0
    assert running.pipeline._memory.records == 0
    # But for those of finalizers and batches, which could be refused in between.
    check_order([pair for pair in arrived if pair[1][:1] not in b"9b"])


@pytest.mark.parametrize("running", [{"blobmsg.batch.interval.ms": 60_000}], indirect=True)
def test_what_a_finalizer_produces_inside_of_the_core_is_neither_lost_nor_overlooked(
    running: RunningProducer,
) -> None:
    open_segment(running)
    pipeline, path = running.pipeline, running.pipeline.record_path
    deferred, looked = threading.Event(), threading.Event()
    others: list[bytes] = []

    def inside() -> None:
        with pipeline._core_lock:
            path.append(TOPIC, b"k", b"of a finalizer", 0, 1, None, None, 15)
        deferred.set()
        looked.wait(10)
        with suppress(BufferError):  # by the time it joins there is no room
            while True:
                path.append(TOPIC, b"k", bytes(50_000), 0, 1, None, None, 50_001)
                others.append(bytes(50_000))

    pipeline._jobs.put(inside)
    deferred.wait(10)
    assert pipeline.undelivered == 3
    assert running.flush(0) == 3
    looked.set()

    assert running.flush(20) == 0
    assert Counter(value for _, value in running.arrived()) == Counter(
        [b"first", b"second", b"of a finalizer", *others]
    )
    assert len(others) > 40


def test_inside_of_the_core_a_full_buffer_takes_nothing_either(running: RunningProducer) -> None:
    open_segment(running)
    pipeline = running.pipeline
    taken: queue.SimpleQueue[int] = queue.SimpleQueue()

    def inside() -> None:
        count = 0
        with pipeline._core_lock, suppress(BufferError):
            while count < 1000:
                pipeline.record_path.append(TOPIC, b"k", bytes(50_000), 0, 1, None, None, 50_001)
                count += 1
        taken.put(count)

    pipeline._jobs.put(inside)

    count = taken.get(timeout=10)
    assert count * 50_000 < pipeline._memory.limit_bytes
    assert running.flush(20) == 0
    assert len(running.arrived()) == count + 2
    assert pipeline._memory.held_bytes == 0


def test_what_a_finalizer_produced_inside_of_the_core_and_cannot_join_is_reported(
    running: RunningProducer,
) -> None:
    open_segment(running)
    pipeline = running.pipeline
    errors: list[KafkaError] = []

    def inside() -> None:
        with pipeline._core_lock:
            path, told = pipeline.record_path, lambda error, _message: errors.append(error)
            path.append(TOPIC, b"k", b"v", 999, 1, None, told, 2)

    pipeline._jobs.put_and_wait(inside)

    assert running.flush(20) == 0
    assert [error.code() for error in errors] == [KafkaError._UNKNOWN_PARTITION]
    assert pipeline._memory.held_bytes == 0


def test_a_trace_function_lets_nobody_lose_a_record(running: RunningProducer) -> None:
    # Debuggers and coverage run Python code between any two lines.
    def trace(_frame: FrameType, _event: str, _argument: object) -> Any:
        return trace

    def produce() -> None:
        sys.settrace(trace)
        for number in range(4000):
            value = b"%08d" % number + bytes(50)
            while True:
                with suppress(BufferError):
                    running.producer.produce(TOPIC, value, b"k" if number % 2 else None)
                    break
                running.serve(0.01)

    threads = [threading.Thread(target=produce) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert running.flush(20) == 0
    assert len(running.arrived()) == 12_000


def test_without_a_key_any_partition_has_the_same_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf = {"sticky.partitioning.linger.ms": 0, "blobmsg.batch.interval.ms": 60_000}
    running = RunningProducer("even", monkeypatch, **conf)
    running.producer.produce(TOPIC, b"first")
    while not running.pipeline._producer_topics.usable:
        time.sleep(0.01)

    # Choosing opens a segment only for the record that goes there.
    lanes = running.pipeline._producer_topics.usable[TOPIC].lanes
    for _ in range(300):
        running.producer.produce(TOPIC, b"v")
    counts = [segment.record_count for segment in lanes.open_segments if segment is not None]
    assert sum(counts) == 301
    assert min(counts) > 50
    running.stop()


def test_a_subclass_that_forgot_to_call_init_is_told_so() -> None:
    class Forgetful(BlobProducer):
        def __init__(self) -> None:
            """Nothing."""

    producer = Forgetful()
    for call in (
        lambda: producer.produce("t", b"v", b"k"),
        lambda: producer.produce_batch("t", [{"value": b"v", "key": b"k"}]),
    ):
        with pytest.raises(RuntimeError, match="was never initialized"):
            call()


@pytest.mark.parametrize("running", [{"blobmsg.batch.interval.ms": 60_000}], indirect=True)
@pytest.mark.parametrize("listens", [False, True], ids=["nobody listens", "somebody listens"])
def test_records_live_on_in_their_object_alone_unless_somebody_listens(
    running: RunningProducer, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    during: list[int] = []

    def note(_: Uploader, batch: Batch, _object: BatchObject) -> None:
        during.append(sum(segment.rows.record_count for segment in batch.segments))

    monkeypatch.setattr(Uploader, "_put", note)

    for _ in range(10):
        running.produce(b"v" * 1000, callback=Told().hear if listens else None)
    running.flush(10)

    assert during == [10 if listens else 0]


class NoRoom:
    """Rows for which there is no memory."""

    width = NARROW
    record_count = 0

    def extend(self, _row: object) -> None:
        raise MemoryError


def open_segment(running: RunningProducer) -> OpenSegment:
    """A segment with a record."""
    topics = running.pipeline._producer_topics
    running.produce(b"first")
    wait_until(lambda: bool(topics.usable), "the topic is known")
    running.produce(b"second")
    return next(filter(None, topics.usable[TOPIC].lanes.open_segments))


def test_a_record_for_which_there_is_no_memory_is_counted_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = RunningProducer("full", monkeypatch, **{"blobmsg.batch.interval.ms": 60_000})
    segment = open_segment(running)
    memory, rows = running.pipeline._memory, segment.rows

    def counts() -> tuple[int, ...]:
        return (
            memory.records, memory.records_bytes, segment.charged_bytes, segment.records_left,
            segment.lane.size_bytes,
        )  # fmt: skip

    before = counts()
    segment.rows = NoRoom()  # type: ignore[assignment]
    with pytest.raises(MemoryError):
        running.producer.produce(TOPIC, None, None, segment.partition)

    assert counts() == before
    segment.rows = rows
    assert running.flush(20) == 0
    running.stop()


def test_the_last_place_of_a_segment_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    running = RunningProducer("last", monkeypatch, **{"blobmsg.batch.interval.ms": 60_000})
    segment = open_segment(running)
    segment.records_left = 1
    make_row = OpenSegment.row

    def interrupted(of: OpenSegment, *arguments: Any) -> tuple[Any, ...]:
        row = make_row(of, *arguments)
        of.records_left = 0  # what a signal handler behind the call has done
        monkeypatch.setattr(OpenSegment, "row", make_row)
        return row

    monkeypatch.setattr(OpenSegment, "row", interrupted)
    running.producer.produce(TOPIC, None, None, segment.partition)

    assert segment.records_left == 0
    other = running.pipeline._producer_topics.usable[TOPIC].lanes.open_segments[segment.partition]
    assert other is not segment
    assert running.flush(20) == 0
    running.stop()
