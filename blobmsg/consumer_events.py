"""What a BlobConsumer's inner consumer reports: errors, statistics, commits, throttling, log lines.

It comes inside of `poll`, `consume` and `close`, where the user's callbacks run; what they raise is
kept (`CallbackFailures`), for the inner consumer must not see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blobmsg.inner_events import InnerStatistics, weakly, with_own_statistics
from blobmsg.interrupts import ctrl_c_comes_through
from blobmsg.user_positions import to_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError, TopicPartition

    from blobmsg.consumption import Consumption
    from blobmsg.inner_config import KafkaCallbacks
    from blobmsg.resources import Stores

__all__ = ["ConsumerEvents"]


class ConsumerEvents:
    """The callbacks of the inner consumer, which know it weakly: its client holds it.

    Args:
        user: The user's.
        stores: Counted in statistics.

    Threads: those that call the consumer.
    """

    def __init__(self, user: KafkaCallbacks, stores: Stores) -> None:
        self._user = user
        self._stores = stores
        self._statistics = InnerStatistics()
        self._consumption: Consumption

    def connect(self, consumption: Consumption) -> None:
        """Say whose events they are; none comes before."""
        self._consumption = consumption

    def for_inner(self) -> dict[str, Any]:
        """Settings of the inner consumer."""
        callbacks: dict[str, Any] = {
            "stats_cb": weakly(self._on_statistics),
            "on_commit": weakly(self.on_commit),
        }
        if self._user.error_cb is not None:
            callbacks["error_cb"] = weakly(self.on_error)
        if self._user.throttle_cb is not None:
            callbacks["throttle_cb"] = weakly(self._on_throttle)
        if hasattr(self._user.logger, "log"):
            callbacks["logger"] = _Log(weakly(self._on_log))
        elif self._user.logger is not None:
            callbacks["logger"] = self._user.logger  # the inner client says what is wrong
        return callbacks

    def own_statistics(self) -> dict[str, int]:
        """See `BlobConsumer.stats`."""
        return {
            **self._consumption.stats(),
            **self._stores.totals(),
            "tx_bytes": self._statistics.tx_bytes,
            "rx_bytes": self._statistics.rx_bytes,
        }

    def call_user(self, callback: Callable[..., Any] | None, *arguments: Any) -> None:
        """Run a callback of the user's; what it raises comes out of the consumer's call."""
        with self._consumption.failures.keeping():
            if callback is not None:
                with ctrl_c_comes_through():
                    callback(*arguments)

    def on_error(self, error: KafkaError) -> None:
        """Something is wrong with Kafka, or with the store."""
        self.call_user(self._user.error_cb, error)

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The inner consumer knows what has become of a commit."""
        commits = self._consumption.commits
        with self._consumption.failures.keeping():
            if error is None:
                commits.confirmed(partitions)
            if self._user.on_commit is None:
                commits.tell_log(error, partitions)  # as the inner client would log
            self.tell_commit(error, partitions)

    def tell_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Tell the user, with virtual offsets."""
        with self._consumption.failures.keeping():
            translated = [to_user(partition) for partition in partitions]
            self.call_user(self._user.on_commit, error, translated)

    def _on_log(self, *arguments: Any) -> None:
        self.call_user(self._user.logger.log, *arguments)

    def _on_throttle(self, event: object) -> None:
        self.call_user(self._user.throttle_cb, event)

    def _on_statistics(self, text: str) -> None:
        with self._consumption.failures.keeping():
            self._statistics.take(text)
            if self._user.stats_cb is not None:
                text = with_own_statistics(text, self.own_statistics())
        self.call_user(self._user.stats_cb, text)


class _Log:
    """What the inner client takes for the user's logger."""

    def __init__(self, log: Callable[..., None]) -> None:
        self.log = log
