"""The batch side of `format("blobmsg")`: `spark.read`."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from blobmsg.core.offsets import to_kafka, to_virtual
from blobmsg.errors import ConfigError
from blobmsg_spark.boundaries import resolve_boundary, times_of
from blobmsg_spark.by_value import reduce_state_by_value
from blobmsg_spark.kafka_ranges import data_loss
from blobmsg_spark.offset_ranges import OffsetRange, readable_ranges, split_ranges
from blobmsg_spark.range_task import read_range
from blobmsg_spark.topic_log import TopicLog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from blobmsg_spark.offset_ranges import Key, Offsets
    from blobmsg_spark.source_options import Boundary, SourceOptions

__all__ = ["BatchSource", "plan_batch"]

logger = logging.getLogger("blobmsg.spark")


class BatchSource(DataSourceReader):
    """Reads what lies between two boundaries, which are looked up once, while Spark plans.

    Args:
        options: Of the source.

    Threads: one. Travels to executors; holds no clients.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_state_by_value(self)

    def partitions(self) -> list[InputPartition]:
        """The ranges that tasks read.

        Raises:
            BlobmsgError: A topic or offset is not there, or Kafka is not.
        """
        with closing(TopicLog(self._options)) as log:
            keys = log.partitions(self._options.subscription, must_exist=True)
            return [InputPartition(found) for found in plan_batch(log, self._options, keys, {})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range; runs on an executor."""
        return read_range(self._options, partition.value)


def plan_batch(
    log: TopicLog, options: SourceOptions, keys: Collection[Key], begun: Offsets
) -> list[OffsetRange]:
    """The ranges that the tasks of a batch read.

    Args:
        log: Asked where partitions begin and end.
        options: Of the source.
        keys: The partitions that are read.
        begun: Where these begin, whatever the options say; others need not be here.

    Raises:
        BlobmsgError: An offset is not there, or Kafka is not.
    """
    at_least = {key: to_kafka(start) for key, start in begun.items()}
    bounds = log.bounds_of_all(keys, at_least)
    starts, ends = (
        resolve_boundary(
            boundary,
            bounds,
            log.at_times(times_of(boundary, keys)),
            options=options,
            checks_offsets=log.checks_offsets,
        )
        for boundary in (options.starting, options.ending)
    )
    at_least = {key: to_kafka(end) for key, end in ends.items()}
    if any(at_least[key] > bounds[key].high for key in at_least):
        bounds = log.bounds(keys, at_least)
    new = ends.keys() - begun.keys()
    _check_order(options.starting, options.ending, starts, {key: ends[key] for key in new})
    starts = {**starts, **begun}
    ahead = [
        f"{OffsetRange(*key, start, start)}: the log ends at {to_virtual(bounds[key].high)} (an "
        "election has cut its log)"
        for key, start in begun.items()
        if start > to_virtual(bounds[key].high)
    ]
    wanted = [
        OffsetRange(*key, starts[key], end) for key, end in sorted(ends.items())
        if starts[key] < end
    ]  # fmt: skip
    ranges, losses = readable_ranges(wanted, bounds)
    for loss in [*ahead, *losses.values()]:
        if options.fail_on_data_loss:
            raise data_loss(loss)
        logger.warning("%s; going on without (failOnDataLoss=false)", loss)
    return split_ranges(ranges, options.min_partitions or 0)


def _check_order(
    starting: Boundary, ending: Boundary, starts: Mapping[Key, int], ends: Mapping[Key, int]
) -> None:
    """Refuse offsets in the wrong order; between times there may be nothing."""
    if starting.kind != "offsets" or ending.kind != "offsets":
        return
    for (topic, partition), end in ends.items():
        if starts[topic, partition] > end:
            raise ConfigError(
                f"{starting.option} of {topic} [{partition}] ({starts[topic, partition]}) lies "
                f"behind {ending.option} ({end})",
                setting=starting.option,
            )
