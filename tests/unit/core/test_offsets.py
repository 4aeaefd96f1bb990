from __future__ import annotations

import pytest

from blobmsg.core.offsets import (
    MAX_NOTIFICATION_RECORDS,
    position_in,
    records_to_skip,
    remaining_records,
    to_kafka,
    to_virtual,
    virtual_offset_of_first,
)

MIB = 1_048_576


@pytest.mark.parametrize("logical", [-1, -2, -1000, -1001, -2000])
def test_logical_offsets_are_never_shifted(logical: int) -> None:
    assert to_virtual(logical) == logical
    assert to_kafka(logical) == logical


def test_watermarks_are_kafkas_times_two_to_the_twentieth() -> None:
    assert to_virtual(0) == 0
    assert to_virtual(7) == 7 * MIB
    assert to_kafka(7 * MIB) == 7


def test_a_plain_record_is_the_last_offset_before_the_next_notification() -> None:
    assert virtual_offset_of_first(7, 1) == 8 * MIB - 1


def test_the_last_offset_plus_one_begins_the_next_notification() -> None:
    first = virtual_offset_of_first(7, 1000)

    assert first == 8 * MIB - 1000
    assert first + 999 + 1 == to_virtual(8)


def test_the_largest_notification_begins_one_behind_its_position() -> None:
    assert MAX_NOTIFICATION_RECORDS == MIB - 1
    assert virtual_offset_of_first(0, MAX_NOTIFICATION_RECORDS) == 1


def test_the_start_of_a_notification_means_all_of_it() -> None:
    assert remaining_records(7 * MIB) is None
    assert position_in(7, None) == 7 * MIB


def test_a_position_inside_counts_what_remains() -> None:
    assert remaining_records(8 * MIB - 3) == 3
    assert position_in(7, 3) == 8 * MIB - 3


def test_skipping_leaves_the_records_that_remain() -> None:
    assert records_to_skip(8 * MIB - 3, kafka_offset=7, records=10) == 7


def test_nothing_is_skipped_at_the_start() -> None:
    assert records_to_skip(7 * MIB, kafka_offset=7, records=10) == 0


def test_nothing_is_skipped_where_more_would_remain_than_there_are() -> None:
    assert records_to_skip(8 * MIB - 11, kafka_offset=7, records=10) == 0


def test_a_notification_beyond_the_position_is_taken_whole() -> None:
    assert records_to_skip(8 * MIB - 3, kafka_offset=9, records=10) == 0
