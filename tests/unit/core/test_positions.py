from __future__ import annotations

import pytest

from blobmsg.core.positions import CommitEntry, StoredPositions, commit_entry, position_of_commit
from blobmsg.format import FormatError, UnsupportedFormatError

MIB = 1_048_576
KEY = ("flights", 3)
OTHER = ("flights", 4)


def test_the_start_of_a_notification_is_committed_as_kafka_would() -> None:
    assert commit_entry(KEY, 7 * MIB, None) == CommitEntry("flights", 3, 7, None)
    assert commit_entry(KEY, 7 * MIB, "mine") == CommitEntry("flights", 3, 7, "mine")


def test_a_place_inside_a_notification_goes_into_the_metadata() -> None:
    assert commit_entry(KEY, 8 * MIB - 3, None) == CommitEntry("flights", 3, 7, "blobmsg1:3")
    assert commit_entry(KEY, 8 * MIB - 3, "mine").metadata == "blobmsg1:3;mine"


def test_a_logical_offset_is_committed_as_it_is() -> None:
    assert commit_entry(KEY, -1001, "mine") == CommitEntry("flights", 3, -1001, "mine")


def test_what_kafka_keeps_gives_the_position_and_the_users_part_back() -> None:
    assert position_of_commit(7, "blobmsg1:3;mine") == (8 * MIB - 3, "mine")
    assert position_of_commit(7, None) == (7 * MIB, None)


@pytest.mark.parametrize(
    "metadata", ["", "foreign", "blobmsg1:", "blobmsg1:99999999", "blobmsg1:x"]
)
def test_foreign_or_malformed_metadata_means_the_start(metadata: str) -> None:
    assert position_of_commit(7, metadata) == (7 * MIB, metadata)


def test_metadata_of_a_later_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError):
        position_of_commit(7, "blobmsg2:3")


def test_only_what_changed_is_committed() -> None:
    positions = StoredPositions()
    positions.store(KEY, 8 * MIB - 3)
    positions.store(OTHER, 5 * MIB)
    positions.committed(OTHER, 5 * MIB, None)

    assert positions.changed([KEY, OTHER]) == [CommitEntry("flights", 3, 7, "blobmsg1:3")]


def test_a_move_inside_one_notification_is_a_change() -> None:
    positions = StoredPositions()
    positions.committed(KEY, 8 * MIB - 3, None)
    positions.store(KEY, 8 * MIB - 2)

    assert positions.changed([KEY]) == [CommitEntry("flights", 3, 7, "blobmsg1:2")]


def test_other_metadata_at_the_same_place_is_a_change() -> None:
    positions = StoredPositions()
    positions.committed(KEY, 7 * MIB, None)
    positions.store(KEY, 7 * MIB, "mine")

    assert positions.changed([KEY]) == [CommitEntry("flights", 3, 7, "mine")]


def test_going_back_is_a_change() -> None:
    positions = StoredPositions()
    positions.committed(KEY, 7 * MIB, None)
    positions.store(KEY, 2 * MIB)

    assert positions.changed([KEY]) == [CommitEntry("flights", 3, 2, None)]


def test_what_was_committed_does_not_change_again() -> None:
    positions = StoredPositions()
    positions.store(KEY, 8 * MIB - 3, "mine")
    positions.committed(KEY, *position_of_commit(7, "blobmsg1:3;mine"))

    assert positions.changed([KEY]) == []


def test_a_partition_without_a_stored_position_is_not_committed() -> None:
    assert StoredPositions().changed([KEY]) == []


def test_only_the_partitions_asked_for_are_committed() -> None:
    positions = StoredPositions()
    positions.store(KEY, 7 * MIB)

    assert positions.changed([OTHER]) == []


def test_a_forgotten_partition_is_neither_stored_nor_known_as_committed() -> None:
    positions = StoredPositions()
    positions.store(KEY, 7 * MIB)
    positions.committed(KEY, 7 * MIB, None)

    positions.forget(KEY)

    assert positions.changed([KEY]) == []
    positions.store(KEY, 7 * MIB)
    assert positions.changed([KEY]) == [CommitEntry("flights", 3, 7, None)]


def test_forgetting_an_unknown_partition_is_fine() -> None:
    StoredPositions().forget(KEY)


def test_metadata_beyond_kafkas_limit_is_refused_when_it_is_stored() -> None:
    positions = StoredPositions()
    positions.store(KEY, 7 * MIB)

    with pytest.raises(FormatError, match="4096"):
        positions.store(KEY, 8 * MIB - 3, "x" * 4096)

    assert positions.changed([KEY]) == [CommitEntry("flights", 3, 7, None)]


def test_a_commit_of_what_is_committed_changes_nothing() -> None:
    positions = StoredPositions()
    positions.store(KEY, 7 * MIB)
    positions.committed(KEY, 7 * MIB, None)

    positions.sent([commit_entry(KEY, 7 * MIB, None)])

    assert positions.changed([KEY]) == []


def test_users_metadata_that_looks_like_ours_comes_back_from_the_very_first_position() -> None:
    entry = commit_entry(KEY, 0, "blobmsg1:5")

    assert position_of_commit(entry.kafka_offset, entry.metadata) == (0, "blobmsg1:5")


def test_a_commit_without_an_answer_leaves_nothing_known() -> None:
    positions = StoredPositions()
    positions.store(KEY, 5 << 20)
    positions.committed(KEY, 5 << 20, None)
    positions.store(KEY, 2 << 20)  # after a seek
    positions.sent(positions.changed([KEY]))

    positions.store(KEY, 5 << 20)

    assert positions.changed([KEY]) == [commit_entry(KEY, 5 << 20, None)]
    positions.sent(positions.changed([KEY]))
    positions.committed(KEY, 5 << 20, None)
    assert positions.changed([KEY]) == []
