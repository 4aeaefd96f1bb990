"""The topics of a producer: what is known of them, and the records that wait until it is.

Keeps the records of topics that the cluster has not told about yet, reads topics again and again
in a thread of its own, and moves the records on, in order, once their partitions are known; as
librdkafka does. What a topic's settings mean for batches is the core's.

Threads: `by_name` and all methods but `start`, `stop` and `join` under the pipeline's lock;
the metadata thread takes it by itself and calls the cluster without it.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.core.batcher import TopicLanes
from blobmsg.core.events import ProducerAction, Report
from blobmsg.core.partitioner import Partitioner, create_partitioner
from blobmsg.core.segments import SealedSegment, SegmentState
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD
from blobmsg.format.rows import WIDE, Rows
from blobmsg.inner_config import key_hashes
from blobmsg.reentrant import CoreLock, Wakeup
from blobmsg.topic_directory import TopicDirectory, TopicFacts, UnknownTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blobmsg.clock import Clock
    from blobmsg.core.producer_core import ProducerCore
    from blobmsg.format.segment import Headers
    from blobmsg.kafka_settings import KafkaView
    from blobmsg.thread_log import ThreadLog

__all__ = [
    "ANY_PARTITION",
    "ENVELOPE_BYTES",
    "ProducedTopic",
    "ProducerTopics",
    "WaitingRecord",
    "unknown_partition",
]

#: Asks the partitioner; every other negative number is a partition that there is not.
ANY_PARTITION: Final = -1
# What a notification or an inline segment's Kafka record takes besides the segment itself.
ENVELOPE_BYTES: Final = 1024
_RETRY_S: Final = 0.25
_RETRY_MAX_S: Final = 5.0
# One that records wait for is asked about this often at least, as librdkafka asks for its own.
_WAITED_FOR_MS: Final = 1000
_NEVER_MS: Final = 1 << 62
# A topic whose settings could not be read is asked again so soon.
_INCOMPLETE_REFRESH_MS: Final = 30_000
# While Kafka may be away, a topic is read so often to hear when it is back.
_PROBE_EVERY_MS: Final = 1000
# Records of a topic that time out in one step, under the lock; as many again in the next.
_FAILED_AT_ONCE: Final = 10_000
# Of a segment of such records: they are copied into it before they are let go.
_FAILED_BYTES: Final = 4 << 20
# Longest sleep of the metadata thread: a Kafka that may be away is noticed as late as that.
_IDLE_S: Final = 1.0


@dataclass(slots=True)
class WaitingRecord:
    """A record that can't join a segment yet: its topic is not known, or the core is busy.

    Args:
        key: Its key.
        value: Its value.
        partition: -1 to let the partitioner choose.
        timestamp_ms: Wall time.
        headers: Its headers.
        callback: Its delivery callback.
        payload_bytes: Bytes of key, value and headers.
        is_urgent: Seal its lane at once.
        opened_ms: Monotonic time of its arrival.
        is_taken: Its `produce` has returned, so there must be room for it.
    """

    key: bytes | None
    value: bytes | None
    partition: int
    timestamp_ms: int
    headers: Headers | None
    callback: Callable[..., Any] | None
    payload_bytes: int
    is_urgent: bool
    opened_ms: int
    is_taken: bool = False


class ProducedTopic:
    """A topic in use. Threads: under the pipeline's lock."""

    __slots__ = ("first_asked_ms", "hashes_crc32", "is_missing", "is_stored", "lanes",
                 "next_read_ms", "partitioner", "read_ms", "retry_s", "unavailable",
                 "waiting")  # fmt: skip

    def __init__(
        self, name: str, partitioner: Partitioner, now_ms: int, *, is_stored: bool
    ) -> None:
        self.lanes = TopicLanes(name)
        self.partitioner = partitioner
        self.hashes_crc32 = partitioner.hashes_crc32
        self.is_stored = is_stored
        self.is_missing = False  # the cluster has said for long enough that there is none
        self.waiting: deque[WaitingRecord] = deque()
        self.unavailable: frozenset[int] = frozenset()
        self.first_asked_ms = now_ms
        self.read_ms = now_ms  # the last time
        self.next_read_ms = now_ms
        self.retry_s = _RETRY_S

    def due_ms(self) -> int:
        """When to read it."""
        if self.waiting:
            return min(self.next_read_ms, self.read_ms + _WAITED_FOR_MS)
        return self.next_read_ms


class ProducerTopics:
    """Topics by name, and the metadata thread.

    Args:
        directory: Reads topics.
        core: Configured with what was read; takes the records that waited.
        view: The user's librdkafka settings that we interpret.
        uses_store: Whether a topic matches `blobmsg.topics`; records of one that doesn't are plain.
        clock: Time.
        has_in_flight: Whether the inner producer waits for answers.
        core_lock: Enters the core.
        tell: Wakes who waits for news, after each read; called under the lock.
        dispatch: Does the core's actions; called under the lock.
        wake_notifier: Lets the notifier thread look for lanes that are due.
        run: Runs the thread's loop and reports its defects.
        log: For what the user should know.
        name: For the thread's name.
    """

    def __init__(
        self,
        directory: TopicDirectory,
        core: ProducerCore,
        view: KafkaView,
        *,
        uses_store: Callable[[str], bool],
        clock: Clock,
        has_in_flight: Callable[[], bool],
        core_lock: CoreLock,
        tell: Callable[[], None],
        dispatch: Callable[[list[ProducerAction]], None],
        wake_notifier: Callable[[], object],
        run: Callable[[Callable[[], None]], None],
        log: ThreadLog,
        name: str,
    ) -> None:
        self._directory = directory
        self._core = core
        self._view = view
        self._uses_store = uses_store
        self._clock = clock
        self._has_in_flight = has_in_flight
        self._core_lock = core_lock
        self._tell = tell
        self._dispatch = dispatch
        self._wake_notifier = wake_notifier
        self._log = log
        self._rng = random.Random()  # noqa: S311  (partitions, not secrets)
        self.by_name: dict[str, ProducedTopic] = {}
        #: Whether records may come; of a transactional producer only in a transaction.
        self.is_open = not view.is_transactional
        self.usable: dict[str, ProducedTopic] = {}  # those whose partitions are known, while open
        # Of these, those that place keys by CRC-32; for `RecordStep`.
        self.keyed: dict[str, TopicLanes] = {}
        self._seals_when_known = False
        self._next_probe_ms = 0
        self._wake = Wakeup()
        self._is_stopping = False
        self._thread = threading.Thread(
            target=run, args=(self._run,), name=f"{name}-metadata", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end."""
        self._is_stopping = True
        self._wake.set()

    def open(self) -> None:
        """Records join segments from here on."""
        self.is_open = True
        for topic in self.by_name.values():
            self._let_use(topic)

    def shut(self) -> None:
        """No record joins a segment any more; what comes is asked for anew."""
        self.is_open = False
        self.usable.clear()
        self.keyed.clear()

    def _let_use(self, topic: ProducedTopic) -> None:
        lanes = topic.lanes
        if not self.is_open or topic.is_missing or not lanes.partition_count:
            return
        self.usable[lanes.topic] = topic
        # Those without the store have a limit of their own, which `RecordStep` does not know.
        if topic.hashes_crc32 and topic.is_stored:
            self.keyed[lanes.topic] = lanes

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    # --- records that wait ----------------------------------------------------------------------

    def add_waiting(self, name: str, record: WaitingRecord) -> ProducedTopic | None:
        """Keep a record until its topic's partitions are known.

        Returns:
            The topic, and the record is not kept, when they are known by now.

        Raises:
            KafkaException: The cluster has said for long enough that there is no such topic.
        """
        topic = self.by_name.get(name)
        if topic is None:
            partitioner = create_partitioner(
                self._view.partitioner,
                self._rng,
                self._view.sticky_partitioning_linger_ms,
                **key_hashes(),
            )
            made = ProducedTopic(
                name, partitioner, record.opened_ms, is_stored=self._uses_store(name)
            )
            topic = self.by_name.setdefault(name, made)  # a signal handler may have been faster
            self._wake.set()
        if topic.is_missing:
            text = "Unable to produce message: Local: Unknown topic"
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC, text))
        if name in self.usable:
            return topic
        # No call in between: nor can a signal come, see `record_step`.
        self._core.memory.records += 1
        self._core.memory.records_bytes += record.payload_bytes + CHARGE_BYTES_PER_RECORD
        topic.waiting.append(record)
        return None

    def purge(self, error: KafkaError) -> None:
        """Fail what waits."""
        for topic in self.by_name.values():
            self._fail(topic, len(topic.waiting), error)

    def fail(self, name: str, record: WaitingRecord, error: KafkaError) -> None:
        """Fail one record that is charged and waits nowhere."""
        self._report_failed(name, [record], error)

    def time_out_waiting(self, now_ms: int) -> bool:
        """Fail what has waited for too long, some of it at a time.

        Not on the metadata thread: it may wait for the cluster for much longer.

        Returns:
            Whether more has, so that this is to be called again at once.
        """
        timeout_ms = self._view.message_timeout_ms
        if not timeout_ms:
            return False
        has_more = False
        latest_ms = now_ms - timeout_ms
        for topic in self.by_name.values():
            if topic.waiting and topic.waiting[0].opened_ms <= latest_ms:
                overdue = takewhile(
                    lambda record: record.opened_ms <= latest_ms,
                    islice(topic.waiting, _FAILED_AT_ONCE),
                )
                count = sum(1 for _ in overdue)
                self._fail(topic, count, KafkaError(KafkaError._MSG_TIMED_OUT))
                has_more |= bool(topic.waiting) and topic.waiting[0].opened_ms <= latest_ms
        return has_more

    def seal_when_known(self) -> None:
        """Seal what waits as soon as it has a lane: the buffer is full, or somebody flushes."""
        self._seals_when_known = self.has_waiting

    @property
    def has_waiting(self) -> bool:
        """Whether records wait for their topic."""
        return any(topic.waiting for topic in self.by_name.values())

    def read_soon(self, name: str) -> None:
        """Read a topic that is known, before its time."""
        self.by_name[name].next_read_ms = self._clock.now_ms()
        self._wake.set()

    def _place(self, topic: ProducedTopic, record: WaitingRecord, now_ms: int) -> None:
        """Move a record that waited to its partition's segment."""
        lanes, partition = topic.lanes, record.partition
        if partition == ANY_PARTITION:
            partition = topic.partitioner.partition(
                record.key, lanes.partition_count, now_ms, topic.unavailable
            )
        elif not 0 <= partition < lanes.partition_count:
            error = KafkaError(KafkaError._UNKNOWN_PARTITION)
            self._report_failed(lanes.topic, [record], error)
            return
        segment = self._core.batcher.segment_for(
            lanes, partition, record.headers, record.callback, record.opened_ms
        )
        is_full = segment.append(
            record.key,
            record.value,
            record.timestamp_ms,
            record.headers,
            record.callback,
            record.payload_bytes,
        )
        if is_full or record.is_urgent:
            self._dispatch(self._core.seal(segment.lane, now_ms, self._clock.timestamp_ms()))

    def _fail(self, topic: ProducedTopic, count: int, error: KafkaError) -> None:
        """Fail the first so many that wait; of one partition in a row, many are one segment."""
        together: list[WaitingRecord] = []
        room_bytes = 0
        for _ in range(count):
            record = topic.waiting.popleft()
            if together and (record.partition != together[0].partition or room_bytes <= 0):
                self._report_failed(topic.lanes.topic, together, error)
                together = []
            if not together:
                room_bytes = _FAILED_BYTES
            together.append(record)
            room_bytes -= record.payload_bytes + CHARGE_BYTES_PER_RECORD
        if together:
            self._report_failed(topic.lanes.topic, together, error)

    def _report_failed(
        self, name: str, records: Sequence[WaitingRecord], error: KafkaError
    ) -> None:
        rows = Rows(WIDE)
        for record in records:
            rows.extend(
                (record.key, record.value, record.timestamp_ms, record.headers, record.callback)
            )
        payload_bytes = sum(record.payload_bytes for record in records)
        segment = SealedSegment(
            topic=name,
            partition=records[0].partition,
            rows=rows,
            callback=None,
            charged_bytes=payload_bytes + CHARGE_BYTES_PER_RECORD * len(records),
            opened_ms=records[0].opened_ms,
            deadline_ms=None,
        )
        self._core.memory.charge_segment(segment)
        segment.state = SegmentState.FAILED
        segment.error = error
        segment.settled_ms = self._clock.now_ms()
        self._core.transaction.records_failed(error, len(records))
        self._dispatch([Report(segment)])

    # --- the metadata thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                wait_s = self.read_due()
                if wait_s:
                    self._wake.wait(wait_s)
        finally:  # not by whoever joins: a look-up may outlast that one's patience
            self._directory.close()

    def read_due(self) -> float:
        """Read the topics that are due; for how many seconds there is nothing more to do.

        Threads: the metadata thread only.
        """
        now_ms = self._clock.now_ms()
        with self._core_lock:
            topics = self.by_name.items()
            due = [(name, topic) for name, topic in topics if now_ms >= topic.due_ms()]
            next_ms = min((topic.due_ms() for _, topic in topics), default=None)
            presence = self._core.presence
            if not due and now_ms >= self._next_probe_ms and presence.is_doubted(now_ms):
                due = list(topics)[:1]
                self._next_probe_ms = now_ms + _PROBE_EVERY_MS
        for name, topic in due:
            if self._is_stopping:
                break
            self._read(name, topic)
        if due:
            return 0.0
        wait_s = _IDLE_S if next_ms is None else (next_ms - now_ms) / 1000
        return min(_IDLE_S, wait_s)

    def _read(self, name: str, topic: ProducedTopic) -> None:
        error: KafkaError | None = None
        facts: TopicFacts | None = None
        is_unknown = False
        try:
            facts = self._directory.read(name)
        except UnknownTopic:  # said by a broker
            error = KafkaError(KafkaError._UNKNOWN_TOPIC)
            is_unknown = True
        except KafkaException as failure:
            error = failure.args[0]
        is_changed = facts is not None and facts.is_compacted and not topic.lanes.is_plain
        if is_changed and topic.is_stored:
            self._log.warning(
                "topic %s is compacted: its records stay plain Kafka records, for the brokers "
                "must see their keys",
                name,
            )
        topic.read_ms = now_ms = self._clock.now_ms()
        with self._core_lock:
            if facts is not None:
                self._take_facts(topic, facts, now_ms)
            elif error is not None:
                self._retry(topic, error, now_ms)
            if facts is not None or error is None or is_unknown or error.code() > 0:
                self._core.presence.metadata_read(is_waiting=self._has_in_flight())
            self._tell()

    def _take_facts(self, topic: ProducedTopic, facts: TopicFacts, now_ms: int) -> None:
        self._core.batcher.configure_topic(
            topic.lanes,
            destination_zones=facts.destination_zones,
            retention_class=facts.retention_class,
            segment_ms=facts.segment_ms,
            is_plain=facts.is_compacted or not topic.is_stored,
        )
        topic.lanes.inline_max_bytes = facts.max_message_bytes - ENVELOPE_BYTES
        topic.unavailable = facts.unavailable
        topic.is_missing = False
        self._let_use(topic)
        refresh_ms = self._view.topic_metadata_refresh_interval_ms
        refresh_ms = _NEVER_MS if refresh_ms < 0 else max(1000, refresh_ms)
        if not facts.is_complete:
            refresh_ms = min(refresh_ms, _INCOMPLETE_REFRESH_MS)
        topic.next_read_ms = now_ms + refresh_ms
        topic.retry_s = _RETRY_S
        had_waiting = bool(topic.waiting)
        while topic.waiting:
            self._place(topic, topic.waiting.popleft(), now_ms)
        if self._seals_when_known and had_waiting:
            self._seals_when_known = self.has_waiting
            self._dispatch(self._core.seal_all(now_ms, self._clock.timestamp_ms()))
        self._wake_notifier()

    def _retry(self, topic: ProducedTopic, error: KafkaError, now_ms: int) -> None:
        waited_ms = now_ms - topic.first_asked_ms
        is_unknown = error.code() == KafkaError._UNKNOWN_TOPIC
        if is_unknown and waited_ms >= self._view.topic_metadata_propagation_max_ms:
            topic.is_missing = True
            self.usable.pop(topic.lanes.topic, None)
            self.keyed.pop(topic.lanes.topic, None)
            # What the broker said, as stock reports it; `produce` says _UNKNOWN_TOPIC from now on.
            self._fail(topic, len(topic.waiting), KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        elif not is_unknown and not error.retriable() and error.code() > 0:
            # The broker has refused for good, for example TOPIC_AUTHORIZATION_FAILED.
            self._fail(topic, len(topic.waiting), error)
        topic.next_read_ms = now_ms + int(topic.retry_s * 1000)
        topic.retry_s = min(_RETRY_MAX_S, topic.retry_s * 2)


def unknown_partition() -> KafkaException:
    """What stock says of a partition that the topic does not have."""
    return KafkaException(
        KafkaError(
            KafkaError._UNKNOWN_PARTITION,
            "Unable to produce message: Local: Unknown partition",
        )
    )
