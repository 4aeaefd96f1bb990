"""What a Python worker of Spark keeps from task to task: its Kafka consumer, store and fetcher.

Connecting takes longer than many a task reads. Decides who gets which; a session that a task left
in the middle of something is closed, for late answers would meet the next task.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from blobmsg.clock import SystemClock
from blobmsg.config import Settings, parse_settings
from blobmsg.errors import ConfigError
from blobmsg.fetcher import Fetcher
from blobmsg.forks import forget_after_fork
from blobmsg.kafka_settings import without
from blobmsg.resources import Stores, freeze

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

__all__ = ["ReadSession", "open_consumer", "sessions"]

# Bound at import: an application may replace confluent_kafka.Consumer by ours.
_StockConsumer: Final = confluent_kafka.Consumer
# Of the memory of what was read, for the next fetches; as the consumer.
_KEEP_BYTES: Final = 32 << 20
# One task at a time runs in a worker, and rarely two scans in one task.
_KEPT_SESSIONS: Final = 2
# What is read is there. A fetch that waits at the end of the log, behind the range, could hold up
# the next task's first one by up to librdkafka's default, 500 ms (reasoned, not measured alone).
_FETCH_WAIT_MS: Final = 10
_QUEUED_KBYTES: Final = (1024, 65_536)


def open_consumer(kafka_conf: Mapping[str, Any], prefetch_max_bytes: int) -> Any:
    """A stock consumer for ranges: without group, commits and resets.

    Args:
        kafka_conf: The user's settings for librdkafka.
        prefetch_max_bytes: librdkafka reads ahead at most a quarter of it, unless the user says
            otherwise: that comes on top of it, and is payload where records are plain.

    Raises:
        ConfigError: librdkafka refuses a setting.
    """
    least, most = _QUEUED_KBYTES
    ours = {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }
    queued = min(most, max(least, prefetch_max_bytes >> 12))
    usual = {"queued.max.messages.kbytes": queued, "fetch.wait.max.ms": _FETCH_WAIT_MS}
    conf = {**usual, **without(kafka_conf, ours), **ours}
    try:
        return _StockConsumer(conf)
    except KafkaException as error:
        kafka_error: KafkaError = error.args[0]
        raise ConfigError(
            f"the Kafka client refuses an option kafka.*: {kafka_error.str()}",
            code=kafka_error.code(),
        ) from error


@dataclass(frozen=True, slots=True)
class ReadSession:
    """The clients of one task.

    Args:
        settings: Ours.
        consumer: See `open_consumer`.
        stores: The stores by name.
        fetcher: Started; without a cache, for a task reads each segment once.

    Threads: one task.
    """

    settings: Settings
    consumer: Any
    stores: Stores
    fetcher: Fetcher

    def close(self) -> None:
        """Let go of everything, without waiting for requests that run."""
        self.fetcher.stop(0.0)
        self.stores.close()
        self.consumer.close()


def _open(conf: Mapping[str, Any]) -> ReadSession:
    settings, kafka_conf = parse_settings(conf, os.environ)
    with ExitStack() as opened:
        stores = Stores(settings)
        opened.callback(stores.close)
        if settings.store_url is not None:
            stores.get()  # a wrong url or a missing extra shows here, not at the first fetch
        consumer = open_consumer(kafka_conf, settings.prefetch_max_bytes)
        opened.pop_all()
    fetcher = Fetcher(
        stores,
        None,
        SystemClock(),
        threads=settings.fetch_threads,
        request_timeout_ms=settings.request_timeout_ms,
        keep_bytes=min(settings.prefetch_max_bytes // 2, _KEEP_BYTES),
        name="blobmsg-spark",
    )
    fetcher.start()
    return ReadSession(settings, consumer, stores, fetcher)


class Sessions:
    """Idle sessions of this process. Threads: any; `_lock` guards `_idle`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Hashable, ReadSession]] = []

    def take(self, conf: Mapping[str, Any]) -> ReadSession:
        """A session with these settings; give it back, or close it.

        Raises:
            ConfigError: A setting is wrong.
        """
        name = freeze(conf)
        with self._lock:
            for place, (idle_name, session) in enumerate(self._idle):
                if idle_name == name:
                    del self._idle[place]
                    return session
        return _open(conf)

    def give_back(self, conf: Mapping[str, Any], session: ReadSession) -> None:
        """Keep a session for the next task; nothing of it is in flight."""
        session.consumer.unassign()
        with self._lock:
            self._idle.append((freeze(conf), session))
            surplus = self._idle[:-_KEPT_SESSIONS]
            del self._idle[:-_KEPT_SESSIONS]
        for _, old in surplus:
            old.close()

    def close(self) -> None:
        """Close all that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def forget(self) -> object:
        """After a fork, in the child: what the parent has is not ours; returns it."""
        self._lock = threading.Lock()
        idle, self._idle = self._idle, []
        return idle


#: Of this process.
sessions: Final = Sessions()
forget_after_fork(sessions.forget)
