"""The options of `format("blobmsg")` as a source: read, checked, and made into settings.

Decides what an option means and which contradict each other, in the words of spark-sql-kafka, whose
users come here. Never asks Kafka: whether topics and offsets exist shows when they are looked up.
Which are settings, and whose, says `options`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from blobmsg.errors import ConfigError
from blobmsg_spark.options import (
    Reader,
    read_count,
    read_flag,
    read_size,
    read_text,
    read_whole,
    split_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Boundary", "SourceOptions", "Subscription", "parse_source_options"]

Key: TypeAlias = tuple[str, int]  # topic, partition

_EARLIEST: Final = -2
_LATEST: Final = -1
# As spark-sql-kafka's `kafkaConsumer.pollTimeoutMs`.
_POLL_TIMEOUT_MS: Final = 120_000
_GROUP_ID: Final = "spark-blobmsg-source"

# Settings of the Kafka client that the source makes itself, and what to use instead.
_REFUSED_KAFKA: Final = {
    "auto.offset.reset": "startingOffsets and failOnDataLoss say where reading begins",
    "enable.auto.commit": "the checkpoint keeps the offsets",
    "enable.auto.offset.store": "the checkpoint keeps the offsets",
    "enable.partition.eof": "the source sets it itself",
    "key.deserializer": "keys are binary: use the functions of DataFrames",
    "value.deserializer": "values are binary: use the functions of DataFrames",
    "interceptor.classes": "the client has no interceptors",
}
_NOT_HERE: Final = (
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxRecordsPerPartition",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_REFUSED: Final = dict.fromkeys(_NOT_HERE, "of spark-sql-kafka is not supported here: remove it")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is read.

    Attributes:
        option: `subscribe`, `subscribePattern` or `assign`.
        topics: Their names; empty with a pattern.
        pattern: Matches whole names; None with topics.
        partitions: Exactly these, with `assign`; else None.
    """

    option: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[Key, ...] | None = None

    def includes_topic(self, topic: str) -> bool:
        """Whether a topic of this name is read."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"{self.option}={self.pattern}"
        return f"{self.option}={','.join(self.topics)}"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where reading begins or ends.

    Attributes:
        option: The option that says so, for texts.
        kind: `earliest`, `latest`, `offsets` (per partition) or `times`.
        places: With `offsets` virtual ones, or -2 and -1; with `times` ms since 1970 UTC.
        timestamp_ms: With `times`: of all partitions; None: `places` has them.
    """

    option: str
    kind: Literal["earliest", "latest", "offsets", "times"]
    places: Mapping[Key, int] = field(default_factory=dict[Key, int], hash=False)
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of one source, checked.

    Attributes:
        subscription: What is read.
        starting: Where a new query or a batch begins.
        ending: Where a batch ends.
        uses_latest_without_match: Where no record is as late as a starting time: begin at the end
            (`startingOffsetsByTimestampStrategy=latest`), else it is an error.
        max_records: `maxOffsetsPerTrigger`.
        max_bytes: `maxBytesPerTrigger`.
        min_partitions: Tasks, at least.
        fail_on_data_loss: Whether records that Kafka no longer has are an error.
        include_headers: Whether there is a column of headers.
        poll_timeout_ms: A task waits so long for records that must be there.
        given: The names of what was given, for checks of batch and stream.
        conf: Settings of the clients, ours and librdkafka's.
    """

    subscription: Subscription
    starting: Boundary
    ending: Boundary
    uses_latest_without_match: bool
    max_records: int | None
    max_bytes: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_headers: bool
    poll_timeout_ms: int
    given: frozenset[str]
    conf: Mapping[str, str] = field(repr=False, hash=False)

    @property
    def starts_at_end(self) -> bool:
        """Whether a partition is read from where its log ends at the beginning."""
        kind = self.starting.kind
        may_be_latest = kind == "times" and self.uses_latest_without_match
        return kind == "latest" or may_be_latest or _LATEST in _logical(self.starting)


def parse_source_options(
    options: Mapping[str, str], *, is_streaming: bool | None = None
) -> SourceOptions:
    """Read the options of a source.

    Args:
        options: As Spark gives them.
        is_streaming: Whether they are of a stream; None: nobody knows yet.

    Raises:
        ConfigError: One is unknown, wrong, or contradicts another.

    Threads: any.
    """
    given = split_options(options, _OPTIONS, refused=_REFUSED, refused_kafka=_REFUSED_KAFKA)
    read, conf = given.values, given.conf
    conf.setdefault("group.id", read.get("groupIdPrefix", _GROUP_ID))
    subscription = _subscription(read)
    found = SourceOptions(
        subscription=subscription,
        starting=_boundary("starting", read, "earliest" if is_streaming is False else "latest"),
        ending=_boundary("ending", read, "latest"),
        uses_latest_without_match=read.get("startingOffsetsByTimestampStrategy") == "latest",
        max_records=read.get("maxOffsetsPerTrigger"),
        max_bytes=read.get("maxBytesPerTrigger"),
        min_partitions=read.get("minPartitions"),
        fail_on_data_loss=read.get("failOnDataLoss", True),
        include_headers=read.get("includeHeaders", False),
        poll_timeout_ms=read.get("kafkaConsumer.pollTimeoutMs", _POLL_TIMEOUT_MS),
        given=frozenset(read),
        conf=conf,
    )
    _check(found, is_streaming=is_streaming)
    return found


# --- rules between options ------------------------------------------------------------------------


def _subscription(read: Mapping[str, Any]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in read]
    if len(given) != 1:
        raise ConfigError(
            "exactly one of the options subscribe, subscribePattern and assign says what is read; "
            f"given: {', '.join(given) or 'none'}",
            setting="subscribe",
        )
    subscription: Subscription = read[given[0]]
    return subscription


def _boundary(
    side: str, read: Mapping[str, Any], default: Literal["earliest", "latest"]
) -> Boundary:
    """As spark-sql-kafka: a time of all goes before times per partition, these before offsets."""
    option = f"{side}Timestamp"
    if option in read:
        return Boundary(option, "times", timestamp_ms=read[option])
    option = f"{side}OffsetsByTimestamp"
    if option in read:
        return Boundary(option, "times", read[option])
    option = f"{side}Offsets"
    if option not in read:
        return Boundary(option, default)
    value = read[option]
    if isinstance(value, str):
        return Boundary(option, "earliest" if value == "earliest" else "latest")
    return Boundary(option, "offsets", value)


def _check(options: SourceOptions, *, is_streaming: bool | None) -> None:
    for boundary in (options.starting, options.ending):
        for topic, partition in boundary.places:
            _check_place(options.subscription, boundary.option, topic, partition)
    if options.ending.kind == "earliest" or _EARLIEST in _logical(options.ending):
        raise ConfigError(
            f"{options.ending.option}: a batch can't end at the earliest offset (-2): use latest "
            "(-1) or offsets",
            setting=options.ending.option,
        )
    if is_streaming:
        ending = sorted(name for name in options.given if name.startswith("ending"))
        if ending:
            raise ConfigError(
                f"option {ending[0]} is for batches only: a stream has no end (use "
                "trigger(availableNow=True) to stop at what is there now)",
                setting=ending[0],
            )
    elif is_streaming is False and options.starts_at_end:
        raise ConfigError(
            f"{options.starting.option}: a batch can't start at the latest offset (-1): use "
            "earliest (-2) or offsets",
            setting=options.starting.option,
        )


def _logical(boundary: Boundary) -> set[int]:
    return set(boundary.places.values()) if boundary.kind == "offsets" else set()


def _check_place(subscription: Subscription, option: str, topic: str, partition: int) -> None:
    allowed = subscription.partitions
    is_read = subscription.includes_topic(topic)
    if not is_read or (allowed is not None and (topic, partition) not in allowed):
        raise ConfigError(
            f"{option} names {topic} [{partition}], which is not read ({subscription}): take it "
            "out, or read it",
            setting=option,
        )


# --- values ---------------------------------------------------------------------------------------


def _topics(option: str, text: str) -> Subscription:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise ConfigError(f"option {option} names no topic", setting=option)
    return Subscription(option, topics)


def _pattern(option: str, text: str) -> Subscription:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"option {option}: {text!r} is no regular expression: {error}", setting=option
        ) from error
    return Subscription(option, pattern=text)


def _assigned(option: str, text: str) -> Subscription:
    example = '{"topicA":[0,1],"topicB":[2]}'
    found = _json(option, text, example)
    partitions: dict[Key, None] = {}
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not all(map(_is_partition, numbers)):
            raise _no_such_json(option, text, example)
        partitions.update(dict.fromkeys((topic, number) for number in numbers))
    if not partitions:
        raise ConfigError(f"option {option} names no partition: {example}", setting=option)
    return Subscription(option, tuple(found), partitions=tuple(partitions))


def _places(option: str, text: str) -> dict[Key, int]:
    example = '{"topicA":{"0":1048576,"1":-1},"topicB":{"0":-2}}'
    places: dict[Key, int] = {}
    for topic, numbers in _json(option, text, example).items():
        if not isinstance(numbers, dict):
            raise _no_such_json(option, text, example)
        for number, place in numbers.items():
            if not number.isascii() or not number.isdigit() or type(place) is not int:
                raise _no_such_json(option, text, example)
            places[topic, int(number)] = place
    return places


def _offsets(option: str, text: str) -> str | dict[Key, int]:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    places = _places(option, text)
    for (topic, partition), place in places.items():
        if place < _EARLIEST:
            raise ConfigError(
                f"option {option}: {place} of {topic} [{partition}] is no offset: virtual offsets "
                "are 0 or more; -1 is the latest, -2 the earliest",
                setting=option,
            )
    return places


def _times(option: str, text: str) -> dict[Key, int]:
    places = _places(option, text)
    for (topic, partition), place in places.items():
        if place < 0:
            raise ConfigError(
                f"option {option}: {place} of {topic} [{partition}] is no time in ms since 1970",
                setting=option,
            )
    return places


def _is_partition(number: object) -> bool:
    return type(number) is int and number >= 0


def _json(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _no_such_json(option, text, example) from error
    if not isinstance(found, dict):
        raise _no_such_json(option, text, example)
    return found


def _no_such_json(option: str, text: str, example: str) -> ConfigError:
    return ConfigError(f"option {option} must be JSON like {example}, not {text}", setting=option)


def _time(option: str, text: str) -> int:
    number = read_whole(option, text)
    if number < 0:
        raise ConfigError(f"option {option} must be ms since 1970, not {text}", setting=option)
    return number


def _strategy(option: str, text: str) -> str:
    if text.strip().lower() not in ("error", "latest"):
        raise ConfigError(f"option {option} must be error or latest, not {text!r}", setting=option)
    return text.strip().lower()


#: Every option of the source that is no setting, with what reads its text.
_OPTIONS: Final[dict[str, Reader]] = {
    "subscribe": _topics,
    "subscribePattern": _pattern,
    "assign": _assigned,
    "startingOffsets": _offsets,
    "startingTimestamp": _time,
    "startingOffsetsByTimestamp": _times,
    "startingOffsetsByTimestampStrategy": _strategy,
    "endingOffsets": _offsets,
    "endingTimestamp": _time,
    "endingOffsetsByTimestamp": _times,
    "maxOffsetsPerTrigger": read_count,
    "maxBytesPerTrigger": read_size,
    "minPartitions": read_count,
    "failOnDataLoss": read_flag,
    "includeHeaders": read_flag,
    "groupIdPrefix": read_text,
    "kafkaConsumer.pollTimeoutMs": read_count,
}
