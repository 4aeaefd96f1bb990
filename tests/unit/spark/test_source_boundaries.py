from __future__ import annotations

import pytest

from blobmsg.errors import ConfigError
from blobmsg.offsets import to_virtual
from blobmsg_spark.boundaries import check_checkpoint, resolve_boundary, times_of
from blobmsg_spark.offset_ranges import LogBounds
from blobmsg_spark.source_options import SourceOptions, parse_source_options

BASE = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
BOUNDS = {("t", 0): LogBounds(10, 20), ("t", 1): LogBounds(0, 5)}


def _options(**more: str) -> SourceOptions:
    return parse_source_options({**BASE, **more})


def _starts(options: SourceOptions, found: dict[tuple[str, int], int | None]) -> list[int]:
    starts = resolve_boundary(options.starting, BOUNDS, found, options=options, checks_offsets=True)
    return list(starts.values())


def test_words_are_the_ends_of_the_log() -> None:
    assert _starts(_options(startingOffsets="earliest"), {}) == [to_virtual(10), 0]
    assert _starts(_options(startingOffsets="latest"), {}) == [to_virtual(20), to_virtual(5)]


def test_offsets_stand_beside_logical_ones() -> None:
    text = f'{{"t": {{"0": {to_virtual(12) - 3}, "1": -1}}}}'

    assert _starts(_options(startingOffsets=text), {}) == [to_virtual(12) - 3, to_virtual(5)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"t": {"0": -1}}', r"t \[1\] are missing"),
        ('{"t": {"0": -1, "1": -1, "2": -1}}', r"t \[2\], which Kafka does not have"),
        ('{"t": {"0": 15, "1": -1}}', "to_virtual"),
    ],
)
def test_offsets_that_do_not_fit_the_topic_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _starts(_options(startingOffsets=text), {})


def test_times_are_looked_up_per_partition() -> None:
    assert times_of(_options(startingTimestamp="9").starting, BOUNDS) == dict.fromkeys(BOUNDS, 9)
    own = _options(startingOffsetsByTimestamp='{"t": {"0": 1, "1": 2}}').starting
    assert times_of(own, BOUNDS) == {("t", 0): 1, ("t", 1): 2}
    assert times_of(_options(startingOffsets="latest").starting, BOUNDS) == {}


def test_a_time_without_a_record_is_an_error_or_the_end() -> None:
    found = {("t", 0): 77, ("t", 1): None}

    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy=latest"):
        _starts(_options(startingTimestamp="9"), found)
    latest = _options(startingTimestamp="9", startingOffsetsByTimestampStrategy="latest")
    assert _starts(latest, found) == [77, to_virtual(5)]


def test_an_ending_time_without_a_record_is_the_end() -> None:
    options = _options(endingTimestamp="9")

    ends = resolve_boundary(
        options.ending, BOUNDS, dict.fromkeys(BOUNDS), options=options, checks_offsets=True
    )

    assert list(ends.values()) == [to_virtual(20), to_virtual(5)]


def test_a_checkpoint_without_any_topic_of_the_query_is_refused() -> None:
    check_checkpoint([], _options().subscription)
    check_checkpoint([("t", 0), ("other", 0)], _options().subscription)
    with pytest.raises(ConfigError, match="checkpoint of another query"):
        check_checkpoint([("other", 0)], _options().subscription)
