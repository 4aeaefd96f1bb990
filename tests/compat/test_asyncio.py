"""The asyncio clients."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.aio import AIOConsumer, AIOProducer

from blobmsg import AIOBlobConsumer, AIOBlobProducer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.helpers.both import Both, Side

_WAIT_S = 60
# Behind all records.
_NEVER_MS = 4_000_000_000_000


def _producer(side: Side, more: dict[str, Any] | None = None) -> Any:
    # Stock's sends what it has gathered after this time.
    return (AIOBlobProducer if side.is_ours else AIOProducer)(
        side.settings(more), buffer_timeout=0.1
    )


def _consumer(side: Side, more: dict[str, Any] | None = None) -> Any:
    group = {"group.id": f"compat-{uuid.uuid4().hex}", "auto.offset.reset": "earliest"}
    made = AIOBlobConsumer if side.is_ours else AIOConsumer
    return made(side.settings({**group, **(more or {})}))


async def _outcome(side: Side, call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        result = await call()
    except Exception as error:  # noqa: BLE001  (whatever it is, the other side must raise it too)
        return "raised", side.see(error)
    return "returned", side.see(result)


async def _read(consumer: Any, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        message = await consumer.poll(_WAIT_S)
        assert message is not None
        assert message.error() is None, message.error()
        messages.append(message)
    return messages


def test_what_is_produced_is_told_and_read(both: Both) -> None:
    async def case(side: Side) -> Any:
        topic = side.topic()
        async with _producer(side) as producer:
            outcomes = [await producer.produce(topic, b"%d" % n, b"key") for n in range(5)]
            left = await producer.flush()
            told = [(m.value(), m.key(), m.error()) for m in [await o for o in outcomes]]
            seen = [left, len(producer), await producer.poll(0) >= 0]
        async with _consumer(side) as consumer:
            subscribed = await consumer.subscribe([topic])
            values = [m.value() for m in await _read(consumer, 2)]
            values += [m.value() for m in await consumer.consume(3, _WAIT_S)]
            seen += [subscribed, await consumer.poll(0), await consumer.consume(5, 0.1)]
        return told, seen, values, len(producer)

    told, _, values, _ = both.agree(lambda side: asyncio.run(case(side)))
    assert values == [b"%d" % number for number in range(5)]
    assert told == [(b"%d" % number, b"key", None) for number in range(5)]


def test_outcomes_come_without_a_poll(both: Both) -> None:
    async def case(side: Side) -> Any:
        topic = side.topic()
        async with _producer(side) as producer:
            outcome = await producer.produce(topic, value=b"v", key=b"k", partition=0)
            # Stock's needs somebody to call `poll`.
            while not outcome.done():
                await producer.poll(0.1)
        return outcome.result().value()

    assert both.agree(lambda side: asyncio.run(case(side))) == b"v"


def test_a_record_that_fails(both: Both) -> None:
    async def case(side: Side) -> Any:
        topic = side.topic(config={"max.message.bytes": "5000"})
        more = {"blobmsg.route": "plain", "compression.type": "none"}
        async with _producer(side, more) as producer:
            outcomes = [await producer.produce(topic, bytes(size)) for size in (20_000, 10)]
            await producer.flush()
            results = await asyncio.gather(*outcomes, return_exceptions=True)
        assert isinstance(results[0], KafkaException)
        return results[0].args[0].code()

    assert both.agree(lambda side: asyncio.run(case(side))) == KafkaError.MSG_SIZE_TOO_LARGE


def test_callbacks_may_be_coroutines_that_call_the_consumer(both: Both) -> None:
    async def case(side: Side) -> Any:
        topic = side.topic(2)
        async with _producer(side) as producer:
            for number in range(2):
                await producer.produce(topic, b"%d" % number, partition=number)
                await producer.flush()
        heard: list[Any] = []

        async def on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            committed = await consumer.committed(partitions, _WAIT_S)
            await consumer.assign(partitions)
            heard.append(("assigned", len(partitions), len(committed)))
            heard.append(len(await consumer.assignment()))

        async def on_revoke(_consumer: Any, partitions: list[TopicPartition]) -> None:
            heard.append(("revoked", len(partitions)))

        async def on_commit(error: KafkaError | None, partitions: list[Any]) -> None:
            await asyncio.sleep(0)
            heard.append(("committed", error, len(partitions)))

        more = {"on_commit": on_commit, "enable.auto.commit": False}
        async with _consumer(side, more) as consumer:
            await consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)
            values = {m.value() for m in await _read(consumer, 2)}
            await consumer.commit(asynchronous=True)
            while len(heard) < 3:
                await consumer.poll(0.1)
            again = await _outcome(side, lambda: consumer.commit(asynchronous=False))
        return values, heard, again

    values, heard, _ = both.agree(lambda side: asyncio.run(case(side)))
    assert values == {b"0", b"1"}
    assert heard[:3] == [("assigned", 2, 2), 2, ("committed", None, 2)]


def test_calls_of_a_consumer(both: Both) -> None:
    async def case(side: Side) -> Any:
        topic = side.topic()
        async with _producer(side) as producer:
            await producer.produce(topic, b"v")
            await producer.flush()
        partition = TopicPartition(topic, 0, 0)
        plain = TopicPartition(topic, 0)
        partition_at = partial(TopicPartition, topic, 0)
        more = {"enable.auto.commit": False, "enable.auto.offset.store": False}
        consumer = _consumer(side, more)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "assign": lambda: consumer.assign([partition]),
            "assignment": consumer.assignment,
            "pause": lambda: consumer.pause([plain]),
            "resume": lambda: consumer.resume([plain]),
            "seek": lambda: consumer.seek(partition),
            "position": lambda: consumer.position([plain]),
            "watermarks": lambda: consumer.get_watermark_offsets(plain, _WAIT_S),
            "times": lambda: consumer.offsets_for_times([partition_at(_NEVER_MS)], _WAIT_S),
            "committed": lambda: consumer.committed([plain], _WAIT_S),
            "wrong commit": lambda: consumer.commit(offsets=7),
            "wrong assign": lambda: consumer.assign(7),
            "wrong count": lambda: consumer.consume(-1),
            "wrong timeout": lambda: consumer.poll("long"),
            "store": lambda: consumer.store_offsets(offsets=[partition]),
            "unassign": consumer.unassign,
            "unsubscribe": consumer.unsubscribe,
            "subscribe": lambda: consumer.subscribe(7),
            "close": consumer.close,
            "close again": consumer.close,
            "poll": consumer.poll,
            "consume": consumer.consume,
            "subscribe late": lambda: consumer.subscribe([topic]),
        }
        seen = {name: await _outcome(side, call) for name, call in calls.items()}
        low, high = seen["watermarks"][1]
        seen["watermarks"] = (side.kafka_position(low), side.kafka_position(high))
        return seen

    seen = both.agree(lambda side: asyncio.run(case(side)))
    assert seen["close again"] == ("raised", ("RuntimeError", "Consumer closed"))


def test_transactions(both: Both) -> None:
    async def case(side: Side) -> Any:
        topic = side.topic()
        more = {"transactional.id": f"compat-{uuid.uuid4().hex}"}
        async with _producer(side, more) as producer, _consumer(side) as consumer:
            await producer.init_transactions(_WAIT_S)
            for ends in ("commit", "abort", "commit"):
                await producer.begin_transaction()
                outcome = await producer.produce(topic, ends.encode())
                await producer.send_offsets_to_transaction(
                    [TopicPartition(topic, 0, side.position(1))],
                    await consumer.consumer_group_metadata(),
                    _WAIT_S,
                )
                await getattr(producer, f"{ends}_transaction")(_WAIT_S)
                await asyncio.wait([outcome])
                outcome.exception()
            committed = await consumer.committed([TopicPartition(topic, 0)], _WAIT_S)
            await consumer.assign([TopicPartition(topic, 0, 0)])
            values = [m.value() for m in await _read(consumer, 2)]
        return values, committed

    values, committed = both.agree(lambda side: asyncio.run(case(side)))
    assert values == [b"commit", b"commit"]
    assert committed[0]["offset"] == 1
