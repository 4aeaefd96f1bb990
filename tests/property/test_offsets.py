from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blobmsg.core.offsets import (
    MAX_NOTIFICATION_RECORDS,
    position_in,
    records_to_skip,
    remaining_records,
    to_kafka,
    to_virtual,
    virtual_offset_of_first,
)
from blobmsg.core.positions import commit_entry, position_of_commit

# Kafka's offsets are int64; ours, shifted left by 20, may not overflow that either.
kafka_offsets = st.integers(0, (1 << 43) - 2)
counts = st.integers(1, MAX_NOTIFICATION_RECORDS) | st.sampled_from(
    [1, 2, MAX_NOTIFICATION_RECORDS]
)
remainders = st.none() | counts
user_texts = st.none() | st.text(max_size=50)


@given(kafka_offset=kafka_offsets, records=counts)
def test_the_offset_behind_the_last_record_begins_the_next_notification(
    kafka_offset: int, records: int
) -> None:
    last = virtual_offset_of_first(kafka_offset, records) + records - 1

    assert to_kafka(last) == kafka_offset
    assert last + 1 == to_virtual(kafka_offset + 1)


@given(
    first=st.tuples(kafka_offsets, counts), second=st.tuples(kafka_offsets, counts), data=st.data()
)
def test_virtual_offsets_are_ordered_like_records(
    first: tuple[int, int], second: tuple[int, int], data: st.DataObject
) -> None:
    if first[0] == second[0]:
        second = first  # one notification has one count
    places = [(kafka, data.draw(st.integers(0, n - 1)), n) for kafka, n in (first, second)]
    virtual = [virtual_offset_of_first(kafka, n) + index for kafka, index, n in places]

    assert (places[0][:2] < places[1][:2]) is (virtual[0] < virtual[1])
    assert (places[0][:2] == places[1][:2]) is (virtual[0] == virtual[1])


@given(kafka_offset=kafka_offsets, remaining=remainders)
def test_a_place_and_its_position_are_one_thing(kafka_offset: int, remaining: int | None) -> None:
    position = position_in(kafka_offset, remaining)

    assert (to_kafka(position), remaining_records(position)) == (kafka_offset, remaining)
    assert 0 <= position < 1 << 63


@given(kafka_offset=kafka_offsets, records=counts, data=st.data())
def test_reading_on_from_an_offset_begins_with_its_record(
    kafka_offset: int, records: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, records - 1))
    offset = virtual_offset_of_first(kafka_offset, records) + index

    assert records_to_skip(offset, kafka_offset, records) == index


@given(position=st.integers(0, (1 << 63) - 1), ahead=st.integers(0, 5), records=counts)
def test_skipping_never_takes_more_than_a_notification_has(
    position: int, ahead: int, records: int
) -> None:
    skipped = records_to_skip(position, to_kafka(position) + ahead, records)

    assert 0 <= skipped < records
    assert ahead == 0 or skipped == 0


@given(kafka_offset=kafka_offsets, remaining=remainders, user=user_texts)
def test_a_commit_gives_position_and_user_metadata_back(
    kafka_offset: int, remaining: int | None, user: str | None
) -> None:
    position = position_in(kafka_offset, remaining)
    entry = commit_entry(("flights", 0), position, user)

    assert entry.kafka_offset == kafka_offset
    assert position_of_commit(entry.kafka_offset, entry.metadata) == (position, user)


@given(logical=st.integers(-3000, -1))
def test_logical_offsets_pass_in_both_directions(logical: int) -> None:
    assert to_virtual(logical) == logical
    assert to_kafka(logical) == logical
    assert commit_entry(("flights", 0), logical, None).kafka_offset == logical
