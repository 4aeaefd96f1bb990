from __future__ import annotations

import pytest

from blobmsg.core.flow import Entry, Flow, Run
from tests.helpers.consuming import FakeRecords

MIB = 1_048_576


def entry_at(kafka_offset: int, records: int, position: int | None = None) -> Entry:
    return Entry(Flow(("flights", 0), position), kafka_offset, None, records)


def test_a_run_knows_the_virtual_offset_of_its_next_record() -> None:
    entry = entry_at(7, 10)
    run = Run(entry, FakeRecords(0, 7, first_record_index=4, records=6), 0, 6)
    assert run.position() == 8 * MIB - 6

    run.index = 6

    assert run.position() == 8 * MIB


@pytest.mark.parametrize(
    ("records", "position", "expected"),
    [
        (10, None, 8 * MIB - 10),
        (10, -2, 8 * MIB - 10),
        (10, 7 * MIB, 8 * MIB - 10),  # all of it
        (10, 8 * MIB - 3, 8 * MIB - 3),  # its last three
        (10, 7 * MIB - 3, 8 * MIB - 10),  # of the notification before
        (10, 8 * MIB - 11, 8 * MIB - 10),  # more than it has
        (0, None, 7 * MIB),  # nobody can count its records
        (0, 7 * MIB, 7 * MIB),
        (0, 8 * MIB - 3, 8 * MIB - 3),
    ],
)
def test_a_failure_is_told_at_its_first_record_that_is_not_handed_out(
    records: int, position: int | None, expected: int
) -> None:
    assert entry_at(7, records, position).first_offset() == expected


def test_an_entry_is_current_until_its_flow_moves_on() -> None:
    entry = entry_at(0, 1)
    assert entry.is_current

    entry.flow.generation += 1

    assert not entry.is_current
