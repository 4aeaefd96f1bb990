"""Columns as the calls of DataFrames take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["Columns", "all_columns", "as_column"]

#: One column, or all of them.
Columns: TypeAlias = Column | str | Sequence[Column | str]


def all_columns(given: Sequence[Columns]) -> list[Column | str]:
    """All that a call names: one by one, or as a sequence that is its only argument.

    Raises:
        TypeError: Something is neither a name nor a column.
    """
    if len(given) == 1 and isinstance(given[0], Sequence) and not isinstance(given[0], str):
        given = given[0]
    columns: list[Column | str] = []
    for one in given:
        if not isinstance(one, str | Column):
            raise TypeError(
                f"{one!r} is no column: give names or columns, or all of them as one list"
            )
        columns.append(one)
    return columns


def as_column(one: Column | str) -> Column:
    """The column that a name means."""
    return F.col(one) if isinstance(one, str) else one
