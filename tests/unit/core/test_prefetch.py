from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.core.flow import Entry, EntryState, Flow
from blobmsg.core.prefetch import Prefetch, size_bytes_of
from blobmsg.format import Notification
from tests.helpers.consuming import PRODUCER_ID, notification, object_key, part, part_bytes

if TYPE_CHECKING:
    from blobmsg.format import Part

KIB = 1024


def make_prefetch(**options: Any) -> Prefetch:
    settings: dict[str, Any] = {
        "max_bytes": 1 << 30,
        "fetch_slots": 8,
        "max_section_bytes": 1 << 20,
        "gather_ms": 0,
    }
    return Prefetch(**{**settings, **options})


def waiting(
    prefetch: Prefetch,
    *parts: Part,
    number: int = 0,
    partition: int = 0,
    flow: Flow | None = None,
    kafka_offset: int = 0,
    store: str = "",
) -> Entry:
    """An entry that waits, in a flow of its own unless told otherwise."""
    told = notification(*parts, key=object_key(number), store=store)
    entry = Entry(flow or Flow(("flights", partition), None), kafka_offset, told, told.records)
    entry.size_bytes = size_bytes_of(told)
    entry.flow.entries.append(entry)
    prefetch.wait(entry)
    return entry


def ranges(prefetch: Prefetch, now_ms: int = 0) -> list[tuple[int, int]]:
    return [(s.section.start, s.section.length) for s in prefetch.plan(now_ms)]


def test_neighbours_share_a_get() -> None:
    prefetch = make_prefetch()
    waiting(prefetch, part(1, 128))
    waiting(prefetch, part(1, 0))

    assert ranges(prefetch) == [(0, 256)]
    assert prefetch.fetches_in_flight == 1


def test_a_gap_of_up_to_256_kib_is_fetched_along() -> None:
    prefetch = make_prefetch()
    waiting(prefetch, part(1, 0))
    waiting(prefetch, part(1, 128 + 256 * KIB))

    assert ranges(prefetch) == [(0, 256 + 256 * KIB)]


def test_a_wider_gap_is_not() -> None:
    prefetch = make_prefetch()
    waiting(prefetch, part(1, 0))
    waiting(prefetch, part(1, 128 + 256 * KIB + 1))

    assert ranges(prefetch) == [(0, 128), (129 + 256 * KIB, 128)]


def test_a_get_is_no_larger_than_its_limit() -> None:
    prefetch = make_prefetch(max_section_bytes=300)
    for number in range(3):
        waiting(prefetch, part(1, number * 128))

    assert ranges(prefetch) == [(0, 256), (256, 128)]


def test_objects_and_stores_are_told_apart() -> None:
    prefetch = make_prefetch()
    waiting(prefetch, part(1), number=1)
    waiting(prefetch, part(1), number=2)
    waiting(prefetch, part(1), number=1, store="other")

    sections = prefetch.plan(0)

    assert [(s.store, s.key) for s in sections] == [
        ("", object_key(1)),
        ("", object_key(2)),
        ("other", object_key(1)),
    ]


def test_the_bytes_between_parts_are_charged() -> None:
    prefetch = make_prefetch()
    first, second = waiting(prefetch, part(1, 0)), waiting(prefetch, part(1, 1128))

    prefetch.plan(0)

    assert prefetch.held_bytes == 1256
    assert (first.held_bytes, second.held_bytes) == (128, 1128)
    prefetch.release(second)
    assert prefetch.held_bytes == 128


def test_gaps_may_fill_memory() -> None:
    prefetch = make_prefetch(max_bytes=1256)
    waiting(prefetch, part(1, 0))
    waiting(prefetch, part(1, 1128))

    assert ranges(prefetch) == [(0, 1256)]


def test_gaps_that_memory_has_no_room_for_are_not_fetched() -> None:
    prefetch = make_prefetch(max_bytes=1255)
    waiting(prefetch, part(1, 0))
    waiting(prefetch, part(1, 1128))

    assert ranges(prefetch) == [(0, 128), (1128, 128)]
    assert prefetch.held_bytes == 256


def test_aligned_neighbours_share_a_get_even_when_memory_is_short() -> None:
    prefetch = make_prefetch(max_bytes=260)
    waiting(prefetch, part(1, 0))
    waiting(prefetch, part(1, 135))

    assert ranges(prefetch) == [(0, 263)]
    assert prefetch.held_bytes == 256


def test_what_is_not_aligned_is_no_neighbour_when_memory_is_short() -> None:
    prefetch = make_prefetch(max_bytes=263)
    waiting(prefetch, part(1, 0))
    waiting(prefetch, part(1, 136))

    assert ranges(prefetch) == [(0, 128), (136, 128)]


def test_a_part_that_lies_in_two_sections_is_fetched_with_one_of_them() -> None:
    prefetch = make_prefetch(max_section_bytes=200)
    entries = [
        waiting(prefetch, part(1, start, stored_bytes=length))
        for start, length in ((0, 128), (100, 50), (100, 250))
    ]

    sections = prefetch.plan(0)

    fetched = [entry for section in sections for entry, _, _ in section.parts]
    assert sorted(map(id, fetched)) == sorted(map(id, entries))


def test_parts_that_overlap_are_fetched_once_each() -> None:
    prefetch = make_prefetch(max_section_bytes=200)
    entries = [waiting(prefetch, part(1, start)) for start in (0, 100, 110)]

    sections = prefetch.plan(0)

    fetched = [entry for section in sections for entry, _, _ in section.parts]
    assert sorted(map(id, fetched)) == sorted(map(id, entries))
    for section in sections:
        for _, _, inside in section.parts:
            assert section.section.contains(inside.byte_range)


def test_the_same_range_twice_is_one_get() -> None:
    prefetch = make_prefetch()
    waiting(prefetch, part(1, 0))
    waiting(prefetch, part(1, 0))

    (section,) = prefetch.plan(0)

    assert len(section.parts) == 2


def test_a_compressed_part_is_charged_as_fetched_and_as_decoded() -> None:
    assert size_bytes_of(notification(part(3))) == part_bytes(3)
    assert size_bytes_of(notification(part(3, stored_bytes=50))) == part_bytes(3) + 50
    assert size_bytes_of(notification(part(1), part(1, 200, stored_bytes=9))) == 2 * 128 + 9


def test_no_object_is_begun_when_all_slots_are_taken() -> None:
    prefetch = make_prefetch(fetch_slots=2)
    for number in range(3):
        waiting(prefetch, part(1), number=number)

    assert len(prefetch.plan(0)) == 2
    assert prefetch.plan(0) == []
    prefetch.fetches_in_flight -= 1
    assert len(prefetch.plan(0)) == 1


def test_what_does_not_fit_holds_back_what_came_after_it() -> None:
    prefetch = make_prefetch(max_bytes=300)
    waiting(prefetch, part(1), number=0)
    large = waiting(prefetch, part(3), number=1)
    waiting(prefetch, part(1), number=2)

    assert len(prefetch.plan(0)) == 1
    assert next(prefetch.waiting()) is large


def test_an_object_waits_for_room_for_all_of_it() -> None:
    prefetch = make_prefetch(max_bytes=639)
    others = [waiting(prefetch, part(1), number=number) for number in (1, 2, 3)]
    for place in range(2):
        waiting(prefetch, part(1, place * 128), number=4)
    waiting(prefetch, part(1), number=5)

    assert len(prefetch.plan(0)) == 3
    prefetch.release(others[0])
    assert ranges(prefetch) == [(0, 256)]


def test_an_object_larger_than_half_of_the_limit_is_begun_in_portions_of_neighbours() -> None:
    prefetch = make_prefetch(max_bytes=600)
    other = waiting(prefetch, part(1), number=1)
    # They come from partition after partition, which is not the order of their bytes.
    entries = {
        place: waiting(prefetch, part(1, place * 128), number=2) for place in (3, 1, 0, 4, 2)
    }

    assert ranges(prefetch) == [(0, 128), (0, 128), (384, 256)]
    assert list(prefetch.waiting()) == [entries[1], entries[2]]
    prefetch.release(other)
    assert ranges(prefetch) == []  # there is room for one of the two
    for place in (3, 4):
        prefetch.release(entries[place])
    assert ranges(prefetch) == [(128, 256)]


def test_what_is_left_of_an_object_needs_no_more_than_itself() -> None:
    prefetch = make_prefetch(max_bytes=10 * 128)
    others = [waiting(prefetch, part(1), number=number) for number in range(5)]
    for place in range(6):
        waiting(prefetch, part(1, place * 128), number=9)
    assert ranges(prefetch)[5:] == [(0, 5 * 128)]

    prefetch.release(others[0])

    assert ranges(prefetch) == [(5 * 128, 128)]


def test_an_object_waits_until_the_bytes_between_its_parts_fit() -> None:
    prefetch = make_prefetch(max_bytes=1900)
    others = [waiting(prefetch, part(3), number=number) for number in range(4)]
    for place in range(2):
        waiting(prefetch, part(1, place * 800), number=9)

    assert len(prefetch.plan(0)) == 4
    prefetch.release(others[0])
    assert ranges(prefetch) == [(0, 928)]


def test_what_an_object_needs_shrinks_with_what_waits_of_it() -> None:
    prefetch = make_prefetch(max_bytes=1000)
    for number in range(3):
        waiting(prefetch, part(3), number=number)
    waiting(prefetch, part(1), number=9)
    gone = waiting(prefetch, part(5, 128), number=9)
    assert len(prefetch.plan(0)) == 3

    prefetch.withdraw(gone)

    assert ranges(prefetch) == [(0, 128)]


def test_what_an_object_needs_grows_with_what_waits_of_it() -> None:
    prefetch = make_prefetch(max_bytes=1000)
    others = [waiting(prefetch, part(3), number=number) for number in range(3)]
    waiting(prefetch, part(1), number=9)
    waiting(prefetch, part(3, 128), number=9)
    assert len(prefetch.plan(0)) == 3

    waiting(prefetch, part(1, 384), number=9)
    prefetch.release(others[0])

    assert ranges(prefetch) == []
    prefetch.release(others[1])
    assert ranges(prefetch) == [(0, 512)]


def test_an_object_of_which_nothing_waits_any_more_is_forgotten() -> None:
    prefetch = make_prefetch(gather_ms=25)
    entry = waiting(prefetch, part(1))
    assert ranges(prefetch, 100) == []

    prefetch.withdraw(entry)

    assert not prefetch.has_waiting
    prefetch.wait(entry)
    assert ranges(prefetch, 600) == []
    assert ranges(prefetch, 625) == [(0, 128)]


def test_only_the_fronts_of_flows_are_begun_with_an_object() -> None:
    prefetch = make_prefetch(gather_ms=25)
    flow = Flow(("flights", 1), None)
    waiting(prefetch, part(1, 0), number=1)
    prefetch.plan(0)
    front = waiting(prefetch, part(1, 128), number=2, flow=flow, kafka_offset=7)
    behind = waiting(prefetch, part(1, 128), number=1, flow=flow, kafka_offset=8)

    assert ranges(prefetch, 25) == []
    (first,) = prefetch.begin(next(prefetch.waiting()))

    assert [entry.kafka_offset for entry, _, _ in first.parts] == [0]
    assert list(prefetch.waiting()) == [behind, front]


def test_an_object_that_still_gathers_holds_nobody_back() -> None:
    prefetch = make_prefetch(gather_ms=25)
    waiting(prefetch, part(1, 0), number=1)
    waiting(prefetch, part(1), number=2)
    assert ranges(prefetch, 100) == []
    waiting(prefetch, part(1, 128), number=1)
    assert ranges(prefetch, 120) == []

    assert ranges(prefetch, 125) == [(0, 128)]
    assert ranges(prefetch, 145) == [(0, 256)]


def test_what_of_an_object_does_not_fit_holds_back_the_rest_of_it() -> None:
    prefetch = make_prefetch(max_bytes=300)
    first = waiting(prefetch, part(1, 0))
    large = waiting(prefetch, part(3, 128))
    small = waiting(prefetch, part(1, 512))

    assert ranges(prefetch) == [(0, 128)]
    assert list(prefetch.waiting()) == [large, small]
    assert first.state is EntryState.FETCHING


def test_an_entry_can_be_begun_although_it_does_not_fit() -> None:
    prefetch = make_prefetch(max_bytes=1)
    entry = waiting(prefetch, part(1))
    assert prefetch.would_overflow(entry)
    assert prefetch.plan(0) == []

    assert len(prefetch.begin(entry)) == 1

    assert prefetch.held_bytes == 128
    assert (entry.state, entry.parts_in_flight) == (EntryState.FETCHING, 1)
    assert entry.sources == [None]


def test_what_is_withdrawn_is_not_fetched() -> None:
    prefetch = make_prefetch()
    first, second = waiting(prefetch, part(1, 0)), waiting(prefetch, part(1, 128))

    prefetch.withdraw(first)
    assert list(prefetch.waiting()) == [second]
    prefetch.withdraw(second)

    assert not prefetch.has_waiting
    assert prefetch.plan(0) == []


def test_a_partition_is_fetched_from_its_front() -> None:
    prefetch = make_prefetch()
    flow = Flow(("flights", 0), None)
    later = waiting(prefetch, part(1), number=1, flow=flow, kafka_offset=7)
    retried = waiting(prefetch, part(1), number=2, flow=flow, kafka_offset=5)

    fetched = [entry for section in prefetch.plan(0) for entry, _, _ in section.parts]

    assert fetched == [retried, later]


def test_memory_that_is_short_goes_to_the_front_of_a_partition() -> None:
    prefetch = make_prefetch(max_bytes=200)
    flow = Flow(("flights", 0), None)
    later = waiting(prefetch, part(1), number=1, flow=flow, kafka_offset=7)
    waiting(prefetch, part(1), number=2, flow=flow, kafka_offset=5)

    prefetch.plan(0)

    assert list(prefetch.waiting()) == [later]


def test_what_is_to_be_fetched_again_has_its_old_place_in_its_partition() -> None:
    prefetch = make_prefetch()
    flow = Flow(("flights", 0), None)
    waits = [
        waiting(prefetch, part(1), number=kafka_offset, flow=flow, kafka_offset=kafka_offset)
        for kafka_offset in (5, 6, 7, 9)
    ]
    prefetch.withdraw(waits[1])

    prefetch.wait(waits[1])

    assert list(flow.waiting) == waits


def test_what_was_fetched_in_vain_waits_again_and_holds_nothing() -> None:
    prefetch = make_prefetch()
    entry = waiting(prefetch, part(1))
    prefetch.plan(0)
    entry.sources = ["records"]

    prefetch.release(entry)
    prefetch.wait(entry)

    assert (entry.state, entry.sources) == (EntryState.WAITING, [])
    assert ranges(prefetch) == [(0, 128)]


def test_a_flow_that_can_not_go_on_does_not_hide_that_another_one_waits() -> None:
    prefetch = make_prefetch()
    failed = waiting(prefetch, part(1), number=1)
    seen = [prefetch.has_waiting]
    failed.state = EntryState.FAILED
    seen.append(prefetch.has_waiting)

    waiting(prefetch, part(1), number=1, partition=1)
    waiting(prefetch, part(1), number=2, flow=failed.flow, kafka_offset=1)
    seen.append(prefetch.has_waiting)

    assert seen == [True, False, True]


def test_two_of_one_partition_in_one_object_share_a_get_in_order() -> None:
    prefetch = make_prefetch()
    flow = Flow(("flights", 0), None)
    waiting(prefetch, part(1, 0), flow=flow, kafka_offset=5)
    waiting(prefetch, part(1, 128), flow=flow, kafka_offset=6)

    assert ranges(prefetch) == [(0, 256)]


def test_an_object_gathers_until_none_of_it_has_come_for_a_while() -> None:
    prefetch = make_prefetch(gather_ms=25)
    waiting(prefetch, part(1), number=1)
    assert ranges(prefetch, 100) == []
    assert ranges(prefetch, 110) == []
    waiting(prefetch, part(1, 128), number=1)
    assert ranges(prefetch, 120) == []

    assert ranges(prefetch, 144) == []
    assert ranges(prefetch, 145) == [(0, 256)]


def test_an_object_of_which_notifications_come_and_come_is_begun_all_the_same() -> None:
    prefetch = make_prefetch(gather_ms=25)
    for number in range(50):
        waiting(prefetch, part(1, number * 128), number=1)
        assert ranges(prefetch, 100 + 10 * number) == []
    waiting(prefetch, part(1, 50 * 128), number=1)

    assert ranges(prefetch, 600) == [(0, 51 * 128)]


def test_an_object_that_comes_back_gathers_anew() -> None:
    prefetch = make_prefetch(gather_ms=25)
    waiting(prefetch, part(1), number=1)
    ranges(prefetch, 100)
    assert len(ranges(prefetch, 125)) == 1
    waiting(prefetch, part(1), number=1)

    assert ranges(prefetch, 130) == []
    assert len(ranges(prefetch, 155)) == 1
    waiting(prefetch, part(1), number=1)
    assert ranges(prefetch, 5000) == []  # however long ago it was there first


def test_an_inline_notification_can_not_wait_for_a_fetch() -> None:
    inline = Notification(
        parts=(part(1),), sequence=0, producer_id=PRODUCER_ID, key=None, inline=b"x" * 128
    )
    entry = Entry(Flow(("flights", 0), None), 0, inline, 1)

    with pytest.raises(AssertionError, match="inline"):
        make_prefetch().wait(entry)


def test_a_plain_record_can_not_wait_for_a_fetch() -> None:
    entry = Entry(Flow(("flights", 0), None), 0, None, 1)

    with pytest.raises(AssertionError, match="without a notification"):
        make_prefetch().wait(entry)
