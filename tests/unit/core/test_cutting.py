"""A segment too long for a notification becomes several that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from blobmsg.core.cutting import cut_segment
from blobmsg.core.segments import SealedSegment
from blobmsg.core.step_fields import CHARGE_BYTES_PER_RECORD
from blobmsg.format.rows import NARROW, Rows
from tests.helpers.producing import encoded_of, sealed_segment

if TYPE_CHECKING:
    from blobmsg.format.segment import Headers

texts = st.none() | st.binary(max_size=300)
header_lists = st.none() | st.lists(st.tuples(st.text(max_size=9), texts), min_size=1, max_size=4)


def records_of(segments: list[SealedSegment]) -> list[object]:
    return [
        segment.rows.record(index) for segment in segments for index in range(segment.record_count)
    ]


@given(
    records=st.lists(st.tuples(texts, texts, header_lists), min_size=1, max_size=30),
    max_bytes=st.integers(1, 3000),
    is_encoded=st.booleans(),
)
def test_the_pieces_have_all_records_in_order_and_fit(
    records: list[tuple[bytes | None, bytes | None, Headers | None]],
    max_bytes: int,
    is_encoded: bool,
) -> None:
    segment = sealed_segment(
        3,
        records=len(records),
        keys=[key for key, _, _ in records],
        values=[value for _, value, _ in records],
        headers=[headers for _, _, headers in records],
        deadline_ms=77,
    )
    contents = encoded_of(segment) if is_encoded else segment.rows

    pieces = cut_segment(segment, contents, max_bytes)

    assert records_of(pieces) == records_of([segment])
    for piece in pieces:
        assert (piece.topic, piece.partition, piece.deadline_ms) == ("flights", 3, 77)
        assert encoded_of(piece).length_bytes <= max_bytes or piece.record_count == 1
        assert piece.payload_bytes == sum(
            len(key or b"") + len(value or b"") + sum(len(n) + len(v or b"") for n, v in h or ())
            for key, value, _, h in map(piece.rows.record, range(piece.record_count))
        )


def test_as_few_pieces_as_fit() -> None:
    segment = sealed_segment(records=10, value=b"v" * 100)

    assert [piece.record_count for piece in cut_segment(segment, segment.rows, 500)] == [3, 3, 3, 1]


def test_records_keep_the_callback_that_they_share() -> None:
    def heard() -> None:
        """Never called here."""

    rows = Rows(NARROW)
    for index in range(4):
        rows.extend((None, b"v" * 90, index))
    segment = SealedSegment(
        topic="flights",
        partition=0,
        rows=rows,
        callback=heard,
        charged_bytes=4 * (90 + CHARGE_BYTES_PER_RECORD),
        opened_ms=0,
        deadline_ms=None,
    )

    pieces = cut_segment(segment, rows, 300)

    assert len(pieces) > 1
    assert all(piece.callback_of(0) is heard for piece in pieces)
    assert sum(piece.charged_bytes for piece in pieces) == segment.charged_bytes


def test_each_record_keeps_a_callback_of_its_own() -> None:
    callbacks = [lambda: None, lambda: None, None, lambda: None]
    segment = sealed_segment(records=4, value=b"v" * 90, callbacks=[*callbacks])

    pieces = cut_segment(segment, segment.rows, 300)

    assert [p.callback_of(i) for p in pieces for i in range(p.record_count)] == callbacks
