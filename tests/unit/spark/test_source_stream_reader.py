"""Where a stream begins and ends, with a log that grows between any two questions."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from blobmsg.errors import ConfigError
from blobmsg.offsets import to_virtual
from blobmsg_spark.offset_ranges import LogBounds
from blobmsg_spark.source_options import parse_source_options
from blobmsg_spark.stream_source import StreamSource

_KEY = ("t", 0)


class _GrowingLog:
    """One partition, into which ten records come before each question for its end."""

    checks_offsets = True

    def __init__(self) -> None:
        self.high = 100

    def _grow(self) -> int:
        self.high += 10
        return self.high

    def partitions(self, *_: Any, **__: Any) -> set[tuple[str, int]]:
        return {_KEY}

    def highs(self, *_: Any) -> dict[tuple[str, int], int]:
        return {_KEY: self._grow()}

    def bounds(self, *_: Any) -> dict[tuple[str, int], LogBounds]:
        return {_KEY: LogBounds(0, self._grow())}

    def bounds_of_all(self, *_: Any) -> dict[tuple[str, int], LogBounds]:
        return self.bounds()

    def at_times(self, _: Any) -> dict[Any, Any]:
        return {}


@pytest.fixture
def log() -> _GrowingLog:
    return _GrowingLog()


def _source(log: _GrowingLog, **options: str) -> StreamSource:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", **options}
    source = StreamSource(parse_source_options(given, is_streaming=True))
    opened: Any = log
    source._opened = opened
    return source


def _offsets(kafka_offset: int) -> dict[str, dict[str, int]]:
    return {"t": {"0": to_virtual(kafka_offset)}}


def _ranges(source: StreamSource, start: Any, end: Any) -> list[tuple[int, int]]:
    return [(part.value.start, part.value.end) for part in source.partitions(start, end)]


def test_a_query_begins_at_one_place_however_often_spark_asks(log: _GrowingLog) -> None:
    source = _source(log)

    assert source.initialOffset() == source.initialOffset() == _offsets(110)


def test_the_first_micro_batch_of_latest_is_empty_and_the_second_begins_there(
    log: _GrowingLog,
) -> None:
    source = _source(log)
    start = source.initialOffset()

    end = source.latestOffset(start, ReadAllAvailable())
    assert end == start
    assert _ranges(source, start, end) == []

    later = source.latestOffset(end, ReadAllAvailable())
    assert _ranges(source, end, later) == [(to_virtual(110), later["t"]["0"])]


def test_a_first_micro_batch_that_is_planned_again_after_a_restart_is_empty_again(
    log: _GrowingLog,
) -> None:
    source = _source(log)
    logged_end = source.latestOffset(source.initialOffset(), ReadAllAvailable())

    restarted = _source(log)
    start = restarted.initialOffset()
    assert start != logged_end
    assert _ranges(restarted, start, logged_end) == []
    later = restarted.latestOffset(logged_end, ReadAllAvailable())
    assert _ranges(restarted, logged_end, later) == [(logged_end["t"]["0"], later["t"]["0"])]


def test_earliest_reads_at_once(log: _GrowingLog) -> None:
    source = _source(log, startingOffsets="earliest")
    start = source.initialOffset()

    end = source.latestOffset(start, ReadAllAvailable())

    assert (start, _ranges(source, start, end)) == (_offsets(0), [(0, end["t"]["0"])])


def test_available_now_begins_no_later_than_it_ends(log: _GrowingLog) -> None:
    source = _source(log)
    source.prepareForTriggerAvailableNow()

    start = source.initialOffset()

    assert start == _offsets(110)
    assert source.latestOffset(start, ReadAllAvailable()) == start
    assert _ranges(source, start, start) == []
    assert source.latestOffset(start, ReadAllAvailable()) == start


@pytest.mark.parametrize("wrong", [{}, {_KEY: 90}])
def test_a_frozen_end_that_lies_before_the_query_is_asked_for_again(
    log: _GrowingLog, monkeypatch: pytest.MonkeyPatch, wrong: dict[tuple[str, int], int]
) -> None:
    source = _source(log)
    with monkeypatch.context() as mistaken:
        mistaken.setattr(log, "highs", lambda *_: wrong)
        source.prepareForTriggerAvailableNow()

    end = source.latestOffset(_offsets(100), ReadAllAvailable())

    assert end == _offsets(log.high)
    assert source.latestOffset(end, ReadAllAvailable()) == end


def test_a_checkpoint_with_kafkas_own_offsets_is_refused_whatever_may_be_lost() -> None:
    class Deleted(_GrowingLog):
        def bounds(self, *_: Any) -> dict[tuple[str, int], LogBounds]:
            return {_KEY: LogBounds(50, 200)}

    source = _source(Deleted(), failOnDataLoss="false")
    kafkas_own = {"t": {"0": 90}}

    with pytest.raises(ConfigError, match="spark-sql-kafka"):
        source.latestOffset(kafkas_own, ReadAllAvailable())
    with pytest.raises(ConfigError, match="spark-sql-kafka"):
        source.partitions(kafkas_own, kafkas_own)


@pytest.mark.parametrize("text", [{"²": 1}, {"0": -1}, {"0": "5"}, 5])
def test_a_checkpoint_of_another_kind_of_source_is_refused(log: _GrowingLog, text: Any) -> None:
    with pytest.raises(ConfigError, match="checkpointLocation of its own"):
        _source(log).latestOffset({"t": text}, ReadAllAvailable())


def test_a_time_that_may_mean_the_end_begins_with_an_empty_micro_batch(log: _GrowingLog) -> None:
    log.at_times = lambda _: {_KEY: None}  # type: ignore[method-assign]
    source = _source(
        log, startingTimestamp="99999999999999", startingOffsetsByTimestampStrategy="latest"
    )
    start = source.initialOffset()

    assert source.latestOffset(start, ReadAllAvailable()) == start
