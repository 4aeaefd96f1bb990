"""A process with a producer: the production pipeline, its threads' rounds as events.

Decides only when a round of a thread comes: the notifier's, the metadata thread's, an upload.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from blobmsg.format.object_key import retention_class
from blobmsg.producer_pipeline import ProducerPipeline
from blobmsg.reentrant import Waiting, Wakeup
from blobmsg.sim.fiber import VirtualJobThread, VirtualNews, start_fiber
from blobmsg.sim.inner_producer import InnerProducer
from blobmsg.sim.virtual_store import StoreRequests
from blobmsg.sim.world import Process
from blobmsg.topic_directory import TopicFacts, UnknownTopic
from blobmsg.transactions import Transactions
from blobmsg.uploader import Uploader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blobmsg.core.events import CutSegment, EncodeInline
    from blobmsg.core.segments import Batch, SealedSegment
    from blobmsg.format.encoded_segment import EncodedSegment
    from blobmsg.format.part import Part
    from blobmsg.format.rows import Rows
    from blobmsg.sim.client_settings import ClientSettings
    from blobmsg.sim.history import Sent
    from blobmsg.sim.network import Network
    from blobmsg.sim.virtual_broker import VirtualBroker
    from blobmsg.sim.virtual_store import VirtualStore
    from blobmsg.sim.world import World
    from blobmsg.upload_results import UploadResults

__all__ = ["ProducerProcess"]

_RETENTION_MS = 3_600_000
# What an idle notifier thread sleeps, and what it gives Kafka while something is in flight; longer
# than in production, for nothing but the time that is simulated depends on it.
_IDLE_MS = 500
_BUSY_MS = 50
_ENCODE_AGAIN_MS = 20
_INNER_QUEUE = 100_000


class ProducerProcess(Process):
    """A producer.

    Args:
        world: Its world.
        name: Unique to this incarnation.
        broker: The cluster.
        network: Between them.
        store: The store.
        settings: Its.
        producer_id: 16 bytes, unique to this incarnation.
        transactional_id: None: it has no transactions.

    Attributes:
        pipeline: The production code.
        transactions: The production code; for fibers.
        inner: What it holds as stock's producer.
        route: `blobmsg.route`.
    """

    def __init__(
        self,
        world: World,
        name: str,
        broker: VirtualBroker,
        network: Network,
        store: VirtualStore,
        settings: ClientSettings,
        *,
        producer_id: bytes,
        transactional_id: str | None = None,
    ) -> None:
        super().__init__(world, name)
        self.route = settings.ours.route
        self._network = network
        self._known: set[str] = set()
        self._planned_ms: int | None = None
        self._is_calling = False  # the notifier waits for a call of its inner producer
        requests = StoreRequests(store, self, settings.ours)
        self.inner = InnerProducer(
            self,
            broker,
            network,
            message_timeout_ms=settings.inner_producer.message_timeout_ms,
            queue_limit=_INNER_QUEUE,
            transactional_id=transactional_id,
            transaction_timeout_ms=settings.inner_producer.transaction_timeout_ms,
            woken=self.touch,
        )
        directory: Any = _Directory(broker, network)
        stores: Any = requests
        self.pipeline = ProducerPipeline(
            self.inner,
            settings.ours,
            settings.view,
            directory=directory,
            stores=stores,
            on_store_error=lambda _error: None,
            clock=self,
            name=name,
            producer_id=producer_id,
            make_uploader=partial(VirtualUploader, self, requests),
            waiting=Waiting(
                VirtualNews(self), _Touch(self), partial(VirtualJobThread, self), self.monotonic_s
            ),
        )
        timeout_s = settings.view.transaction_timeout_ms / 1000
        self.transactions = Transactions(self.pipeline, self, timeout_s)

    # --- what an application calls --------------------------------------------------------------

    def produce(self, sent: Sent, callback: Callable[..., Any]) -> None:
        """As `BlobProducer.produce`, with all arguments checked."""
        topic, key, value, headers = sent.topic, sent.key, sent.value, sent.headers
        partition, timestamp_ms = sent.partition, sent.timestamp_ms
        if topic not in self._known:
            self._known.add(topic)
            self.after(self._network.delay_ms(), self._read_topics)
        try:
            if self.pipeline.record_step(
                topic, key, value, partition, callback, timestamp_ms, headers
            ):
                return
            payload_bytes = len(key) + len(value or b"")
            for header, content in headers or ():
                payload_bytes += len(header) + len(content or b"")
            self.pipeline.record_path.append(
                topic, key, value, partition, timestamp_ms, headers, callback, payload_bytes
            )
        finally:
            self.touch()

    def poll(self) -> int:
        """As `BlobProducer.poll(0)`."""
        return self.pipeline.serve(0)

    def flush(self, timeout_s: float) -> int:
        """As `BlobProducer.flush`."""
        return self.pipeline.flush(timeout_s)

    # --- its threads ----------------------------------------------------------------------------

    def touch(self) -> None:
        """Something has changed: the notifier thread wakes."""
        self._plan(self.world.rng.randint(0, 2))

    def _plan(self, delay_ms: int) -> None:
        at_ms = self.world.now_ms + delay_ms
        if self._planned_ms is None or at_ms < self._planned_ms:
            self._planned_ms = at_ms
            self.after(delay_ms, partial(self._round, at_ms))

    def _round(self, planned_ms: int) -> None:
        if planned_ms != self._planned_ms or self._is_calling:
            return  # an earlier one was planned meanwhile
        call = self.pipeline.notifier_thread.inner_call
        if call is None or call.is_over:
            self._notify()
        else:
            self._is_calling = True
            start_fiber(self, self._notify)

    def _notify(self) -> None:
        self._planned_ms = None
        wait_s = self.pipeline.notifier_thread.do_round()
        if self._is_calling:
            self._is_calling = False
            self._planned_ms = None  # what was planned meanwhile has not come
        if wait_s is None:
            self._plan(_BUSY_MS)
        elif wait_s > 0.15:  # it only idles
            self._plan(_IDLE_MS)
        else:
            self._plan(max(1, int(wait_s * 1000)))

    def _read_topics(self) -> None:
        wait_s = self.pipeline.read_topics()
        self.touch()
        self.after(max(self._network.delay_ms(), int(wait_s * 1000)), self._read_topics)


class _Touch(Wakeup):
    """Stands for the notifier thread's `Wakeup`."""

    def __init__(self, process: ProducerProcess) -> None:
        super().__init__()
        self._process = process

    def set(self) -> None:
        """See `Wakeup.set`."""
        self._process.touch()


class _Directory:
    """Stands for `TopicDirectory`."""

    def __init__(self, broker: VirtualBroker, network: Network) -> None:
        self._broker = broker
        self._network = network

    def read(self, topic: str) -> TopicFacts:
        """What the cluster says of a topic."""
        if self._network.call_fault():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))
        if topic not in self._broker.topics:
            raise UnknownTopic(topic)
        partitions = self._broker.partitions_of(topic)
        return TopicFacts(
            destination_zones=("",) * partitions,
            unavailable=frozenset(),
            retention_class=retention_class(_RETENTION_MS),
            segment_ms=_RETENTION_MS,
            is_compacted=False,
            max_message_bytes=1_000_000,
            is_complete=True,
        )

    def close(self) -> None:
        """It holds nothing."""


class VirtualUploader(Uploader):
    """The production uploader without its threads: an upload is computed, and ends in its time.

    Args:
        process: Whose it is.
        requests: The process' way to the store.
        store: As `Uploader`.
        outcomes: As `Uploader`: the pipeline.
        threads: How many uploads at once.
        arguments: As `Uploader`.
    """

    def __init__(
        self,
        process: ProducerProcess,
        requests: StoreRequests,
        store: Callable[[], Any],
        outcomes: UploadResults,
        *,
        threads: int,
        **arguments: Any,
    ) -> None:
        self._delayed = _DelayedOutcomes(process, requests, outcomes)
        super().__init__(store, self._delayed, threads=1, **arguments)
        self._process = process
        self._requests = requests
        self._results = outcomes
        self._slots = threads
        self._queue: deque[Batch] = deque()
        self._is_waiting = False

    def upload(self, batch: Batch) -> None:
        """See `Uploader.upload`."""
        self._queue.append(batch)
        self._process.after(0, self._begin)

    def make_inline(self, action: EncodeInline | CutSegment) -> None:
        """See `Uploader.make_inline`."""
        self._process.after(self._process.world.rng.randint(0, 1), partial(self._inline_of, action))

    def replace_hanging_threads(self) -> None:
        """No thread hangs."""

    def _inline_of(self, action: EncodeInline | CutSegment) -> None:
        self._make_inline(action)
        self._process.touch()

    def _begin(self) -> None:
        while self._queue and self._slots:
            contents = self._results.try_encoding(self._queue[0])
            if contents is None:
                if not self._is_waiting:
                    self._is_waiting = True
                    self._process.after(_ENCODE_AGAIN_MS, self._begin_again)
                return
            batch = self._queue.popleft()
            if contents:
                self._slots -= 1
                self._requests.begin()
                self._delayed.contents = contents
                self._upload(batch)
                self._requests.later(self._ended)

    def _begin_again(self) -> None:
        self._is_waiting = False
        self._begin()

    def _ended(self) -> None:
        self._slots += 1
        self._begin()


class _DelayedOutcomes:
    """`UploadOutcomes` of requests that are computed ahead: the core hears when they end."""

    def __init__(
        self, process: ProducerProcess, requests: StoreRequests, results: UploadResults
    ) -> None:
        self._process = process
        self._requests = requests
        self._results = results
        self.contents: list[tuple[SealedSegment, Rows]] = []

    def _later(self, tell: Callable[[], None]) -> None:
        def told() -> None:
            tell()
            self._process.touch()

        self._requests.later(told)

    def begin_encoding(self, batch: Batch) -> list[tuple[SealedSegment, Rows]]:
        """What the core has said of this batch already."""
        return self.contents

    def object_encoded(
        self, batch: Batch, encoded: Mapping[SealedSegment, EncodedSegment], object_bytes: int
    ) -> list[SealedSegment]:
        """At once."""
        return self._results.object_encoded(batch, encoded, object_bytes)

    def attempt_failed(self, batch: Batch, begun_ms: int) -> None:
        """When the attempt has ended."""
        self._later(partial(self._results.attempt_failed, batch, begun_ms))

    def uploaded(self, batch: Batch, parts: dict[SealedSegment, Part], object_bytes: int) -> None:
        """When the request has ended."""
        self._later(partial(self._results.uploaded, batch, parts, object_bytes))

    def upload_failed(self, batch: Batch, error: BaseException, object_bytes: int) -> None:
        """When the request has ended."""
        self._later(partial(self._results.upload_failed, batch, error, object_bytes))

    def upload_abandoned(self, batch: Batch, object_bytes: int) -> None:
        """When the request has ended."""
        self._later(partial(self._results.upload_abandoned, batch, object_bytes))

    def begin_inline(self, action: EncodeInline | CutSegment) -> Rows | EncodedSegment | None:
        """At once."""
        return self._results.begin_inline(action)

    def inline_encoded(self, segment: SealedSegment, part: Part, data: bytes) -> None:
        """At once."""
        self._results.inline_encoded(segment, part, data)

    def cut(self, segment: SealedSegment, pieces: list[SealedSegment]) -> None:
        """At once."""
        self._results.cut(segment, pieces)

    def inline_failed(self, segment: SealedSegment, error: BaseException) -> None:
        """At once."""
        self._results.inline_failed(segment, error)

    def thread_failed(self, error: BaseException) -> None:
        """A defect."""
        raise error
