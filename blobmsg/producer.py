"""BlobProducer: confluent-kafka's Producer with the payload going through the store.

The surface only: checks arguments as the stock class does, and hands over to
`ProducerPipeline`. Decides nothing about records.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import time
import uuid
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.asking import ask
from blobmsg.clock import SystemClock
from blobmsg.commits import commit_entries, partitions_of
from blobmsg.config import parse_settings
from blobmsg.core.segments import headers_bytes
from blobmsg.ending import CLOSED, Closed, end_elsewhere
from blobmsg.forks import forget_after_fork
from blobmsg.inner_config import (
    KafkaCallbacks,
    TimeBudget,
    inner_producer_config,
    plain_producer_config,
)
from blobmsg.inner_events import weakly
from blobmsg.interrupts import ctrl_c_waits
from blobmsg.kafka_settings import KafkaView, collect_config
from blobmsg.offset_check import FirstOffsetCheck
from blobmsg.passthrough import Passthrough
from blobmsg.producer_events import ProducerEvents
from blobmsg.producer_pipeline import ProducerPipeline
from blobmsg.record_arguments import (
    bytes_of,
    check_messages,
    check_name,
    checked_numbers,
    exact_str,
    normalized_headers,
    of_batch,
    refuse_own_header,
    too_large,
)
from blobmsg.resources import SharedAdmin, Stores
from blobmsg.thread_log import ThreadLog
from blobmsg.time_limit import TimeLimit, seconds
from blobmsg.topic_directory import TopicDirectory
from blobmsg.transactions import Transactions
from blobmsg.user_positions import check_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    DeliveryCallback = Callable[[KafkaError | None, confluent_kafka.Message], None]
    HeadersType = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]

__all__ = ["BlobProducer"]

logger = logging.getLogger("blobmsg.producer")

# Bound at import: an application may replace confluent_kafka.Producer by this class.
_StockProducer: Final = confluent_kafka.Producer
# To type checkers ours is a stock Producer, so that annotated code stays as it is and they prove
# our signatures; at run time it holds one instead.
if TYPE_CHECKING:
    _ProducerBase = confluent_kafka.Producer
else:
    _ProducerBase = object
_time_ns: Final = time.time_ns
_numbers: Final = itertools.count(1)
_open: Final[weakref.WeakSet[BlobProducer]] = weakref.WeakSet()
_URGENT_HEADER: Final = "blobmsg.urgent"
# Among the arguments of `produce`, from 1; stock's texts name them so.
_VALUE_PLACE: Final = 2
_KEY_PLACE: Final = 3
# How long `poll` waits for one of two producers before it looks at the other one.
_LOOK_S: Final = 0.05
# Longer than any upload thread needs to notice; the threads are daemons.
_STOP_TIMEOUT_S: Final = 1.0
# For a close that has used up its time; none that does not hang needs more.
_SHORT_STOP_TIMEOUT_S: Final = 0.2
# What `close` waits for the reports of records that time out at its very end.
_REPORT_S: Final = 0.5
# What the end of an open transaction takes of a `close` at most: a cluster that is there needs
# milliseconds.
_END_TRANSACTION_S: Final = 5.0


class BlobProducer(_ProducerBase):
    """A drop-in for `confluent_kafka.Producer`.

    Takes the stock settings and those of `docs/settings.md`, as one dict, as keywords, or both.
    Records of topics that match `blobmsg.topics` are batched, stored and notified; all others go
    through a stock producer untouched. Offsets in delivery reports are virtual
    (`blobmsg.offsets`).

    Args:
        *args: The settings dict.
        **kwargs: Settings as keywords; they win over the dict.

    Raises:
        KafkaException: A setting is unknown or wrong (`ConfigError` for ours).
        TypeError: No settings, or a callback that can't be called.

    Threads: any, as in stock. Callbacks run only in `poll`, `flush` and `close`.
    Source: confluent_kafka.Producer; DESIGN.md, The producer.
    """

    # For a subclass whose __init__ never ran, and until all that ours makes is made.
    __unusable: str | None = f"{CLOSED}: it was never initialized, call super().__init__(conf)"
    __pipeline: ProducerPipeline

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        conf = collect_config(args, kwargs)
        settings, kafka_conf = parse_settings(conf, os.environ)
        view = KafkaView.parse(kafka_conf)
        if settings.route == "plain":  # Kafka takes no larger ones
            smaller_bytes = min(settings.record_max_bytes, view.message_max_bytes)
            settings = replace(settings, record_max_bytes=smaller_bytes)
        self.__settings = settings
        self.__record_max_bytes = settings.record_max_bytes
        callbacks = KafkaCallbacks.of(kafka_conf)
        self.__default_on_delivery = callbacks.on_delivery
        self.__message_timeout_s = view.message_timeout_ms / 1000
        self.__is_transactional = view.is_transactional
        self.__message_max_bytes = view.message_max_bytes
        name = f"blobmsg-producer-{next(_numbers)}"
        self.__is_closing = False
        # Its requests end in time to be tried again before records time out.
        request_timeout_ms = TimeBudget.of(settings, view).request_timeout_ms
        self.__stores = Stores(replace(settings, request_timeout_ms=request_timeout_ms))
        events = ProducerEvents(callbacks, self.__stores)
        self.__events = events
        inner_conf = inner_producer_config(kafka_conf, settings, view)
        self.__inner: Any = _StockProducer({**inner_conf, **events.for_inner()})
        plain_conf = {**plain_producer_config(kafka_conf), **events.for_passthrough()}
        self.__passthrough = Passthrough(lambda: _StockProducer(plain_conf))
        self.__shared_admin = SharedAdmin(kafka_conf)
        shared_admin = self.__shared_admin
        self.__offset_check = FirstOffsetCheck(lambda: shared_admin.client)
        self.__directory = TopicDirectory(
            self.__inner.list_topics,
            lambda: shared_admin.client,
            settings,
            ThreadLog(logging.getLogger("blobmsg.topics"), weakly(events.on_log_failure)),
            # Older versions have nobody to call it for an admin client.
            knocks="oauth_cb" not in kafka_conf,
        )
        if settings.store_url is not None:
            self.__stores.get()  # a wrong url or a missing extra shows here, not at an upload
        clock = SystemClock()
        self.__pipeline = ProducerPipeline(
            self.__inner,
            settings,
            view,
            directory=self.__directory,
            stores=self.__stores,
            on_store_error=weakly(events.on_error),
            clock=clock,
            name=name,
            producer_id=uuid.uuid4().bytes,
        )
        self.__transactions = Transactions(
            self.__pipeline, clock, view.transaction_timeout_ms / 1000
        )
        self.__record_step = self.__pipeline.record_step
        self.__record_path = self.__pipeline.record_path
        self.__store_topics: set[str] = set()  # seen to match `blobmsg.topics`
        self.__unusable = None  # if a thread can't be started, `__del__` ends the others
        events.connect(self.__pipeline)
        self.__pipeline.start()
        _open.add(self)

    @property  # type: ignore[misc]  # isinstance reads it; nobody sets it
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The stock class, so that `isinstance` checks of frameworks hold."""
        return _StockProducer

    # --- producing ----------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersType | None = None,
    ) -> None:
        """Queue one record; returns at once.

        Args:
            topic: Its topic.
            value: Its value; str becomes UTF-8, None and empty differ.
            key: Its key; likewise.
            partition: -1 lets the partitioner choose.
            callback: Called with (error or None, Message) from `poll`, `flush` or `close`; wins
                over `on_delivery`, which wins over the setting of that name.
            on_delivery: As `callback`.
            timestamp: ms since 1970 UTC; 0: now.
            headers: dict or list of (name, value); values are str, bytes or None. The header
                `blobmsg.urgent` seals the record's batch at once; `blobmsg` is refused.

        Raises:
            BufferError: The buffer is full; `poll` and try again.
            KafkaException: `MSG_SIZE_TOO_LARGE` over `blobmsg.record.max.bytes`,
                `_UNKNOWN_PARTITION`, `_UNKNOWN_TOPIC`.
            TypeError: An argument of a wrong type.

        Threads: any.
        """
        if self.__unusable is not None:
            raise RuntimeError(self.__unusable)
        if callback is None:
            callback = self.__default_on_delivery if on_delivery is None else on_delivery
        if self.__record_step(topic, key, value, partition, callback, timestamp, headers):
            return
        payload_bytes = 0
        if type(value) is bytes:
            payload_bytes = len(value)
        elif value is not None:
            value = bytes_of(value, _VALUE_PLACE)
            payload_bytes = len(value)
        if type(key) is bytes:
            payload_bytes += len(key)
        elif key is not None:
            key = bytes_of(key, _KEY_PLACE)
            payload_bytes += len(key)
        is_urgent = False
        if headers is not None:
            headers = normalized_headers(headers)
            payload_bytes += headers_bytes(headers)
            is_urgent = any(name == _URGENT_HEADER for name, _ in headers)
        if type(topic) is not str:
            topic = exact_str(topic)
        partition, timestamp = checked_numbers(partition, timestamp)
        max_bytes = self.__record_max_bytes
        if topic not in self.__store_topics and not self.__uses_store(topic):
            if not self.__is_transactional:  # else only the producer of the transaction may send it
                self.__passthrough.produce(
                    topic, value, key, partition, callback, timestamp, headers
                )
                return
            max_bytes = self.__message_max_bytes
        elif headers is not None:
            refuse_own_header(headers)
        if payload_bytes > max_bytes:
            raise too_large(payload_bytes, max_bytes)
        self.__record_path.append(
            topic,
            key,
            value,
            partition,
            timestamp or _time_ns() // 1_000_000,
            headers,
            callback,
            payload_bytes,
            is_urgent,
        )

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Queue several records of one topic.

        Args:
            topic: Their topic.
            messages: dicts with `value`, `key` and, all optional, `partition`, `callback`,
                `timestamp`, `headers`.
            partition: For those without one of their own.
            callback: For those without one of their own.
            on_delivery: As `callback`.

        Returns:
            How many were queued. The others got a `_error` (a `KafkaError`) and no callback; behind
            one for which the buffer was full, all of them.

        Raises:
            TypeError: `messages` is no list of dicts.

        Threads: any.
        """
        self.__check_usable()
        topic = exact_str(topic)
        partition, _ = checked_numbers(partition, 0)
        check_messages(messages)
        if callback is None:
            callback = self.__default_on_delivery if on_delivery is None else on_delivery
        queued = 0
        index = 0
        while index < len(messages):
            taken = self.__record_step.join_messages(topic, messages, index, partition, callback)
            queued += taken - index
            if taken == index:
                try:
                    queued += self.__produce_message(topic, messages[index], partition, callback)
                except BufferError:
                    # None behind it either, though there may be room by now: whoever produces the
                    # refused ones again has them in their order.
                    for message in messages[index:]:
                        message["_error"] = of_batch(KafkaError(KafkaError._QUEUE_FULL))
                    break
                taken += 1
            index = taken
        return queued

    def __produce_message(
        self,
        topic: str,
        message: dict[str, Any],
        partition: int,
        callback: DeliveryCallback | None,
    ) -> bool:
        """Queue one message of a batch, or say in it why not.

        Raises:
            BufferError: The buffer is full.
        """
        own = message.get("partition")
        if own is not None:
            partition = own
        own = message.get("callback")
        if own is not None:
            callback = own
        try:
            BlobProducer.produce(  # not that of a subclass, as stock
                self,
                topic,
                message.get("value"),
                message.get("key"),
                partition,
                callback,
                timestamp=message.get("timestamp", 0),
                headers=message.get("headers"),
            )
        except KafkaException as error:
            message["_error"] = of_batch(error.args[0])
        else:
            return True
        return False

    def __uses_store(self, topic: str) -> bool:
        check_name(topic)
        uses = self.__settings.uses_store(topic)
        if uses:
            self.__store_topics.add(topic)
        return uses

    # --- waiting ------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> int:
        """Run due callbacks; waits for the first one.

        Args:
            timeout: Seconds to wait at most; negative: no limit, 0: not at all.

        Returns:
            Events served; acknowledged records without a callback count too.

        Threads: any.
        """
        self.__check_usable()
        timeout_s = seconds(timeout)
        if self.__passthrough.producer is None:
            return self.__pipeline.serve(timeout_s)
        limit = TimeLimit(timeout_s)
        while True:
            served = self.__passthrough.poll()
            served += self.__pipeline.serve(0 if served else limit.slice_s(_LOOK_S))
            if served or limit.is_over or self.__unusable is not None:  # closed by another thread
                return served

    def flush(self, timeout: float = -1) -> int:
        """Seal all batches at once and wait until every record is delivered or has failed.

        Args:
            timeout: Seconds to wait at most; negative: no limit.

        Returns:
            Records and events that remain.

        Threads: any.
        """
        self.__check_usable()
        return self.__flush(seconds(timeout))

    def __flush(self, timeout_s: float) -> int:
        limit = TimeLimit(timeout_s)
        while True:
            remaining = self.__pipeline.flush(limit.rest_s())
            if self.__passthrough.producer is None:  # another thread's `close` takes it away
                return remaining
            remaining += self.__passthrough.flush(limit.rest_s())
            # Again when a callback of one has produced to the other.
            if not self.__pipeline.undelivered or limit.is_over:
                return remaining

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop records. `poll` and `flush` report them as failed, as ever in order.

        Args:
            in_queue: Those that were not sent to a broker, whole objects among them: reported with
                `_PURGE_QUEUE`.
            in_flight: Those whose notification, or which as plain ones, were sent to a broker that
                has not answered: reported with `_PURGE_INFLIGHT`, and yet a consumer may get them.
            blocking: Return when they are dropped; else at once. What was on its way to a broker
                is dropped a moment later, as by stock; what is produced before that, too.

        Threads: any.
        """
        self.__check_usable()
        self.__pipeline.purge(
            in_queue=bool(in_queue), in_flight=bool(in_flight), waits=bool(blocking)
        )
        passthrough = self.__passthrough.producer
        if passthrough is not None:
            passthrough.purge(in_queue, in_flight, blocking)

    def close(self) -> bool:
        """Flush for at most `message.timeout.ms`, then release everything. Idempotent.

        Returns:
            True.

        Threads: any.
        """
        if self.__unusable is not None:
            self.__check_not_forked()
            return True
        timeout_s = self.__message_timeout_s
        limit = TimeLimit(timeout_s + _REPORT_S if timeout_s else -1)
        if self.__is_closing:
            return True  # another thread, or a callback of this close, is at it
        self.__is_closing = True  # without a call in between: nor can an interrupt come
        try:
            self.__transactions.close(min(_END_TRANSACTION_S, timeout_s or _END_TRANSACTION_S))
            failure = self.__flush_to_the_end(limit.rest_s())
        finally:  # Ctrl-C gives up
            with ctrl_c_waits():  # the next one, for a second at most: nobody would do the rest
                self.__unusable = CLOSED
                _open.discard(self)
                lost = self.__undelivered()
                self.__release(max(_SHORT_STOP_TIMEOUT_S, limit.slice_s(_STOP_TIMEOUT_S)))
                # Again: another thread may have been about to add one.
                lost = max(lost, self.__undelivered())
                if lost:
                    logger.warning("closed with %d records undelivered", lost)
        if failure is not None:
            raise failure
        return True

    def __flush_to_the_end(self, timeout_s: float) -> Exception | None:
        """Flush, whatever callbacks raise; the first that one has raised."""
        limit = TimeLimit(timeout_s)
        first: Exception | None = None
        while True:
            try:
                self.__flush(limit.rest_s())
            except Exception as failure:  # noqa: BLE001, PERF203  (`close` raises it at the end)
                first = first or failure
                if self.__pipeline.has_defect or limit.is_over:
                    return first
            else:
                return first

    def __release(self, stop_timeout_s: float) -> None:
        # Threads and connections end with their client's last reference, as after stock's `close`.
        # That waits for a name server that hangs; so a thread has the last one.
        limit = TimeLimit(stop_timeout_s)
        last, self.__inner = [self.__inner], Closed()
        self.__events.disconnect()
        endings = [self.__passthrough.close()]  # first: events that come to it count as records
        self.__pipeline.stop(limit.rest_s())
        endings += [end_elsewhere(last), self.__shared_admin.release()]
        self.__stores.close()
        for ending in endings:
            ending.wait(limit.rest_s())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.__unusable is not _FORKED:  # its exception would replace the block's own
            self.close()

    def __len__(self) -> int:
        if self.__unusable is not None:
            self.__check_not_forked()
            return 0  # as stock
        pipeline = self.__pipeline
        return pipeline.undelivered + pipeline.reports.running + self.__passthrough.undelivered

    def __undelivered(self) -> int:
        """What would be lost now: of `len` the records alone, and none whose callback runs."""
        return self.__pipeline.unreported + self.__passthrough.undelivered

    def __bool__(self) -> bool:
        return True

    def __del__(self) -> None:
        if self.__unusable is not None:
            return
        if count := self.__undelivered():
            logger.warning(
                "a BlobProducer is garbage with %d records undelivered, which are lost: "
                "call flush() or close()",
                count,
            )
        self.__unusable = CLOSED
        self.__release(0.0)  # whoever made it garbage must not wait

    # --- the cluster --------------------------------------------------------------------------

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Metadata of the cluster; as stock."""
        self.__check_handle()
        # A traceback that is kept must have `self` alone: its inner producer ends with `close`.
        return ask(lambda timeout_s: self.__inner.list_topics(topic, timeout_s), timeout)

    def cluster_id(self, timeout: float = -1) -> str:
        """The cluster's id; as stock."""
        self.__check_handle()
        cluster_id: str = ask(lambda timeout_s: self.__inner.cluster_id(timeout_s), timeout)
        return cluster_id

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """New credentials for all connections to Kafka; as stock."""
        self.__check_handle()
        self.__inner.set_sasl_credentials(username, password)
        self.__passthrough.set_sasl_credentials(username, password)
        self.__shared_admin.set_sasl_credentials(username, password)
        self.__directory.credentials_changed()

    def stats(self) -> dict[str, int]:
        """Counters since the start: records, batches, notifications, requests, bytes.

        Requests and bytes of the store are those of all clients of this process that share it;
        `tx_bytes` and `rx_bytes` are Kafka's wire bytes, known with `statistics.interval.ms`.
        """
        self.__check_usable()
        return self.__events.own_statistics(self.__pipeline)

    # --- transactions -------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> None:
        """Fence all other producers of this `transactional.id` and end what they have left.

        Args:
            timeout: Seconds to wait at most; negative: no limit.

        Raises:
            KafkaException: As stock; `_NOT_CONFIGURED` without a `transactional.id`.

        Threads: any, but the calls for transactions one after the other.
        """
        self.__configured_transactions().init(seconds(timeout))

    def begin_transaction(self) -> None:
        """Open a transaction; records can be produced in one only.

        Raises:
            KafkaException: `_STATE` when one is open, or before `init_transactions`.
        """
        self.__configured_transactions().begin()

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: Any, timeout: float = -1
    ) -> None:
        """Commit a consumer's positions with the transaction, exact to the record.

        Args:
            positions: Virtual offsets, of the records that are to be read next.
            group_metadata: `BlobConsumer.consumer_group_metadata()`.
            timeout: Seconds to wait at most; negative: `transaction.timeout.ms`.

        Raises:
            KafkaException: As stock; `_INVALID_ARG` for a Kafka offset, where it can be told from
                a virtual one, and for metadata over Kafka's 4,096 bytes.
        """
        transactions = self.__configured_transactions()
        check_partitions(positions)
        limit = TimeLimit(seconds(timeout))
        if self.__settings.offset_check:
            self.__offset_check.check(positions)
        partitions = partitions_of(commit_entries(positions))
        transactions.send_offsets(partitions, group_metadata, limit.rest_s())

    def commit_transaction(self, timeout: float = -1) -> None:
        """Seal, upload and notify everything, then commit the transaction; runs callbacks.

        Args:
            timeout: Seconds to wait at most; negative: `transaction.timeout.ms`.

        Raises:
            KafkaException: As stock. Retriable: call again. `txn_requires_abort`: a record has
                failed, or `transaction.timeout.ms` is nearly over.
        """
        self.__configured_transactions().commit(seconds(timeout))

    def abort_transaction(self, timeout: float = -1) -> None:
        """Drop what is not delivered and abort the transaction; runs callbacks.

        Args:
            timeout: Seconds to wait at most; negative: `transaction.timeout.ms`.

        Raises:
            KafkaException: As stock.
        """
        self.__configured_transactions().abort(seconds(timeout))

    def __configured_transactions(self) -> Transactions:
        self.__check_usable()
        if not self.__is_transactional:
            raise KafkaException(
                KafkaError(
                    KafkaError._NOT_CONFIGURED,
                    "The Transactional API requires transactional.id to be configured",
                )
            )
        return self.__transactions

    def __check_usable(self) -> None:
        if self.__unusable is not None:
            raise RuntimeError(self.__unusable)

    def __check_not_forked(self) -> None:
        if self.__unusable is _FORKED:
            raise RuntimeError(_FORKED)

    def __check_handle(self) -> None:
        self.__check_not_forked()
        if self.__unusable is not None:
            why = self.__unusable.removeprefix(CLOSED)
            raise RuntimeError(f"Handle has been closed{why}")  # as stock says it


# Private names are mangled: a user's subclass may have any, `_lock` or `_on_error` say.
_UNUSABLE: Final = "_BlobProducer__unusable"
_UNDELIVERED: Final = "_BlobProducer__undelivered"
_PIPELINE: Final = "_BlobProducer__pipeline"
_FORKED: Final = (
    "this BlobProducer was made before fork(): its threads and connections belong to the parent; "
    "make a new one in the child"
)


def pipeline_of(producer: BlobProducer) -> ProducerPipeline:
    """What is behind a producer, for clients that are built on it."""
    pipeline: ProducerPipeline = getattr(producer, _PIPELINE)
    return pipeline


def _warn_at_exit() -> None:
    for producer in list(_open):
        if count := getattr(producer, _UNDELIVERED)():
            logger.warning(
                "the interpreter exits with %d records undelivered: call flush() or close()", count
            )


def _refuse_after_fork() -> object:
    had = list(_open)
    for producer in had:
        setattr(producer, _UNUSABLE, _FORKED)
    _open.clear()
    return had


atexit.register(_warn_at_exit)
forget_after_fork(_refuse_after_fork)
