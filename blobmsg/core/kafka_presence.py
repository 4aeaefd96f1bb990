"""Whether Kafka is there, as far as a producer can tell; decides when uploads are held back.

An object that is stored while Kafka takes no notifications is a PUT, and traffic, for records that
may well time out: without a rule a producer would go on storing at full speed, for what is stored
leaves the buffer. So no new object is begun while Kafka is *away*: nothing was acknowledged for
some seconds although something was handed over, or no broker could be reached for so long. What is
sealed waits as records, the buffer fills, and `produce` says `BufferError`, which is the bound.
Uploads go on when Kafka acknowledges something, or, if it has nothing to acknowledge, when a topic
could be read: the shell reads one again and again while `is_doubted`.

States: here -> doubted since a moment (`handed_over`, `all_brokers_down`) -> away, by time alone;
back by `answered` and `metadata_read`. A doubt that ends soon holds nothing back.
"""

from __future__ import annotations

from typing import Final

__all__ = ["AWAY_AFTER_MS", "KafkaPresence"]

# Longer than the election of a new leader usually takes, short against message.timeout.ms (300 s).
AWAY_AFTER_MS: Final = 3000


class KafkaPresence:
    """Threads: under the producer's lock.

    Args:
        away_after_ms: How long a doubt lasts until Kafka counts as away.
    """

    def __init__(self, away_after_ms: int = AWAY_AFTER_MS) -> None:
        self._away_after_ms = away_after_ms
        self._down_since_ms: int | None = None  # no broker is connected
        self._silent_since_ms: int | None = None  # something is handed over, nothing is answered
        self._next_probe_ms = 0

    def handed_over(self, now_ms: int) -> None:
        """The inner producer has something to send, after it had nothing."""
        if self._silent_since_ms is None:
            self._silent_since_ms = now_ms

    def answered(self, now_ms: int, *, has_more: bool) -> None:
        """A broker has answered for a message; whether others are at the inner producer still."""
        self._down_since_ms = None
        self._silent_since_ms = now_ms if has_more else None

    def all_brokers_down(self, now_ms: int) -> None:
        """The inner client has no connection to any broker."""
        if self._down_since_ms is None:
            self._down_since_ms = now_ms

    def metadata_read(self, *, is_waiting: bool) -> None:
        """A broker has answered about a topic.

        Args:
            is_waiting: Whether messages are at the inner producer: then their answers tell more,
                for a cluster that is short of replicas answers about topics, too.
        """
        self._down_since_ms = None
        if not is_waiting:
            self._silent_since_ms = None

    def is_doubted(self, now_ms: int) -> bool:
        """Whether a topic should be read now, to hear from Kafka."""
        return self._has_lasted(self._away_after_ms // 3, now_ms)

    def is_away(self, now_ms: int) -> bool:
        """Whether nothing new should be stored."""
        return self._has_lasted(self._away_after_ms, now_ms)

    def may_store(self, now_ms: int) -> bool:
        """Whether a new object may be begun now; also as a probe, now and then.

        Silence may be that of one partition without a leader, while the others would be answered
        if only something of theirs were stored. So as long as brokers are connected one object at a
        time goes; one answer ends the silence.
        """
        if not self.is_away(now_ms):
            return True
        if self._down_since_ms is not None or now_ms < self._next_probe_ms:
            return False
        self._next_probe_ms = now_ms + self._away_after_ms
        return True

    def _has_lasted(self, duration_ms: int, now_ms: int) -> bool:
        return any(
            since_ms is not None and now_ms >= since_ms + duration_ms
            for since_ms in (self._down_since_ms, self._silent_since_ms)
        )
