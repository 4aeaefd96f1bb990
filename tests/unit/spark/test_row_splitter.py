from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobmsg_spark.row_splitter import Dealer, RowSplitter, cut_rows


def _rows(texts: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch({"text": pa.array(texts, pa.string())})


@given(st.lists(st.lists(st.integers(0, 4), max_size=20), max_size=5))
def test_every_row_comes_once_in_its_partition_and_in_order(batches: list[list[int]]) -> None:
    splitter = RowSplitter(5, 1 << 30, 1 << 30)
    numbers = itertools.count()
    expected: dict[int, list[str | None]] = {}
    for ids in batches:
        texts: list[str | None] = []
        for partition in ids:
            texts.append(f"row {next(numbers)}")
            expected.setdefault(partition, []).append(texts[-1])
        splitter.add(_rows(texts), np.array(ids, dtype=np.int32))

    sealed = splitter.seal()

    assert [partition for partition, _ in sealed] == sorted(expected)
    assert {p: rows.column(0).to_pylist() for p, rows in sealed} == expected
    assert splitter.seal() == []


def test_more_partitions_than_16_bits_can_count_are_told_apart() -> None:
    splitter = RowSplitter(70_000, 1, 1 << 20)
    splitter.add(_rows(["a", "b", "c"]), np.array([69_999, 0, 69_999 - 65_536], dtype=np.int32))

    assert [(p, rows.column(0).to_pylist()) for p, rows in splitter.seal()] == [
        (0, ["b"]),
        (4463, ["c"]),
        (69_999, ["a"]),
    ]


def test_an_object_is_full_at_its_size_and_begins_anew_after_it() -> None:
    splitter = RowSplitter(2, 1000, 1 << 20)
    splitter.add(_rows(["x" * 900]), np.array([0]))
    was_full = splitter.is_full
    splitter.add(_rows(["x" * 200]), np.array([1]))

    assert not was_full
    assert splitter.is_full
    assert len(splitter.seal()) == 2
    assert not splitter.is_full


def test_batches_without_rows_change_nothing() -> None:
    splitter = RowSplitter(2, 1, 1 << 20)
    splitter.add(_rows([]), np.array([], dtype=np.int64))

    assert splitter.seal() == []


def test_a_partition_of_much_data_is_cut_into_segments_of_bounded_size() -> None:
    splitter = RowSplitter(2, 1 << 20, 4096)
    texts: list[str | None] = [f"{number}" + "x" * 500 for number in range(100)]
    splitter.add(_rows(texts), np.zeros(100, dtype=np.int32))

    sealed = splitter.seal()

    assert all(rows.nbytes <= 4096 for _, rows in sealed)
    assert [text for _, rows in sealed for text in rows.column(0).to_pylist()] == texts


def test_a_row_larger_than_a_segment_is_a_segment_of_its_own() -> None:
    rows = _rows(["a", "x" * 10_000, "b"])

    pieces = list(cut_rows(rows, 4096))

    assert [row for piece in pieces for row in piece.column(0).to_pylist()] == [
        "a",
        "x" * 10_000,
        "b",
    ]
    assert max(piece.num_rows for piece in pieces if piece.nbytes > 4096) == 1


@pytest.mark.parametrize("first", [0, 2, 7])
def test_rows_are_dealt_evenly_over_calls(first: int) -> None:
    dealer = Dealer(3, first)

    ids = np.concatenate([dealer.deal(4), dealer.deal(0), dealer.deal(5)])

    assert ids.tolist() == [(first + number) % 3 for number in range(9)]


def test_rows_beyond_what_arrow_can_join_wait_for_the_next_object() -> None:
    splitter = RowSplitter(1, 1 << 30, 1 << 20)
    large = pa.record_batch({"text": pa.array(["x" * (1 << 20)])})
    splitter.add(large, np.zeros(1, dtype=np.int32))
    many = pa.record_batch({"text": pa.array(["y" * (1 << 20)]).take(pa.array([0] * 2047))})

    assert not splitter.would_overflow(large)
    assert splitter.would_overflow(many)
    splitter.seal()
    assert not splitter.would_overflow(many)


def test_partitions_for_other_rows_are_a_defect() -> None:
    with pytest.raises(AssertionError, match="2 rows have 1 partitions"):
        RowSplitter(1, 1, 1).add(_rows(["a", "b"]), np.zeros(1, dtype=np.int32))
