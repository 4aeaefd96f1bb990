"""The batch side of `format("blobmsg")`: `spark.read`."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from blobmsg.core.offsets import to_kafka
from blobmsg.errors import ConfigError
from blobmsg_spark.boundaries import resolve_boundary, times_of
from blobmsg_spark.kafka_ranges import data_loss
from blobmsg_spark.offset_ranges import OffsetRange, readable_ranges, split_ranges
from blobmsg_spark.range_task import read_range
from blobmsg_spark.topic_log import TopicLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from blobmsg_spark.offset_ranges import Key
    from blobmsg_spark.source_options import Boundary, SourceOptions

__all__ = ["BatchSource"]

logger = logging.getLogger("blobmsg.spark")


class BatchSource(DataSourceReader):
    """Reads what lies between two boundaries, which are looked up once, while Spark plans.

    Args:
        options: Of the source.

    Threads: one. Travels to executors; holds no clients.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The ranges that tasks read.

        Raises:
            BlobmsgError: A topic or offset is not there, or Kafka is not.
        """
        with closing(TopicLog(self._options)) as log:
            keys = log.partitions(self._options.subscription, must_exist=True)
            bounds = log.bounds(keys)
            starts, ends = (
                resolve_boundary(
                    boundary,
                    bounds,
                    log.at_times(times_of(boundary, keys)),
                    options=self._options,
                    checks_offsets=log.checks_offsets,
                )
                for boundary in (self._options.starting, self._options.ending)
            )
            at_least = {key: to_kafka(end) for key, end in ends.items()}
            if any(at_least[key] > bounds[key].high for key in at_least):
                bounds = log.bounds(keys, at_least)
        _check_order(self._options.starting, self._options.ending, starts, ends)
        wanted = [
            OffsetRange(*key, starts[key], end) for key, end in sorted(ends.items())
            if starts[key] < end
        ]  # fmt: skip
        ranges, losses = readable_ranges(wanted, bounds)
        for loss in losses.values():
            if self._options.fail_on_data_loss:
                raise data_loss(loss)
            logger.warning("%s; going on without (failOnDataLoss=false)", loss)
        pieces = split_ranges(ranges, self._options.min_partitions or 0)
        return [InputPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range; runs on an executor."""
        return read_range(self._options, partition.value)


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
