"""What a BlobProducer's inner producers report: errors, statistics, throttling, log lines.

It comes in the notifier thread, and from the producer of other topics in the user's `poll`. The
user's callbacks are queued for `poll`; only the log handler runs at once, and what it raises comes
out of `poll`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blobmsg.inner_events import InnerStatistics, weakly, with_own_statistics
from blobmsg.thread_log import ThreadLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError

    from blobmsg.inner_config import KafkaCallbacks
    from blobmsg.producer_pipeline import ProducerPipeline
    from blobmsg.resources import Stores

__all__ = ["ProducerEvents"]


class ProducerEvents:
    """The callbacks of the inner producers, which know it weakly: its client holds it.

    Args:
        user: The user's.
        stores: Counted in statistics.

    Threads: any.
    """

    def __init__(self, user: KafkaCallbacks, stores: Stores) -> None:
        self._user = user
        self._stores = stores
        self._statistics = InnerStatistics()
        self._pipeline: ProducerPipeline | None = None

    def connect(self, pipeline: ProducerPipeline) -> None:
        """What comes from now on is told; until then nobody could hear it."""
        self._pipeline = pipeline

    def disconnect(self) -> None:
        """Nobody hears any more."""
        self._pipeline = None

    def for_inner(self) -> dict[str, Any]:
        """Settings of the inner producer."""
        callbacks: dict[str, Any] = {
            "stats_cb": weakly(self._on_statistics),
            "error_cb": weakly(self.on_error),
        }
        if self._user.throttle_cb is not None:
            callbacks["throttle_cb"] = weakly(self._on_throttle)
        if self._user.logger is not None:
            note_failure = weakly(self.on_log_failure)
            callbacks["logger"] = ThreadLog(self._user.logger, note_failure)
        return callbacks

    def for_passthrough(self) -> dict[str, Any]:
        """Settings of the producer of other topics, which serves the user's `on_delivery` itself.

        Its wire bytes are none of ours; the user hears of its statistics all the same.
        """
        callbacks = {**self.for_inner(), "stats_cb": weakly(self._queue_statistics)}
        if self._user.on_delivery is not None:
            callbacks["on_delivery"] = self._user.on_delivery
        return callbacks

    def own_statistics(self, pipeline: ProducerPipeline) -> dict[str, int]:
        """See `BlobProducer.stats`."""
        return {
            **pipeline.counters,
            **self._stores.totals(),
            "tx_bytes": self._statistics.tx_bytes,
            "rx_bytes": self._statistics.rx_bytes,
        }

    def on_error(self, error: KafkaError) -> None:
        """Something is wrong with Kafka, or with the store."""
        if error.name() == "_ALL_BROKERS_DOWN" and (pipeline := self._pipeline) is not None:
            pipeline.all_brokers_down()
        self._queue(self._user.error_cb, error)

    def on_log_failure(self, error: Exception) -> None:
        """The user's log handler has raised."""
        if (pipeline := self._pipeline) is not None:
            pipeline.log_failed(error)

    def _on_throttle(self, event: object) -> None:
        self._queue(self._user.throttle_cb, event)

    def _on_statistics(self, text: str) -> None:
        self._statistics.take(text)
        self._queue_statistics(text)

    def _queue_statistics(self, text: str) -> None:
        if self._user.stats_cb is not None and (pipeline := self._pipeline) is not None:
            own = self.own_statistics(pipeline)
            pipeline.event(self._user.stats_cb, with_own_statistics(text, own))

    def _queue(self, callback: Callable[..., Any] | None, argument: object) -> None:
        if callback is not None and (pipeline := self._pipeline) is not None:
            pipeline.event(callback, argument)
