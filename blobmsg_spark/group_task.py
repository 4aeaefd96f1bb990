"""Groups of rows in a partition that is sorted by their keys; a function gets each of them.

Decides where a group ends; knows no store. Groups are those of Spark's `groupBy`: nulls are equal
to each other, so are NaNs, and so are -0.0 and 0.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blobmsg_spark.worker_process import tune_worker_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from blobmsg_spark.group_function import GroupFunction

__all__ = ["GroupTask", "group_ends"]


@dataclass(frozen=True, slots=True)
class GroupTask:
    """Called in an executor with the sorted rows of a partition.

    Args:
        keys: How many of the last columns are keys and not the user's.
        names: The user's columns.
        result_names: The columns of what comes out.
        pickled: The `GroupFunction`, as cloudpickle writes it.
    """

    keys: int
    names: tuple[str, ...]
    result_names: tuple[str, ...]
    pickled: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the function gives for each group."""
        from pyspark.serializers import CloudPickleSerializer

        tune_worker_process()
        serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
        func: GroupFunction = serializer.loads(self.pickled)
        for group in _groups(batches, self.keys):
            rows = pa.Table.from_batches(group)
            width = len(self.names)
            given = rows.select(range(width)).rename_columns(list(self.names))
            keys = rows.select(range(width, rows.num_columns))
            for found in func(keys, given):
                yield from self._in_order(found).to_batches()

    def _in_order(self, found: pa.Table) -> pa.Table:
        """The columns as the schema has them: by their names, as `applyInArrow` takes them."""
        names = list(self.result_names)
        if found.column_names == names:
            return found
        if sorted(found.column_names) != sorted(names):
            raise ValueError(
                f"the function of grouped() gave the columns {', '.join(found.column_names)}: the "
                f"schema that was named has {', '.join(names)}"
            )
        return found.select(names)


def _groups(batches: Iterable[pa.RecordBatch], keys: int) -> Iterator[list[pa.RecordBatch]]:
    """Rows with equal keys, as slices of the batches that they came in."""
    group: list[pa.RecordBatch] = []
    for rows in batches:
        if not rows.num_rows:
            continue
        if group and not _is_same_group(group[-1], rows, keys):
            yield group
            group = []
        start = 0
        for end in group_ends(rows.columns[-keys:]).tolist():
            yield [*group, rows.slice(start, end - start)]
            group, start = [], end
        group.append(rows.slice(start))
    if group:
        yield group


def _is_same_group(earlier: pa.RecordBatch, later: pa.RecordBatch, keys: int) -> bool:
    """Whether the last row of one batch and the first of the next belong together."""
    border = pa.concat_batches([earlier.slice(earlier.num_rows - 1), later.slice(0, 1)])
    return not len(group_ends(border.columns[-keys:]))


def group_ends(keys: Iterable[pa.Array]) -> npt.NDArray[np.int64]:
    """Rows at which another group begins than that of the row before.

    Args:
        keys: Columns of equal length, sorted together.
    """
    is_other: npt.NDArray[np.bool_] | None = None
    for key in keys:
        found = _differs_from_before(key)
        is_other = found if is_other is None else is_other | found
    if is_other is None:
        raise AssertionError("groups have at least one key")
    return np.flatnonzero(is_other) + 1


def _differs_from_before(key: pa.Array) -> npt.NDArray[np.bool_]:
    """For each row but the first, whether its key is another one than the row's before."""
    if pa.types.is_null(key.type):
        return np.zeros(len(key) - 1, bool)
    if pa.types.is_nested(key.type):  # Arrow does not compare those
        cells = key.to_pylist()
        return np.array([not _is_equal(*two) for two in pairwise(cells)], bool)
    earlier, later = key[:-1], key[1:]
    is_null = np.asarray(key.is_null(nan_is_null=False))
    differs = np.asarray(pc.fill_null(pc.not_equal(earlier, later), False))
    if pa.types.is_floating(key.type):
        is_nan = np.asarray(pc.fill_null(pc.is_nan(key), False))
        differs = differs & ~(is_nan[:-1] & is_nan[1:])
    result: npt.NDArray[np.bool_] = differs | (is_null[:-1] != is_null[1:])
    return result


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two cells of a nested column are equal, NaNs to each other."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return all(map(_is_equal, one.values(), other.values()))  # of one struct
    return bool(one == other)
