from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

from blobmsg import AIOBlobProducer, BlobProducer
from blobmsg.testing import MockKafka

if TYPE_CHECKING:
    import pytest


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
        conf = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "log_level": 0,
            "blobmsg.store.url": "memory://told",
            "blobmsg.retention.ms": 3_600_000,
        }
        async with AIOBlobProducer(conf) as producer:
            outcome = await producer.produce("t", b"v")
            assert (await outcome).value() == b"v"
            return weakref.ref(outcome)

    with MockKafka() as kafka:
        kafka.create_topic("t")
        outcome = asyncio.run(run(kafka))
    gc.collect()

    assert len(kept) == 1
    assert outcome() is None
