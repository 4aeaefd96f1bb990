from __future__ import annotations

from typing import TYPE_CHECKING

from blobmsg.core.segments import SegmentState
from tests.helpers.producing import make_batcher, make_topic, sealed_segment

if TYPE_CHECKING:
    from blobmsg.core.segments import OpenSegment

HEADERS: list[tuple[str, bytes | None]] = [("trace", b"1")]


def first_callback() -> None:
    """Only told apart."""


def second_callback() -> None:
    """Only told apart."""


def open_segment(batch_size_bytes: int = 1000, **options: object) -> OpenSegment:
    batcher = make_batcher(batch_size_bytes=batch_size_bytes)
    callback = options.get("callback")
    assert callback is None or callable(callback)
    return batcher.open_segment(make_topic(batcher), 0, callback, 0)


def test_records_are_kept_in_columns() -> None:
    segment = open_segment()

    segment.append(b"k", b"v", 17, None, None, 2)
    segment.append(None, b"", 18, None, None, 0)

    assert segment.keys == [b"k", None]
    assert segment.values == [b"v", b""]
    assert list(segment.timestamps_ms) == [17, 18]
    assert segment.headers is None


def test_a_record_is_charged_96_bytes_besides_its_own() -> None:
    segment = open_segment()

    segment.append(b"k", b"value", 0, None, None, 6)

    assert segment.charged_bytes == 6 + 96


def test_a_lane_is_full_at_its_size_with_16_bytes_for_each_record() -> None:
    segment = open_segment(batch_size_bytes=100)

    assert not segment.append(None, b"v" * 40, 0, None, None, 40)
    assert not segment.append(None, b"v" * 11, 0, None, None, 11)
    assert segment.append(None, b"v", 0, None, None, 1)


def test_a_header_column_is_made_for_the_first_record_that_has_any() -> None:
    segment = open_segment()

    segment.append(None, b"v", 0, None, None, 1)
    segment.append(None, b"v", 0, HEADERS, None, 7)
    segment.append(None, b"v", 0, None, None, 1)

    assert segment.headers == [None, HEADERS, None]


def test_empty_headers_are_none() -> None:
    segment = open_segment()

    segment.append(None, b"v", 0, [], None, 1)

    assert segment.headers == [None]


def test_one_callback_for_all_records_is_kept_once() -> None:
    segment = open_segment(callback=first_callback)

    segment.append(None, b"v", 0, None, first_callback, 1)
    segment.append(None, b"v", 0, None, first_callback, 1)

    assert segment.callback is first_callback
    assert segment.callbacks is None


def test_another_callback_makes_a_column_of_them() -> None:
    segment = open_segment(callback=first_callback)

    segment.append(None, b"v", 0, None, first_callback, 1)
    segment.append(None, b"v", 0, None, second_callback, 1)
    segment.append(None, b"v", 0, None, None, 1)
    segment.append(None, b"v", 0, None, first_callback, 1)

    assert segment.callbacks == [first_callback, second_callback, None, first_callback]
    assert segment.callback is None


def test_a_sealed_segment_knows_who_listens_to_which_record() -> None:
    shared = sealed_segment(records=2, callback=first_callback)
    mixed = sealed_segment(records=2, callbacks=[None, second_callback])
    silent = sealed_segment(records=2)

    assert (shared.has_callbacks, mixed.has_callbacks, silent.has_callbacks) == (True, True, False)
    assert shared.callback_of(1) is first_callback
    assert mixed.callback_of(0) is None
    assert mixed.callback_of(1) is second_callback


def test_a_sealed_segment_stays_as_large_when_its_charge_has_ended() -> None:
    segment = sealed_segment(records=3, value=b"value")
    assert segment.encoded_bytes == 3 * (5 + 16)

    segment.charged_bytes = 0
    segment.drop_columns()

    assert segment.encoded_bytes == 3 * (5 + 16)
    assert segment.payload_bytes == 15
    assert segment.record_count == 3


def test_dropped_columns_hold_nothing() -> None:
    segment = sealed_segment(records=1, headers=[HEADERS])

    segment.drop_columns()

    assert (segment.keys, segment.values, segment.headers) == ([], [], None)


def test_a_segment_is_settled_when_its_outcome_is_known() -> None:
    segment = sealed_segment()
    settled: list[SegmentState] = []

    for state in SegmentState:
        segment.state = state
        if segment.is_settled:
            settled.append(state)

    assert settled == [SegmentState.DELIVERED, SegmentState.FAILED]
