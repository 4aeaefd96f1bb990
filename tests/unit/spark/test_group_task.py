from __future__ import annotations

import math
from collections.abc import Iterator  # noqa: TC003  (hints tell how a function is called)
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.serializers import CloudPickleSerializer

from blobmsg_spark.group_function import GroupFunction
from blobmsg_spark.group_task import GroupTask, group_ends

_NAN = math.nan


@pytest.mark.parametrize(
    ("key", "ends"),
    [
        (pa.array([1, 1, 2, 2, 3]), [2, 4]),
        (pa.array([None, None, -0.0, 0.0, 1.0, _NAN, _NAN]), [2, 4, 5]),
        (pa.array(["a"]), []),
        (pa.array([b"", None, b"b", b"b"]), [1, 2]),
        (pa.nulls(3), []),
        (pa.array([[1.0], [1.0], [_NAN], [_NAN], None, []]), [2, 4, 5]),
        (pa.array([{"a": 0.0, "b": [1]}, {"a": -0.0, "b": [1]}, {"a": 0.0, "b": [2]}]), [2]),
    ],
    ids=["numbers", "floats", "one", "bytes", "nulls", "lists", "structs"],
)
def test_a_group_ends_where_the_key_is_another_one(key: pa.Array, ends: list[int]) -> None:
    assert group_ends([key]).tolist() == ends


def test_any_of_several_keys_ends_a_group() -> None:
    keys = [pa.array([1, 1, 1, 2]), pa.array(["a", "b", "b", "b"])]

    assert group_ends(keys).tolist() == [1, 3]


def _task(func: Any, *result_names: str) -> GroupTask:
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    return GroupTask(1, ("value",), result_names, serializer.dumps(GroupFunction(func)))


def _one_group() -> Any:
    return iter([pa.record_batch({"c0": pa.array([5]), "k0": pa.array([1])})])


def test_columns_that_a_function_gives_are_taken_by_their_names() -> None:
    task = _task(lambda _: pa.table({"b": [2], "a": [1]}), "a", "b")

    assert [rows.to_pydict() for rows in task(_one_group())] == [{"a": [1], "b": [2]}]


@pytest.mark.parametrize("given", [{"a": [1]}, {"a": [1], "c": [2]}, {"a": [1], "b": [2], "c": []}])
def test_other_columns_than_the_schemas_are_refused(given: dict[str, list[int]]) -> None:
    def give(_: pa.Table) -> pa.Table:
        return pa.table({name: pa.array(cells or [3]) for name, cells in given.items()})

    with pytest.raises(ValueError, match="the schema that was named has a, b"):
        list(_task(give, "a", "b")(_one_group()))


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6))
def test_groups_are_whole_however_their_rows_are_batched(batches: list[list[int]]) -> None:
    keys = sorted(key for batch in batches for key in batch)
    numbers = iter(enumerate(keys))
    rows = [[next(numbers) for _ in batch] for batch in batches]
    given_batches = [
        pa.record_batch(
            {
                "c0": pa.array([number for number, _ in batch], pa.int64()),
                "k0": pa.array([key for _, key in batch], pa.int64()),
            }
        )
        for batch in rows
    ]

    def collect(table: pa.Table) -> pa.Table:
        assert table.column_names == ["value"]
        return pa.table({"values": [table.column(0).to_pylist()]})

    found = [
        row
        for out in _task(collect, "values")(iter(given_batches))
        for row in out.column(0).to_pylist()
    ]

    assert found == [
        [number for number, key in enumerate(keys) if key == wanted] for wanted in sorted(set(keys))
    ]


def _no_batches(_: Iterator[pa.RecordBatch]) -> Any:
    return [pa.record_batch({"a": [1]})]


def _tables(_: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    yield pa.table({"a": [1]})


@pytest.mark.parametrize(
    ("func", "text"),
    [
        (lambda _: None, r"gave a NoneType: it must give a pyarrow\.Table"),
        (lambda _keys, _rows: [], r"gave a list: it must give a pyarrow\.Table"),
        (_no_batches, r"gave a list: it must give an iterator of pyarrow\.RecordBatch"),
        (_tables, r"gave a Table: it must yield pyarrow\.RecordBatch"),
    ],
    ids=["nothing", "list", "no-iterator", "tables"],
)
def test_a_function_that_gives_something_else_is_told_what_it_must_give(
    func: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        list(_task(func, "a")(_one_group()))


def test_keys_are_given_to_a_function_of_two_arguments() -> None:
    task = _task(lambda keys, _: pa.table({"a": [keys[0].as_py()]}), "a")

    assert [rows.to_pydict() for rows in task(_one_group())] == [{"a": [1]}]


def test_hints_that_exist_for_type_checkers_only_are_no_error() -> None:
    def func(_: NotThere) -> AsLittle:  # type: ignore[name-defined]  # noqa: F821
        return pa.table({"a": [1]})

    assert [rows.num_rows for rows in _task(func, "a")(_one_group())] == [1]


@pytest.mark.parametrize("func", [lambda: None, lambda _a, _b, _c: None], ids=["none", "three"])
def test_other_numbers_of_arguments_are_refused(func: Any) -> None:
    with pytest.raises(TypeError, match=r"takes [03] arguments: expected the rows of a group"):
        GroupFunction(func)
