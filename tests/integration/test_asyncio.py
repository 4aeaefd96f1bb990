"""What the asyncio clients do beyond stock's: they lose nothing, wait for room, take headers."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg import AIOBlobConsumer, AIOBlobProducer
from tests.helpers.fault_proxy import Answer, FaultProxy, Hold, puts
from tests.helpers.records import partition

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

_WAIT_S = 60


def _waits_for_the_store(conf: dict[str, Any], proxy: FaultProxy) -> dict[str, Any]:
    """Settings of a producer with 4 MiB of buffer whose store is behind the proxy."""
    return {
        **conf,
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.route": "blob",
        "blobmsg.on.store.failure": "wait",
        "queue.buffering.max.kbytes": 4096,
        "message.max.bytes": 100_000,
    }


async def _fill(conf: dict[str, Any], topic: str, count: int) -> None:
    async with AIOBlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        for number in range(count):
            await producer.produce(topic, b"%d" % number, partition=0)


def test_a_poll_that_is_cancelled_loses_nothing(
    group_conf: dict[str, Any], conf: dict[str, Any], topic: str
) -> None:
    async def run() -> tuple[list[bytes], int]:
        await _fill(conf, topic, 3000)
        values: list[bytes] = []
        cancelled = 0
        more = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
        async with AIOBlobConsumer({**group_conf, **more}) as consumer:
            await consumer.assign([partition(topic, 0, 0)])
            while True:
                calls = (consumer.poll(_WAIT_S), consumer.consume(7, _WAIT_S))
                call = calls[len(values) % 2]
                calls[1 - len(values) % 2].close()
                task = asyncio.ensure_future(call)
                # Cancelled at all moments: at once, while the thread is at it, when it has an end.
                await asyncio.wait([task], timeout=(cancelled % 10) / 5000)
                if task.cancel():
                    cancelled += 1
                try:
                    found = await task
                except asyncio.CancelledError:
                    continue
                messages = found if isinstance(found, list) else [found]
                assert messages
                for message in messages:
                    assert message is not None
                    error = message.error()
                    if error is not None:
                        assert error.code() == KafkaError._PARTITION_EOF
                        return values, cancelled
                    values.append(message.value())

    values, cancelled = asyncio.run(run())
    assert values == [b"%d" % number for number in range(3000)]
    assert cancelled > 10


def test_cancelled_calls_beside_others_keep_the_order(
    group_conf: dict[str, Any], conf: dict[str, Any], topic: str
) -> None:
    async def run() -> list[bytes]:
        await _fill(conf, topic, 200)
        values: list[bytes] = []
        more = {"auto.offset.reset": "earliest"}
        async with AIOBlobConsumer({**group_conf, **more}) as consumer:
            await consumer.assign([partition(topic, 0, 0)])
            while len(values) < 200:
                gone = asyncio.ensure_future(consumer.consume(20, _WAIT_S))
                waiting = asyncio.ensure_future(consumer.poll(_WAIT_S))
                await asyncio.sleep(0)
                time.sleep(0.005)
                gone.cancel()
                await asyncio.wait([gone])
                if not gone.cancelled():
                    values += [message.value() for message in gone.result()]
                if len(values) == 200:
                    waiting.cancel()
                    break
                message = await waiting
                assert message is not None
                values.append(message.value())
        return values

    assert asyncio.run(run()) == [b"%d" % number for number in range(200)]


def test_after_close_every_call_says_so(
    conf: dict[str, Any], group_conf: dict[str, Any], topic: str
) -> None:
    async def run() -> list[str]:
        producer = AIOBlobProducer(conf)
        await producer.close()
        await producer.close()
        consumer = AIOBlobConsumer(group_conf)
        await consumer.close()
        calls = [
            producer.produce(topic, b"v"), producer.flush(), producer.purge(), producer.poll(-1),
            producer.list_topics(), producer.init_transactions(), consumer.poll(),
            consumer.consume(), consumer.assignment(), consumer.close(),
        ]  # fmt: skip
        said: list[str] = []
        for call in calls:
            with pytest.raises(RuntimeError) as raised:
                await asyncio.wait_for(call, 10)
            said.append(str(raised.value))
        return said

    said = asyncio.run(run())
    assert set(said) == {"Producer has been closed", "Consumer closed"}


def test_a_callback_may_wait_for_a_record_that_it_produces(
    conf: dict[str, Any], topic: str
) -> None:
    async def run() -> int | None:
        told: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        async def on_statistics(_text: str) -> None:
            outcome = await producer.produce(topic, b"of the callback")
            message = await outcome
            if not told.done():
                told.set_result(message.offset())

        more = {"stats_cb": on_statistics, "statistics.interval.ms": 100}
        async with AIOBlobProducer({**conf, **more}) as producer:
            return await asyncio.wait_for(told, _WAIT_S)

    assert asyncio.run(run()) is not None


def test_a_task_that_an_assignment_starts_may_poll(
    conf: dict[str, Any], group_conf: dict[str, Any], topic: str
) -> None:
    async def run() -> list[bytes]:
        await _fill(conf, topic, 5)
        values: list[bytes] = []
        workers: list[asyncio.Task[None]] = []

        async def take() -> None:
            message = await consumer.poll(0.2)
            if message is not None:
                values.append(message.value())

        async def work() -> None:
            while len(values) < 5:
                await take()

        async def on_assign(member: AIOBlobConsumer, partitions: list[Any]) -> None:
            workers.append(asyncio.ensure_future(work()))
            await asyncio.sleep(0.1)
            await member.assign(partitions)

        async with AIOBlobConsumer({**group_conf, "auto.offset.reset": "earliest"}) as consumer:
            await consumer.subscribe([topic], on_assign=on_assign)
            while not workers:
                await take()  # may be the one that takes the first
            await asyncio.wait_for(workers[0], _WAIT_S)
        return values

    assert sorted(asyncio.run(run())) == [b"%d" % number for number in range(5)]


def test_clients_that_nobody_closes_are_collected(
    conf: dict[str, Any], group_conf: dict[str, Any]
) -> None:
    async def run() -> None:
        def alive() -> set[threading.Thread]:
            gc.collect()
            return {t for t in threading.enumerate() if t.name.startswith("blobmsg-aio-")}

        before = alive()  # those of other tests may end meanwhile
        clients: list[Any] = [AIOBlobProducer(conf), AIOBlobConsumer(group_conf)]
        assert len(alive() - before) == 3
        clients.clear()
        deadline = time.monotonic() + _WAIT_S
        while alive() - before:
            assert time.monotonic() < deadline, alive() - before
            await asyncio.sleep(0.1)

    asyncio.run(run())


def test_a_cancelled_poll_does_not_hold_up_the_next_call(
    group_conf: dict[str, Any], topic: str
) -> None:
    async def run() -> list[Any]:
        async with AIOBlobConsumer({**group_conf, "enable.partition.eof": False}) as consumer:
            await consumer.assign([partition(topic, 0, 0)])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.poll(), 0.5)  # without a limit of its own
            return await asyncio.wait_for(consumer.assignment(), 10)

    assert len(asyncio.run(run())) == 1


def test_a_poll_without_end_has_its_turn_behind_calls_that_take_all_the_time(
    group_conf: dict[str, Any], conf: dict[str, Any], topic: str
) -> None:
    async def run() -> Any:
        await _fill(conf, topic, 1)
        async with AIOBlobConsumer(group_conf) as consumer:
            await consumer.assign([partition(topic, 0, 0)])

            async def work() -> None:
                while True:
                    await consumer._thread.call(time.sleep, 0.06)

            workers = [asyncio.ensure_future(work()) for _ in range(10)]
            message = await asyncio.wait_for(consumer.poll(-1), _WAIT_S)
            for worker in workers:
                worker.cancel()
            assert message is not None
            return message.value()

    assert asyncio.run(run()) == b"0"


def test_produce_waits_for_room_and_the_loop_goes_on(
    conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxy.rule = puts(Hold(released))
    waiting = _waits_for_the_store(conf, proxy)

    async def run() -> tuple[bool, int]:
        outcomes: list[asyncio.Future[Any]] = []

        async def produce(producer: AIOBlobProducer) -> None:
            for number in range(1000):  # 10 MB through 4
                value = b"%d" % number + bytes(10_000)
                outcomes.append(await producer.produce(topic, value))

        async with AIOBlobProducer(waiting) as producer:
            task = asyncio.ensure_future(produce(producer))
            done, _ = await asyncio.wait([task], timeout=2)
            had_room = bool(done)
            released.set()
            await task
            await producer.flush()
            return had_room, sum(outcome.exception() is None for outcome in outcomes)

    assert asyncio.run(run()) == (False, 1000)


def test_futures_take_their_share_of_the_buffer(
    conf: dict[str, Any], proxy: FaultProxy, topic: str
) -> None:
    released = threading.Event()
    proxy.rule = puts(Hold(released))
    waiting = _waits_for_the_store(conf, proxy)

    async def run() -> tuple[int, int]:
        outcomes: list[asyncio.Future[Any]] = []

        async def produce(producer: AIOBlobProducer) -> None:
            for _ in range(40_000):
                outcomes.append(await producer.produce(topic, b"v"))
                if not len(outcomes) % 100:
                    await asyncio.sleep(0)

        async with AIOBlobProducer(waiting) as producer:
            task = asyncio.ensure_future(produce(producer))
            await asyncio.wait([task], timeout=4)
            most = len(outcomes)
            released.set()
            await task
            await producer.flush()
            return most, sum(outcome.exception() is None for outcome in outcomes)

    most, delivered = asyncio.run(run())
    # At 129 bytes each, without their Futures, it would be 14,000.
    assert 1000 < most < 6000
    assert delivered == 40_000


def test_who_hears_of_outcomes_waits_for_a_loop_that_is_busy(
    conf: dict[str, Any], topic: str
) -> None:
    async def run() -> tuple[int, int]:
        async with AIOBlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
            outcomes = [await producer.produce(topic, bytes(10_000)) for _ in range(2000)]
            deadline = time.monotonic() + _WAIT_S
            while producer._untold_bytes < 1 << 20 and time.monotonic() < deadline:
                time.sleep(0.1)  # the loop hears nothing meanwhile
            time.sleep(0.5)  # more does not come
            untold = producer._untold_bytes
            assert await producer.flush(_WAIT_S) == 0
            return untold, sum(outcome.exception() is None for outcome in outcomes)

    untold, delivered = asyncio.run(run())
    assert 1 << 20 <= untold < (1 << 20) + 20_000
    assert delivered == 2000


def test_headers_arrive_and_a_failure_is_the_futures(
    conf: dict[str, Any],
    group_conf: dict[str, Any],
    proxy: FaultProxy,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    more = {
        "blobmsg.s3.endpoint.url": proxy.url,
        "blobmsg.route": "blob",
        "blobmsg.on.store.failure": "wait",
        "message.timeout.ms": 3000,
    }

    async def run() -> tuple[Any, Any, Any]:
        async with AIOBlobProducer({**conf, **more}) as producer:
            first = await producer.produce(topic, b"v", headers=[("name", b"value")])
            await producer.flush()
            proxy.rule = lambda _request: Answer(503, "SlowDown")
            second = await producer.produce(topic, b"lost")
            third = await producer.produce(topic, b"nowhere", partition=99)
            await producer.flush()
            results = await asyncio.gather(first, second, third, return_exceptions=True)
        proxy.rule = lambda _request: None
        async with AIOBlobConsumer(group_conf) as consumer:
            await consumer.assign([partition(topic, 0, 0)])
            message = await consumer.poll(_WAIT_S)
        assert message is not None
        return message.headers(), results[1], results[2]

    headers, lost, nowhere = asyncio.run(run())
    assert headers == [("name", b"value")]
    assert isinstance(lost, KafkaException)
    assert lost.args[0].code() == KafkaError._MSG_TIMED_OUT
    assert isinstance(nowhere, KafkaException)
    assert nowhere.args[0].code() == KafkaError._UNKNOWN_PARTITION


def test_what_a_callback_raises_is_told_to_the_loop_or_to_who_polls(
    conf: dict[str, Any], group_conf: dict[str, Any], topic: str
) -> None:
    def raising_once() -> Callable[..., Any]:
        failures = [ValueError("of the user")]

        async def callback(*_arguments: object) -> None:
            await asyncio.sleep(0)
            if failures:
                raise failures.pop()

        return callback

    async def first_result(consumer: AIOBlobConsumer) -> Any:
        while (message := await consumer.poll(1)) is None:
            pass
        return message.value()

    async def run() -> tuple[list[Any], Any]:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: told.append(context)
        )
        statistics = {"stats_cb": raising_once(), "statistics.interval.ms": 100}
        async with AIOBlobProducer({**conf, **statistics}) as producer:
            while not told:
                await producer.poll(0.1)
            delivered = await producer.produce(topic, b"v")
            await producer.flush()
            delivered.result()
        async with AIOBlobConsumer({**group_conf, "auto.offset.reset": "earliest"}) as consumer:
            await consumer.subscribe([topic], on_assign=raising_once())
            with pytest.raises(ValueError, match="of the user"):
                await first_result(consumer)
            return told, await first_result(consumer)

    told, value = asyncio.run(run())
    assert str(told[0]["exception"]) == "of the user"
    assert value == b"v"
