"""Where reading begins and ends: from options to an offset of every partition.

Decides what an option means for partitions that are there, and what a checkpoint must fit; never
asks Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from blobmsg.core.offsets import to_virtual
from blobmsg.errors import ConfigError
from blobmsg_spark.offset_ranges import looks_like_kafka_offset

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from blobmsg_spark.offset_ranges import Key, LogBounds, Offsets
    from blobmsg_spark.source_options import Boundary, SourceOptions, Subscription

__all__ = ["check_checkpoint", "check_virtual", "resolve_boundary", "times_of"]

_EARLIEST, _LATEST = -2, -1


def times_of(boundary: Boundary, keys: Collection[Key]) -> dict[Key, int]:
    """The times to look up, per partition; none for other kinds of boundaries.

    Raises:
        ConfigError: A partition has none.
    """
    if boundary.kind != "times":
        return {}
    if boundary.timestamp_ms is not None:
        return dict.fromkeys(keys, boundary.timestamp_ms)
    _check_complete(boundary, keys)
    return {key: boundary.places[key] for key in keys}


def resolve_boundary(
    boundary: Boundary,
    bounds: Mapping[Key, LogBounds],
    found_by_time: Mapping[Key, int | None],
    *,
    options: SourceOptions,
    checks_offsets: bool,
) -> dict[Key, int]:
    """The virtual offset of each partition.

    Args:
        boundary: What the user said.
        bounds: Of all partitions that are read.
        found_by_time: What `times_of` led to; None: no record is so late.
        options: Of the source.
        checks_offsets: `blobmsg.offset.check`.

    Raises:
        ConfigError: A partition is missing or surplus, an offset is Kafka's own, or no record is
            as late as the starting time.
    """
    if boundary.kind == "offsets":
        _check_complete(boundary, bounds)
    return {
        key: _place(boundary, key, bound, found_by_time, options, checks_offsets=checks_offsets)
        for key, bound in bounds.items()
    }


def _place(
    boundary: Boundary,
    key: Key,
    bound: LogBounds,
    found_by_time: Mapping[Key, int | None],
    options: SourceOptions,
    *,
    checks_offsets: bool,
) -> int:
    topic, partition = key
    earliest, latest = to_virtual(bound.low), to_virtual(bound.high)
    if boundary.kind == "times":
        found = found_by_time[key]
        if found is not None:
            return found
        if boundary is options.starting and not options.uses_latest_without_match:
            raise ConfigError(
                f"{boundary.option}: {topic} [{partition}] has no record as late as that: choose "
                "an earlier time, or set startingOffsetsByTimestampStrategy=latest",
                setting=boundary.option,
            )
        return latest
    if boundary.kind != "offsets":
        return earliest if boundary.kind == "earliest" else latest
    offset = boundary.places[key]
    if offset < 0:
        return earliest if offset == _EARLIEST else latest
    if checks_offsets and looks_like_kafka_offset(offset, bound):
        raise ConfigError(
            f"{boundary.option}: {offset} of {topic} [{partition}] lies between Kafka's own "
            f"offsets {bound.low} and {bound.high} and is no virtual offset: convert it with "
            "blobmsg.offsets.to_virtual, or set blobmsg.offset.check=false",
            setting=boundary.option,
        )
    return offset


def _check_complete(boundary: Boundary, keys: Collection[Key]) -> None:
    missing = sorted(set(keys).difference(boundary.places))
    surplus = sorted(set(boundary.places).difference(keys))
    if missing:
        raise ConfigError(
            f"{boundary.option} must name every partition that is read; {_names(missing)} "
            "are missing" + (" (-1 is the latest, -2 the earliest)" if boundary.kind == "offsets"
            else ""),
            setting=boundary.option,
        )  # fmt: skip
    if surplus:
        raise ConfigError(
            f"{boundary.option} names {_names(surplus)}, which Kafka does not have",
            setting=boundary.option,
        )


def _names(keys: list[Key]) -> str:
    shown = ", ".join(f"{topic} [{partition}]" for topic, partition in keys[:5])
    return f"{shown} and {len(keys) - 5} more" if len(keys) > 5 else shown


def check_virtual(offsets: Offsets, bounds: Mapping[Key, LogBounds]) -> None:
    """Refuse the checkpoint of a source that keeps Kafka's own offsets, as spark-sql-kafka.

    Args:
        offsets: Of the checkpoint.
        bounds: Of the partitions that are there.

    Raises:
        ConfigError: One is none of ours.
    """
    for (topic, partition), offset in sorted(offsets.items()):
        bound = bounds.get((topic, partition))
        if bound is not None and looks_like_kafka_offset(offset, bound):
            raise ConfigError(
                f"the checkpoint has {offset} of {topic} [{partition}], which lies between Kafka's "
                f"own offsets {bound.low} and {bound.high} and is no virtual offset that is still "
                "there: if it is the checkpoint of another source (spark-sql-kafka), give this "
                "query a checkpointLocation of its own and begin with startingOffsets; if it is "
                "not, Kafka has deleted what lies there, and blobmsg.offset.check=false lets "
                "failOnDataLoss decide"
            )


def check_checkpoint(keys: Collection[Key], subscription: Subscription) -> None:
    """Refuse a checkpoint that belongs to another query.

    Args:
        keys: Its partitions.
        subscription: Of this query.

    Raises:
        ConfigError: None of its topics is read.
    """
    topics = sorted({topic for topic, _ in keys})
    if topics and not any(map(subscription.includes_topic, topics)):
        raise ConfigError(
            f"the checkpoint has offsets of {', '.join(topics)}, but this query reads "
            f"{subscription}: it is the checkpoint of another query; give this one a "
            "checkpointLocation of its own, or read those topics",
            code=KafkaError._INVALID_ARG,
        )
