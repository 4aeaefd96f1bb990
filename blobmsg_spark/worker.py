"""What the tasks of one Python worker share: settings, store clients, a clock.

Spark's Python workers run one task after the other, so each has one store client per configuration,
which stays open until the worker ends.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.errors import ConfigError
from blobmsg.resources import Stores, freeze
from blobmsg_spark.usage import StageUsage
from blobmsg_spark.worker_process import tune_worker_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.config import Settings
    from blobmsg.store.retrying import RetryingStore

__all__ = ["Worker", "check_is_shared", "partition_id", "stage_id", "worker"]


@dataclass(frozen=True, slots=True)
class Worker:
    """Settings and stores. Threads: any."""

    settings: Settings
    stores: Stores
    clock: SystemClock

    @property
    def store(self) -> RetryingStore:
        """The default store."""
        return self.stores.get().store

    def requests(self) -> StageUsage:
        """What this process has asked of its stores so far."""
        counters = self.stores.get().counters.snapshot()
        return StageUsage(
            puts=counters.puts,
            put_bytes=counters.put_bytes,
            gets=counters.gets,
            get_bytes=counters.get_bytes,
            retries=counters.retries,
        )


def worker(conf: Mapping[str, Any], environment: Mapping[str, str]) -> Worker:
    """This process' worker for a configuration.

    Args:
        conf: Settings of blobmsg, as the user gave them.
        environment: Of the driver; this process' own comes before it, and has its zone.

    Raises:
        ConfigError: A setting is wrong here.
    """
    tune_worker_process()
    return _worker(freeze(conf), freeze(environment))


def check_is_shared(settings: Settings) -> None:
    """Refuse a store that each process has for itself.

    Raises:
        ConfigError: It is one.
    """
    url = settings.store_url or ""
    if url.startswith("memory:"):
        raise ConfigError(
            f'"blobmsg.store.url" is {url}: that lies in the memory of one process, and Spark\'s '
            "tasks run in many; give s3://bucket/prefix, or on one machine file:///dir",
            setting="blobmsg.store.url",
        )


@lru_cache(maxsize=16)
def _worker(conf: tuple[tuple[str, str], ...], environment: tuple[tuple[str, str], ...]) -> Worker:
    settings, _ = parse_settings(dict(conf), {**dict(environment), **os.environ})
    return Worker(settings, Stores(settings), SystemClock())


def partition_id() -> int:
    """The number of the task that runs here."""
    return _task_context().partitionId()


def stage_id() -> int:
    """The number of its stage."""
    return _task_context().stageId()


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise AssertionError("a task of Spark runs outside of it")
    return context
