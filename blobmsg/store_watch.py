"""What a producer says of its store: that it is away, that segments go through Kafka meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blobmsg.delivery_reports import kafka_error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import KafkaError

    from blobmsg.core.producer_core import ProducerCore
    from blobmsg.rare_log import RareLog
    from blobmsg.resources import Stores

__all__ = ["StoreWatch"]

# One that answers again before is not worth a word: S3 refuses single requests now and then.
_STORE_AWAY_MS: Final = 5000


class StoreWatch:
    """Looks at the store now and then, and tells when something has changed.

    Args:
        core: Knows whether anybody waits for the store, and whether fallback is on.
        stores: Know how long the store has not answered.
        on_store_error: Told that it has not for a while, as often as the log is.
        counters: Of the pipeline: `fallback_segments`, `fallback_bytes`.
        warn: Takes what is worth a warning.
        name: The producer's, for log lines.

    Threads: the notifier's.
    """

    def __init__(
        self,
        core: ProducerCore,
        stores: Stores,
        *,
        on_store_error: Callable[[KafkaError], object],
        counters: Mapping[str, int],
        warn: RareLog,
        name: str,
    ) -> None:
        self._core = core
        self._stores = stores
        self._on_store_error = on_store_error
        self._counters = counters
        self._warn = warn
        self._name = name
        self._has_fallen_back = False  # as far as the log says

    def look(self, now_ms: int) -> None:
        """Look.

        Args:
            now_ms: Monotonic.
        """
        self._look_whether_it_answers(now_ms)
        self._look_at_fallback()

    def _look_whether_it_answers(self, now_ms: int) -> None:
        trouble = self._stores.trouble
        if trouble is None or now_ms - trouble.since_ms < _STORE_AWAY_MS:
            return
        if not self._core.notifier.unsettled_segments:
            return  # and so nobody asks it now
        text = f"{self._name}: the store does not answer, it is asked on: {trouble.error}"
        if self._warn(text, cause=type(trouble.error).__name__):
            self._on_store_error(kafka_error_of(trouble.error))

    def _look_at_fallback(self) -> None:
        is_on = self._core.fallback.is_on
        if is_on is self._has_fallen_back:
            return
        if is_on:
            text = "the store fails: segments go through Kafka, as fast as "
            text += "blobmsg.inline.max.bytes.per.second allows, until it takes objects again"
        else:
            text = "the store takes objects again; so far {fallback_segments} segments with "
            text += "{fallback_bytes} bytes went through Kafka in their stead"
        text = f"{self._name}: {text.format(**self._counters)}"
        if self._warn(text, cause=f"fallback {is_on}"):
            self._has_fallen_back = is_on
