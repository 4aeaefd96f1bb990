"""AIOBlobConsumer: a BlobConsumer for asyncio.

What was read ahead is handed out in the event loop; everything that waits is done in one thread,
one call after the other. Decides nothing about records or positions.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from blobmsg.aio.callbacks import in_loop
from blobmsg.aio.client_thread import ClientThread
from blobmsg.consumer import BlobConsumer, check_count, consumption_of
from blobmsg.time_limit import TimeLimit, seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from confluent_kafka import TopicPartition
    from typing_extensions import Self

    from blobmsg.message import Message

    RebalanceCallback = Callable[[Any, list[TopicPartition]], Any]

__all__ = ["AIOBlobConsumer"]

_T = TypeVar("_T")

_numbers: Final = itertools.count(1)
# How long the thread waits for records before it looks whether anybody still wants them.
_SLICE_S: Final = 0.2


class AIOBlobConsumer:
    """A drop-in for `confluent_kafka.aio.AIOConsumer`.

    Made in a running event loop, and used there alone. A `poll` or `consume` that is cancelled
    loses nothing: what it would have returned comes with the next one.

    Args:
        consumer_conf: As a `BlobConsumer`'s; callbacks run in the loop and may be coroutine
            functions, which may await calls of this consumer.
        max_workers: Not used: one thread makes all calls that wait.
        executor: Not used.

    Raises:
        KafkaException, TypeError: As a `BlobConsumer`.

    Source: confluent_kafka.aio.AIOConsumer.
    """

    def __init__(
        self,
        consumer_conf: dict[str, Any],
        max_workers: int = 100,
        executor: Executor | None = None,
    ) -> None:
        if executor is None and max_workers < 1:
            raise ValueError("max_workers must be at least 1")
        self._loop = asyncio.get_running_loop()
        self._thread = ClientThread(self._loop, f"blobmsg-aio-consumer-{next(_numbers)}")
        try:
            self._consumer = BlobConsumer(in_loop(consumer_conf, self._thread.run_callback))
        except BaseException:
            self._thread.stop()
            raise
        self._consumption = consumption_of(self._consumer)
        self._is_closed = False
        self._turn = asyncio.Lock()  # of who waits for records
        weakref.finalize(self, self._thread.stop)

    # --- records ------------------------------------------------------------------------------

    async def poll(self, timeout: float = -1) -> Message | None:
        """The next record or event; as `BlobConsumer.poll`."""
        messages = await self._take(1, timeout)
        return messages[0] if messages else None

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Several records and events at once; as `BlobConsumer.consume`."""
        check_count(num_messages)
        return await self._take(num_messages, timeout)

    async def _take(self, count: int, timeout: float) -> list[Message]:
        """Take messages, without an `await` between that and the return: none can get lost."""
        self._check_open()
        timeout_s = seconds(timeout)
        if not self._turn.locked() and not self._consumption.is_due:
            messages = self._consumption.take_ahead(count, count)
            if messages:
                return messages
        limit = TimeLimit(timeout_s)
        if not await self._has_turn(timeout_s):
            return []
        try:
            while True:
                await self._thread.call_outside_in_time(partial(self._fill, count), limit.rest_s())
                self._check_open()
                is_over = limit.is_over
                messages = self._consumption.take_ahead(count, 0 if is_over else count)
                if messages or is_over:
                    return messages
        finally:
            self._turn.release()

    def _fill(self, count: int, rest_s: float) -> None:
        """In the thread: wait for records, not for so long that nobody may want them any more."""
        self._consumption.fill(count, _SLICE_S if rest_s < 0 else min(_SLICE_S, rest_s))

    async def _has_turn(self, timeout_s: float) -> bool:
        """Wait for those who were first; False when the time is over."""
        if timeout_s < 0 or not self._turn.locked():
            return await self._turn.acquire()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._turn.acquire()
        except TimeoutError:
            return False

    # --- subscriptions and assignments --------------------------------------------------------

    async def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """As `BlobConsumer.subscribe`; the callbacks get this consumer."""
        callbacks: dict[str, Any] = {
            "on_assign": on_assign,
            "on_revoke": on_revoke,
            "on_lost": on_lost,
        }
        await self._call(
            self._consumer.subscribe,
            topics,
            **{
                name: self._with_self(callback) if callable(callback) else callback
                for name, callback in callbacks.items()
                if callback is not None
            },
        )

    def _with_self(self, callback: RebalanceCallback) -> RebalanceCallback:
        def call(_consumer: object, partitions: list[TopicPartition]) -> Any:
            return self._thread.run_callback(callback, self, partitions)

        return call

    async def unsubscribe(self) -> None:
        """As `BlobConsumer.unsubscribe`."""
        await self._call(self._consumer.unsubscribe)

    async def assign(self, partitions: list[TopicPartition]) -> None:
        """As `BlobConsumer.assign`."""
        await self._call(self._consumer.assign, partitions)

    async def unassign(self) -> None:
        """As `BlobConsumer.unassign`."""
        await self._call(self._consumer.unassign)

    async def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """As `BlobConsumer.incremental_assign`."""
        await self._call(self._consumer.incremental_assign, partitions)

    async def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """As `BlobConsumer.incremental_unassign`."""
        await self._call(self._consumer.incremental_unassign, partitions)

    async def assignment(self) -> list[TopicPartition]:
        """As `BlobConsumer.assignment`."""
        return await self._call(self._consumer.assignment)

    async def pause(self, partitions: list[TopicPartition]) -> None:
        """As `BlobConsumer.pause`."""
        await self._call(self._consumer.pause, partitions)

    async def resume(self, partitions: list[TopicPartition]) -> None:
        """As `BlobConsumer.resume`."""
        await self._call(self._consumer.resume, partitions)

    # --- positions ----------------------------------------------------------------------------

    async def commit(self, *arguments: Any, **names: Any) -> list[TopicPartition] | None:
        """As `BlobConsumer.commit`."""
        return await self._call(self._consumer.commit, *arguments, **names)

    async def store_offsets(self, *arguments: Any, **names: Any) -> None:
        """As `BlobConsumer.store_offsets`."""
        await self._call(self._consumer.store_offsets, *arguments, **names)

    async def committed(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """As `BlobConsumer.committed`."""
        return await self._call(self._consumer.committed, partitions, timeout)

    async def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """As `BlobConsumer.position`."""
        return await self._call(self._consumer.position, partitions)

    async def seek(self, partition: TopicPartition) -> None:
        """As `BlobConsumer.seek`."""
        await self._call(self._consumer.seek, partition)

    async def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """As `BlobConsumer.get_watermark_offsets`."""
        return await self._call(self._consumer.get_watermark_offsets, partition, timeout, cached)

    async def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """As `BlobConsumer.offsets_for_times`."""
        return await self._call(self._consumer.offsets_for_times, partitions, timeout)

    # --- the group and the cluster ------------------------------------------------------------

    async def consumer_group_metadata(self) -> Any:
        """As `BlobConsumer.consumer_group_metadata`."""
        return await self._call(self._consumer.consumer_group_metadata)

    async def memberid(self) -> str:
        """As `BlobConsumer.memberid`."""
        return await self._call(self._consumer.memberid)

    async def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """As `BlobConsumer.list_topics`."""
        return await self._call(self._consumer.list_topics, topic, timeout)

    async def cluster_id(self, timeout: float = -1) -> str:
        """As `BlobConsumer.cluster_id`."""
        return await self._call(self._consumer.cluster_id, timeout)

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """As `BlobConsumer.set_sasl_credentials`."""
        await self._call(self._consumer.set_sasl_credentials, username, password)

    async def stats(self) -> dict[str, int]:
        """As `BlobConsumer.stats`."""
        return await self._call(self._consumer.stats)

    # --- its end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """As `BlobConsumer.close`.

        Raises:
            RuntimeError: It is closed already.
        """
        try:
            await self._call(self._consumer.close)
        finally:
            self._is_closed = True
            self._thread.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _call(self, function: Callable[..., _T], *arguments: Any, **names: Any) -> _T:
        self._check_open()
        return await self._thread.call(function, *arguments, **names)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("Consumer closed")
