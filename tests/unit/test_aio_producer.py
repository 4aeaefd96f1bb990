from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest
from confluent_kafka import KafkaException

from blobmsg import AIOBlobProducer, BlobProducer
from blobmsg.testing import Fault, FaultStore, MockKafka
from tests.helpers.records import wait_until


def test_what_a_segment_keeps_of_a_record_that_was_told_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps the callbacks of all of its records until the last one has been called."""
    kept: list[object] = []
    produce = BlobProducer.produce

    def produce_and_keep(producer: BlobProducer, *arguments: Any, **more: Any) -> None:
        kept.extend(argument for argument in arguments if callable(argument))
        produce(producer, *arguments, **more)

    monkeypatch.setattr(BlobProducer, "produce", produce_and_keep)

    async def run(kafka: MockKafka) -> weakref.ref[Any]:
        async with AIOBlobProducer(_conf(kafka, "memory://told")) as producer:
            outcome = await producer.produce("t", b"v")
            assert (await outcome).value() == b"v"
            return weakref.ref(outcome)

    with MockKafka() as kafka:
        kafka.create_topic("t")
        outcome = asyncio.run(run(kafka))
    gc.collect()

    assert len(kept) == 1
    assert outcome() is None


def test_one_that_a_defect_has_ended_is_collected_though_an_upload_hangs() -> None:
    answer = threading.Event()
    store = FaultStore()
    store.add(Fault("put", times=None, gate=answer))

    async def run(kafka: MockKafka) -> weakref.ref[Any]:
        producer = AIOBlobProducer(_conf(kafka, store.url))
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # it hears of the defect
        outcome = await producer.produce("t", b"v")
        assert await loop.run_in_executor(None, store.arrived.wait, 30)
        producer._pipeline.thread_failed(AssertionError("a defect"))
        with pytest.raises(KafkaException, match="before this was delivered"):
            await outcome
        return weakref.ref(producer)

    def is_collected() -> bool:
        gc.collect()
        return producer() is None

    with MockKafka() as kafka:
        kafka.create_topic("t")
        producer = asyncio.run(run(kafka))
        try:
            wait_until(is_collected, "it is collected")
        finally:
            answer.set()
            store.close()


@pytest.mark.parametrize(
    "failure", [ValueError("a log handler's"), RuntimeError("a log handler's")]
)
def test_outcomes_are_told_behind_a_log_handler_that_has_raised(failure: Exception) -> None:
    heard: list[Any] = []

    async def run(kafka: MockKafka) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: heard.append(context["exception"]))
        async with AIOBlobProducer(_conf(kafka, "memory://told")) as producer:
            await (await producer.produce("t", b"before"))
            producer._pipeline.log_failed(failure)
            while not heard:
                await asyncio.sleep(0.01)
            await (await producer.produce("t", b"behind"))

    with MockKafka() as kafka:
        kafka.create_topic("t")
        asyncio.run(run(kafka))

    assert heard == [failure]


def _conf(kafka: MockKafka, store_url: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "log_level": 0,
        "blobmsg.store.url": store_url,
        "blobmsg.route": "blob",
        "blobmsg.retention.ms": 3_600_000,
        "blobmsg.batch.interval.ms": 10,
    }
