from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from blobmsg.core.segments import SegmentState
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD
from tests.helpers.producing import make_batcher, make_topic, sealed_segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.core.segments import OpenSegment, SealedSegment
    from blobmsg.format.segment import Headers

HEADERS: list[tuple[str, bytes | None]] = [("trace", b"1")]


def first_callback() -> None:
    """Only told apart."""


def second_callback() -> None:
    """Only told apart."""


class Opened:
    """The records of one partition, and what becomes of them when their lane is sealed."""

    def __init__(self, batch_size_bytes: int = 1000) -> None:
        self._batcher = make_batcher(batch_size_bytes=batch_size_bytes)
        self._lanes = make_topic(self._batcher)
        self.segment: OpenSegment

    def open(self) -> None:
        self.segment = self._batcher.segment_for(self._lanes, 0, None, None, 0)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers | None,
        callback: Callable[..., object] | None,
        payload_bytes: int,
    ) -> bool:
        self.segment = self._batcher.segment_for(self._lanes, 0, headers, callback, 0)
        return self.segment.append(key, value, timestamp_ms, headers, callback, payload_bytes)

    def seal(self) -> list[SealedSegment]:
        return self._batcher.seal(self.segment.lane, 0, timestamp_ms=0)


def test_rows_become_columns() -> None:
    opened = Opened()

    opened.append(b"k", b"v", 17, None, None, 2)
    opened.append(None, b"", 18, None, None, 0)

    assert opened.segment.record_count == 2
    (sealed,) = opened.seal()
    assert sealed.rows.keys == [b"k", None]
    assert sealed.rows.values == [b"v", b""]
    assert sealed.rows.timestamps_ms == [17, 18]
    assert (sealed.rows.headers, sealed.callbacks) == (None, None)


def test_a_record_is_charged_128_bytes_besides_its_own() -> None:
    opened = Opened()

    opened.append(b"k", b"value", 0, None, None, 6)

    (sealed,) = opened.seal()
    assert opened.segment.charged_bytes == sealed.charged_bytes == 6 + 128


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


def test_a_record_with_headers_begins_a_wide_segment_and_the_next_joins_it() -> None:
    opened = Opened()

    opened.append(None, b"v", 0, None, None, 1)
    opened.append(None, b"w", 1, HEADERS, None, 7)
    opened.append(None, b"x", 2, None, None, 1)

    first, second = opened.seal()
    assert (first.rows.values, first.rows.headers) == ([b"v"], None)
    assert second.rows.values == [b"w", b"x"]
    assert second.rows.timestamps_ms == [1, 2]
    assert second.rows.headers == [HEADERS, None]
    assert (second.callback, second.callbacks) == (None, None)


def test_a_topic_that_once_had_headers_is_wide_from_the_next_segment_on() -> None:
    opened = Opened()
    opened.append(None, b"v", 0, None, None, 1)
    opened.append(None, b"v", 0, HEADERS, None, 7)
    opened.seal()

    opened.append(None, b"v", 0, None, None, 1)
    opened.append(None, b"v", 0, HEADERS, None, 7)

    (sealed,) = opened.seal()
    assert sealed.rows.headers == [None, HEADERS]


def test_empty_headers_are_none() -> None:
    opened = Opened()

    opened.append(None, b"v", 0, [], None, 1)
    opened.append(None, b"v", 0, HEADERS, None, 1)
    opened.append(None, b"v", 0, [], None, 1)

    narrow, wide = opened.seal()
    assert narrow.rows.headers is None
    assert wide.rows.headers == [HEADERS, None]


def test_one_callback_for_all_records_is_kept_once() -> None:
    opened = Opened()

    opened.append(None, b"v", 0, None, first_callback, 1)
    opened.append(None, b"v", 0, None, first_callback, 1)

    (sealed,) = opened.seal()
    assert sealed.callback is first_callback
    assert sealed.callbacks is None


def test_a_method_is_one_callback_although_each_look_at_it_makes_another_object() -> None:
    class Heard:
        def of(self, _error: object, _message: object) -> None:
            """Only told apart."""

    heard, other, opened = Heard(), Heard(), Opened()

    opened.append(None, b"v", 0, None, heard.of, 1)
    opened.append(None, b"v", 0, None, heard.of, 1)
    opened.append(None, b"w", 0, None, other.of, 1)

    first, second = opened.seal()
    assert (first.record_count, first.callback) == (2, heard.of)
    assert second.callback == other.of


def test_callbacks_of_their_own_make_a_column() -> None:
    opened = Opened()

    opened.append(None, b"v", 0, None, first_callback, 1)
    opened.append(None, b"v", 0, None, second_callback, 1)
    opened.append(None, b"v", 0, None, None, 1)
    opened.append(None, b"v", 0, None, first_callback, 1)

    first, second = opened.seal()
    assert (first.callback, first.record_count) == (first_callback, 1)
    assert second.callbacks == [second_callback, None, first_callback]
    assert second.callback is None


def test_each_record_of_a_wide_segment_has_a_callback_of_its_own() -> None:
    opened = Opened()

    opened.append(None, b"v", 0, HEADERS, first_callback, 7)
    opened.append(None, b"v", 0, None, second_callback, 1)

    (sealed,) = opened.seal()
    assert opened.segment.callback is not first_callback  # the step in C compares with it
    assert sealed.callbacks == [first_callback, second_callback]


def test_a_new_lane_holds_nothing_and_has_no_rate() -> None:
    opened = Opened()
    opened.open()

    lane = opened.segment.lane

    assert (lane.size_bytes, lane.rate_bytes_per_ms) == (0, 0.0)
    assert (lane.recent_bytes, lane.recent_ms) == (0.0, 0.0)


def test_a_new_segment_has_no_place_in_kafka() -> None:
    segment = sealed_segment()

    assert (segment.kafka_offset, segment.sequence) == (-1, -1)


def test_a_segment_without_records_is_dropped() -> None:
    opened = Opened()
    opened.open()

    assert opened.seal() == []


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
    segment.drop_records()

    assert segment.encoded_bytes == 3 * (5 + 16)
    assert segment.payload_bytes == 15
    assert segment.record_count == 3


def test_dropped_columns_hold_nothing() -> None:
    segment = sealed_segment(records=1, headers=[HEADERS])

    segment.drop_records()

    assert (segment.rows.keys, segment.rows.values, segment.rows.headers) == ([], [], None)
    assert segment.rows.timestamps_ms == []


def test_a_segment_is_settled_when_its_outcome_is_known() -> None:
    segment = sealed_segment()
    settled: list[SegmentState] = []

    for state in SegmentState:
        segment.state = state
        if segment.is_settled:
            settled.append(state)

    assert settled == [SegmentState.DELIVERED, SegmentState.FAILED]
