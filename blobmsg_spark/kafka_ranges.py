"""Reads ranges of raw Kafka records to their ends, whatever lies there.

A range ends at a record behind it or at the end of the log: its last offsets may be markers of
transactions or aborted records, which nobody sees. Decides when Kafka has lost what must be there,
and when waiting is over; never what a record is. A shell around one stock consumer, assigned by
hand: no group, no commits.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blobmsg.errors import BlobmsgError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from blobmsg_spark.offset_ranges import Key

__all__ = ["KafkaRanges", "data_loss"]

logger = logging.getLogger("blobmsg.spark")

# A new leader may be behind for a moment; what its log lacks for so long is lost.
_SHORT_LOG_S: Final = 10.0
_LOOK_UP_S: Final = 10.0
# A broker that has just started, or a leader that moves, may say of what is there that it is not.
# The waits double: 6 s together, as long as an election takes, and short beside a batch.
_AGAIN: Final = 5
_AGAIN_AFTER_S: Final = 0.2
_EMPTY: Final = (0, 0)  # the bounds of what is gone
_LOST: Final = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
)
_FINAL: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError._FATAL,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
)


def data_loss(what: str) -> BlobmsgError:
    """The error for records that Kafka no longer has."""
    return BlobmsgError(
        f"{what}. Records are lost to this query: longer retention keeps them; set "
        "failOnDataLoss=false to go on with what is left, or begin anew with another "
        "checkpointLocation or other startingOffsets",
        code=KafkaError.OFFSET_OUT_OF_RANGE,
    )


class KafkaRanges:
    """The records of some ranges, as they come.

    Args:
        consumer: A stock consumer with `auto.offset.reset=error` and `enable.partition.eof`.
        ranges: First Kafka offset and the one behind the last, per partition.
        fail_on_data_loss: Whether lost records are an error; else they are passed over, logged. In
            either case a broker must say twice that they are lost, the second time when asked.
        poll_timeout_ms: So long without any answer is an error.
        monotonic_s: For tests.
        sleep_s: For tests.

    Threads: one.
    """

    def __init__(
        self,
        consumer: Any,
        ranges: Mapping[Key, tuple[int, int]],
        *,
        fail_on_data_loss: bool,
        poll_timeout_ms: int,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._consumer = consumer
        self._fail_on_data_loss = fail_on_data_loss
        self._timeout_s = poll_timeout_ms / 1000
        self._monotonic_s = monotonic_s
        self._sleep_s = sleep_s
        self._stops = {key: stop for key, (start, stop) in ranges.items() if start < stop}
        self._next = {key: ranges[key][0] for key in self._stops}
        self._short: dict[Key, int] = {}  # where the log ended too early
        self._again: dict[Key, int] = {}  # how often assigned again since a record came
        self._gone: set[Key] = set()  # said often enough not to be there
        self._idle_s = 0.0  # waited in here without an answer
        self._last_error: KafkaError | None = None
        if self._stops:
            consumer.assign([TopicPartition(*key, self._next[key]) for key in self._stops])

    @property
    def open_keys(self) -> set[Key]:
        """Partitions whose range has not ended."""
        return set(self._stops)

    def finish(self, keys: Iterable[Key]) -> None:
        """Read no more of these."""
        ended = [key for key in keys if self._stops.pop(key, None) is not None]
        for key in ended:
            self._short.pop(key, None)
        if ended:
            self._consumer.incremental_unassign([TopicPartition(*key) for key in ended])

    def receive(self, most: int, timeout_s: float) -> list[Any]:
        """The next records, in order for each partition.

        Args:
            most: At most so many.
            timeout_s: Waits so long for the first one.

        Raises:
            BlobmsgError: Records are lost, access is denied, or no broker answers for too long.
        """
        if not self._stops:
            return []
        began = self._monotonic_s()
        first = self._consumer.poll(timeout_s)
        messages = [] if first is None else [first, *self._consumer.consume(most - 1, 0)]
        records: list[Any] = []
        heard = False
        for message in messages:
            error = message.error()
            if error is not None:
                heard |= self._take_error(message, error)
                continue
            heard = True
            key = (message.topic(), message.partition())
            stop = self._stops.get(key)
            if stop is None or message.offset() < self._next[key]:
                continue
            self._next[key] = message.offset() + 1
            self._short.pop(key, None)
            self._again.pop(key, None)
            if message.offset() < stop:
                records.append(message)
            if message.offset() >= stop - 1:
                self.finish([key])
        self._idle_s = 0.0 if heard else self._idle_s + self._monotonic_s() - began
        self._check_idle()
        return records

    def _take_error(self, message: Any, error: KafkaError) -> bool:
        """Take an event; whether it tells that brokers answer."""
        key = (message.topic(), message.partition())
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            stop = self._stops.get(key)
            if stop is None:
                return True
            self._next[key] = max(self._next[key], message.offset())
            if message.offset() >= stop:
                self.finish([key])
            else:
                self._short[key] = message.offset()
            return True
        if code in _LOST and key in self._stops:
            self._lose(key, str(error.str()))
            return True
        if code in _FINAL or error.fatal():
            raise BlobmsgError(
                f"Kafka refuses to be read{_of(key)}: {error.str()}: check the credentials "
                "(kafka.sasl.*, kafka.ssl.*) and the permission to read the topic",
                code=code,
            )
        self._last_error = error
        return False

    def _lose(self, key: Key, reason: str) -> None:
        """Records of a range are said not to be there any more."""
        topic, partition = key
        start, stop = self._next[key], self._stops[key]
        text = f"{topic} [{partition}], Kafka offsets {start} to {stop - 1} can't be read: {reason}"
        bounds = self._bounds(key)
        self.finish([key])
        if bounds is None or bounds[0] <= start < bounds[1]:
            self._assign_again(key, start, stop, text)
            return
        if self._fail_on_data_loss:
            raise data_loss(text)
        logger.warning("%s; going on without them (failOnDataLoss=false)", text)
        low, high = bounds
        if start < low < min(stop, high):
            self._assign(key, low, stop)

    def _bounds(self, key: Key) -> tuple[int, int] | None:
        """The log's first Kafka offset and the one behind its last; None if nobody knows now."""
        gone: set[Key] = set()
        for times in range(_AGAIN + 1):
            try:
                found: tuple[int, int] = self._consumer.get_watermark_offsets(
                    TopicPartition(*key), _LOOK_UP_S
                )
            except KafkaException as error:
                # Said of a partition without a leader, too.
                gone = self._gone_with(key) if error.args[0].code() in _LOST else set()
                if not gone:
                    return None
            else:
                self._gone.discard(key)
                return found
            if key in self._gone:  # waited for before, with another one of its topic
                break
            if times < _AGAIN:
                self._sleep_s(_AGAIN_AFTER_S * 2**times)
        self._gone |= gone
        return _EMPTY

    def _gone_with(self, key: Key) -> set[Key]:
        """The open partitions that are not there if this one is not, as a broker says.

        Empty: it may be there. Silence does not say that it is gone.
        """
        topic, partition = key
        try:
            found = self._consumer.list_topics(topic, _LOOK_UP_S).topics[topic]
        except KafkaException:
            return set()
        if found.error is None:
            return set() if partition in found.partitions else {key}
        if found.error.code() not in _LOST:
            return set()
        return {key, *(other for other in self._stops if other[0] == topic)}

    def _assign(self, key: Key, start: int, stop: int) -> None:
        self._stops[key], self._next[key] = stop, start
        self._consumer.incremental_assign([TopicPartition(*key, start)])

    def _assign_again(self, key: Key, start: int, stop: int, text: str) -> None:
        """What is said to be lost is there, or nobody knows."""
        times = self._again.get(key, 0)
        if times >= _AGAIN:
            raise BlobmsgError(
                f"{text}, although the log does not seem to lack them, {times + 1} times: see "
                "whether the brokers are well, then start again",
                code=KafkaError.OFFSET_NOT_AVAILABLE,
            )
        self._again[key] = times + 1
        self._sleep_s(_AGAIN_AFTER_S * 2**times)
        self._assign(key, start, stop)

    def _check_idle(self) -> None:
        if self._short and self._idle_s >= min(_SHORT_LOG_S, self._timeout_s):
            for key, end in list(self._short.items()):
                self._lose(key, f"the log ends at {end}")
            self._idle_s = 0.0
        elif self._stops and self._idle_s >= self._timeout_s:
            topic, partition = next(iter(self._stops))
            because = "" if self._last_error is None else f" ({self._last_error.str()})"
            raise BlobmsgError(
                f"no record of {topic} [{partition}] came for {self._timeout_s:g} s{because}: "
                "check that this machine reaches all brokers that kafka.bootstrap.servers leads "
                "to, or raise kafkaConsumer.pollTimeoutMs",
                code=KafkaError._TIMED_OUT,
            )


def _of(key: tuple[str | None, int | None]) -> str:
    topic, partition = key
    return "" if topic is None else f" ({topic} [{partition}])"
