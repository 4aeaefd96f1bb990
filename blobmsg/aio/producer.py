"""AIOBlobProducer: a BlobProducer for asyncio.

`produce` hands a record over in the event loop; a thread of its own hears of the outcomes and tells
the loop of many at once. Calls that wait for Kafka or the store are made in another thread, one
after the other. Decides nothing about records.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from blobmsg.aio.callbacks import in_loop
from blobmsg.aio.client_thread import ClientThread, awaited
from blobmsg.core.segments import headers_bytes
from blobmsg.delivery_reports import kafka_error_of
from blobmsg.ending import CLOSED
from blobmsg.inner_events import weakly
from blobmsg.producer import BlobProducer, pipeline_of
from blobmsg.time_limit import TimeLimit, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    from typing_extensions import Self

    HeadersType = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]

__all__ = ["AIOBlobProducer"]

_T = TypeVar("_T")
_numbers: Final = itertools.count(1)
# How long the thread that hears of outcomes waits for the next one before it looks whether the
# producer is closed.
_SERVE_S: Final = 0.5
# How long `produce` waits for room before it looks again, if it hears of no outcome meanwhile.
_ROOM_S: Final = 0.05
# Outcomes that are told before others have their turn in the loop.
_TOLD_AT_ONCE: Final = 2000
# What the thread that serves may be ahead of the loop: each outcome has its record's bytes again.
_MOST_UNTOLD_BYTES: Final = 1 << 20
_MESSAGE_BYTES: Final = 600
_LOOK_S: Final = 0.05
# A Future that waits has 360, with its place among the open ones and two callbacks; the rest is
# what is lost between objects that come and go by the hundred thousand. Charged for so many at a
# time.
_OUTCOME_BYTES: Final = 512
_CHARGED_AT_ONCE: Final = 256


class _Report:
    """The callback of a record's delivery report.

    A segment keeps its records' callbacks until all of them have been called. These keep nothing
    once the outcome is known: it has a Message, ten times as much as a small record, or a failure,
    with the frames of who awaited it.
    """

    __slots__ = ("_delivered", "_outcome")

    def __init__(
        self,
        outcome: asyncio.Future[Message],
        delivered: Callable[[_Report, KafkaError | None, Message], None],
    ) -> None:
        self._outcome: asyncio.Future[Message] | None = outcome
        self._delivered: Callable[[_Report, KafkaError | None, Message], None] | None = delivered

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        delivered = self._delivered
        if delivered is not None:
            delivered(self, error, message)

    def take(self) -> asyncio.Future[Message] | None:
        """Give the outcome away; None if somebody else has it."""
        outcome, self._outcome, self._delivered = self._outcome, None, None
        return outcome


class AIOBlobProducer:
    """A drop-in for `confluent_kafka.aio.AIOProducer`.

    Made in a running event loop, and used there alone.

    Args:
        producer_conf: As a `BlobProducer`'s; callbacks run in the loop and may be coroutine
            functions.
        max_workers: Not used: one thread makes all calls that wait.
        executor: Not used.
        batch_size: Not used: batches are `blobmsg.batch.*`'s.
        buffer_timeout: Not used.

    Raises:
        KafkaException, TypeError: As a `BlobProducer`.

    Source: confluent_kafka.aio.AIOProducer.
    """

    def __init__(
        self,
        producer_conf: dict[str, Any],
        max_workers: int = 4,
        executor: Executor | None = None,
        batch_size: int = 1000,
        buffer_timeout: float = 1.0,
    ) -> None:
        del max_workers, executor, batch_size, buffer_timeout
        self._loop = asyncio.get_running_loop()
        name = f"blobmsg-aio-producer-{next(_numbers)}"
        self._thread = ClientThread(self._loop, name)
        self._tasks: set[asyncio.Task[Any]] = set()  # of callbacks
        try:
            self._producer = BlobProducer(in_loop(producer_conf, weakly(self._run_callback)))
        except BaseException:
            self._thread.stop()
            raise
        self._is_closing = self._is_closed = False
        self._pipeline = pipeline_of(self._producer)
        self._open: set[_Report] = set()
        self._charged = 0  # of them
        self._telling = threading.Condition()  # guards the next three
        self._outcomes: deque[tuple[_Report, KafkaError | None, Message, int]] = deque()
        self._untold_bytes = 0
        self._is_telling = False
        self._news = asyncio.Event()
        self._room = asyncio.Lock()  # of who waits for it
        self._served = 0
        weakref.finalize(self, self._thread.stop)
        threading.Thread(
            target=_serve, args=(weakref.ref(self),), name=f"{name}-reports", daemon=True
        ).start()

    def _run_callback(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Have the loop run a callback; nobody waits for it, so it may wait for this producer."""
        self._thread.tell_loop(self._begin_callback, callback, *arguments)

    def _begin_callback(self, callback: Callable[..., Any], *arguments: Any) -> None:
        task = self._loop.create_task(awaited(callback, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._end_callback)

    def _end_callback(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._complain("a callback of an AIOBlobProducer has raised", failure)

    # --- producing ----------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int | None = -1,
        timestamp: int | None = 0,
        headers: HeadersType | None = None,
    ) -> asyncio.Future[Message]:
        """Queue one record; waits while the buffer is full, in the order of the calls.

        Args:
            topic: Its topic.
            value: Its value.
            key: Its key.
            partition: -1 or None lets the partitioner choose.
            timestamp: ms since 1970 UTC; 0 or None: now.
            headers: Its headers, which stock's refuses.

        Returns:
            A Future of the delivered Message; `KafkaException` if it is not delivered.

        Raises:
            TypeError: An argument of a wrong type.
            RuntimeError: The producer is closed.
        """
        outcome: asyncio.Future[Message] = self._loop.create_future()
        report = _Report(outcome, self._delivered)
        produce = partial(
            self._producer.produce,
            topic,
            value,
            key,
            -1 if partition is None else partition,
            report,
            timestamp=timestamp or 0,
            headers=headers,
        )
        try:
            if self._room.locked() or not _has_room(produce):
                async with self._room:
                    self._news.clear()
                    while not _has_room(produce):
                        await self._hear(_ROOM_S)
                        self._news.clear()
        except KafkaException as error:
            outcome.set_exception(error)
        else:
            self._open.add(report)
            if len(self._open) >= self._charged + _CHARGED_AT_ONCE:
                self._charge()
        return outcome

    def _charge(self) -> None:
        self._charged = len(self._open)
        self._pipeline.hold_outcomes(self._charged * _OUTCOME_BYTES)

    def _delivered(self, report: _Report, error: KafkaError | None, message: Message) -> None:
        """In a thread that serves: many outcomes are told to the loop at once.

        It waits for the loop when it is far ahead, else all records would be in memory again.
        """
        headers: Any = message.headers()  # always a list of bytes behind a delivery
        size_bytes = _MESSAGE_BYTES + len(message.key() or b"") + len(message.value() or b"")
        size_bytes += headers_bytes(headers)
        with self._telling:
            self._outcomes.append((report, error, message, size_bytes))
            self._untold_bytes += size_bytes
            is_first, self._is_telling = not self._is_telling, True
            if is_first:
                self._thread.tell_loop(self._tell)
            while self._untold_bytes > _MOST_UNTOLD_BYTES and self._loop.is_running():
                self._telling.wait(_LOOK_S)

    def _tell(self) -> None:
        with self._telling:
            self._is_telling = False  # first: what comes from here on has a turn of its own
        self._tell_some(_TOLD_AT_ONCE)
        with self._telling:
            if self._outcomes and not self._is_telling:
                self._is_telling = True
                self._loop.call_soon(self._tell)

    def _tell_some(self, most: int) -> None:
        with self._telling:
            some = [self._outcomes.popleft() for _ in range(min(most, len(self._outcomes)))]
            self._untold_bytes -= sum(size_bytes for _, _, _, size_bytes in some)
            self._telling.notify_all()
        for report, error, message, _ in some:
            self._served += 1
            self._open.discard(report)
            outcome = report.take()
            if outcome is None or outcome.done():
                continue  # nobody wants to hear of it any more
            if error is None:
                outcome.set_result(message)
            else:
                outcome.set_exception(KafkaException(error))
        self._charge()
        self._news.set()

    def _give_up(self) -> None:
        """Nobody will hear of what is still open."""
        self._tell_some(len(self._outcomes))
        error = KafkaError(KafkaError._FAIL, "the producer has ended before this was delivered")
        for report in self._open:
            outcome = report.take()
            if outcome is not None and not outcome.done():
                outcome.set_exception(KafkaException(error))
        self._open.clear()
        self._charge()
        self._news.set()

    def serve_once(self) -> bool:
        """Serve the producer in a thread of ours; whether to go on."""
        if self._is_closed or self._loop.is_closed():
            return False
        try:
            self._producer.poll(_SERVE_S)
        except Exception as failure:  # noqa: BLE001  (the loop's handler of exceptions hears of it)
            if self._is_closing and isinstance(failure, RuntimeError):
                return False  # it is closed
            error = kafka_error_of(failure)
            text = "the producer is done for" if error.fatal() else "a log handler has raised"
            self._thread.tell_loop(self._complain, text, failure)
            if error.code() == KafkaError._FATAL:  # every later `poll` would raise it
                self._thread.tell_loop(self._give_up)
                return False
        return True

    def _complain(self, text: str, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": text, "exception": error})

    async def _hear(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    # --- waiting ------------------------------------------------------------------------------

    async def poll(self, timeout: float = 0) -> int:
        """Wait for outcomes; they are told without it, too.

        Args:
            timeout: Seconds to wait at most; negative: no limit, 0: not at all.

        Returns:
            How many outcomes were told since the last `poll`.
        """
        limit = TimeLimit(seconds(timeout))
        while not self._served:
            self._check_open()
            if limit.is_over:
                break
            self._news.clear()
            await self._hear(limit.slice_s(_SERVE_S))
        served, self._served = self._served, 0
        return served

    async def flush(self, timeout: float = -1) -> int:
        """As `BlobProducer.flush`; the Futures of what is delivered have their results then."""
        self._check_open()
        remaining = await self._thread.call_in_time(self._producer.flush, seconds(timeout))
        self._tell_some(len(self._outcomes))
        return len(self._producer) if remaining is None else remaining

    async def purge(
        self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True
    ) -> None:
        """As `BlobProducer.purge`; the Futures of what is dropped get `KafkaException`."""
        await self._call(self._producer.purge, in_queue, in_flight, blocking)

    async def close(self) -> None:
        """Flush for at most `message.timeout.ms`, then release everything. Idempotent.

        Futures of what is not delivered then get `KafkaException`.
        """
        if self._is_closed:
            return
        self._is_closing = True
        try:
            await self._call(self._producer.close)
        finally:
            self._is_closed = True
            self._give_up()
            self._thread.stop()

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        self._check_open()
        return await self._thread.call(function, *arguments)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(CLOSED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __len__(self) -> int:
        return len(self._producer)

    def __bool__(self) -> bool:
        return True

    # --- the cluster --------------------------------------------------------------------------

    async def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """As `BlobProducer.list_topics`."""
        return await self._call(self._producer.list_topics, topic, timeout)

    async def cluster_id(self, timeout: float = -1) -> str:
        """As `BlobProducer.cluster_id`."""
        return await self._call(self._producer.cluster_id, timeout)

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """As `BlobProducer.set_sasl_credentials`."""
        await self._call(self._producer.set_sasl_credentials, username, password)

    async def stats(self) -> dict[str, int]:
        """As `BlobProducer.stats`."""
        return self._producer.stats()

    # --- transactions -------------------------------------------------------------------------

    async def init_transactions(self, timeout: float = -1) -> None:
        """As `BlobProducer.init_transactions`."""
        await self._call(self._producer.init_transactions, timeout)

    async def begin_transaction(self) -> None:
        """As `BlobProducer.begin_transaction`."""
        await self._call(self._producer.begin_transaction)

    async def send_offsets_to_transaction(
        self, positions: list[Any], group_metadata: Any, timeout: float = -1
    ) -> None:
        """As `BlobProducer.send_offsets_to_transaction`."""
        await self._call(
            self._producer.send_offsets_to_transaction, positions, group_metadata, timeout
        )

    async def commit_transaction(self, timeout: float = -1) -> None:
        """As `BlobProducer.commit_transaction`."""
        await self._call(self._producer.commit_transaction, timeout)

    async def abort_transaction(self, timeout: float = -1) -> None:
        """As `BlobProducer.abort_transaction`; Futures of what is dropped get `KafkaException`."""
        await self._call(self._producer.abort_transaction, timeout)


def _has_room(produce: Callable[[], None]) -> bool:
    try:
        produce()
    except BufferError:
        return False
    return True


def _serve(client: weakref.ref[AIOBlobProducer]) -> None:
    """A thread's work, which keeps nothing alive that nobody uses any more."""
    while (producer := client()) is not None and producer.serve_once():
        del producer
