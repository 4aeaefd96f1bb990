from __future__ import annotations

import pytest

from blobmsg.cli.partition_lag import PartitionLag
from blobmsg.format import (
    HEADER_NAME,
    HEADER_VALUE,
    ByteRange,
    Codec,
    Notification,
    Part,
    encode_commit_metadata,
    encode_notification,
)

KEY = f"shared/3/forever/az1/{'ab' * 16}-7"
HEADERS: list[tuple[str, bytes | None]] = [(HEADER_NAME, HEADER_VALUE)]
KAFKA_MS = 9_000


def _notification(*counts: int) -> bytes:
    """Of a part for each count, the timestamps of which begin at 1000, 2000, …"""
    parts = tuple(
        Part(
            byte_range=ByteRange(number << 20, 64 + 64 * count),
            records=count,
            codec=Codec.NONE,
            uncompressed_bytes=64 + 64 * count,
            checksum=0,
            first_timestamp_ms=1000 * (number + 1),
            last_timestamp_ms=1000 * (number + 1) + 500,
            producer_id=bytes(16),
        )
        for number, count in enumerate(counts)
    )
    return encode_notification(Notification(parts, 0, bytes(16), KEY))


def _lag(low: int, end: int, committed: int | None, remaining: int | None = None) -> PartitionLag:
    lag = PartitionLag("orders", 3, low, end)
    if committed is not None:
        assert lag.committed(committed, encode_commit_metadata(remaining, None)) is None
    return lag


def _receive(lag: PartitionLag, kafka_offset: int, *counts: int) -> None:
    """A notification with such parts, or without counts a plain record."""
    headers, value = (HEADERS, _notification(*counts)) if counts else (None, b"plain")
    assert lag.received(kafka_offset, headers, value, KAFKA_MS, is_append_time=False) is None


def _counts(lag: PartitionLag) -> tuple[int, int]:
    return lag.kafka_records, lag.records


def test_a_notification_counts_its_records_and_anything_else_is_one() -> None:
    lag = _lag(0, 4, 0)

    _receive(lag, 0, 5, 6)
    _receive(lag, 1)
    lag.received(2, HEADERS, b"no magic", KAFKA_MS, is_append_time=False)
    lag.received(3, None, None, None, is_append_time=False)

    assert _counts(lag) == (4, 14)
    assert lag.unreadable == 0
    assert lag.is_done


def test_inside_of_a_notification_only_what_remains_counts() -> None:
    lag = _lag(0, 9, 7, remaining=2)

    assert lag.start == 7
    _receive(lag, 7, 10)
    _receive(lag, 8, 10)

    assert _counts(lag) == (2, 12)
    assert (lag.committed_kafka_offset, lag.committed_remaining_records) == (7, 2)


def test_what_remains_belongs_to_its_notification_alone() -> None:
    # Aborted records, or what compaction took, stood where the group had read to.
    lag = _lag(0, 9, 7, remaining=2)

    _receive(lag, 8, 10)

    assert _counts(lag) == (1, 10)


def test_without_a_commit_all_counts_from_the_start_of_the_log() -> None:
    lag = _lag(5, 7, None)

    assert (lag.start, lag.is_done) == (5, False)
    assert (lag.committed_kafka_offset, lag.committed_remaining_records) == (None, None)
    _receive(lag, 5, 10)

    assert _counts(lag) == (1, 10)


def test_a_commit_before_the_start_of_the_log_counts_from_there() -> None:
    lag = _lag(5, 6, 2, remaining=1)

    assert lag.start == 5
    _receive(lag, 5, 10)

    assert _counts(lag) == (1, 10)
    assert (lag.committed_kafka_offset, lag.committed_remaining_records) == (2, 1)


@pytest.mark.parametrize(("low", "end", "committed"), [(0, 5, 5), (0, 5, 8), (5, 5, 2)])
def test_at_the_end_nothing_is_to_be_read(low: int, end: int, committed: int) -> None:
    lag = _lag(low, end, committed)

    assert lag.is_done
    assert _counts(lag) == (0, 0)
    assert lag.first_timestamp_ms is None


def test_an_empty_partition_without_a_commit_has_no_lag() -> None:
    assert _lag(4, 4, None).is_done


def test_what_comes_behind_the_end_ends_it_and_does_not_count() -> None:
    lag = _lag(0, 3, 0)

    ends: list[bool] = []
    for kafka_offset in (0, 4):
        _receive(lag, kafka_offset, 10)
        ends.append(lag.is_done)

    assert ends == [False, True]
    assert _counts(lag) == (1, 10)


def test_the_end_that_kafka_tells_ends_it() -> None:
    lag = _lag(0, 3, 0)

    _receive(lag, 0)
    lag.end_reached()

    assert lag.is_done
    assert _counts(lag) == (1, 1)


@pytest.mark.parametrize(
    ("value", "words"),
    [(b"\xb1BMN\x01damaged", "notification"), (b"\xb1BMN\x07", "version 7 is unknown")],
)
def test_a_notification_that_cannot_be_read_is_named_and_counts_as_one(
    value: bytes, words: str
) -> None:
    lag = _lag(0, 9, 0)

    finding = lag.received(4, HEADERS, value, KAFKA_MS, is_append_time=False)

    assert finding is not None
    assert "orders [3] at Kafka offset 4" in finding
    assert words in finding
    assert _counts(lag) == (1, 1)
    assert lag.unreadable == 1
    assert lag.first_timestamp_ms == KAFKA_MS


def test_a_place_of_a_later_version_is_named_and_counts_from_its_notification() -> None:
    lag = PartitionLag("orders", 3, 0, 9)

    finding = lag.committed(7, "blobmsg2:2")

    assert finding is not None
    assert "orders [3]: commit metadata version 2 is unknown" in finding
    _receive(lag, 7, 10)
    assert _counts(lag) == (1, 10)


@pytest.mark.parametrize("metadata", [None, "", "the application's own", "blobmsg1:0;its own"])
def test_other_metadata_means_all_of_the_notification(metadata: str | None) -> None:
    lag = PartitionLag("orders", 3, 0, 9)

    assert lag.committed(7, metadata) is None
    _receive(lag, 7, 10)

    assert _counts(lag) == (1, 10)
    assert lag.committed_remaining_records is None


@pytest.mark.parametrize(
    ("remaining", "timestamp_ms"), [(None, 1000), (5, 1000), (4, 2000), (3, 3000), (1, 3000)]
)
def test_the_first_timestamp_is_of_the_part_that_comes_next(
    remaining: int | None, timestamp_ms: int
) -> None:
    lag = _lag(0, 9, 0, remaining)

    _receive(lag, 0, 2, 1, 3)
    _receive(lag, 1)

    assert lag.first_timestamp_ms == timestamp_ms


def test_the_first_timestamp_of_a_plain_record_is_kafkas() -> None:
    lag = _lag(0, 9, 0)

    _receive(lag, 0)
    _receive(lag, 1, 4)

    assert lag.first_timestamp_ms == KAFKA_MS


def test_where_the_broker_sets_times_they_are_those_of_the_records() -> None:
    lag = _lag(0, 9, 0)

    lag.received(0, HEADERS, _notification(4), KAFKA_MS, is_append_time=True)

    assert lag.first_timestamp_ms == KAFKA_MS
