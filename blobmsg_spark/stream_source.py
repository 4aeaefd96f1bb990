"""The streaming side of `format("blobmsg")`: `spark.readStream`.

The driver's half says how far the next micro-batch goes and which ranges its tasks read; the
checkpoint keeps what it says, so a batch that is run again has the same records. The tasks' half is
`read`. Spark asks for the latest offset all the time while nothing comes, hence the pauses below.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from blobmsg.core.offsets import to_kafka, to_virtual
from blobmsg.errors import ConfigError
from blobmsg.rare_log import RareLog
from blobmsg_spark.boundaries import (
    check_checkpoint,
    check_virtual,
    resolve_boundary,
    times_of,
)
from blobmsg_spark.by_value import reduce_by_value
from blobmsg_spark.kafka_ranges import data_loss
from blobmsg_spark.offset_ranges import (
    OffsetRange,
    decode_offsets,
    encode_offsets,
    readable_ranges,
    split_ranges,
)
from blobmsg_spark.range_task import read_range
from blobmsg_spark.topic_log import TopicLog
from blobmsg_spark.trigger_limits import Backlog, allot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from blobmsg_spark.offset_ranges import Key, Offsets
    from blobmsg_spark.source_options import SourceOptions

__all__ = ["StreamSource"]

logger = logging.getLogger("blobmsg.spark")

# Spark asks hundreds of times per second while nothing comes. A micro-batch takes half a second.
_ASK_EVERY_S: Final = 0.1
# As often new partitions and topics are looked for.
_LOOK_EVERY_S: Final = 5.0


class StreamSource(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from offsets that Spark keeps.

    Args:
        options: Of the source.

    Threads: one. Travels to executors without the driver's clients.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened: TopicLog | None = None
        self._keys: set[Key] = set()
        self._looked_at_s = float("-inf")
        self._highs: dict[Key, int] = {}
        self._asked_at_s = float("-inf")
        self._is_frozen = False  # Trigger.AvailableNow: what came later is not read
        self._backlogs: dict[Key, Backlog] = {}
        self._first: dict[str, dict[str, int]] | None = None  # where a new query begins
        self._has_checked = False  # that the checkpoint is of a source like this
        self._is_planned = False  # a micro-batch's ranges have been asked for
        self._log_rarely = RareLog(logger.warning)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_value(StreamSource, self._options)

    # --- where ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Where a new query begins; the same each time, though Spark asks for each attempt."""
        if self._first is None:
            self._first = encode_offsets(self._first_offsets())
        return self._first

    def _first_offsets(self) -> Offsets:
        options = self._options
        keys = self._log.partitions(options.subscription, must_exist=True)
        starting = options.starting
        found = self._log.at_times(times_of(starting, keys))
        starts = resolve_boundary(
            starting,
            self._log.bounds_of_all(keys),
            found,
            options=options,
            checks_offsets=self._log.checks_offsets,
        )
        if self._is_frozen:  # the ends were asked for before, and more has come since
            return {
                key: min(place, to_virtual(self._highs[key])) if key in self._highs else place
                for key, place in starts.items()
            }
        return starts

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; with both limits the other one counts as well."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Where the micro-batch that begins at `start` ends.

        Of a query that begins at the end of the log the first one is empty: Spark writes down only
        where a micro-batch ends, so that a first one with records would begin elsewhere when it is
        run again after a restart.
        """
        if not self._is_planned and self._options.starts_at_end and start == self._first:
            return start
        starts = self._of_checkpoint(start)
        highs = self._current_highs(starts)
        gone = starts.keys() - highs.keys()
        for topic, partition in sorted(gone):
            self._lose(
                f"{topic} [{partition}]: the partition is gone, or not read any more",
                f"{topic} [{partition}] gone",
            )
        starts = {key: start for key, start in starts.items() if key in highs}
        starts |= self._starts_of_new(highs.keys() - starts.keys())
        for (topic, partition), place in list(starts.items()):
            key = (topic, partition)
            if to_kafka(place) > highs[key]:
                self._lose(
                    f"{topic} [{partition}]: the query is at {place}, but the log ends at "
                    f"{to_virtual(highs[key])} (the topic was made anew, or an election has cut "
                    "its log)",
                    f"{topic} [{partition}] shorter",
                )
                starts[key] = to_virtual(highs[key])  # so that what comes now is read
        if isinstance(limit, ReadAllAvailable):
            return encode_offsets({key: to_virtual(high) for key, high in highs.items()})
        return encode_offsets(self._limited(starts, highs))

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        """The end of the log as last seen, for the query's progress."""
        if not self._highs:
            return None
        return encode_offsets({key: to_virtual(high) for key, high in self._highs.items()})

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing is new."""
        self._keys = self._log.partitions(self._options.subscription, must_exist=True)
        self._highs = self._log.highs(self._keys, dict.fromkeys(self._keys, 0))
        self._is_frozen = True

    @property
    def _log(self) -> TopicLog:
        if self._opened is None:
            self._opened = TopicLog(self._options)
        return self._opened

    def _current_highs(self, starts: Offsets) -> dict[Key, int]:
        """The ends of the log of all partitions that are read, asked for now and then."""
        at_least = {key: to_kafka(start) for key, start in starts.items()}
        if self._is_frozen:
            self._mend_frozen(at_least)
            return self._highs
        now = time.monotonic()
        if now - self._looked_at_s >= _LOOK_EVERY_S:
            self._looked_at_s = now
            self._keys = self._log.partitions(
                self._options.subscription, must_exist=False, known=starts
            )
            self._asked_at_s = float("-inf")
        if now - self._asked_at_s >= _ASK_EVERY_S:
            self._highs = self._log.highs(self._keys, at_least)
            self._asked_at_s = time.monotonic()
        return self._highs

    def _mend_frozen(self, at_least: Mapping[Key, int]) -> None:
        """Ask again for frozen ends that lie before where the query is.

        They were asked for before Spark told where that is, so a single wrong answer has counted.
        """
        short = {key for key, least in at_least.items() if self._highs.get(key, -1) < least}
        if short:
            keys = self._log.partitions(self._options.subscription, must_exist=False, known=short)
            self._highs = {**self._highs, **self._log.highs(short & keys, at_least)}

    def _starts_of_new(self, keys: set[Key]) -> dict[Key, int]:
        """Partitions that came while the query runs are read from their beginning."""
        lows = self._log.lows(keys) if keys else {}
        for (topic, partition), low in sorted(lows.items()):
            if low > 0:
                self._lose(
                    f"{topic} [{partition}] is new to the query and begins at {to_virtual(low)}: "
                    "Kafka has deleted what was before",
                    f"{topic} [{partition}] new",
                )
        return {key: to_virtual(lows.get(key, 0)) for key in keys}

    def _limited(self, starts: Offsets, highs: Mapping[Key, int]) -> Offsets:
        for key, start in starts.items():
            backlog = self._backlogs.get(key)
            if backlog is None or not backlog.covers(to_kafka(start)):
                self._backlogs[key] = Backlog(to_kafka(start))
            else:
                backlog.forget_before(to_kafka(start))
        max_records, max_bytes = self._options.max_records, self._options.max_bytes
        while True:
            found = allot(
                self._backlogs, starts, highs, max_records=max_records, max_bytes=max_bytes
            )
            if not found.unknown:
                return found.ends
            self._log.extend(
                self._backlogs, found.unknown, found.read_until, by_bytes=max_bytes is not None
            )

    # --- what -----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges that the tasks of a micro-batch read."""
        self._is_planned = True
        ends = self._of_checkpoint(end)
        starts = self._of_checkpoint(start)
        # What is new begins at 0: what Kafka has deleted of it since is lost. An end before the
        # start is that of an empty first micro-batch (`latestOffset`), planned again.
        wanted = [
            OffsetRange(*key, starts.get(key, 0), end)
            for key, end in sorted(ends.items())
            if starts.get(key, 0) < end
        ]
        at_least = {found.key: found.kafka_stop for found in wanted}
        ranges, losses = readable_ranges(wanted, self._log.bounds(at_least, at_least))
        for (topic, partition), loss in losses.items():
            self._lose(loss, f"{topic} [{partition}] deleted")
        return [
            InputPartition(piece)
            for piece in split_ranges(ranges, self._options.min_partitions or 0)
        ]

    def _of_checkpoint(self, encoded: dict[str, Any]) -> dict[Key, int]:
        """The offsets that Spark has kept.

        Raises:
            ConfigError: They are of another query or another kind of source.
        """
        try:
            offsets = decode_offsets(encoded)
        except ValueError as error:
            raise ConfigError(
                f"the checkpoint is not of this source: {error}. Give this query a "
                "checkpointLocation of its own"
            ) from error
        check_checkpoint(offsets, self._options.subscription)
        if offsets and not self._has_checked and self._log.checks_offsets:
            check_virtual(offsets, self._log.bounds(offsets))
        self._has_checked = True
        return offsets

    def _lose(self, text: str, cause: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_loss(text)
        self._log_rarely(f"{text}; going on without (failOnDataLoss=false)", cause=cause)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range; runs on an executor."""
        return read_range(self._options, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Nobody will ask for what lies before `end`."""
        for key, place in decode_offsets(end).items():
            backlog = self._backlogs.get(key)
            if backlog is not None:
                backlog.forget_before(to_kafka(place))

    def stop(self) -> None:
        """Close the clients."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
