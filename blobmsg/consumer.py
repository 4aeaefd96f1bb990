"""BlobConsumer: confluent-kafka's Consumer that also reads what BlobProducer put into the store.

The surface only: checks arguments as the stock class does, translates offsets, runs the user's
rebalance callbacks, and hands over to `Consumption`. Decides nothing about records.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from functools import partial
from operator import index
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    overload,
)

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.asking import ask
from blobmsg.clock import SystemClock
from blobmsg.commits import commit_entries
from blobmsg.config import parse_settings
from blobmsg.consumer_events import ConsumerEvents
from blobmsg.consumption import Consumption
from blobmsg.core.offsets import to_virtual
from blobmsg.fetcher import Fetcher
from blobmsg.forks import forget_after_fork
from blobmsg.inner_config import KafkaCallbacks, inner_consumer_config
from blobmsg.inner_events import weakly
from blobmsg.interrupts import ctrl_c_waits
from blobmsg.kafka_settings import KafkaView, collect_config
from blobmsg.offset_check import check_offsets
from blobmsg.resources import Stores, acquire_cache, release_cache
from blobmsg.time_limit import seconds
from blobmsg.time_search import find_records, reader_config
from blobmsg.user_positions import (
    behind,
    check_partition,
    check_partitions,
    moved_to,
    to_user,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message
    from typing_extensions import Self

    RebalanceCallback = Callable[[confluent_kafka.Consumer, list[TopicPartition]], None]

__all__ = ["BlobConsumer", "check_count", "consumption_of"]

logger = logging.getLogger("blobmsg.consumer")

# Bound at import: an application may replace confluent_kafka.Consumer by this class.
_StockConsumer: Final = confluent_kafka.Consumer
# To type checkers ours is a stock Consumer, so that annotated code stays as it is and they prove
# our signatures; at run time it holds one instead.
if TYPE_CHECKING:
    _ConsumerBase = confluent_kafka.Consumer
else:
    _ConsumerBase = object
_numbers: Final = itertools.count(1)
_open: Final[weakref.WeakSet[BlobConsumer]] = weakref.WeakSet()
_MAX_MESSAGES: Final = 1_000_000
# Of the memory of what was read, for the next fetches.
_KEEP_BYTES: Final = 32 << 20
_STOP_TIMEOUT_S: Final = 1.0
# `None` would mean False, as in stock.
_NOT_GIVEN: Final[Any] = object()


class BlobConsumer(_ConsumerBase):
    """A drop-in for `confluent_kafka.Consumer`.

    Takes the stock settings and those of `docs/settings.md`, as one dict, as keywords, or both.
    Reads plain records and those of `BlobProducer`, side by side in one topic. All offsets are
    virtual (`blobmsg.offsets`), exact to the record in every commit.

    Args:
        *args: The settings dict.
        **kwargs: Settings as keywords; they win over the dict.

    Raises:
        KafkaException: A setting is unknown or wrong (`ConfigError` for ours).
        TypeError: No settings, or a callback that can't be called.
        ValueError: `group.id` is missing.

    Threads: any, as in stock. Callbacks run in `poll`, `consume` and `close`.
    Source: confluent_kafka.Consumer; DESIGN.md, Offsets and The consumer.
    """

    # For a subclass whose __init__ never ran, and until the end of ours.
    __unusable: str | None = (
        "Consumer closed: it was never initialized, call super().__init__(conf)"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        conf = collect_config(args, kwargs, is_consumer=True)
        settings, kafka_conf = parse_settings(conf, os.environ)
        view = KafkaView.parse(kafka_conf)
        self.__conf = conf
        self.__credentials: tuple[str, str] | None = None
        self.__settings = settings
        callbacks = KafkaCallbacks.of(kafka_conf, is_consumer=True)
        self.__is_cooperative = (
            "cooperative" in view.partition_assignment_strategy or view.group_protocol == "consumer"
        )
        self.__on_assign_by_user: RebalanceCallback | None = None
        self.__on_revoke_by_user: RebalanceCallback | None = None
        self.__on_lost_by_user: RebalanceCallback | None = None
        self.__is_subscribed = False
        self.__was_assigned = False
        self.__closing = threading.Lock()  # taken for good by the first `close`
        self.__stores = Stores(settings)
        events = ConsumerEvents(callbacks, self.__stores)
        self.__events = events
        if settings.store_url is not None:
            self.__stores.get()  # a wrong url or a missing extra shows here, not at the first fetch
        clock = SystemClock()
        inner_conf = inner_consumer_config(kafka_conf, settings, view)
        inner = _StockConsumer({**inner_conf, **events.for_inner()})
        self.__cache_bytes = settings.cache_memory_bytes
        self.__fetcher = Fetcher(
            self.__stores,
            acquire_cache(self.__cache_bytes) if self.__cache_bytes else None,
            clock,
            threads=settings.fetch_threads,
            request_timeout_ms=settings.request_timeout_ms,
            keep_bytes=min(settings.prefetch_max_bytes // 2, _KEEP_BYTES),
            name=f"blobmsg-consumer-{next(_numbers)}",
        )
        self.__consumption = Consumption(
            inner,
            self.__fetcher,
            settings,
            view,
            clock,
            on_error=weakly(events.on_error),
            on_commit=None if callbacks.on_commit is None else weakly(events.tell_commit),
        )
        events.connect(self.__consumption)
        self.__poll = self.__consumption.poll
        self.__assignment = self.__consumption.assignment
        self.__commits = self.__consumption.commits
        self.__failures = self.__consumption.failures
        self.__inner = inner
        self.__fetcher.start()
        _open.add(self)
        self.__unusable = None

    @property  # type: ignore[misc]  # isinstance reads it; nobody sets it
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The stock class, so that `isinstance` checks of frameworks hold."""
        return _StockConsumer

    # --- subscription and assignment ----------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group for these topics (a name beginning with ^ is a regex).

        Args:
            topics: Replaces an earlier subscription.
            on_assign: Called as (consumer, partitions) with new partitions; may assign them with
                offsets of its own.
            on_revoke: Called before partitions are given up; what it commits is committed.
            on_lost: Called instead when they are lost already; `on_revoke` when not given.

        Raises:
            TypeError: Not a list of str, or a callback that can't be called.
            KafkaException: `_INVALID_ARG` for an empty list.
        """
        self.__check_usable()
        callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        for name, callback in callbacks.items():
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} expects a callable")
        self.__inner.subscribe(
            topics,
            on_assign=weakly(self.__on_assigned),
            on_revoke=weakly(self.__on_revoked),
            on_lost=weakly(self.__on_lost),
        )
        self.__on_assign_by_user = on_assign
        self.__on_revoke_by_user = on_revoke
        self.__on_lost_by_user = on_lost
        self.__is_subscribed = True

    def __on_assigned(self, _inner: object, partitions: list[TopicPartition]) -> None:
        """A rebalance gave partitions: the user's callback, then assign unless it did."""
        self.__was_assigned = False
        self.__events.call_user(self.__on_assign_by_user, self, partitions)
        if not self.__was_assigned:  # also when it raised, as stock does
            with self.__failures.keeping():
                self.__assignment.assign(partitions, is_incremental=self.__is_cooperative)

    def __on_revoked(self, _inner: object, partitions: list[TopicPartition]) -> None:
        self.__give_up(partitions, self.__on_revoke_by_user, is_lost=False)

    def __on_lost(self, _inner: object, partitions: list[TopicPartition]) -> None:
        callback = self.__on_lost_by_user
        if callback is None:
            callback = self.__on_revoke_by_user
        self.__give_up(partitions, callback, is_lost=True)

    def __give_up(
        self,
        partitions: list[TopicPartition],
        callback: RebalanceCallback | None,
        *,
        is_lost: bool,
    ) -> None:
        """A rebalance takes partitions."""
        call_user = partial(self.__events.call_user, callback, self, partitions)
        self.__assignment.give_up(partitions, call_user, is_lost=is_lost)

    def unsubscribe(self) -> None:
        """Leave the group."""
        self.__check_usable()
        self.__inner.unsubscribe()
        self.__is_subscribed = False

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read exactly these partitions, from their offsets or from what is committed.

        Raises:
            TypeError: Not a list of TopicPartition.
            KafkaException: `_INVALID_ARG` for a duplicate, behind which nothing is assigned, as in
                stock, and for a Kafka offset that was not converted.
        """
        self.__check_usable()
        self.__assign(partitions, is_incremental=False)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions as well."""
        self.__check_usable()
        self.__assign(partitions, is_incremental=True)

    def __assign(self, partitions: list[TopicPartition], *, is_incremental: bool) -> None:
        check_partitions(partitions)
        self.__check_offsets(partitions)
        self.__assignment.assign(partitions, is_incremental=is_incremental)
        self.__was_assigned = True

    def unassign(self) -> None:
        """Read nothing."""
        self.__check_usable()
        self.__assignment.unassign(None)
        self.__was_assigned = True

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Stop reading these partitions."""
        self.__check_usable()
        check_partitions(partitions)
        self.__assignment.unassign(partitions)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        self.__check_usable()
        return [to_user(partition) for partition in self.__consumption.assignment.assigned()]

    # --- records ------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Message | None:
        """The next record or event.

        Args:
            timeout: Seconds to wait at most; negative: no limit, 0: not at all.

        Returns:
            A Message, to be looked at with `error()` first, or None when the time is over.
        """
        if self.__unusable is not None:
            raise RuntimeError(self.__unusable)
        if timeout.__class__ not in (float, int):
            timeout = seconds(timeout)
        return self.__poll(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Several records and events at once.

        Args:
            num_messages: At most so many, 0 to 1,000,000.
            timeout: Seconds to wait for them at most; negative: until all are there.

        Raises:
            ValueError: `num_messages` out of range.
        """
        if self.__unusable is not None:
            raise RuntimeError(self.__unusable)
        check_count(num_messages)
        if timeout.__class__ not in (float, int):
            timeout = seconds(timeout)
        messages: list[Any] = self.__consumption.consume(num_messages, timeout)
        return messages

    # --- positions ----------------------------------------------------------------------------

    @overload
    def commit(self, *, asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, asynchronous: Literal[False]) -> list[TopicPartition]: ...
    @overload
    def commit(self, *, message: Message, asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, message: Message, asynchronous: Literal[False]) -> list[TopicPartition]: ...
    @overload
    def commit(
        self, *, offsets: list[TopicPartition], asynchronous: Literal[True] = ...
    ) -> None: ...
    @overload
    def commit(
        self, *, offsets: list[TopicPartition], asynchronous: Literal[False]
    ) -> list[TopicPartition]: ...
    def commit(
        self,
        message: Any = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: Any = _NOT_GIVEN,
        **former: bool,
    ) -> list[TopicPartition] | None:
        """Commit positions, exact to the record.

        Args:
            message: Commit the position behind it.
            offsets: Commit these virtual offsets. Neither: what is stored.
            asynchronous: Return at once (the default); the setting `on_commit` hears of the
                outcome.
            former: `async`, as it was called before that became a word of Python's.

        Returns:
            None, or with `asynchronous=False` the partitions with virtual offsets and errors.

        Raises:
            KafkaException: `_NO_OFFSET` when nothing is stored (with `asynchronous`, `on_commit`
                gets it instead); what Kafka answers.
            ValueError: Both `message` and `offsets`.
            TypeError: An argument of a wrong type.
        """
        self.__check_usable()
        before = former.pop("async", True)
        if asynchronous is _NOT_GIVEN:
            asynchronous = before
        if former:
            raise TypeError(f"commit() got an unexpected keyword argument {next(iter(former))!r}")
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            place = behind(message, "commit")
            entries = commit_entries([] if place is None else [place])
        elif offsets is not None:
            check_partitions(offsets)
            self.__check_offsets(offsets)
            entries = commit_entries(offsets)
        else:
            entries = self.__commits.stored_changes(self.__assignment.keys())
        if not entries and offsets is None:
            # As stock, `on_commit` or an exception says that there is nothing: the inner consumer,
            # where nothing is ever stored, does. A fenced one says that it is fenced.
            self.__inner.commit(asynchronous=asynchronous)
            if asynchronous:
                return None
            text = "Commit failed: Local: No offset stored"
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET, text))
        answers = self.__commits.commit(entries, asynchronous=asynchronous)
        return None if answers is None else [to_user(answer) for answer in answers]

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Remember positions for the next commit; needs `enable.auto.offset.store=false`.

        Args:
            message: The position behind it.
            offsets: These virtual offsets.

        Raises:
            KafkaException: `_INVALID_ARG` with automatic storing, or for a partition that is not
                assigned.
            ValueError: Neither or both are given.
        """
        self.__check_usable()
        if message is None and offsets is None:
            raise ValueError("expected either message or offsets")
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if offsets is None:
            place = behind(message, "store")
            partitions = [TopicPartition("", -1) if place is None else place]
        else:
            check_partitions(offsets)
            partitions = offsets
        if self.__commits.stores_automatically:
            raise KafkaException(
                KafkaError(
                    KafkaError._INVALID_ARG,
                    "StoreOffsets failed: Local: Invalid argument or configuration: "
                    "enable.auto.offset.store must be false",
                )
            )
        known = [p for p in partitions if self.__is_assigned(p)]
        if not known:
            # Refused as stock does; where one of several is assigned, stock is content, too.
            self.__inner.store_offsets(offsets=partitions)
        self.__check_offsets(known)
        for entry, partition in zip(commit_entries(known), known, strict=True):
            key = (entry.topic, entry.partition)
            self.__commits.store(key, partition.offset, partition.metadata)

    def committed(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """What the group has committed: virtual offsets and the user's own metadata."""
        self.__check_usable()
        check_partitions(partitions)
        question = partial(self.__inner.committed, partitions)
        answers: list[TopicPartition] = ask(question, timeout)
        return [to_user(answer) for answer in answers]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The virtual offset after the last record handed out, or OFFSET_INVALID."""
        self.__check_usable()
        check_partitions(partitions)
        return [
            moved_to(self.__consumption.position_of((p.topic, p.partition)), p) for p in partitions
        ]

    def seek(self, partition: TopicPartition) -> None:
        """Go on at another virtual offset.

        Raises:
            KafkaException: `_STATE` when the partition is not assigned, `_INVALID_ARG` for a
                Kafka offset that was not converted.
            TypeError: Not a TopicPartition.
        """
        self.__check_usable()
        check_partition(partition)
        if self.__is_assigned(partition):
            self.__check_offsets([partition])
        self.__assignment.seek(partition)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`."""
        self.__check_usable()
        check_partitions(partitions)
        self.__assignment.pause(partitions, is_paused=True)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Go on with these partitions."""
        self.__check_usable()
        check_partitions(partitions)
        self.__assignment.pause(partitions, is_paused=False)

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """First and next virtual offset of a partition; a reader at the end stands at the next."""
        self.__check_usable()
        inner = self.__inner
        low, high = ask(lambda s: inner.get_watermark_offsets(partition, s, cached), timeout)
        return to_virtual(low), to_virtual(high)

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The first record of a time or later, for each partition.

        A notification that holds such a record is looked into: as a rule one read from the store
        for each partition. Where its object has expired, the first record behind it counts.

        Args:
            partitions: With times, ms since 1970 UTC, as offsets.
            timeout: Seconds at most; negative: no limit.

        Returns:
            The same partitions with virtual offsets; OFFSET_END where all records are older.

        Raises:
            KafkaException: Kafka or the store did not answer, or an object is gone.
            TypeError: No list of TopicPartition.
        """
        self.__check_usable()
        check_partitions(partitions)
        start = time.monotonic()
        question = partial(self.__inner.offsets_for_times, partitions)
        answers: list[TopicPartition] = ask(question, timeout)
        rest_s = timeout if timeout < 0 else max(0.0, timeout - (time.monotonic() - start))
        return find_records(partitions, answers, self.__open_reader, rest_s)

    def __open_reader(self) -> BlobConsumer:
        reader = BlobConsumer(reader_config(self.__conf))
        try:
            if self.__credentials is not None:
                reader.set_sasl_credentials(*self.__credentials)
        except BaseException:
            reader.close()
            raise
        return reader

    def __is_assigned(self, partition: TopicPartition) -> bool:
        assigned = self.__assignment.keys()
        return (partition.topic, partition.partition) in assigned

    def __check_offsets(self, partitions: list[TopicPartition]) -> None:
        if self.__settings.offset_check:
            check_offsets(self.__inner, partitions)

    # --- the group and the cluster --------------------------------------------------------------

    def consumer_group_metadata(self) -> Any:
        """Opaque; as stock."""
        self.__check_usable()
        return self.__inner.consumer_group_metadata()

    def memberid(self) -> str:
        """The member id in the group; as stock."""
        self.__check_usable()
        member_id: str = self.__inner.memberid()
        return member_id

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Metadata of the cluster; as stock."""
        self.__check_handle()
        return ask(partial(self.__inner.list_topics, topic), timeout)

    def cluster_id(self, timeout: float = -1) -> str:
        """The cluster's id; as stock."""
        self.__check_handle()
        cluster_id: str = ask(self.__inner.cluster_id, timeout)
        return cluster_id

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """New credentials for all connections to Kafka; as stock."""
        self.__check_handle()
        self.__inner.set_sasl_credentials(username, password)
        self.__credentials = (username, password)

    def stats(self) -> dict[str, int]:
        """Counters since the start: records, notifications, requests, bytes, cache hits.

        `sequence_gaps` counts how often notifications of one producer were missing in a partition:
        aborted transactions, failed deliveries and retention leave gaps; loss would, too.
        Requests and bytes of the store are those of all clients of this process that share it;
        `tx_bytes` and `rx_bytes` are Kafka's wire bytes, known with `statistics.interval.ms`.
        """
        self.__check_usable()
        return self.__events.own_statistics()

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit what is stored (with automatic commits), leave the group, release everything."""
        if self.__unusable is not None:
            self.__check_not_forked()
            return
        with ctrl_c_waits():
            if not self.__closing.acquire(blocking=False):
                return  # another thread is at it, or this one in a callback
            try:
                self.__consumption.close(commits_first=not self.__is_subscribed)  # else on revoke
            finally:
                self.__unusable = _CLOSED
                _open.discard(self)
                self.__release()
        self.__failures.raise_first()

    def __release(self) -> None:
        self.__assignment.forget(self.__assignment.keys())
        self.__fetcher.stop(_STOP_TIMEOUT_S)
        self.__stores.close()
        if self.__cache_bytes:
            release_cache(self.__cache_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.__unusable is not _FORKED:  # its exception would replace the block's own
            self.close()

    def __del__(self) -> None:
        if self.__unusable is None:
            self.__unusable = _CLOSED
            self.__release()

    def __check_usable(self) -> None:
        if self.__unusable is not None:
            raise RuntimeError(self.__unusable)

    def __check_not_forked(self) -> None:
        if self.__unusable is _FORKED:
            raise RuntimeError(_FORKED)

    def __check_handle(self) -> None:
        self.__check_not_forked()
        if self.__unusable is not None:
            why = self.__unusable.removeprefix(_CLOSED)
            raise RuntimeError(f"Handle has been closed{why}")  # as stock says it


_CLOSED: Final = "Consumer closed"
# Private names are mangled: a user's subclass may have any, `_lock` or `_on_error` say.
_UNUSABLE: Final = "_BlobConsumer__unusable"
_CONSUMPTION: Final = "_BlobConsumer__consumption"
_FORKED: Final = (
    "this BlobConsumer was made before fork(): its threads and connections belong to the parent; "
    "make a new one in the child"
)


def _refuse_after_fork() -> object:
    had = list(_open)
    for consumer in had:
        setattr(consumer, _UNUSABLE, _FORKED)
    _open.clear()
    return had


forget_after_fork(_refuse_after_fork)


def consumption_of(consumer: BlobConsumer) -> Consumption:
    """What hands out a consumer's records; for our own clients that stand on one."""
    consumption: Consumption = getattr(consumer, _CONSUMPTION)
    return consumption


def check_count(num_messages: int) -> None:
    """Refuse what `consume` takes for no number of messages.

    Raises:
        TypeError: No integer.
        ValueError: Out of range.
    """
    if not 0 <= index(num_messages) <= _MAX_MESSAGES:
        raise ValueError("num_messages must be between 0 and 1000000 (1M)")
