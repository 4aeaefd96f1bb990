from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blobmsg.core.debatcher import (
    Debatcher,
    Entry,
    EntryState,
    Failure,
    FailureKind,
    FetchSection,
    Flow,
    Run,
)
from tests.helpers.consuming import (
    ABSENT,
    EXPIRED,
    MISSING,
    REFUSED,
    TRANSIENT,
    answer_all,
    decode,
    decoded,
    inline_records,
    notification,
    object_key,
    part,
    part_bytes,
    take,
)

MIB = 1_048_576
KEY = ("flights", 0)
OTHER = ("flights", 1)


def make_core(**options: Any) -> Debatcher:
    settings: dict[str, Any] = {
        "prefetch_max_bytes": 1 << 20,
        "fetch_slots": 4,
        "max_section_bytes": 1 << 20,
        "gather_ms": 0,
        "skips_missing": False,
        "skips_expired": False,
    }
    return Debatcher(**{**settings, **options})


def blob(
    core: Debatcher, flow: Flow, kafka_offset: int, *counts: int, number: int | None = None
) -> Entry:
    """A notification of parts with these counts, in an object of its own unless numbered."""
    parts = []
    start = 0
    for count in counts:
        parts.append(part(count, start))
        start += part_bytes(count)
    key = object_key(kafka_offset + 1000 * flow.key[1] if number is None else number)
    assert core.notification_received(flow, kafka_offset, notification(*parts, key=key), None)
    return flow.entries[-1]


def plain(core: Debatcher, flow: Flow, kafka_offset: int, size_bytes: int = 100) -> None:
    sources, records = inline_records(flow.key[1], kafka_offset, [1])
    assert core.records_received(flow, kafka_offset, sources, records, size_bytes)


def labels(kafka_offset: int, *indices: int, partition: int = 0) -> list[tuple[int, int, int]]:
    return [(partition, kafka_offset, index) for index in indices]


def fetch(core: Debatcher, now_ms: int = 0) -> None:
    """Do all that is planned, as often as something is."""
    while sections := core.plan(now_ms):
        answer_all(core, sections, now_ms)


def only(sections: list[FetchSection]) -> FetchSection:
    (section,) = sections
    return section


# --- order ----------------------------------------------------------------------------------------


def test_records_come_in_kafkas_order_whatever_order_fetches_end_in() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 5, 2)
    blob(core, flow, 6, 1)
    first, second = core.plan(0)

    core.fetched(second, decoded(second), 0)
    assert take(core) == []
    core.fetched(first, decoded(first), 0)

    assert take(core) == labels(5, 0, 1) + labels(6, 0)


def test_plain_and_inline_records_wait_behind_a_fetch() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 5, 1)
    plain(core, flow, 6)
    sources, records = inline_records(0, 7, [2, 1])
    assert core.records_received(flow, 7, sources, records, 100)
    assert take(core) == []

    fetch(core)

    assert take(core) == labels(5, 0) + labels(6, 0) + labels(7, 0, 1, 2)


def test_record_indices_run_through_the_parts() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 5, 2, 1, 2)

    fetch(core)

    assert take(core) == labels(5, 0, 1, 2, 3, 4)
    assert flow.position() == 6 * MIB


def test_partitions_take_turns() -> None:
    core = make_core()
    one, two = core.assigned(KEY, None), core.assigned(OTHER, None)
    for kafka_offset in (0, 1):
        plain(core, one, kafka_offset)
        plain(core, two, kafka_offset)

    taken = take(core)

    assert taken == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]


def test_a_partition_that_had_its_turn_comes_behind_all_others() -> None:
    core = make_core()
    flows = [core.assigned(("flights", number), None) for number in range(3)]
    for kafka_offset in (0, 1):
        for flow in flows:
            plain(core, flow, kafka_offset)

    partitions = [partition for partition, _, _ in take(core)]

    assert partitions == [0, 1, 2, 0, 1, 2]


def test_an_error_event_comes_behind_the_records_before_it_and_moves_no_position() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    plain(core, flow, 0)
    core.event_received(flow, 5, "error")

    record, event = take(core)

    assert record == (0, 0, 0)
    assert event.event == "error"
    assert flow.position() == 1 * MIB
    assert (flow.payload_entries, flow.payload_bytes) == (0, 0)


def test_a_slow_fetch_holds_back_its_own_partition_alone() -> None:
    core = make_core()
    blob(core, core.assigned(KEY, None), 0, 1)
    plain(core, core.assigned(OTHER, None), 0)
    core.plan(0)

    assert take(core) == labels(0, 0, partition=1)


def test_an_end_of_partition_comes_behind_the_records_before_it() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 1)
    core.end_received(flow, 3, "end")  # two offsets that nobody sees lie before it
    assert take(core) == []
    assert flow.position() is None

    fetch(core)
    record, end = take(core)

    assert record == (0, 0, 0)
    assert end.event == "end"
    assert flow.position() == 3 * MIB


def test_a_position_moves_behind_what_nobody_sees_when_all_before_it_was_handed_out() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 1)
    for offset in (2, 3, 4):
        core.end_received(flow, offset, None)
    assert len(flow.entries) == 2  # however often
    assert take(core) == []
    assert flow.position() is None
    fetch(core)

    assert take(core) == labels(0, 0)
    assert flow.position() == 4 * MIB

    core.end_received(flow, 6, None)
    assert not core.has_ready
    assert flow.position() == 6 * MIB


@pytest.mark.parametrize(
    ("start", "end", "position"),
    [
        (None, 7, None),
        (-2, 7, None),
        (0, 7, 7 * MIB),
        (5 * MIB, 5, None),
        (5 * MIB, 7, 7 * MIB),
        (5 * MIB + 9, 5, None),
        (8 * MIB, 7, None),
    ],
)
def test_where_no_record_came_an_end_moves_a_position_that_is_known_and_before_it(
    start: int | None, end: int, position: int | None
) -> None:
    core = make_core()
    flow = core.assigned(KEY, start)

    core.end_received(flow, end, None)

    assert flow.position() == position


def test_an_end_behind_a_record_that_can_not_be_read_moves_nothing() -> None:
    core = make_core()
    flow = core.assigned(KEY, 0)
    blob(core, flow, 0, 1)
    core.end_received(flow, 3, None)
    core.fetched(only(core.plan(0)), [MISSING], 0)

    [failed] = take(core)
    assert failed.failure is MISSING
    assert take(core) == []
    assert flow.position() is None
    assert flow.stored_position() is None


def test_a_run_that_is_left_in_the_middle_goes_on_there() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 3)
    fetch(core)

    assert take(core, 2) == labels(0, 0, 1)
    assert core.has_ready
    assert take(core) == labels(0, 2)
    assert not core.has_ready


# --- positions ------------------------------------------------------------------------------------


def test_the_position_is_behind_the_last_record_that_was_taken() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 5, 2, 2)
    fetch(core)
    positions = [flow.position()]

    for _ in range(4):
        take(core, 1)
        positions.append(flow.position())

    assert positions == [None, 6 * MIB - 3, 6 * MIB - 2, 6 * MIB - 1, 6 * MIB]


@pytest.mark.parametrize(
    ("remaining", "expected"), [(1, [4]), (2, [3, 4]), (4, [1, 2, 3, 4]), (5, [0, 1, 2, 3, 4])]
)
def test_reading_resumes_with_the_records_that_remain(remaining: int, expected: list[int]) -> None:
    core = make_core()
    flow = core.assigned(KEY, 6 * MIB - remaining)
    blob(core, flow, 5, 2, 3)

    fetch(core)

    assert take(core) == labels(5, *expected)


def test_reading_that_resumes_behind_a_part_begins_with_the_next_one() -> None:
    core = make_core()
    flow = core.assigned(KEY, 6 * MIB - 3)
    blob(core, flow, 5, 2, 3)
    fetch(core)

    run = core.next_run()

    assert isinstance(run, Run)
    assert (run.source.label(run.index), run.end) == ((0, 5, 2), 3)


def test_a_notification_without_records_is_passed_over() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    assert core.records_received(flow, 5, [], 0, 0)

    assert take(core) == []

    assert flow.position() == 6 * MIB


def test_a_position_counts_for_its_own_notification_alone() -> None:
    core = make_core()
    flow = core.assigned(KEY, 6 * MIB - 1)
    blob(core, flow, 7, 2)  # 5 and 6 were control records

    fetch(core)

    assert take(core) == labels(7, 0, 1)


def test_a_logical_position_skips_nothing() -> None:
    core = make_core()
    flow = core.assigned(KEY, -2)
    blob(core, flow, 0, 2)

    fetch(core)

    assert take(core) == labels(0, 0, 1)


def test_a_position_that_no_notification_has_is_refused() -> None:
    core = make_core()
    flow = core.assigned(KEY, 6 * MIB - 3)

    sources, records = inline_records(0, 5, [2])

    assert not core.notification_received(flow, 5, notification(part(2)), None)
    assert not core.records_received(flow, 5, sources, records, 10)
    assert not flow.entries


def test_an_event_before_the_first_record_does_not_hide_a_wrong_position() -> None:
    core = make_core()
    flow = core.assigned(KEY, 6 * MIB - 3)
    core.end_received(flow, 5, "end")

    assert not core.notification_received(flow, 5, notification(part(2)), None)


def test_a_wrong_position_means_all_when_it_is_not_checked() -> None:
    core = make_core(checks_positions=False)
    flow = core.assigned(KEY, 6 * MIB - 3)
    blob(core, flow, 5, 2)

    fetch(core)

    assert take(core) == labels(5, 0, 1)


# --- seek and assignment --------------------------------------------------------------------------


def test_a_seek_drops_what_was_read_ahead_and_goes_on_there() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 2)
    plain(core, flow, 1)
    fetch(core)
    take(core, 1)

    core.sought(KEY, 4 * MIB - 1)
    assert take(core) == []
    blob(core, flow, 3, 3)
    fetch(core)

    assert take(core) == labels(3, 2)
    assert core.held_bytes == 0


def test_after_a_seek_the_position_is_unknown_but_what_was_stored_stays() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    assert flow.stored_position() is None
    blob(core, flow, 0, 2)
    fetch(core)
    take(core, 1)

    core.sought(KEY, 7 * MIB)
    assert flow.position() is None
    assert flow.stored_position() == 1 * MIB - 1
    core.sought(KEY, 8 * MIB)
    assert flow.stored_position() == 1 * MIB - 1

    plain(core, flow, 8)
    take(core)
    assert flow.position() == flow.stored_position() == 9 * MIB


def test_a_run_the_shell_still_has_ends_with_a_seek() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 3)
    fetch(core)
    run = core.next_run()
    assert isinstance(run, Run)
    run.index += 1

    core.sought(KEY, None)

    assert run.end == run.index == 1


def test_what_the_user_gives_back_before_a_seek_is_not_stored() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 3)
    fetch(core)
    run = core.next_run()
    assert isinstance(run, Run)
    run.index += 2

    core.taken_back(KEY, 1 * MIB - 2)
    core.sought(KEY, 1 * MIB - 2)

    assert run.end == run.index == 2
    assert flow.stored_position() == 1 * MIB - 2


def test_when_the_user_gives_all_back_before_a_seek_nothing_is_stored() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 3)
    fetch(core)
    take(core, 2)

    core.taken_back(KEY, None)
    core.sought(KEY, None)

    assert flow.stored_position() is None


def test_a_partition_that_comes_back_after_a_revoke_is_read_on() -> None:
    core = make_core()
    plain(core, core.assigned(KEY, None), 0)
    core.revoked(KEY)
    assert not core.has_ready

    plain(core, core.assigned(KEY, None), 1)

    assert take(core) == labels(1, 0)


def test_late_fetch_after_revoke_is_dropped() -> None:
    core = make_core()
    blob(core, core.assigned(KEY, None), 0, 2)
    section = only(core.plan(0))
    core.revoked(KEY)
    assert core.held_bytes == part_bytes(2)  # its bytes are still on their way
    core.assigned(KEY, None)

    core.fetched(section, decoded(section), 0)

    assert take(core) == []
    assert (core.held_bytes, core.fetches_in_flight) == (0, 0)


def test_a_late_failure_after_revoke_is_dropped() -> None:
    core = make_core()
    blob(core, core.assigned(KEY, None), 0, 2)
    section = only(core.plan(0))
    core.revoked(KEY)

    core.fetched(section, [MISSING], 0)

    core.tick(1_000_000)
    assert core.plan(1_000_000) == []
    assert core.held_bytes == 0


def test_what_waits_for_a_fetch_is_not_fetched_after_revoke() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 1)
    blob(core, flow, 1, 1)

    core.revoked(KEY)

    assert not core.has_waiting
    assert core.plan(0) == []


def test_a_partition_revoked_while_paused_leaves_nothing() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 1)
    core.paused_by_user(KEY, is_paused=True)

    core.revoked(KEY)

    assert not core.has_waiting
    assert core.plan(0) == []


def test_what_waits_for_a_retry_is_forgotten_with_its_partition() -> None:
    core = make_core()
    blob(core, core.assigned(KEY, None), 0, 1)
    blob(core, core.assigned(OTHER, None), 0, 1)
    for section in core.plan(0):
        core.fetched(section, [TRANSIENT], 0)

    core.revoked(KEY)
    core.tick(10_000)
    fetch(core, 10_000)

    assert take(core) == labels(0, 0, partition=1)


def test_revoking_what_is_not_assigned_is_fine() -> None:
    make_core().revoked(KEY)


def test_a_partition_can_not_be_assigned_twice() -> None:
    core = make_core()
    core.assigned(KEY, None)

    with pytest.raises(AssertionError, match="flights"):
        core.assigned(KEY, None)


def test_the_assigned_partitions_are_known() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)

    assert core.flows == {KEY: flow}


# --- failures -------------------------------------------------------------------------------------


def failing(failure: Failure, **options: Any) -> tuple[Debatcher, Flow]:
    """A core whose first fetch (Kafka offset 0, two records) failed; a plain record behind it."""
    core = make_core(**options)
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 2)
    plain(core, flow, 1)
    core.fetched(only(core.plan(0)), [failure], 1000)
    return core, flow


def test_a_store_that_is_away_is_waited_for_in_silence() -> None:
    core, _ = failing(TRANSIENT)

    assert take(core) == []
    core.tick(1499)
    assert core.plan(1499) == []
    core.tick(1500)
    fetch(core, 1500)
    assert take(core) == labels(0, 0, 1) + labels(1, 0)


@pytest.mark.parametrize("failure", [MISSING, EXPIRED, REFUSED])
def test_what_will_not_pass_by_itself_is_reported_and_tried_again(failure: Failure) -> None:
    core, flow = failing(failure)

    (entry,) = take(core)
    assert isinstance(entry, Entry)
    assert entry.failure is failure
    assert entry.first_offset() == 1 * MIB - 2
    assert flow.position() is None

    core.tick(1500)
    fetch(core, 1500)
    assert take(core) == labels(0, 0, 1) + labels(1, 0)


def looked_for_in_vain(core: Debatcher) -> list[int]:
    """Answer "not there" until something is said of it; the pauses between the attempts."""
    now_ms, pauses = 1000, []
    while not (said := take(core)):
        (retry_at_ms,) = {entry.retry_at_ms for entry in core.flows[KEY].entries if entry.failure}
        pauses.append(retry_at_ms - now_ms)
        core.tick(retry_at_ms - 1)
        assert core.plan(retry_at_ms - 1) == []
        now_ms = retry_at_ms
        core.tick(now_ms)
        core.fetched(only(core.plan(now_ms)), [ABSENT], now_ms)
    assert [type(item) for item in said] == [Entry]
    return pauses


def test_what_is_not_there_is_looked_for_again_before_it_is_reported_missing() -> None:
    core, flow = failing(ABSENT)

    assert looked_for_in_vain(core) == [500, 1000, 2000]
    entry = flow.entries[0]
    assert entry.failure == Failure(FailureKind.MISSING, ABSENT.error)
    assert flow.position() is None

    core.tick(entry.retry_at_ms)
    core.fetched(only(core.plan(entry.retry_at_ms)), [ABSENT], entry.retry_at_ms)
    assert take(core) == [entry]  # from here on at once, each time


def test_what_comes_while_it_is_looked_for_is_handed_out_and_nothing_is_said() -> None:
    core, _ = failing(ABSENT, skips_missing=True)

    core.tick(1500)
    core.fetched(only(core.plan(1500)), [ABSENT], 1500)
    assert take(core) == []
    core.tick(2500)
    fetch(core, 2500)

    assert take(core) == labels(0, 0, 1) + labels(1, 0)
    assert core.skipped_records == {}


def test_what_is_not_there_is_skipped_only_when_it_does_not_come() -> None:
    core, flow = failing(ABSENT, skips_missing=True)

    for now_ms in (1500, 2500, 4500):
        assert take(core) == []
        core.tick(now_ms)
        core.fetched(only(core.plan(now_ms)), [ABSENT], now_ms)

    assert take(core) == labels(1, 0)
    assert core.skipped_records == {FailureKind.MISSING: 2}
    assert flow.position() == 2 * MIB


def test_nothing_is_tried_again_before_the_user_has_heard_of_it() -> None:
    core, _ = failing(MISSING)

    core.tick(1_000_000)

    assert core.plan(1_000_000) == []


def test_the_back_off_doubles_up_to_half_a_minute() -> None:
    core = make_core()
    entry = blob(core, core.assigned(KEY, None), 0, 1)
    now_ms, waits = 0, []
    for _ in range(9):
        core.fetched(only(core.plan(now_ms)), [TRANSIENT], now_ms)
        waits.append(entry.retry_at_ms - now_ms)
        now_ms = entry.retry_at_ms
        core.tick(now_ms - 1)
        assert core.plan(now_ms - 1) == []
        core.tick(now_ms)

    assert waits == [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]


def test_other_partitions_go_on_beside_a_failure() -> None:
    core, _ = failing(MISSING)
    plain(core, core.assigned(OTHER, None), 0)

    taken = take(core)

    assert labels(0, 0, partition=1)[0] in taken
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("failure", "option"), [(MISSING, "skips_missing"), (EXPIRED, "skips_expired")]
)
def test_what_is_to_be_skipped_is_counted_and_passed_over(failure: Failure, option: str) -> None:
    core, flow = failing(failure, **{option: True})

    assert take(core) == labels(1, 0)
    assert core.skipped_records == {failure.kind: 2}
    assert flow.position() == 2 * MIB


def test_what_was_skipped_moves_the_position() -> None:
    core = make_core(skips_missing=True)
    flow = core.assigned(KEY, None)
    blob(core, flow, 4, 2)
    core.fetched(only(core.plan(0)), [MISSING], 0)

    assert take(core) == []
    assert flow.position() == 5 * MIB


def test_skipping_the_missing_does_not_skip_the_refused() -> None:
    core, _ = failing(REFUSED, skips_missing=True, skips_expired=True)

    assert [type(item) for item in take(core)] == [Entry]


def test_a_damaged_notification_is_reported_again_and_again() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    core.damaged_received(flow, 3, MISSING, 0)

    (entry,) = take(core)
    assert entry.first_offset() == 3 * MIB
    assert take(core) == []
    core.tick(500)
    assert take(core) == [entry]


def test_a_damaged_notification_can_be_skipped() -> None:
    core = make_core(skips_missing=True)
    flow = core.assigned(KEY, None)
    core.damaged_received(flow, 3, MISSING, 0)
    plain(core, flow, 4)

    assert take(core) == labels(4, 0)
    assert core.skipped_records == {FailureKind.MISSING: 1}


# --- several parts --------------------------------------------------------------------------------


def two_sections() -> tuple[Debatcher, Entry, FetchSection, FetchSection]:
    """An entry whose two parts lie too far apart for one GET."""
    core = make_core()
    flow = core.assigned(KEY, None)
    told = notification(part(1, 0), part(2, 900_000))
    assert core.notification_received(flow, 0, told, None)
    first, second = core.plan(0)
    return core, flow.entries[0], first, second


def test_an_entry_is_ready_when_all_its_parts_are() -> None:
    core, _, first, second = two_sections()

    core.fetched(second, decoded(second), 0)
    assert take(core) == []
    core.fetched(first, decoded(first), 0)

    assert take(core) == labels(0, 0, 1, 2)


def test_an_entry_fails_when_all_its_fetches_are_answered() -> None:
    core, entry, first, second = two_sections()

    core.fetched(first, [TRANSIENT], 0)
    states = [entry.state]
    assert core.held_bytes == part_bytes(1) + part_bytes(2)
    core.fetched(second, decoded(second), 0)
    states.append(entry.state)

    assert states == [EntryState.FETCHING, EntryState.FAILED]
    assert core.held_bytes == 0
    core.tick(500)
    fetch(core, 500)
    assert take(core) == labels(0, 0, 1, 2)


@pytest.mark.parametrize(
    "order",
    [(MISSING, TRANSIENT), (TRANSIENT, MISSING), (MISSING, ABSENT), (ABSENT, MISSING)],
)
def test_the_failure_that_will_not_pass_is_the_one_reported(order: tuple[Failure, ...]) -> None:
    core, entry, *sections = two_sections()

    for section, failure in zip(sections, order, strict=True):
        core.fetched(section, [failure], 0)

    assert take(core) == [entry]
    assert entry.failure is MISSING


def test_a_revoked_entry_is_charged_until_its_last_fetch_is_answered() -> None:
    core, _, first, second = two_sections()
    core.revoked(KEY)

    core.fetched(first, [TRANSIENT], 0)
    assert core.held_bytes > 0
    core.fetched(second, decoded(second), 0)

    assert core.held_bytes == 0


def test_of_an_entry_that_is_skipped_no_part_is_handed_out() -> None:
    core = make_core(skips_missing=True)
    flow = core.assigned(KEY, None)
    told = notification(part(1, 0), part(2, 900_000))
    assert core.notification_received(flow, 0, told, None)
    plain(core, flow, 1)
    first, second = core.plan(0)

    core.fetched(first, decoded(first), 0)
    core.fetched(second, [MISSING], 0)

    assert take(core) == labels(1, 0)
    assert core.skipped_records == {FailureKind.MISSING: 3}


# --- memory ---------------------------------------------------------------------------------------


def test_memory_is_released_when_an_entry_is_used_up() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 2)
    plain(core, flow, 1, size_bytes=50)
    fetch(core)
    assert core.held_bytes == part_bytes(2) + 50
    assert flow.payload_bytes == 50

    take(core, 2)
    assert core.held_bytes == part_bytes(2) + 50  # whoever asks for more has done with them
    take(core)

    assert core.held_bytes == 0
    assert (flow.payload_bytes, flow.payload_entries) == (0, 0)


def test_a_record_without_any_size_leaves_the_queue_as_well() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    plain(core, flow, 0, size_bytes=0)

    take(core)

    assert flow.payload_entries == 0


def test_one_entry_larger_than_all_memory_is_read_all_the_same() -> None:
    core = make_core(prefetch_max_bytes=1)
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 2)
    blob(core, flow, 1, 2)

    answer_all(core, core.plan(0))
    assert core.plan(0) == []  # the first is ready: no second one beside it
    assert take(core) == labels(0, 0, 1)
    fetch(core)

    assert take(core) == labels(1, 0, 1)


def test_no_partition_is_begun_over_the_limit_while_another_has_records_for_the_user() -> None:
    core = make_core(prefetch_max_bytes=100)
    plain(core, core.assigned(KEY, None), 0, size_bytes=100)
    blob(core, core.assigned(OTHER, None), 0, 1)

    assert core.plan(0) == []
    take(core)
    fetch(core)

    assert take(core) == labels(0, 0, partition=1)


def test_a_head_that_failed_is_begun_although_what_is_behind_it_fills_memory() -> None:
    core = make_core(prefetch_max_bytes=2 * part_bytes(2))
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 2)
    blob(core, flow, 1, 2)
    first, second = core.plan(0)
    core.fetched(first, [TRANSIENT], 0)
    core.fetched(second, decoded(second), 0)
    plain(core, flow, 2, part_bytes(2))  # comes through Kafka, asked for or not
    core.tick(500)

    fetch(core, 500)

    assert take(core) == labels(0, 0, 1) + labels(1, 0, 1) + labels(2, 0)


def test_nothing_is_fetched_behind_a_head_that_failed() -> None:
    core = make_core(prefetch_max_bytes=part_bytes(2))
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 2)
    blob(core, flow, 1, 2)
    core.fetched(only(core.plan(0)), [MISSING], 0)

    assert core.plan(0) == []
    assert not core.has_waiting  # nobody need look for it every few ms
    assert take(core) == [flow.entries[0]]
    core.tick(500)
    fetch(core, 500)

    assert take(core, 2) == labels(0, 0, 1)
    assert core.held_bytes == part_bytes(2)


def test_a_head_that_failed_leaves_memory_to_other_partitions() -> None:
    core = make_core(prefetch_max_bytes=part_bytes(2))
    failed, other = core.assigned(KEY, None), core.assigned(OTHER, None)
    for kafka_offset in (0, 1):
        blob(core, failed, kafka_offset, 2)
        blob(core, other, kafka_offset, 2)
    core.fetched(only(core.plan(0)), [MISSING], 0)
    assert take(core) == [failed.entries[0]]

    fetch(core)

    assert take(core) == labels(0, 0, 1, partition=1)


def test_what_a_paused_partition_holds_gives_way_and_comes_back() -> None:
    core = make_core(prefetch_max_bytes=part_bytes(3))
    paused, other = core.assigned(KEY, None), core.assigned(OTHER, None)
    blob(core, paused, 0, 1, 2)
    fetch(core)
    assert take(core, 2) == labels(0, 0, 1)  # in the middle of the second part
    core.paused_by_user(KEY, is_paused=True)
    blob(core, other, 0, 3)

    fetch(core)
    assert core.held_bytes == part_bytes(3)
    assert take(core) == labels(0, 0, 1, 2, partition=1)
    assert paused.position() == 1 * MIB - 1

    core.paused_by_user(KEY, is_paused=False)
    fetch(core)
    assert take(core) == labels(0, 2)
    assert core.held_bytes == 0


def test_what_gives_way_when_its_last_record_is_taken_does_not_come_back() -> None:
    core = make_core(prefetch_max_bytes=part_bytes(3))
    paused, other = core.assigned(KEY, None), core.assigned(OTHER, None)
    blob(core, paused, 0, 1, 2)
    blob(core, paused, 1, 1)
    fetch(core)
    assert take(core, 3) == labels(0, 0, 1, 2)
    core.paused_by_user(KEY, is_paused=True)
    blob(core, other, 0, 3)
    fetch(core)
    assert take(core) == labels(0, 0, 1, 2, partition=1)

    core.paused_by_user(KEY, is_paused=False)
    fetch(core)

    assert paused.position() == 1 * MIB
    assert take(core) == labels(1, 0)
    assert core.held_bytes == 0


def test_a_paused_partition_gives_no_more_than_is_needed() -> None:
    core = make_core(prefetch_max_bytes=2 * part_bytes(1))
    paused, other = core.assigned(KEY, None), core.assigned(OTHER, None)
    blob(core, paused, 0, 1)
    blob(core, paused, 1, 1)
    fetch(core)
    core.paused_by_user(KEY, is_paused=True)
    blob(core, other, 0, 1)

    fetch(core)

    assert [entry.state for entry in paused.entries] == [EntryState.READY, EntryState.WAITING]
    assert take(core) == labels(0, 0, partition=1)


def test_a_paused_partition_gives_way_wherever_it_stands_among_the_others() -> None:
    core = make_core(prefetch_max_bytes=part_bytes(1))
    other, paused = core.assigned(OTHER, None), core.assigned(KEY, None)
    blob(core, paused, 0, 1)
    fetch(core)
    core.paused_by_user(KEY, is_paused=True)
    blob(core, other, 0, 1)

    fetch(core)

    assert core.held_bytes == part_bytes(1)
    assert take(core) == labels(0, 0, partition=1)


def test_a_paused_partition_keeps_what_it_holds_while_the_user_takes_what_was_fetched() -> None:
    core = make_core(prefetch_max_bytes=2 * part_bytes(1))
    paused, busy = core.assigned(KEY, None), core.assigned(OTHER, None)
    blob(core, paused, 0, 1)
    blob(core, busy, 0, 1)
    fetch(core)
    core.paused_by_user(KEY, is_paused=True)
    blob(core, core.assigned(("flights", 2), None), 0, 1)

    assert core.plan(0) == []

    assert paused.entries[0].state is EntryState.READY


def test_nothing_is_begun_over_the_limit_behind_a_head_that_waits_for_its_retry() -> None:
    core = make_core(prefetch_max_bytes=1)
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 1)
    blob(core, flow, 1, 1)
    core.fetched(only(core.plan(0)), [TRANSIENT], 0)

    assert core.plan(0) == []
    core.tick(500)
    answer_all(core, core.plan(500))

    assert take(core) == labels(0, 0)


def test_records_that_came_through_kafka_can_not_give_way() -> None:
    core = make_core(prefetch_max_bytes=100)
    paused, other = core.assigned(KEY, None), core.assigned(OTHER, None)
    plain(core, paused, 0, size_bytes=100)
    core.paused_by_user(KEY, is_paused=True)
    blob(core, other, 0, 1)

    fetch(core)

    assert core.held_bytes == 100 + part_bytes(1)
    assert take(core) == labels(0, 0, partition=1)


# --- pauses ---------------------------------------------------------------------------------------


def test_a_paused_partition_hands_out_nothing_and_goes_on_where_it_was() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 3)
    fetch(core)
    take(core, 1)

    core.paused_by_user(KEY, is_paused=True)
    assert not core.has_ready
    assert take(core) == []
    core.paused_by_user(KEY, is_paused=False)

    assert take(core) == labels(0, 1, 2)


def test_a_paused_partition_fetches_nothing_new() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    core.paused_by_user(KEY, is_paused=True)
    blob(core, flow, 0, 1)

    assert core.plan(0) == []
    core.paused_by_user(KEY, is_paused=False)
    fetch(core)

    assert take(core) == labels(0, 0)


def test_what_becomes_ready_during_a_pause_comes_after_it() -> None:
    core = make_core()
    blob(core, core.assigned(KEY, None), 0, 1)
    sections = core.plan(0)
    core.paused_by_user(KEY, is_paused=True)

    answer_all(core, sections)
    assert take(core) == []
    core.paused_by_user(KEY, is_paused=False)

    assert take(core) == labels(0, 0)


def test_a_retry_that_comes_due_during_a_pause_waits_for_its_end() -> None:
    core, _ = failing(TRANSIENT)
    core.paused_by_user(KEY, is_paused=True)
    core.tick(1500)
    assert core.plan(1500) == []

    core.paused_by_user(KEY, is_paused=False)
    fetch(core, 1500)

    assert take(core) == labels(0, 0, 1) + labels(1, 0)


def test_pausing_twice_is_pausing_once() -> None:
    core = make_core()
    blob(core, core.assigned(KEY, None), 0, 1)

    core.paused_by_user(KEY, is_paused=True)
    core.paused_by_user(KEY, is_paused=True)
    core.paused_by_user(KEY, is_paused=False)
    core.paused_by_user(KEY, is_paused=False)
    fetch(core)

    assert take(core) == labels(0, 0)


def test_kafka_pauses_a_partition_with_thousands_of_notifications_until_a_quarter_is_left() -> None:
    core = make_core(prefetch_max_bytes=1 << 30)
    flow = core.assigned(KEY, None)
    for kafka_offset in range(2000):
        assert core.take_pauses() == ([], [])
        plain(core, flow, kafka_offset)

    assert core.take_pauses() == ([KEY], [])
    assert core.take_pauses() == ([], [])
    take(core, 1500)
    assert core.take_pauses() == ([], [])
    take(core, 1)
    assert core.take_pauses() == ([], [KEY])
    assert core.take_pauses() == ([], [])


def test_one_record_over_the_payload_limit_pauses_and_resumes() -> None:
    core = make_core(prefetch_max_bytes=1 << 30)
    plain(core, core.assigned(KEY, None), 0, size_bytes=20 << 20)
    assert core.take_pauses() == ([KEY], [])

    assert take(core) == labels(0, 0)

    assert core.take_pauses() == ([], [KEY])


@pytest.mark.parametrize(("left_bytes", "resumes"), [(8 << 20, [KEY]), ((8 << 20) + 1, [])])
def test_payload_pauses_at_a_limit_and_resumes_at_half_of_it(
    left_bytes: int, resumes: list[tuple[str, int]]
) -> None:
    core = make_core(prefetch_max_bytes=1 << 30)
    flow = core.assigned(KEY, None)
    plain(core, flow, 0, size_bytes=(16 << 20) - left_bytes)
    assert core.take_pauses() == ([], [])
    plain(core, flow, 1, size_bytes=left_bytes)
    assert core.take_pauses() == ([KEY], [])

    take(core, 2)

    assert core.take_pauses() == ([], resumes)


@pytest.mark.parametrize(("left_bytes", "resumes"), [(500, [KEY]), (501, [])])
def test_payload_behind_a_blocked_head_resumes_when_half_of_memory_is_free(
    left_bytes: int, resumes: list[tuple[str, int]]
) -> None:
    core = make_core(prefetch_max_bytes=1000)
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 1)
    section = only(core.plan(0))
    plain(core, flow, 1, size_bytes=1000 - part_bytes(1) - left_bytes)
    assert core.take_pauses() == ([], [])
    plain(core, flow, 2, size_bytes=left_bytes)
    assert core.take_pauses() == ([KEY], [])

    answer_all(core, [section])
    take(core, 3)

    assert core.take_pauses() == ([], resumes)


def test_the_least_payload_behind_a_blocked_head_pauses_when_memory_is_full() -> None:
    core = make_core(prefetch_max_bytes=part_bytes(1) + 1)
    flow = core.assigned(KEY, None)
    blob(core, flow, 0, 1)
    core.plan(0)
    assert core.take_pauses() == ([], [])

    plain(core, flow, 1, size_bytes=1)

    assert core.take_pauses() == ([KEY], [])


def test_payload_behind_a_blocked_head_is_not_piled_up_when_memory_is_full() -> None:
    core = make_core(prefetch_max_bytes=1000)
    blocked, open_flow = core.assigned(KEY, None), core.assigned(OTHER, None)
    blob(core, blocked, 0, 1)
    section = only(core.plan(0))
    plain(core, blocked, 1, size_bytes=900)
    plain(core, open_flow, 0, size_bytes=900)

    assert core.take_pauses() == ([KEY], [])  # the other one can be drained by the user
    take(core)
    assert core.take_pauses() == ([], [])
    answer_all(core, [section])
    take(core)

    assert core.take_pauses() == ([], [KEY])


def test_no_more_is_read_ahead_when_the_user_has_enough_payload() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)
    assert core.room_records() == 500

    for kafka_offset in range(1000):
        plain(core, flow, kafka_offset, size_bytes=1)
    assert core.room_records() == 0
    take(core, 2)
    assert core.room_records() == 500


def test_no_more_is_read_ahead_when_payload_takes_half_of_memory() -> None:
    core = make_core(prefetch_max_bytes=1000)
    flow = core.assigned(KEY, None)
    plain(core, flow, 0, size_bytes=499)
    assert core.room_records() == 500

    plain(core, flow, 1, size_bytes=1)

    assert core.room_records() == 0


def test_payload_that_can_not_be_handed_out_does_not_hold_back_other_partitions() -> None:
    core = make_core(prefetch_max_bytes=1000)
    blocked = core.assigned(KEY, None)
    blob(core, blocked, 0, 1)
    plain(core, blocked, 1, size_bytes=900)

    assert core.room_records() == 500


# --- GETs -----------------------------------------------------------------------------------------


def test_notifications_of_one_object_share_a_get() -> None:
    core = make_core()
    for number in range(3):
        flow = core.assigned(("flights", number), None)
        told = notification(part(1, number * part_bytes(1)), key=object_key(1))
        assert core.notification_received(flow, 0, told, None)

    section = only(core.plan(0))
    core.fetched(section, decoded(section), 0)

    assert (section.section.start, section.section.length) == (0, 3 * part_bytes(1))
    assert sorted(take(core)) == [(number, 0, 0) for number in range(3)]


def test_a_notification_waits_a_moment_for_others_of_its_object() -> None:
    core = make_core(gather_ms=25)
    one, two = core.assigned(KEY, None), core.assigned(OTHER, None)
    blob(core, one, 0, 1, number=1)
    assert core.plan(100) == []
    assert core.has_waiting
    told = notification(part(1, 1000), key=object_key(1))
    assert core.notification_received(two, 0, told, None)

    assert core.plan(120) == []
    assert core.plan(144) == []
    section = only(core.plan(145))

    assert len(section.parts) == 2
    assert not core.has_waiting


@pytest.mark.parametrize("held_by", ["a paused partition", "a partition whose head is missing"])
def test_an_object_is_begun_although_memory_is_held_for_good_and_other_records_come(
    held_by: str,
) -> None:
    core = make_core(prefetch_max_bytes=2000)
    holding, busy = core.assigned(KEY, None), core.assigned(OTHER, None)
    flows = [core.assigned(("many", number), None) for number in range(10)]
    blob(core, holding, 0, 1, number=1)
    for kafka_offset in range(1, 10):
        blob(core, holding, kafka_offset, 1, number=2)
    for section in core.plan(0):
        is_first = section.key == object_key(1)
        core.fetched(section, [MISSING] if is_first else decoded(section), 0)
    if held_by == "a paused partition":
        core.paused_by_user(KEY, is_paused=True)
    assert core.held_bytes > 1000
    for number, flow in enumerate(flows):
        told = notification(part(1, number * 128), key=object_key(3))
        assert core.notification_received(flow, 0, told, None)

    taken: set[int] = set()
    for turn in range(100):
        plain(core, busy, turn, 1)
        sections = [s for s in core.plan(0) if s.key == object_key(3)]
        answer_all(core, sections, 0)
        run = core.next_run()
        if isinstance(run, Run):
            run.index = run.end
            taken.add(run.entry.flow.key[1] if run.entry.flow.key[0] == "many" else -1)

    assert taken == {-1, *range(10)}


def test_gaps_in_sequences_are_counted_except_after_a_seek_or_an_assignment() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)

    def receive(sequence: int) -> int:
        core.sequence_received(core.flows[KEY], replace(told, sequence=sequence))
        return core.sequence_gaps

    told = notification(part(1))
    assert [receive(sequence) for sequence in (4, 5, 7)] == [0, 0, 1]
    core.sought(flow.key, 0)
    assert [receive(sequence) for sequence in (0, 1)] == [1, 1]
    core.revoked(KEY)
    core.assigned(KEY, None)
    assert [receive(sequence) for sequence in (9, 11)] == [1, 2]


def test_a_context_is_kept_for_whoever_decodes() -> None:
    core = make_core()
    flow = core.assigned(KEY, None)

    core.notification_received(flow, 0, notification(part(1)), "context")

    ((entry, part_index, _),) = only(core.plan(0)).parts
    assert entry.context == "context"
    assert decode(entry, part_index).records == 1
