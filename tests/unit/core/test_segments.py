from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from blobmsg.core.segments import CHARGE_BYTES_PER_RECORD, SegmentState
from tests.helpers.producing import make_batcher, make_topic, sealed_segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.core.segments import SealedSegment

HEADERS: list[tuple[str, bytes | None]] = [("trace", b"1")]


def first_callback() -> None:
    """Only told apart."""


def second_callback() -> None:
    """Only told apart."""


class Opened:
    """An open segment of one partition, and what becomes of it when its lane is sealed."""

    def __init__(
        self, batch_size_bytes: int = 1000, callback: Callable[[], None] | None = None
    ) -> None:
        self._batcher = make_batcher(batch_size_bytes=batch_size_bytes)
        self.segment = self._batcher.open_segment(make_topic(self._batcher), 0, callback, 0)
        self.append = self.segment.append

    def seal(self) -> SealedSegment:
        (sealed,) = self._batcher.seal(self.segment.lane, 0, timestamp_ms=0)
        return sealed


def test_rows_become_columns() -> None:
    opened = Opened()

    opened.append(b"k", b"v", 17, None, None, 2)
    opened.append(None, b"", 18, None, None, 0)

    assert opened.segment.record_count == 2
    sealed = opened.seal()
    assert sealed.keys == [b"k", None]
    assert sealed.values == [b"v", b""]
    assert sealed.timestamps_ms == [17, 18]
    assert (sealed.headers, sealed.callbacks) == (None, None)


def test_a_record_is_charged_128_bytes_besides_its_own() -> None:
    opened = Opened()

    opened.append(b"k", b"value", 0, None, None, 6)

    assert opened.segment.charged_bytes == opened.seal().charged_bytes == 6 + 128


def test_the_charge_covers_what_cpython_takes() -> None:
    key, value, timestamp_ms = b"k" * 7, b"v" * 9, 1_795_238_369_759
    rows: list[object] = []
    before = sys.getsizeof(rows)
    for _ in range(1000):
        rows.extend((key, value, timestamp_ms))
    held = sys.getsizeof(key) + sys.getsizeof(value) + sys.getsizeof(timestamp_ms)
    slots = (sys.getsizeof(rows) - before) / 1000

    # The list's own reserve for growing, an eighth of its slots, is not counted.
    assert held + slots / 1.125 <= 7 + 9 + CHARGE_BYTES_PER_RECORD


def test_a_lane_is_full_at_its_size_with_16_bytes_for_each_record() -> None:
    opened = Opened(batch_size_bytes=100)

    assert not opened.append(None, b"v" * 40, 0, None, None, 40)
    assert not opened.append(None, b"v" * 11, 0, None, None, 11)
    assert opened.append(None, b"v", 0, None, None, 1)


def test_a_header_column_is_made_for_the_first_record_that_has_any() -> None:
    opened = Opened(callback=first_callback)

    opened.append(None, b"v", 0, None, first_callback, 1)
    opened.append(None, b"w", 1, HEADERS, first_callback, 7)
    opened.append(None, b"x", 2, None, first_callback, 1)

    assert opened.segment.record_count == 3
    sealed = opened.seal()
    assert sealed.headers == [None, HEADERS, None]
    assert sealed.values == [b"v", b"w", b"x"]
    assert sealed.timestamps_ms == [0, 1, 2]
    assert [sealed.callback_of(index) for index in range(3)] == [first_callback] * 3


def test_empty_headers_are_none() -> None:
    opened = Opened()

    opened.append(None, b"v", 0, [], None, 1)
    opened.append(None, b"v", 0, [], first_callback, 1)

    assert opened.seal().headers is None


def test_one_callback_for_all_records_is_kept_once() -> None:
    opened = Opened(callback=first_callback)

    opened.append(None, b"v", 0, None, first_callback, 1)
    opened.append(None, b"v", 0, None, first_callback, 1)

    sealed = opened.seal()
    assert sealed.callback is first_callback
    assert sealed.callbacks is None


def test_another_callback_makes_a_column_of_them() -> None:
    opened = Opened(callback=first_callback)

    opened.append(None, b"v", 0, None, first_callback, 1)
    opened.append(None, b"v", 0, None, second_callback, 1)
    opened.append(None, b"v", 0, None, None, 1)
    opened.append(None, b"v", 0, None, first_callback, 1)

    sealed = opened.seal()
    assert sealed.callbacks == [first_callback, second_callback, None, first_callback]
    assert sealed.callback is None


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
    assert segment.timestamps_ms == []


def test_a_segment_is_settled_when_its_outcome_is_known() -> None:
    segment = sealed_segment()
    settled: list[SegmentState] = []

    for state in SegmentState:
        segment.state = state
        if segment.is_settled:
            settled.append(state)

    assert settled == [SegmentState.DELIVERED, SegmentState.FAILED]
